// Package writebuftest owns the conformance suite of the write buffer's port: what every implementation must do, run
// against the one in memory and the real ones. It never looks behind the port. Invariant: a test here holds for all of
// them; what only a real server can do is tested beside its adapter.
package writebuftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/writebuf"
)

// ID returns a partition that no other call of the test run has.
func ID() writebuf.ID {
	var id writebuf.ID
	for i := range id.Topic {
		id.Topic[i] = byte(rand.Uint32())
	}
	id.Partition = rand.Uint32N(100)
	return id
}

// Frames returns entries [first, last] of a partition; the same for the same tag.
func Frames(first, last uint64, size int, tag string) []writebuf.Entry {
	var out []writebuf.Entry
	for seq := first; seq <= last; seq++ {
		f := bytes.Repeat([]byte{0, '\r', '\n', byte(seq), 0xff}, size/5+1)
		out = append(out, writebuf.Entry{Seq: seq, Frame: append([]byte(fmt.Sprintf("%s-%d-", tag, seq)), f...)[:max(size, 1)]})
	}
	return out
}

// Batch returns what appends [first, last].
func Batch(generation uint32, floor, first, last uint64) writebuf.Batch {
	return writebuf.Batch{Generation: generation, Floor: floor, Entries: Frames(first, last, 50, "f")}
}

// Want fails unless err is want.
func Want(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || (want != nil && fault.KindOf(err) == fault.Internal) {
		t.Errorf("%s: %v (kind %v), want %v", what, err, fault.KindOf(err), want)
	}
}

// Holds fails unless a read from the floor on returns exactly [first, last] as Batch makes them.
func Holds(t *testing.T, b writebuf.Buffer, first, last uint64) {
	t.Helper()
	var got []writebuf.Entry
	for from := first; ; {
		page, err := b.Read(t.Context(), from, writebuf.Limit{Entries: 7})
		if err != nil {
			t.Fatalf("read from %d: %v", from, err)
		}
		if len(page) == 0 {
			break
		}
		got = append(got, page...)
		from = page[len(page)-1].Seq + 1
	}
	if want := Frames(first, last, 50, "f"); !same(got, want) {
		t.Fatalf("read %d entries, %v…; want [%d, %d]", len(got), seqs(got), first, last)
	}
}

func same(a, b []writebuf.Entry) bool {
	return slices.EqualFunc(a, b, func(x, y writebuf.Entry) bool { return x.Seq == y.Seq && bytes.Equal(x.Frame, y.Frame) })
}

func seqs(es []writebuf.Entry) (out []uint64) {
	for _, e := range es {
		out = append(out, e.Seq)
	}
	return out
}

// Run runs the suite against a store.
func Run(t *testing.T, open func(t *testing.T) writebuf.Store) {
	for name, test := range map[string]func(*testing.T, writebuf.Buffer){
		"Append": appends, "Again": again, "Conflict": conflict, "Gap": gap, "Fence": fence, "Read": read, "Trim": trim,
		"Reset": reset, "Delete": deleted, "Obsolete": obsolete, "Invalid": invalid, "Canceled": canceled, "Model": model, "Submit": submits,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			test(t, s.Buffer(ID()))
		})
	}
	t.Run("Many", func(t *testing.T) { many(t, open(t)) })
	t.Run("Closed", func(t *testing.T) {
		s := open(t)
		b := s.Buffer(ID())
		Want(t, "append", b.Append(t.Context(), Batch(1, 1, 1, 3)), nil)
		Want(t, "close", s.Close(), nil)
		refused := make(chan error, 1)
		b.Submit(t.Context(), Batch(1, 1, 4, 5), func(err error) { refused <- err })
		Want(t, "submit to a closed store", <-refused, writebuf.ErrClosed)
		Want(t, "append to a closed store", b.Append(t.Context(), Batch(1, 1, 4, 5)), writebuf.ErrClosed)
		_, err := b.Read(t.Context(), 1, writebuf.Limit{})
		Want(t, "read a closed store", err, writebuf.ErrClosed)
		Want(t, "close again", s.Close(), nil)
	})
}

func state(t *testing.T, b writebuf.Buffer, want writebuf.State) {
	t.Helper()
	got, err := b.Bounds(t.Context())
	if err != nil || got != want || !got.Whole() {
		t.Errorf("bounds: %+v, %v; want %+v", got, err, want)
	}
}

