// Package rafttest owns the suite that every raft.Log must pass, the fake and the real one alike. It never looks behind
// the port. Invariant: what the raft package relies on is tested here, and nothing else.
package rafttest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/record"
)

// Logs makes the logs under test.
type Logs struct {
	// Open returns a new, empty log. Whatever it needs closed is closed by t.Cleanup.
	Open func(t *testing.T) raft.Log
	// Reopen closes a log and opens what it left behind.
	Reopen func(t *testing.T, l raft.Log) raft.Log
}

// TestLog runs the suite.
func TestLog(t *testing.T, logs Logs) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, logs Logs)
	}{
		{"empty", testEmpty},
		{"append and read", testAppendRead},
		{"kinds and terms", testKindsAndTerms},
		{"read within a budget", testBudget},
		{"refuse what does not go on", testContiguous},
		{"refuse an ended context", testEndedContext},
		{"keep no slice", testSlices},
		{"trim", testTrim},
		{"trim all", testTrimAll},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, logs) })
	}
}

// Batch returns the batch of a data entry that holds one command.
func Batch(t testing.TB, command string) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	if err := b.Append(record.Record{Value: []byte(command), Timestamp: 1_700_000_000_000}); err != nil {
		t.Fatal(err)
	}
	batch, err := b.Build(record.NoProducer)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func entries(t *testing.T, from, to uint64, term uint32) []raft.Entry {
	var out []raft.Entry
	for seq := from; seq <= to; seq++ {
		out = append(out, raft.Entry{Seq: seq, Term: term, Kind: segfmt.KindData, Batch: Batch(t, commandText(seq))})
	}
	return out
}

func commandText(seq uint64) string { return fmt.Sprintf("command %d", seq) }

func mustAppend(t *testing.T, l raft.Log, e []raft.Entry) {
	t.Helper()
	if err := l.Append(context.Background(), e); err != nil {
		t.Fatalf("append %d to %d: %v", e[0].Seq, e[len(e)-1].Seq, err)
	}
}

func wantBounds(t *testing.T, l raft.Log, first, last uint64) {
	t.Helper()
	if f, n := l.Bounds(); f != first || n != last {
		t.Fatalf("bounds are [%d, %d], want [%d, %d]", f, n, first, last)
	}
}

func wantTerm(t *testing.T, l raft.Log, seq uint64, term uint32) {
	t.Helper()
	if got, err := l.Term(seq); err != nil || got != term {
		t.Fatalf("term of %d is %d, %v; want %d", seq, got, err, term)
	}
}

// wantEntries reads all from seq on and checks that they are the ones entries makes.
func wantEntries(t *testing.T, l raft.Log, from, to uint64) {
	t.Helper()
	for from <= to {
		got, err := l.Read(from, 1<<20)
		if err != nil || len(got) == 0 {
			t.Fatalf("read from %d gave %d entries, %v", from, len(got), err)
		}
		for _, e := range got {
			if e.Seq != from {
				t.Fatalf("read entry %d where %d was due", e.Seq, from)
			}
			records, err := record.Records(e.Batch)
			if err != nil || len(records) != 1 || string(records[0].Value) != commandText(from) {
				t.Fatalf("entry %d holds %v, %v", from, records, err)
			}
			from++
		}
	}
	if got, err := l.Read(to+1, 1<<20); err != nil || len(got) != 0 {
		t.Fatalf("read at the end gave %d entries, %v", len(got), err)
	}
}

func testEmpty(t *testing.T, logs Logs) {
	l := logs.Open(t)
	for range 2 {
		wantBounds(t, l, 1, 0)
		wantTerm(t, l, 0, 0)
		if got, err := l.Read(1, 100); err != nil || len(got) != 0 {
			t.Fatalf("read %v, %v", got, err)
		}
		if _, err := l.Term(1); err == nil {
			t.Fatal("an empty log has a term for entry 1")
		}
		l = logs.Reopen(t, l)
	}
}

func testAppendRead(t *testing.T, logs Logs) {
	l := logs.Open(t)
	mustAppend(t, l, entries(t, 1, 1, 1))
	mustAppend(t, l, entries(t, 2, 50, 1))
	for range 2 {
		wantBounds(t, l, 1, 50)
		wantEntries(t, l, 1, 50)
		wantEntries(t, l, 50, 50)
		wantTerm(t, l, 50, 1)
		if _, err := l.Term(51); err == nil {
			t.Fatal("there is a term beyond the end")
		}
		l = logs.Reopen(t, l)
	}
	mustAppend(t, l, entries(t, 51, 51, 1))
	wantEntries(t, l, 1, 51)
}

