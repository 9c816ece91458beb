package seglog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func producer(id int64, seq int32) record.ProducerInfo {
	return record.ProducerInfo{ID: id, Epoch: 0, Sequence: seq}
}

func appendErr(l *Log, b []byte) error {
	_, err := l.Append(context.Background(), b)
	return err
}

// numbered returns a batch with the records "v<seq>" from seq on.
func numbered(t testing.TB, id int64, seq int32, n int) []byte {
	t.Helper()
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprint("v", record.NextSequence(seq, int32(i)))
	}
	return batch(t, producer(id, seq), values...)
}

// TestResendIsRecognised covers SUB-09 with equal and with different batch boundaries, also across a restart.
func TestResendIsRecognised(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	l := mustOpen(t, cfg)
	mustAppend(t, l, numbered(t, 1, 0, 3))            // 0..2 at 0
	mustAppend(t, l, batch(t, noProducer, "between")) // at 3
	mustAppend(t, l, numbered(t, 1, 3, 4))            // 3..6 at 4
	mustAppend(t, l, numbered(t, 2, 0, 1))            // another producer, at 8
	check := func(l *Log, end int64) {
		t.Helper()
		for _, c := range []struct {
			name string
			b    []byte
			want Result
		}{
			{"the same batch", numbered(t, 1, 0, 3), Result{0, 2, true, nil}},
			{"the newest batch", numbered(t, 1, 3, 4), Result{4, 7, true, nil}},
			{"part of one", numbered(t, 1, 4, 2), Result{5, 6, true, nil}},
			{"across two, with another's record between", numbered(t, 1, 1, 4), Result{1, 5, true, []Range{{1, 2}, {4, 5}}}},
			{"everything", numbered(t, 1, 0, 7), Result{0, 7, true, []Range{{0, 2}, {4, 7}}}},
			{"the other producer's", numbered(t, 2, 0, 1), Result{8, 8, true, nil}},
		} {
			if got := mustAppend(t, l, c.b); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
			}
		}
		if got := l.Bounds().End; got != end {
			t.Errorf("a duplicate was appended: end %d, want %d", got, end)
		}
		if err := appendErr(l, numbered(t, 1, 8, 1)); fault.KindOf(err) != fault.SequenceGap || fault.DetailsOf(err)["expected"] != "7" {
			t.Errorf("a gap: %v", err)
		}
		if err := appendErr(l, numbered(t, 77, 5, 1)); fault.KindOf(err) != fault.SequenceGap {
			t.Errorf("an unknown producer that does not start at 0: %v", err)
		}
		if err := appendErr(l, batch(t, producer(1, 4), "other bytes")); fault.KindOf(err) != fault.SequenceConflict {
			t.Errorf("other bytes under a known sequence: %v", err)
		}
	}
	check(l, 9)
	mustClose(t, l)
	l = mustOpen(t, cfg)
	check(l, 9)
	// The known part is recognised, the new part appended.
	got := mustAppend(t, l, numbered(t, 1, 5, 5))
	if want := (Result{6, 11, false, []Range{{6, 7}, {9, 11}}}); !reflect.DeepEqual(got, want) {
		t.Errorf("half new: %+v, want %+v", got, want)
	}
	for i, r := range readAll(t, l, 9) {
		if string(r.Value) != fmt.Sprint("v", 7+i) {
			t.Errorf("offset %d holds %q", r.Offset, r.Value)
		}
	}
	// A new epoch starts over and shuts the old one out.
	next := batch(t, record.ProducerInfo{ID: 1, Epoch: 1, Sequence: 0}, "new epoch")
	if r := mustAppend(t, l, next); r.Duplicate || r.Offset != 12 {
		t.Errorf("new epoch: %+v", r)
	}
	if err := appendErr(l, numbered(t, 1, 10, 1)); fault.KindOf(err) != fault.ProducerFenced {
		t.Errorf("old epoch: %v", err)
	}
	mustClose(t, l)
}

