package tier

import (
	"bytes"
	"errors"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

// TestSegmentComesBack: what is read of an object is the segment that was exported, frame for frame; whatever byte of it is
// wrong is named, and an object that is gone, or another one, too.
func TestSegmentComesBack(t *testing.T) {
	l, store := small(t), objstore.NewMem()
	o := l.export(store)[0]
	read := func() (back []byte, err error) {
		err = ReadSegment(t.Context(), store, l.place, o,
			func(h segfmt.SegmentHeader) error { back = h.Append(nil); return nil },
			func(_ *segfmt.Frame, b []byte) error { back = append(back, b...); return nil })
		return back, err
	}
	back, err := read()
	if err != nil || !bytes.Equal(back, l.segments[0]) {
		t.Fatalf("%d bytes of %d, %v", len(back), len(l.segments[0]), err)
	}
	stop := errors.New("enough")
	if err := ReadSegment(t.Context(), store, l.place, o, func(segfmt.SegmentHeader) error { return nil }, func(*segfmt.Frame, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	if err := ReadSegment(t.Context(), store, l.place, o, func(segfmt.SegmentHeader) error { return stop }, nil); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	key := o.Key(l.place)
	whole, _, err := objstore.Read(t.Context(), store, key, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	put := func(b []byte) {
		t.Helper()
		if err := store.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if _, err := store.PutIfAbsent(t.Context(), key, objstore.Bytes(b)); err != nil {
			t.Fatal(err)
		}
	}
	for at := 0; at < len(l.segments[0]); at += 1 + at/40 {
		bad := bytes.Clone(whole)
		bad[at] ^= 1 << (at % 8)
		put(bad)
		if back, err := read(); fault.KindOf(err) != fault.Corrupt {
			t.Fatalf("byte %d: %d bytes, %v", at, len(back), err)
		}
	}
	put(whole)
	if err := ReadSegment(t.Context(), store, Place{l.place.Prefix, l.place.Cluster, l.place.TopicID, 8}, o, nil, nil); fault.KindOf(err) != fault.Corrupt {
		t.Fatal(err)
	}
	if err := store.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	var missing *MissingError
	if _, err := read(); !errors.As(err, &missing) || missing.Key != key {
		t.Fatal(err)
	}
}
