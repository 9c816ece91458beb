package writebuf_test

import (
	"errors"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/internal/writebuf/writebuftest"
)

// TestMissing: every way in which entries can be gone is told, and nothing behind a hole is returned before it.
func TestMissing(t *testing.T) {
	for name, c := range map[string]struct {
		lost []uint64
		from uint64
		want uint64 // how far the first read comes
		hole writebuf.Range
	}{
		"the first":   {[]uint64{1}, 1, 0, writebuf.Range{First: 1, Last: 1}},
		"in between":  {[]uint64{4, 5}, 1, 3, writebuf.Range{First: 4, Last: 5}},
		"the last":    {[]uint64{9, 10}, 1, 8, writebuf.Range{First: 9, Last: 10}},
		"all of them": {[]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 3, 2, writebuf.Range{First: 3, Last: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			m, id := writebuf.NewMem(), writebuftest.ID()
			b := m.Buffer(id)
			writebuftest.Want(t, "append", b.Append(t.Context(), writebuftest.Batch(1, 1, 1, 10)), nil)
			m.Lose(id, c.lost...)
			if s, err := b.Bounds(t.Context()); err != nil || s.Whole() {
				t.Errorf("bounds: %+v, %v: whole", s, err)
			}
			got, err := b.Read(t.Context(), c.from, writebuf.Limit{})
			if next := c.from + uint64(len(got)); next != c.want+1 {
				t.Fatalf("read up to %d, want %d (%v)", next, c.want+1, err)
			}
			if err == nil {
				_, err = b.Read(t.Context(), c.want+1, writebuf.Limit{})
			}
			var missing *writebuf.MissingError
			if !errors.As(err, &missing) || missing.Missing[0] != c.hole || fault.KindOf(err) != fault.Corrupt {
				t.Errorf("%v, want %v missing", err, c.hole)
			}
			err = b.Append(t.Context(), writebuftest.Batch(1, 1, 11, 12))
			var lost *writebuf.LostError
			if !errors.As(err, &lost) || !lost.Reset || lost.Next != 1 {
				t.Errorf("append: %v, want lost, reset", err)
			}
		})
	}
}

// TestMemForgets: a buffer in memory that lost everything does not say that there never was anything.
func TestMemForgets(t *testing.T) {
	m, id := writebuf.NewMem(), writebuftest.ID()
	b := m.Buffer(id)
	writebuftest.Want(t, "append", b.Append(t.Context(), writebuftest.Batch(2, 1, 1, 10)), nil)
	m.Lose(id)
	_, err := b.Read(t.Context(), 1, writebuf.Limit{})
	writebuftest.Want(t, "read", err, writebuf.ErrForgotten)
	_, err = b.Bounds(t.Context())
	writebuftest.Want(t, "bounds", err, writebuf.ErrForgotten)
	if s, err := m.Buffer(id).Bounds(t.Context()); err != nil || s.Known {
		t.Errorf("bounds, asked by who wrote nothing: %+v, %v", s, err)
	}
	before, err := b.Fence(t.Context(), 2)
	writebuftest.Want(t, "fence", err, nil)
	if before.Known || before.Last != 0 {
		t.Errorf("fence: %+v, want that nothing was known", before)
	}
	if s, err := b.Bounds(t.Context()); err != nil || !s.Known {
		t.Errorf("bounds after the fence: %+v, %v", s, err)
	}
}

// TestMemFails: the fault hook's two ways.
func TestMemFails(t *testing.T) {
	m, made := writebuf.NewMem(), false
	b := m.Buffer(writebuftest.ID())
	m.Fail = func(string, writebuf.ID) (bool, error) { return made, writebuf.ErrOutcomeUnknown }
	writebuftest.Want(t, "not made", b.Append(t.Context(), writebuftest.Batch(1, 1, 1, 2)), writebuf.ErrOutcomeUnknown)
	made = true
	writebuftest.Want(t, "made", b.Append(t.Context(), writebuftest.Batch(1, 1, 1, 5)), writebuf.ErrOutcomeUnknown)
	m.Fail = nil
	writebuftest.Holds(t, b, 1, 5)
	m.Lose(writebuf.ID{})
}
