package tier

import (
	"bufio"
	"context"
	"errors"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

// ReadSegment reads the segment in an object in one round trip, to make a log of it again. begin is called with its header,
// then each with every frame, in order and checked; b is its bytes and stays as it is until each returns. An error of
// either ends it and is returned. Every byte of the segment is checked, though not those of the object behind it. The error
// is a *MissingError where there is no such object, and a *CorruptError where it is not what was stored.
func ReadSegment(ctx context.Context, store objstore.Store, place Place, o Object, begin func(segfmt.SegmentHeader) error, each func(f *segfmt.Frame, b []byte) error) (err error) {
	key := o.Key(place)
	body, err := store.Get(ctx, key, 0, o.SegmentBytes)
	if errors.Is(err, objstore.ErrNotFound) {
		return &MissingError{Key: key, Base: o.Base, Next: o.Next, Cause: err}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	in := bufio.NewReaderSize(body, stretch)
	b, err := in.Peek(segfmt.SegmentHeaderSize)
	if err != nil {
		return readFailed(key, int64(len(b)), err)
	}
	h, err := parseHeader(key, b)
	if err != nil {
		return err
	}
	if h.TopicID != place.TopicID || h.Partition != uint32(place.Partition) || h.BaseOffset != o.Base || h.BaseSeq != o.BaseSeq { //nolint:gosec // not negative
		return &CorruptError{Where: key, Offset: -1, Cause: errors.New("it holds another segment than its name and the metadata say")}
	}
	if err := begin(h); err != nil {
		return err
	}
	_, end, err := scan(ctx, key, in, o.SegmentBytes, func(_ int64, f *segfmt.Frame, b []byte) error { return each(f, b) })
	if err != nil {
		return err
	}
	if end.offset != o.Next || end.seq != o.NextSeq {
		return &CorruptError{Where: key, Position: o.SegmentBytes, Offset: end.offset, Cause: errors.New("it ends elsewhere than the metadata says")}
	}
	return nil
}