// TestResendInOneGroup submits originals and repeats together, so that they meet in one group.
func TestResendInOneGroup(t *testing.T) {
	l := mustOpen(t, testConfig(vfs.NewMem()))
	defer mustClose(t, l)
	results := make(chan *Append, 100)
	n := 0
	for i := range 10 {
		for range 3 {
			n++
			if err := l.Submit(context.Background(), &Append{Batch: numbered(t, 5, int32(2*i), 2), Done: func(a *Append) { results <- a }}); err != nil {
				t.Fatal(err)
			}
		}
	}
	duplicates := 0
	for range n {
		a := <-results
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		if a.Duplicate {
			duplicates++
		}
	}
	if duplicates != 20 || l.Bounds().End != 20 {
		t.Fatalf("%d duplicates, end %d", duplicates, l.Bounds().End)
	}
}

// TestResendOfOldSequences appends so much, interleaved, that most ranges are forgotten, then sends every tenth again:
// each is recognised at its offset while it is retained, and without one after.
func TestResendOfOldSequences(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	cfg.SegmentBytes = 64 << 10
	cfg.Mode = None
	l := mustOpen(t, cfg)
	const n = 5000
	at := make([]int64, n)
	for i := range n {
		at[i] = mustAppend(t, l, numbered(t, 1, int32(i), 1)).Offset
		if i%3 == 0 {
			mustAppend(t, l, batch(t, noProducer, "x"))
		}
	}
	if got := len(l.tail.producers.byID[1].Ranges); got > maxRanges {
		t.Fatalf("%d ranges are remembered", got)
	}
	for i := 0; i < n; i += 10 {
		if r := mustAppend(t, l, numbered(t, 1, int32(i), 1)); !r.Duplicate || r.Offset != at[i] {
			t.Fatalf("sequence %d: %+v, stands at %d", i, r, at[i])
		}
	}
	l.SetRetention(Retention{Bytes: 100 << 10})
	if _, err := l.Retain(context.Background()); err != nil {
		t.Fatal(err)
	}
	first := l.Bounds().First
	mustClose(t, l)
	l = mustOpen(t, cfg)
	defer mustClose(t, l)
	for i := 0; i < n; i += 50 {
		r := mustAppend(t, l, numbered(t, 1, int32(i), 1))
		want := at[i]
		if want < first {
			want = -1
		}
		if !r.Duplicate || r.Offset != want {
			t.Fatalf("sequence %d: %+v, want offset %d (oldest is %d)", i, r, want, first)
		}
	}
}

func TestSequencesWrap(t *testing.T) {
	l := mustOpen(t, testConfig(vfs.NewMem()))
	defer mustClose(t, l)
	mustAppend(t, l, numbered(t, 1, 0, 1))
	l.tail.producers.byID[1].LastSequence = math.MaxInt32 - 2 // as if two thousand million had been sent
	l.tail.producers.byID[1].Ranges = nil
	if r := mustAppend(t, l, numbered(t, 1, math.MaxInt32-1, 4)); r.Offset != 1 || r.LastOffset != 4 {
		t.Fatalf("across the wrap: %+v", r)
	}
	if r := mustAppend(t, l, numbered(t, 1, 1, 1)); !r.Duplicate || r.Offset != 4 {
		t.Fatalf("behind the wrap: %+v", r)
	}
	if r := mustAppend(t, l, numbered(t, 1, 2, 1)); r.Duplicate || r.Offset != 5 {
		t.Fatalf("the next: %+v", r)
	}
}

// TestFailedWriteForgetsItsSequences: a batch that was not written is no duplicate when it comes again.
func TestFailedWriteForgetsItsSequences(t *testing.T) {
	fs := vfs.NewMem()
	l := mustOpen(t, testConfig(fs))
	defer mustClose(t, l)
	mustAppend(t, l, numbered(t, 1, 0, 2))
	boom := errors.New("boom")
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite {
			return vfs.ShortWrite{N: 30, Err: boom}
		}
		return nil
	})
	if err := appendErr(l, numbered(t, 1, 2, 2)); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if err := appendErr(l, numbered(t, 3, 0, 1)); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	fs.SetHook(nil)
	if r := mustAppend(t, l, numbered(t, 1, 2, 2)); r.Duplicate || r.Offset != 2 {
		t.Fatalf("%+v", r)
	}
	if r := mustAppend(t, l, numbered(t, 3, 0, 1)); r.Duplicate || r.Offset != 4 {
		t.Fatalf("%+v", r)
	}
}
