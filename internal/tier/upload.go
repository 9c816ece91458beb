package tier

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

// IndexInterval is how many bytes lie between two entries of an object's index. It is the same everywhere, so that an
// object is a function of its segment alone, and wider than a log's: whoever reads an object fetches more than that at once.
const IndexInterval = 64 << 10

// readBacks is how often reading back is tried before the upload is given up.
const readBacks = 3

// Segment is a sealed segment that is to be exported, and what its log knows of it. Its bytes must not change meanwhile.
type Segment struct {
	Name   string      // of the file, for errors
	Reader io.ReaderAt // its bytes, header first
	Size   int64       // where its last frame ends

	Base, Next       int64
	BaseSeq, NextSeq uint64
	Generation       uint32 // of its last frame

	// Release, unless nil, is called once by an Exporter when it does not need the segment any more.
	Release func()
}

// Upload makes an object of a segment, stores it where there is none, and reads it back: when it returns nil, the whole
// object was read from the store and is right. It may be repeated as often as need be, also after a crash, and by several
// at once: the object's key stands for its content. An object of that key whose bytes are damaged is written again, for
// every byte that replaces it was checked. A segment that is not what its log wrote is a CorruptError, and is not exported.
func Upload(ctx context.Context, store objstore.Store, place Place, seg Segment) (Object, error) {
	return upload(ctx, store, place, seg, seg.Reader, nil)
}

// upload reads what it sends through sending, and back at the pace of soft.
func upload(ctx context.Context, store objstore.Store, place Place, seg Segment, sending io.ReaderAt, soft *pace) (Object, error) {
	f, sides, err := describe(ctx, place, seg)
	if err != nil {
		return Object{}, fmt.Errorf("export %s: %w", seg.Name, err)
	}
	footer := f.Append(nil)
	whole := crc32.Update(f.CRC, castagnoli, footer)
	g := newGuard(ctx)
	g.soft = soft
	src := objstore.NewSource(&assembled{guarded{sending, g}, seg.Size, append(sides, footer...)}, f.Size, whole)
	if err := g.end(ctx, deliver(g, store, f.Key(place), src, &f)); err != nil {
		return Object{}, fmt.Errorf("export %s: %w", seg.Name, err)
	}
	return f.Object, nil
}

// deliver puts the object and reads it back.
func deliver(g *guard, store objstore.Store, key string, src objstore.Source, f *Footer) error {
	ctx := g.ctx
	// Asked first, because most stores take all of a large object before they say that there is one.
	_, err := store.Head(ctx, key)
	if err != nil {
		_, err = store.PutIfAbsent(ctx, key, src)
	}
	if err != nil && !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrOutcomeUnknown) {
		return err
	}
	damage := readBack(g, store, key, f)
	if damage != nil && fault.KindOf(damage) != fault.Corrupt {
		return errors.Join(err, damage) // not there after all, or it cannot be told now
	}
	if damage == nil {
		return nil
	}
	there, err := store.Head(ctx, key)
	if err != nil {
		return errors.Join(damage, err)
	}
	if _, err = store.PutIfMatch(ctx, key, there.Version, src); err != nil && !errors.Is(err, objstore.ErrOutcomeUnknown) {
		return errors.Join(damage, err)
	}
	return readBack(g, store, key, f)
}

// readBack reads the whole object and compares it with what was to be stored. What damage it meets may have come on the
// way to here, and counts only when it comes again.
func readBack(g *guard, store objstore.Store, key string, want *Footer) error {
	var damage error
	err := objstore.Retry(g.ctx, readBacks, func() error {
		for range 2 {
			got, err := fetchWhole(g, store, key)
			if err == nil && *got != *want {
				err = &CorruptError{Where: key, Position: want.Size - FooterSize, Offset: -1, Cause: got.is(Place{TopicID: want.TopicID, Partition: want.Partition}, want.Object)}
			}
			if damage = err; fault.KindOf(err) != fault.Corrupt {
				break
			}
		}
		return damage
	})
	return err
}