func appends(t *testing.T, b writebuf.Buffer) {
	state(t, b, writebuf.State{})
	Want(t, "first", b.Append(t.Context(), Batch(3, 1, 1, 1)), nil)
	Want(t, "more", b.Append(t.Context(), Batch(3, 1, 2, 300)), nil)
	state(t, b, writebuf.State{Known: true, Generation: 3, Floor: 1, Last: 300, First: 1, End: 300, Count: 300})
	Holds(t, b, 1, 300)
	big := writebuf.Batch{Generation: 3, Floor: 1, Entries: Frames(301, 303, 1<<20, "big")}
	Want(t, "big frames", b.Append(t.Context(), big), nil)
	got, err := b.Read(t.Context(), 301, writebuf.Limit{Bytes: 1 << 30})
	if err != nil || !same(got, big.Entries) {
		t.Errorf("big frames came back as %v, %v", seqs(got), err)
	}
}

func again(t *testing.T, b writebuf.Buffer) {
	Want(t, "append", b.Append(t.Context(), Batch(1, 1, 1, 10)), nil)
	Want(t, "the same", b.Append(t.Context(), Batch(1, 1, 1, 10)), nil)
	Want(t, "a part", b.Append(t.Context(), Batch(1, 1, 4, 6)), nil)
	Want(t, "some more", b.Append(t.Context(), Batch(1, 1, 8, 15)), nil)
	Holds(t, b, 1, 15)
	Want(t, "trim", b.Trim(t.Context(), 1, 12), nil)
	Want(t, "trimmed ones", b.Append(t.Context(), Batch(1, 1, 3, 5)), nil)
	Want(t, "trimmed ones, old and new", b.Append(t.Context(), Batch(1, 5, 10, 17)), nil)
	Holds(t, b, 12, 17)
}

func conflict(t *testing.T, b writebuf.Buffer) {
	Want(t, "append", b.Append(t.Context(), Batch(1, 1, 1, 10)), nil)
	other := writebuf.Batch{Generation: 1, Floor: 1, Entries: append(Frames(8, 9, 50, "f"), Frames(10, 12, 50, "g")...)}
	Want(t, "another frame", b.Append(t.Context(), other), writebuf.ErrCorrupt)
	short := Batch(1, 1, 10, 10)
	short.Entries[0].Frame = short.Entries[0].Frame[:20]
	Want(t, "a shorter frame", b.Append(t.Context(), short), writebuf.ErrCorrupt)
	Holds(t, b, 1, 10)
}

func wantLost(t *testing.T, err error, next uint64, reset bool) {
	t.Helper()
	var lost *writebuf.LostError
	if !errors.As(err, &lost) || lost.Next != next || lost.Reset != reset || !errors.Is(err, writebuf.ErrLost) {
		t.Errorf("%v, want lost, next %d, reset %v", err, next, reset)
	}
}

func gap(t *testing.T, b writebuf.Buffer) {
	wantLost(t, b.Append(t.Context(), Batch(1, 5, 6, 7)), 5, false)
	Want(t, "append", b.Append(t.Context(), Batch(1, 5, 5, 10)), nil)
	wantLost(t, b.Append(t.Context(), Batch(1, 5, 12, 13)), 11, false)
	Holds(t, b, 5, 10)
	Want(t, "without the gap", b.Append(t.Context(), Batch(1, 5, 11, 13)), nil)
	Holds(t, b, 5, 13)
	wantLost(t, b.Append(t.Context(), Batch(1, 3, 15, 15)), 14, false)
}

