package simulation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// outcome judges the error of a step that writes. done is what a success promises.
func (f *logLife) outcome(what string, err error, done func()) error {
	f.tr.Step("%s: %v", what, err)
	switch {
	case err == nil && !f.dead():
		done()
	case f.dead() || f.unsynced && fault.KindOf(err) == fault.Stopped:
	case errors.Is(err, vfs.ErrNoSpace) || f.unsynced && errors.Is(err, vfs.ErrIO):
	case err != nil:
		return f.fail("error", "%s: %v", what, err)
	}
	return nil
}

func (f *logLife) batch(p record.ProducerInfo, n, size int) ([]byte, []string) {
	b := record.NewBuilder(record.None)
	var values []string
	for range n {
		f.fill++
		values = append(values, fmt.Sprintf("%0*d", size, f.fill))
		if err := b.Append(record.Record{Value: []byte(values[len(values)-1]), Timestamp: time.Now().UnixMilli()}); err != nil {
			panic(err)
		}
	}
	out, err := b.Build(p)
	if err != nil {
		panic(err)
	}
	return out, values
}

func (f *logLife) append(n, size int) error {
	batch, values := f.batch(record.ProducerInfo{ID: -1, Epoch: -1, Sequence: -1}, n, size)
	_, _, err := f.put("append", batch, values)
	return err
}

// put appends a batch. known says that it was answered with success.
func (f *logLife) put(what string, batch []byte, values []string) (r seglog.Result, known bool, err error) {
	at := f.l.Bounds().End
	f.stats.appends++
	r, aerr := f.l.Append(context.Background(), slices.Clone(batch))
	f.tr.Step("%s of %d at %d: %d to %d, duplicate %v, %v", what, len(values), at, r.Offset, r.LastOffset, r.Duplicate, aerr)
	book := &f.book
	switch {
	case aerr == nil && r.Duplicate:
		return r, true, nil
	case aerr == nil:
		if r.Offset != at || r.LastOffset != at+int64(len(values))-1 {
			return r, false, f.fail("order", "%s went to %d, not %d", what, r.Offset, at)
		}
		for i, v := range values {
			if name, named := book.names[at+int64(i)]; named {
				return r, false, f.fail("one offset, one record", "%d held %q and now takes %q", at+int64(i), name, v)
			}
			book.names[at+int64(i)] = v
		}
		book.acked, book.maxEnd = r.LastOffset+1, r.LastOffset+1
		if f.cfg.Mode == seglog.OnCommit {
			book.durable = book.acked
		}
		return r, true, nil
	case f.dead() || f.unsynced && fault.KindOf(aerr) == fault.Stopped:
		for i, v := range values {
			o := at + int64(i)
			if book.maybe[o] == nil {
				book.maybe[o] = map[string]bool{}
			}
			book.maybe[o][v] = true
		}
		book.maxEnd = max(book.maxEnd, at+int64(len(values)))
		return r, false, nil
	case errors.Is(aerr, vfs.ErrNoSpace) || f.unsynced && errors.Is(aerr, vfs.ErrIO) || fault.KindOf(aerr) == fault.SequenceGap:
		return r, false, nil
	}
	return r, false, f.fail("error", "%s: %v", what, aerr)
}

// produce sends the idempotent producer's next batch, once it knows what became of the last.
func (f *logLife) produce(n int) error {
	p := &f.producer
	if p.batch != nil && !p.known {
		return f.resend()
	}
	p.batch, p.values = f.batch(record.ProducerInfo{ID: 9, Epoch: p.epoch, Sequence: p.next}, n, 30)
	p.known = false
	p.next = record.NextSequence(p.next, int32(n))
	return f.sendProduced()
}

// resend sends the last batch again: it must be there once, wherever that is.
func (f *logLife) resend() error {
	if f.producer.batch == nil {
		return nil
	}
	f.stats.resent++
	return f.sendProduced()
}