// fetchWhole reads an object from end to end, and checks everything that its footer says of its bytes.
func fetchWhole(g *guard, store objstore.Store, key string) (f *Footer, err error) {
	body, err := store.Get(g.ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	size := body.Len
	if size < FooterSize {
		return nil, &CorruptError{Where: key, Offset: -1, Cause: segfmt.ErrShort}
	}
	// The parts' lengths are in the footer, which comes last; so the sum of the body alone tells, and is enough.
	sum := crc32.New(castagnoli)
	if _, err := io.CopyBuffer(io.MultiWriter(sum, g), io.LimitReader(body, size-FooterSize), make([]byte, min(256<<10, size))); err != nil {
		return nil, err
	}
	footer := make([]byte, FooterSize)
	if _, err := io.ReadFull(body, footer); err != nil {
		return nil, err
	}
	if _, err := body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return nil, err // the store's own checksum
	}
	got, err := ParseFooter(footer, size)
	if err != nil {
		return nil, undecodable(key, size-FooterSize, err)
	}
	if sum.Sum32() != got.CRC {
		return nil, &CorruptError{Where: key, Offset: -1, Cause: segfmt.ErrChecksum}
	}
	return &got, nil
}

// describe reads a segment, checks all of it, and returns what its object will say of it, and its indexes.
func describe(ctx context.Context, place Place, seg Segment) (f Footer, sides []byte, err error) {
	sum := crc32.New(castagnoli)
	x := segfmt.NewIndexBuilder(IndexInterval)
	in := io.TeeReader(io.NewSectionReader(seg.Reader, 0, seg.Size), sum)
	h, end, err := scan(ctx, seg.Name, in, seg.Size, func(position int64, f *segfmt.Frame, _ []byte) error { x.Note(position, f); return nil })
	if err != nil {
		return Footer{}, nil, err
	}
	start := chain{seg.BaseSeq, seg.Base, h.PrevGeneration}
	switch {
	case h.TopicID != place.TopicID || h.Partition != uint32(place.Partition):
		err = fmt.Errorf("it is of partition %d of topic %x", h.Partition, h.TopicID)
	case start != chain{h.BaseSeq, h.BaseOffset, h.PrevGeneration}:
		err = fmt.Errorf("it begins with frame %d and offset %d, its log says %d and %d", h.BaseSeq, h.BaseOffset, seg.BaseSeq, seg.Base)
	case end != chain{seg.NextSeq, seg.Next, seg.Generation}:
		err = fmt.Errorf("it ends before frame %d and offset %d in generation %d, its log says %d, %d and %d", end.seq, end.offset, end.generation, seg.NextSeq, seg.Next, seg.Generation)
	}
	if err != nil {
		return Footer{}, nil, &CorruptError{Where: seg.Name, Position: seg.Size, Offset: end.offset, Cause: err}
	}
	index, times := x.Files(h, end.offset)
	sides = append(index, times...)
	f = Footer{
		Object: Object{
			Base: h.BaseOffset, Next: end.offset, BaseSeq: h.BaseSeq, NextSeq: end.seq, Generation: end.generation, MaxTime: x.MaxTime,
			SegmentBytes: seg.Size, IndexBytes: int64(len(index)), TimesBytes: int64(len(times)),
			Size: seg.Size + int64(len(sides)) + FooterSize, CRC: crc32.Update(sum.Sum32(), castagnoli, sides),
		},
		TopicID: place.TopicID, Partition: place.Partition, PrevGeneration: h.PrevGeneration,
		SegmentCRC: sum.Sum32(), SidesCRC: checksum(sides),
	}
	return f, sides, f.Validate()
}

// assembled is an object before it is stored: a segment file with a tail behind it.
type assembled struct {
	segment io.ReaderAt
	size    int64
	tail    []byte
}

// ReadAt implements io.ReaderAt.
func (a *assembled) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	if off < a.size {
		var err error
		n, err = a.segment.ReadAt(p[:min(int64(len(p)), a.size-off)], off)
		if err != nil && !(errors.Is(err, io.EOF) && off+int64(n) == a.size) {
			return n, err
		}
		if off+int64(n) < a.size {
			return n, nil
		}
	}
	if n == len(p) {
		return n, nil
	}
	at := off + int64(n) - a.size
	if at >= int64(len(a.tail)) {
		return n, io.EOF
	}
	n += copy(p[n:], a.tail[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