func fence(t *testing.T, b writebuf.Buffer) {
	before, err := b.Fence(t.Context(), 2)
	if err != nil || before != (writebuf.State{}) {
		t.Errorf("fence: %+v, %v", before, err)
	}
	Want(t, "append", b.Append(t.Context(), Batch(2, 1, 1, 5)), nil)
	before, err = b.Fence(t.Context(), 7)
	if want := (writebuf.State{Known: true, Generation: 2, Floor: 1, Last: 5, First: 1, End: 5, Count: 5}); err != nil || before != want {
		t.Errorf("fence: %+v, %v; want %+v", before, err, want)
	}
	_, err = b.Fence(t.Context(), 6)
	Want(t, "fence lower", err, writebuf.ErrFenced)
	Want(t, "append by the old owner", b.Append(t.Context(), Batch(2, 1, 6, 6)), writebuf.ErrFenced)
	Want(t, "the same append by the old owner", b.Append(t.Context(), Batch(2, 1, 1, 5)), writebuf.ErrFenced)
	Want(t, "trim by the old owner", b.Trim(t.Context(), 6, 3), writebuf.ErrFenced)
	Want(t, "reset by the old owner", b.Reset(t.Context(), 6), writebuf.ErrFenced)
	Want(t, "delete by the old owner", b.Delete(t.Context(), 6), writebuf.ErrFenced)
	Holds(t, b, 1, 5)
	_, err = b.Fence(t.Context(), 7)
	Want(t, "fence again", err, nil)
	Want(t, "append by the new owner", b.Append(t.Context(), Batch(7, 1, 6, 9)), nil)
	Want(t, "append by one that fenced not", b.Append(t.Context(), Batch(8, 1, 10, 10)), nil)
	Want(t, "append by the one before", b.Append(t.Context(), Batch(7, 1, 11, 11)), writebuf.ErrFenced)
	Holds(t, b, 1, 10)
}

func read(t *testing.T, b writebuf.Buffer) {
	got, err := b.Read(t.Context(), 1, writebuf.Limit{})
	if err != nil || len(got) != 0 {
		t.Errorf("read nothing: %v, %v", got, err)
	}
	Want(t, "append", b.Append(t.Context(), writebuf.Batch{Generation: 1, Floor: 1, Entries: Frames(1, 200, 1000, "f")}), nil)
	for _, c := range []struct {
		from  uint64
		limit writebuf.Limit
		want  int
	}{
		{1, writebuf.Limit{}, 200}, {1, writebuf.Limit{Entries: 1}, 1}, {1, writebuf.Limit{Bytes: 1}, 1}, {150, writebuf.Limit{}, 51},
		{200, writebuf.Limit{}, 1}, {201, writebuf.Limit{}, 0}, {500, writebuf.Limit{}, 0}, {10, writebuf.Limit{Entries: 100}, 100},
	} {
		got, err := b.Read(t.Context(), c.from, c.limit)
		if err != nil || len(got) != c.want || (c.want > 0 && got[0].Seq != c.from) {
			t.Errorf("read from %d with %+v: %d entries, %v; want %d", c.from, c.limit, len(got), err, c.want)
		}
	}
	got, err = b.Read(t.Context(), 3, writebuf.Limit{Bytes: 20_500})
	if err != nil || len(got) < 15 || len(got) > 20 {
		t.Errorf("read 20,500 bytes: %d entries of 1,000, %v", len(got), err)
	}
}

func trim(t *testing.T, b writebuf.Buffer) {
	Want(t, "trim nothing", b.Trim(t.Context(), 1, 100), nil)
	Want(t, "append", b.Append(t.Context(), Batch(1, 1, 1, 350)), nil)
	Want(t, "trim", b.Trim(t.Context(), 1, 333), nil)
	state(t, b, writebuf.State{Known: true, Generation: 1, Floor: 333, Last: 350, First: 333, End: 350, Count: 18})
	Want(t, "trim less", b.Trim(t.Context(), 1, 100), nil)
	Holds(t, b, 333, 350)
	_, err := b.Read(t.Context(), 332, writebuf.Limit{})
	var trimmed *writebuf.TrimmedError
	if !errors.As(err, &trimmed) || trimmed.Oldest != 333 || !errors.Is(err, writebuf.ErrTrimmed) {
		t.Errorf("read what was trimmed: %v", err)
	}
	Want(t, "append with a floor that has moved", b.Append(t.Context(), Batch(1, 1, 351, 352)), nil)
	Want(t, "trim all, and beyond", b.Trim(t.Context(), 1, 1000), nil)
	state(t, b, writebuf.State{Known: true, Generation: 1, Floor: 353, Last: 352})
	Want(t, "append", b.Append(t.Context(), Batch(1, 353, 353, 360)), nil)
	Holds(t, b, 353, 360)
}

