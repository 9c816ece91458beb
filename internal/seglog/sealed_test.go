package seglog

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// Sealed segments follow each other without a gap, and their files hold what was appended.
func TestSealedSegments(t *testing.T) {
	fs := vfs.NewMem()
	l := mustOpen(t, testConfig(fs))
	defer func() { mustClose(t, l) }()
	if _, ok := l.SealedAt(0); ok {
		t.Fatal("an empty log has a sealed segment")
	}
	for i := range 200 {
		mustAppend(t, l, batch(t, noProducer, fmt.Sprintf("%0100d", i)))
	}
	active := l.view.Load().segs[len(l.view.Load().segs)-1].BaseOffset
	offset, seq, n := int64(0), uint64(1), 0
	for {
		s, ok := l.SealedAt(offset)
		if !ok {
			break
		}
		n++
		if again, _ := l.SealedAt(s.Next - 1); again != s || s.Base != offset || s.BaseSeq != seq || s.Next <= s.Base || s.NextSeq <= s.BaseSeq || s.Generation != 1 || s.MaxTime != 1000 {
			t.Fatalf("at %d: %+v", offset, s)
		}
		f, err := l.OpenSealed(s)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, s.Size)
		if n, err := f.ReadAt(b, 0); err != nil || int64(n) != s.Size {
			t.Fatalf("%d of %d bytes: %v", n, s.Size, err)
		}
		h, err := segfmt.ParseSegmentHeader(b)
		if err != nil || h.BaseOffset != s.Base || f.Path() == "" {
			t.Fatalf("%+v, %v", h, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		offset, seq = s.Next, s.NextSeq
	}
	if n < 3 || offset != active {
		t.Errorf("%d sealed segments end at %d, and the active one begins at %d", n, offset, active)
	}
}

// Whatever the retention says, what has no copy elsewhere stays; what a reader of a sealed file holds stays readable.
func TestRetentionWaitsForCopies(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	copied := int64(0)
	cfg.Copied = func() int64 { return copied }
	cfg.Retention = Retention{Bytes: 1}
	l := mustOpen(t, cfg)
	defer func() { mustClose(t, l) }()
	for i := range 200 {
		mustAppend(t, l, batch(t, noProducer, fmt.Sprintf("%0100d", i)))
	}
	first, _ := l.SealedAt(0)
	second, _ := l.SealedAt(first.Next)
	held, err := l.OpenSealed(first)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	for _, c := range []struct{ copied, oldest int64 }{{0, 0}, {first.Next - 1, 0}, {first.Next, first.Next}, {second.Next - 1, first.Next}, {1 << 40, -1}} {
		copied = c.copied
		if _, err := l.Retain(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := l.Bounds()
		if c.oldest >= 0 && b.First != c.oldest || c.oldest < 0 && b.Segments != 1 {
			t.Errorf("copied below %d: the oldest is %d, of %d segments", c.copied, b.First, b.Segments)
		}
	}
	if _, err := held.ReadAt(make([]byte, first.Size), 0); err != nil {
		t.Errorf("a file that is held: %v", err)
	}
	var trimmed *TrimmedError
	if _, err := l.OpenSealed(first); !errors.As(err, &trimmed) || trimmed.Oldest <= first.Base {
		t.Errorf("a file that is gone: %v", err)
	}
}

func TestSealOlder(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	now := time.UnixMilli(1_000_000)
	cfg.Now = func() time.Time { return now }
	l := mustOpen(t, cfg)
	defer func() { mustClose(t, l) }()
	want := func(want bool) {
		t.Helper()
		if got, err := l.SealOlder(t.Context(), time.Minute); err != nil || got != want {
			t.Fatalf("sealed: %t, %v", got, err)
		}
	}
	want(false) // there is nothing
	if err := l.StartGeneration(t.Context(), 2, nil); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	want(false) // there are no records
	mustAppend(t, l, batch(t, noProducer, "a"))
	want(true)
	want(false)
	mustAppend(t, l, batch(t, noProducer, "b"))
	now = now.Add(59 * time.Second)
	want(false)
	now = now.Add(time.Second)
	want(true)
	now = now.Add(time.Hour)
	want(false)
	for _, offset := range []int64{0, 1} {
		if s, ok := l.SealedAt(offset); !ok || s.Base != offset || s.Next != offset+1 || s.Generation != 2 {
			t.Errorf("at %d: %+v, %t", offset, s, ok)
		}
	}
	mustAppend(t, l, batch(t, noProducer, "c"))
	now = now.Add(time.Second)
	all, age := l.Above(0)
	last, since := l.Above(2)
	if all <= last || last == 0 || age != 2*time.Hour+time.Minute+time.Second || since != time.Hour+time.Second {
		t.Errorf("%d bytes of %s above 0, %d of %s above 2", all, age, last, since)
	}
	if bytes, age := l.Above(3); bytes != 0 || age != 0 {
		t.Errorf("%d bytes of %s above the end", bytes, age)
	}
	if got := readAll(t, l, 0); len(got) != 3 {
		t.Errorf("%d records", len(got))
	}
}

// TestFramesBeforeALargeRecord: a segment that holds a generation's first frame and no record is not sealed because the first
// record does not fit: no copy would have that frame, as copies are found by offset.
func TestFramesBeforeALargeRecord(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	large := batch(t, noProducer, strings.Repeat("x", int(cfg.SegmentBytes)))
	l := mustOpen(t, cfg)
	defer func() { mustClose(t, l) }()
	if err := l.StartGeneration(t.Context(), 2, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		mustAppend(t, l, large)
	}
	if s, ok := l.SealedAt(0); !ok || s.Base != 0 || s.BaseSeq != 1 || s.Next != 1 || s.NextSeq != l.Bounds().NextSeq-1 {
		t.Fatalf("%+v, %v", s, ok)
	}
}

// TestFramesBehindALargeRecord: a generation that begins in a segment with no room left begins there in a log that is made again
// of its frames, too. On its own that frame would be in the next copy a second time.
func TestFramesBehindALargeRecord(t *testing.T) {
	cfg := testConfig(vfs.NewMem())
	l := mustOpen(t, cfg)
	defer func() { mustClose(t, l) }()
	mustAppend(t, l, batch(t, noProducer, strings.Repeat("x", int(cfg.SegmentBytes))))
	if err := l.StartGeneration(t.Context(), 2, nil); err != nil {
		t.Fatal(err)
	}
	if sealed, err := l.SealOlder(t.Context(), 0); err != nil || !sealed {
		t.Fatal(sealed, err)
	}
	was, _ := l.SealedAt(0)
	entries, err := l.ReadEntries(1, 1<<20)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%d frames, %v", len(entries), err)
	}
	for name, at := range map[string][][]Entry{"together": {entries}, "one by one": {entries[:1], entries[1:]}} {
		t.Run(name, func(t *testing.T) {
			again := mustOpen(t, testConfig(vfs.NewMem()))
			defer func() { mustClose(t, again) }()
			for _, some := range at {
				if err := again.AppendEntries(t.Context(), some); err != nil {
					t.Fatal(err)
				}
			}
			if sealed, err := again.SealOlder(t.Context(), math.MinInt64); err != nil || !sealed {
				t.Fatal(sealed, err)
			}
			if s, ok := again.SealedAt(0); !ok || s.BaseSeq != was.BaseSeq || s.NextSeq != was.NextSeq || s.Next != was.Next {
				t.Errorf("made again, it holds frames %d to %d, and did hold %d to %d", s.BaseSeq, s.NextSeq-1, was.BaseSeq, was.NextSeq-1)
			}
		})
	}
}