func (f *logLife) sendProduced() error {
	p := &f.producer
	at := f.l.Bounds().End
	r, known, err := f.put("produce", p.batch, p.values)
	if err != nil {
		return err
	}
	if !known {
		if f.dead() || f.unsynced {
			return nil
		}
		// Refused: for want of room, or since what came before it was lost, which only a lossy crash excuses.
		if p.doubted {
			f.restartProducer()
		}
		return nil
	}
	if r.Duplicate && r.Offset >= 0 {
		for i, v := range p.values {
			if got := f.book.names[r.Offset+int64(i)]; got != v {
				return f.fail("duplicate", "%q is said to be at %d, where %q is", v, r.Offset+int64(i), got)
			}
		}
	}
	if p.known && !p.doubted && (!r.Duplicate || r.Offset >= 0 && r.Offset != p.offset) {
		return f.fail("twice", "%q was acknowledged at %d, and now, sent again, at %d (the end was %d)", p.values[0], p.offset, r.Offset, at)
	}
	p.known, p.offset = true, r.Offset
	return nil
}

// restartProducer begins a new epoch.
func (f *logLife) restartProducer() {
	f.producer = idempotent{epoch: f.producer.epoch + 1}
}

func (f *logLife) setMode(m seglog.Mode) error {
	old := f.cfg.Mode
	f.cfg.Mode = max(old, m) // what the topic may be taken for after a crash meanwhile
	return f.outcome(fmt.Sprintf("mode %v", m), f.l.SetMode(context.Background(), m, 0), func() {
		f.cfg.Mode, f.book.durable = m, f.book.acked
	})
}

func (f *logLife) retain() error {
	f.book.maxFirst = f.book.maxEnd
	var err error
	if bytes := int64(500 + 500*f.c.Draw("log", 6)); f.c.Draw("log", 3) == 2 {
		b := f.l.Bounds()
		err = f.l.TrimBefore(context.Background(), b.FirstSeq+uint64(f.c.Draw("log", int(b.NextSeq-b.FirstSeq)+1)))
	} else {
		f.l.SetRetention(seglog.Retention{Bytes: bytes})
		_, err = f.l.Retain(context.Background())
	}
	f.stats.trimmed++
	return f.outcome("retain", err, func() { f.book.maxFirst = f.l.Bounds().First })
}

// truncate removes the newest frames, as replication does.
func (f *logLife) truncate() error {
	b := f.l.Bounds()
	if b.NextSeq <= b.FirstSeq {
		return nil
	}
	seq := b.FirstSeq + uint64(f.c.Draw("log", int(b.NextSeq-b.FirstSeq))) // the first frame to go
	entries, err := f.l.ReadEntries(seq, 1)
	if err != nil || len(entries) == 0 {
		return f.fail("read", "entry %d: %v", seq, err)
	}
	info, err := record.ParseHeader(entries[0].Batch)
	if err != nil || entries[0].Kind == segfmt.KindLost { // the offset of such a frame is behind it
		return err
	}
	at, book := info.BaseOffset, &f.book
	for o := range maps.Clone(book.names) {
		if o >= at {
			book.maybe[o] = map[string]bool{book.names[o]: true}
			delete(book.names, o)
		}
	}
	book.acked, book.durable = min(book.acked, at), min(book.durable, at)
	f.restartProducer()
	f.stats.truncated++
	return f.outcome(fmt.Sprintf("truncate to %d", at), f.l.TruncateAfter(context.Background(), seq-1), func() {
		maps.DeleteFunc(book.maybe, func(o int64, _ map[string]bool) bool { return o >= at })
		book.acked, book.durable, book.maxEnd = at, at, at
		book.maxFirst = min(book.maxFirst, at)
		book.lost = slices.DeleteFunc(book.lost, func(r seglog.Range) bool { return r.From >= at })
	})
}

// startGeneration brings the log to the metadata's generation and declares offsets lost, from its end up to to.
func (f *logLife) startGeneration(end, to int64) error {
	var lost *seglog.Range
	after := end
	if to >= end {
		lost = &seglog.Range{From: end, To: to}
		f.book.lost = append(f.book.lost, *lost)
		after = to + 1
		f.reserved = max(f.reserved, after)
	}
	f.book.maxEnd = max(f.book.maxEnd, after)
	return f.outcome(fmt.Sprintf("generation %d, %d to %d lost", f.generation, end, to), f.l.StartGeneration(context.Background(), f.generation, lost), func() {
		f.book.acked, f.book.durable, f.book.maxEnd = after, after, after
	})
}