func reset(t *testing.T, b writebuf.Buffer) {
	Want(t, "append", b.Append(t.Context(), Batch(4, 1, 1, 50)), nil)
	Want(t, "reset", b.Reset(t.Context(), 4), nil)
	state(t, b, writebuf.State{Known: true, Generation: 4})
	Want(t, "append from a lower floor than the end", b.Append(t.Context(), Batch(4, 20, 20, 60)), nil)
	Holds(t, b, 20, 60)
	Want(t, "append by an old owner", b.Append(t.Context(), Batch(3, 20, 61, 61)), writebuf.ErrFenced)
}

func deleted(t *testing.T, b writebuf.Buffer) {
	Want(t, "append", b.Append(t.Context(), Batch(4, 1, 1, 50)), nil)
	Want(t, "delete", b.Delete(t.Context(), 4), nil)
	Want(t, "append late", b.Append(t.Context(), Batch(4, 1, 51, 52)), writebuf.ErrFenced)
	Want(t, "delete again", b.Delete(t.Context(), 4), nil)
	Want(t, "append later", b.Append(t.Context(), Batch(4, 1, 51, 52)), writebuf.ErrFenced)
	Want(t, "append from the start", b.Append(t.Context(), Batch(1<<32-1, 1, 1, 2)), writebuf.ErrFenced)
	got, err := b.Read(t.Context(), 1, writebuf.Limit{})
	if err != nil || len(got) != 0 {
		t.Errorf("read what was deleted: %v, %v", got, err)
	}
}

// obsolete: everything below the floor is in object storage, while the buffer was away.
func obsolete(t *testing.T, b writebuf.Buffer) {
	Want(t, "append", b.Append(t.Context(), Batch(1, 1, 1, 50)), nil)
	wantLost(t, b.Append(t.Context(), Batch(1, 100, 101, 110)), 100, false)
	Want(t, "append at the floor", b.Append(t.Context(), Batch(1, 100, 90, 110)), nil)
	Holds(t, b, 100, 110)
	state(t, b, writebuf.State{Known: true, Generation: 1, Floor: 100, Last: 110, First: 100, End: 110, Count: 11})
}

func invalid(t *testing.T, b writebuf.Buffer) {
	good := Batch(1, 1, 1, 2)
	for what, batch := range map[string]writebuf.Batch{
		"no entries": {Generation: 1, Floor: 1}, "generation 0": {Floor: 1, Entries: good.Entries}, "floor 0": {Generation: 1, Entries: good.Entries},
		"a gap":          {Generation: 1, Floor: 1, Entries: append(Frames(1, 1, 5, "f"), Frames(3, 3, 5, "f")...)},
		"seq 0":          {Generation: 1, Floor: 1, Entries: Frames(0, 1, 5, "f")},
		"an empty frame": {Generation: 1, Floor: 1, Entries: []writebuf.Entry{{Seq: 1}}},
		"seq too high":   {Generation: 1, Floor: 1, Entries: Frames(writebuf.MaxSeq+1, writebuf.MaxSeq+1, 5, "f")},
	} {
		Want(t, what, b.Append(t.Context(), batch), writebuf.ErrInvalid)
	}
	_, err := b.Read(t.Context(), 0, writebuf.Limit{})
	Want(t, "read from 0", err, writebuf.ErrInvalid)
	_, err = b.Fence(t.Context(), 0)
	Want(t, "fence 0", err, writebuf.ErrInvalid)
	state(t, b, writebuf.State{})
	top := uint64(writebuf.MaxSeq)
	Want(t, "the highest seqs", b.Append(t.Context(), Batch(1<<32-1, top-3, top-3, top)), nil)
	Holds(t, b, top-3, top)
}

func canceled(t *testing.T, b writebuf.Buffer) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Append(ctx, Batch(1, 1, 1, 2)); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("append: %v", err)
	} else if err != nil {
		state(t, b, writebuf.State{})
	}
	if _, err := b.Read(ctx, 1, writebuf.Limit{}); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
}