func testKindsAndTerms(t *testing.T, logs Logs) {
	l := logs.Open(t)
	in := []raft.Entry{
		{Seq: 1, Term: 1, Kind: segfmt.KindGenerationStart, Batch: segfmt.ControlBatch(nil)},
		{Seq: 2, Term: 1, Kind: segfmt.KindData, Batch: Batch(t, "a")},
		{Seq: 3, Term: 4, Kind: segfmt.KindNoop, Batch: segfmt.ControlBatch(nil)},
		{Seq: 4, Term: 4, Kind: segfmt.KindMembership, Batch: segfmt.ControlBatch([]byte("members"))},
		{Seq: 5, Term: 7, Kind: segfmt.KindData, Batch: Batch(t, "b")},
	}
	mustAppend(t, l, in)
	for range 2 {
		got, err := l.Read(1, 1<<20)
		if err != nil || len(got) != len(in) {
			t.Fatalf("read %d entries, %v", len(got), err)
		}
		for i, e := range got {
			if e.Seq != in[i].Seq || e.Term != in[i].Term || e.Kind != in[i].Kind {
				t.Errorf("entry %d came back as %d of term %d, kind %d", in[i].Seq, e.Seq, e.Term, e.Kind)
			}
			if !bytes.Equal(e.Batch[record.HeaderSize:], in[i].Batch[record.HeaderSize:]) {
				t.Errorf("entry %d came back with another payload", e.Seq)
			}
			wantTerm(t, l, e.Seq, in[i].Term)
		}
		l = logs.Reopen(t, l)
	}
	if err := l.Append(context.Background(), entries(t, 6, 6, 6)); err == nil {
		t.Error("a term may fall")
	}
	wantBounds(t, l, 1, 5)
}

func testBudget(t *testing.T, logs Logs) {
	l := logs.Open(t)
	large := strings.Repeat("x", 8<<10)
	for seq := uint64(1); seq <= 20; seq++ {
		mustAppend(t, l, []raft.Entry{{Seq: seq, Term: 1, Kind: segfmt.KindData, Batch: Batch(t, large)}})
	}
	for _, budget := range []int{1, 24 << 10} {
		got, err := l.Read(3, budget)
		if err != nil || len(got) < 1 || len(got) > 4 || got[0].Seq != 3 {
			t.Fatalf("with a budget of %d bytes: %d entries, %v", budget, len(got), err)
		}
	}
}

func testContiguous(t *testing.T, logs Logs) {
	l := logs.Open(t)
	mustAppend(t, l, entries(t, 1, 3, 1))
	for _, seq := range []uint64{0, 3, 5} {
		if err := l.Append(context.Background(), entries(t, seq, seq, 1)); err == nil {
			t.Fatalf("entry %d follows entry 3", seq)
		}
		wantBounds(t, l, 1, 3)
	}
	gap := append(entries(t, 4, 4, 1), entries(t, 6, 6, 1)...)
	if err := l.Append(context.Background(), gap); err == nil {
		t.Fatal("entry 6 follows entry 4")
	}
	wantBounds(t, l, 1, 3)
	mustAppend(t, l, entries(t, 4, 4, 1))
	wantEntries(t, l, 1, 4)
}

func testEndedContext(t *testing.T, logs Logs) {
	l := logs.Open(t)
	mustAppend(t, l, entries(t, 1, 1, 1))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Append(ctx, entries(t, 2, 2, 1)); err != nil {
		wantBounds(t, l, 1, 1)
		mustAppend(t, l, entries(t, 2, 2, 1))
	}
	wantBounds(t, l, 1, 2)
}

func testSlices(t *testing.T, logs Logs) {
	l := logs.Open(t)
	in := entries(t, 1, 1, 1)
	mustAppend(t, l, in)
	clear(in[0].Batch)
	wantEntries(t, l, 1, 1)
	got, err := l.Read(1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	clear(got[0].Batch)
	wantEntries(t, l, 1, 1)
}

func testTrim(t *testing.T, logs Logs) {
	l := logs.Open(t)
	for seq := uint64(1); seq <= 60; seq++ {
		mustAppend(t, l, entries(t, seq, seq, uint32(seq/10+1)))
	}
	for _, below := range []uint64{1, 30, 20} {
		if err := l.TrimBefore(context.Background(), below); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		first, last := l.Bounds()
		if first < 1 || first > 30 || last != 60 {
			t.Fatalf("trimmed below 30, bounds are [%d, %d]", first, last)
		}
		wantEntries(t, l, first, 60)
		if first > 1 {
			wantTerm(t, l, first-1, uint32((first-1)/10+1))
			if _, err := l.Read(first-1, 100); fault.KindOf(err) != fault.Trimmed {
				t.Fatalf("read of a trimmed entry: %v", err)
			}
		}
		if first > 2 {
			if _, err := l.Term(first - 2); err == nil {
				t.Fatal("the term of a trimmed entry is known")
			}
		}
		l = logs.Reopen(t, l)
	}
	mustAppend(t, l, entries(t, 61, 61, 7))
	wantBoundsLast(t, l, 61)
}

func testTrimAll(t *testing.T, logs Logs) {
	l := logs.Open(t)
	mustAppend(t, l, entries(t, 1, 10, 3))
	if err := l.TrimBefore(context.Background(), 11); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantBoundsLast(t, l, 10)
		wantTerm(t, l, 10, 3)
		l = logs.Reopen(t, l)
	}
	mustAppend(t, l, entries(t, 11, 12, 3))
	wantEntries(t, l, 11, 12)
}

func wantBoundsLast(t *testing.T, l raft.Log, last uint64) {
	t.Helper()
	if _, n := l.Bounds(); n != last {
		t.Fatalf("the log ends at %d, want %d", n, last)
	}
}