// wait lets time pass: the mark is written, and a periodic log flushes.
func (f *logLife) wait() error {
	d := time.Duration(50+100*f.c.Draw("log", 20))*time.Millisecond + time.Duration(f.steps)*time.Nanosecond
	// The log's timers run meanwhile, and meet what was written here only through the hook's lock.
	f.hook.Lock()
	f.hook.Unlock() //nolint:staticcheck // an empty section orders memory
	<-time.After(d)
	synctest.Wait()
	f.hook.Lock()
	f.hook.Unlock() //nolint:staticcheck // an empty section orders memory
	f.tr.Step("wait %v", d)
	if f.cfg.Mode == seglog.Periodic && d > f.cfg.FsyncInterval && !f.dead() && f.l.Err() == nil {
		f.book.durable = f.book.acked
	}
	return nil
}

// reopen closes the log and opens it again: nothing is repaired, and nothing has changed.
func (f *logLife) reopen() error {
	before := f.l.Bounds()
	if err := f.l.Close(); err != nil || f.dead() || f.unsynced {
		return nil
	}
	f.book.durable = f.book.acked
	f.arm()
	f.cfg.Crash = seglog.CleanStop
	l, report, err := seglog.Open(f.cfg)
	if err != nil {
		return f.fail("open", "again: %v", err)
	}
	f.l = l
	f.stats.reopened++
	var repairs []string
	for _, r := range report.Repairs { // an index that could not be written is made now
		if r.Op != "write" && r.Op != "remove" {
			repairs = append(repairs, r.Op+" "+r.Path)
		}
	}
	b := l.Bounds()
	if len(repairs) > 0 || b.First != before.First || b.End != before.End || b.NextSeq != before.NextSeq || b.Generation != before.Generation {
		return f.fail("reopen", "%+v became %+v; %s", before, b, strings.Join(repairs, ", "))
	}
	f.tr.Step("reopened")
	return f.check(f.book.acked)
}

// TestLogRecovery runs the log of a partition through several crashes on one disk.
func TestLogRecovery(t *testing.T) {
	start := time.Now()
	var stats logStats
	n := Explore(t, logScenario(t, logRight, &stats), Amount(80, 4000))
	t.Logf("%d runs in %v: %+v", n, time.Since(start), stats)
	if n > 10 && (stats.power < n/2 || stats.crashes < n/2 || stats.during == 0 || stats.lossy == 0 || stats.resent == 0 || stats.reopened == 0 || stats.truncated == 0) {
		t.Error("that is too little to show anything")
	}
}

// TestLogRecoveryRepeats: goroutines of its own or not, the same seed is the same run.
func TestLogRecoveryRepeats(t *testing.T) {
	var stats logStats
	s := logScenario(t, logRight, &stats)
	for seed := range uint64(Amount(15, 100)) {
		a, b := Run(s, Seeded(seed), false), Run(s, Seeded(seed), false)
		if c := Run(s, Replay(a.Schedule), false); a.Hash != b.Hash || a.Hash != c.Hash {
			t.Fatalf("seed %d: %x, %x, and %x by its schedule", seed, a.Hash, b.Hash, c.Hash)
		}
	}
}

// TestCarelessOwnerIsFound: the checks bite where the log is right and its owner is not.
func TestCarelessOwnerIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		bug   logBug
		rules []string
	}{
		"a lossy open starts no generation":          {logReuses, []string{"one offset, one record"}},
		"a machine's crash is taken for a process's": {logBelieves, []string{"lost", "open", "one offset, one record"}},
	} {
		t.Run(name, func(t *testing.T) {
			var stats logStats
			f := Find(logScenario(t, c.bug, &stats), 1, 500, Amount(200, 1500))
			if f == nil {
				t.Fatal("not found")
			}
			t.Logf("%v", f)
			if f.Shrunk.Failure == nil || !slices.Contains(c.rules, f.Shrunk.Failure.Rule) {
				t.Errorf("found %v", f.Shrunk.Failure)
			}
			if n := f.Shrunk.Schedule.Decisions(); n > 25 && !testing.Short() {
				t.Errorf("shrunk to %d decisions", n)
			}
		})
	}
}