// submits: many batches on their way, in order; and what becomes of those behind one that fails.
func submits(t *testing.T, b writebuf.Buffer) {
	const batches = 300
	errs := make(chan error, batches)
	for i := range uint64(batches) {
		b.Submit(t.Context(), Batch(1, 1, i*3+1, i*3+3), func(err error) { errs <- err })
	}
	for range batches {
		Want(t, "submit", <-errs, nil)
	}
	Holds(t, b, 1, batches*3)
	b.Submit(t.Context(), writebuf.Batch{}, func(err error) { errs <- err })
	Want(t, "submit nothing", <-errs, writebuf.ErrInvalid)
	for _, first := range []uint64{batches*3 + 2, batches*3 + 3} {
		b.Submit(t.Context(), Batch(1, 1, first, first), func(err error) { errs <- err })
	}
	Want(t, "submit beyond a gap", <-errs, writebuf.ErrLost)
	Want(t, "submit behind that", <-errs, writebuf.ErrLost)
	Holds(t, b, 1, batches*3)
}

// many: partitions at once, several appends of each on their way.
func many(t *testing.T, s writebuf.Store) {
	const parts, rounds = 40, 30
	all := task.NewGroup(t.Context())
	buffers := make([]writebuf.Buffer, parts)
	for i := range buffers {
		b := s.Buffer(ID())
		buffers[i] = b
		all.Go("appender", func(ctx context.Context) error {
			for i := range uint64(rounds) {
				if err := b.Append(ctx, Batch(1, 1, i*5+1, i*5+5)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	Want(t, "append", all.Wait(), nil)
	for _, b := range buffers {
		Holds(t, b, 1, rounds*5)
	}
}

// model: random calls, against what they ought to leave.
func model(t *testing.T, b writebuf.Buffer) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	floor, last, gen := uint64(1), uint64(0), uint32(1)
	for i := range 400 {
		switch rnd.IntN(10) {
		case 0:
			if last >= floor {
				floor += rnd.Uint64N(last - floor + 2)
				Want(t, "trim", b.Trim(t.Context(), gen, floor), nil)
			}
		case 1:
			gen += rnd.Uint32N(3)
			before, err := b.Fence(t.Context(), gen)
			if err != nil || !before.Whole() || before.Last > 0 && before.Last != last {
				t.Fatalf("fence: %+v, %v; want last %d", before, err, last)
			}
		case 2:
			if gen > 1 {
				Want(t, "stale", b.Append(t.Context(), Batch(gen-1, floor, last+1, last+3)), writebuf.ErrFenced)
			}
			gen = max(gen, 1)
		case 3:
			Want(t, "gap", b.Append(t.Context(), Batch(gen, floor, last+2, last+3)), writebuf.ErrLost)
		default:
			first := last + 1 - rnd.Uint64N(min(last, 5)+1)
			end := last + rnd.Uint64N(8)
			if end < first {
				continue
			}
			if err := b.Append(t.Context(), Batch(gen, floor, first, end)); err != nil {
				t.Fatalf("step %d: append [%d, %d] at floor %d, last %d: %v", i, first, end, floor, last, err)
			}
			last = max(last, end)
		}
	}
	if last >= floor {
		Holds(t, b, floor, last)
	}
}

// Forgets is for servers that can be made to forget all they have: forget does that. An owner that was taken over cannot go on
// by an append then, wherever its log stands, also where that needs nothing of what is gone; who may, fences.
func Forgets(t *testing.T, store writebuf.Store, id writebuf.ID, forget func()) {
	b := store.Buffer(id)
	_, err := b.Fence(t.Context(), 3)
	Want(t, "fence", err, nil)
	Want(t, "append", b.Append(t.Context(), Batch(3, 1, 1, 5)), nil)
	forget()
	wantLost(t, b.Append(t.Context(), Batch(3, 1, 6, 7)), 1, true)
	wantLost(t, b.Append(t.Context(), Batch(3, 6, 6, 7)), 6, true)
	wantLost(t, b.Append(t.Context(), Batch(3, 1, 1, 5)), 1, true)
	newer := store.Buffer(id)
	before, err := newer.Fence(t.Context(), 4)
	if err != nil || before.Known || before.Count != 0 {
		t.Errorf("fence by the new owner: %+v, %v", before, err)
	}
	Want(t, "append by the old owner", b.Append(t.Context(), Batch(3, 6, 6, 7)), writebuf.ErrFenced)
	Want(t, "append by the new owner", newer.Append(t.Context(), Batch(4, 6, 6, 7)), nil)
	Holds(t, newer, 6, 7)
}
