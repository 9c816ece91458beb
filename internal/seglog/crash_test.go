package seglog

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// ledger is what a scripted life of a log has promised so far, and what may be there beside it.
type ledger struct {
	mode     Mode
	values   map[int64]map[string]bool // what may stand at an offset: several, while a truncation is under way
	acked    int64                     // offsets below it are acknowledged
	durable  int64                     // offsets below it must survive a power cut
	maxEnd   int64                     // nothing may stand at or above it
	maxFirst int64                     // retention may have removed what is below
	empty    bool                      // a reset is under way: the log may also be empty, at any offset
}

func (g *ledger) clone() ledger {
	c := *g
	c.values = maps.Clone(g.values) // the inner maps only grow, and the script holds still while a crash is tried
	return c
}

// life runs a script against one log on a crashable file system and, at every operation that changes it, tries what a
// crash there would leave.
type life struct {
	t      testing.TB
	fs     *vfs.Mem
	cfg    Config
	l      *Log
	rng    *rand.Rand
	states int // crash states tried
	tries  int // without those of crashes during recovery
	seeds  int
	at     string       // the step under way
	now    atomic.Int64 // milliseconds

	mu   sync.Mutex
	book ledger
	seqs int32 // of the idempotent producer
	fill int
}

func newLife(t testing.TB, seed uint64, seeds int) *life {
	f := &life{t: t, fs: vfs.NewMem(), rng: rand.New(rand.NewPCG(seed, 7)), seeds: seeds}
	f.now.Store(1_000_000)
	f.cfg = testConfig(f.fs)
	f.cfg.SegmentBytes = 1 << 10
	f.cfg.IndexInterval = 200
	f.cfg.ahead = aheadRule{from: 100, group: 300, least: 100, most: 300, align: 16}
	f.cfg.FsyncInterval = time.Hour // flushes come from the script
	f.cfg.Now = func() time.Time { return time.UnixMilli(f.now.Load()) }
	f.book.values = map[int64]map[string]bool{}
	f.fs.SetHook(func(op vfs.Op) error {
		if op.Kind.Changes() && op.Kind != vfs.OpReserve { // a reservation changes nothing that is read
			f.crash(op)
		}
		return nil
	})
	return f
}

// crash checks what is left if the machine, or only the process, dies right before op.
func (f *life) crash(op vfs.Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fs, book := f.fs.Clone(), f.book.clone()
	where := fmt.Sprintf("%s, before %v", f.at, op)
	f.try(fs.Crash(vfs.KeepAll), book, ProcessCrash, where+", process crash")
	f.try(fs.Crash(vfs.KeepAll), book, MachineCrash, where+", all kept")
	f.try(fs.Crash(vfs.KeepNothing), book, MachineCrash, where+", nothing kept")
	for i := range f.seeds {
		seed := uint64(op.N)*1000 + uint64(i)
		f.try(fs.Crash(vfs.Random(seed)), book, MachineCrash, fmt.Sprintf("%s, seed %d", where, seed))
	}
}

func (f *life) try(fs *vfs.Mem, book ledger, crash Crash, where string) {
	f.states++
	cfg := f.cfg
	cfg.FS, cfg.Crash, cfg.Mode = fs, crash, book.mode
	need := book.durable
	if crash == ProcessCrash {
		need = book.acked
	}
	var during []*vfs.Mem
	if f.tries%40 == 0 { // a second crash, at every step of the recovery from the first
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind.Changes() {
				during = append(during, fs.Crash(vfs.Random(uint64(op.N))))
			}
			return nil
		})
	}
	l, _, err := Open(cfg)
	if err != nil {
		f.t.Fatalf("%s: open: %v", where, err)
	}
	fs.SetHook(nil)
	end := f.checkLog(l, &book, need, where)
	if f.tries%8 == 0 {
		during = append(during, fs.Crash(vfs.KeepNothing))
	}
	f.tries++
	for i, again := range during {
		need2 := book.durable
		if i == len(during)-1 { // recovery had finished: what it showed to readers must stay
			need2 = end
		}
		f.states++
		cfg.FS, cfg.Crash = again, MachineCrash
		l2, _, err := Open(cfg)
		if err != nil {
			f.t.Fatalf("%s: crash %d during recovery: open: %v", where, i, err)
		}
		f.checkLog(l2, &book, need2, fmt.Sprintf("%s: crash %d during recovery", where, i))
		_ = l2.Close()
	}
	cfg.FS = fs
	if _, err := l.Append(context.Background(), batch(f.t, noProducer, "after the crash")); err != nil {
		f.t.Fatalf("%s: append after recovery: %v", where, err)
	}
	if err := l.Close(); err != nil {
		f.t.Fatalf("%s: close: %v", where, err)
	}
	ops := fs.Ops()
	cfg.Crash = CleanStop
	l, rep, err := Open(cfg)
	if err != nil {
		f.t.Fatalf("%s: second open: %v", where, err)
	}
	if changed := fs.Ops() - ops; changed > 1 || len(rep.Repairs) > 0 { // one flush of the newest file
		f.t.Fatalf("%s: opening a recovered log again made %d changes: %v", where, changed, rep.Repairs)
	}
	if b := l.Bounds(); b.End != end+1 {
		f.t.Fatalf("%s: reopened with end %d, not %d", where, b.End, end+1)
	}
	_ = l.Close()
}

// checkLog checks what a recovered log holds against the ledger and returns its end.
func (f *life) checkLog(l *Log, book *ledger, need int64, where string) int64 {
	b := l.Bounds()
	if book.empty && b.First == b.End {
		return b.End
	}
	if b.End < need {
		f.t.Fatalf("%s: ends before offset %d, but everything below %d was promised", where, b.End, need)
	}
	if b.End > book.maxEnd {
		f.t.Fatalf("%s: ends before offset %d, but only %d were ever written", where, b.End, book.maxEnd)
	}
	if b.First > book.maxFirst {
		f.t.Fatalf("%s: starts at offset %d, retention allows at most %d", where, b.First, book.maxFirst)
	}
	recs, err := collectFrom(l, b.First)
	if err != nil {
		f.t.Fatalf("%s: read: %v", where, err)
	}
	if int64(len(recs)) != b.End-b.First {
		f.t.Fatalf("%s: %d records from %d to %d", where, len(recs), b.First, b.End)
	}
	for i, r := range recs {
		if r.Offset != b.First+int64(i) || !book.values[r.Offset][string(r.Value)] {
			f.t.Fatalf("%s: offset %d holds %q, allowed are %v", where, r.Offset, r.Value, book.values[r.Offset])
		}
	}
	return b.End
}

func (f *life) step(format string, args ...any) {
	f.mu.Lock()
	f.at = fmt.Sprintf(format, args...)
	f.mu.Unlock()
}

func (f *life) note(fn func(b *ledger)) {
	f.mu.Lock()
	fn(&f.book)
	f.mu.Unlock()
}

func (f *life) open() {
	f.step("open")
	l, _, err := Open(f.cfg)
	if err != nil {
		f.t.Fatalf("open: %v", err)
	}
	f.l = l
	f.note(func(b *ledger) { b.mode = f.cfg.Mode })
}

func (f *life) close() {
	f.step("close")
	if err := f.l.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.note(func(b *ledger) { b.durable = b.acked })
}

// append adds one batch of n records of about size bytes, now and then from the idempotent producer.
func (f *life) append(n, size int) {
	at := f.l.Bounds().End
	f.step("append of %d records at %d (%v)", n, at, f.l.mode())
	p := noProducer
	if f.rng.IntN(3) == 0 {
		p = record.ProducerInfo{ID: 9, Epoch: 0, Sequence: f.seqs}
		f.seqs += int32(n)
	}
	values := make([]string, n)
	f.note(func(b *ledger) {
		for i := range values {
			f.fill++
			values[i] = fmt.Sprintf("%d:%0*d", at+int64(i), 1+f.rng.IntN(size), f.fill)
			set := maps.Clone(b.values[at+int64(i)])
			if set == nil {
				set = map[string]bool{}
			}
			set[values[i]] = true
			b.values[at+int64(i)] = set
		}
		b.maxEnd = at + int64(n)
	})
	now := f.now.Add(1000)
	r := mustAppend(f.t, f.l, batchAt(f.t, p, now, values...))
	if r.Offset != at {
		f.t.Fatalf("append went to %d, not %d", r.Offset, at)
	}
	f.note(func(b *ledger) {
		b.acked = r.LastOffset + 1
		for i, v := range values { // older values of these offsets are gone for good now
			b.values[at+int64(i)] = map[string]bool{v: true}
		}
		if f.l.mode() == OnCommit {
			b.durable = b.acked
		}
	})
}

func (f *life) flush() {
	f.step("flush")
	if err := f.l.Flush(context.Background()); err != nil {
		f.t.Fatal(err)
	}
	f.note(func(b *ledger) { b.durable = b.acked })
}

func (f *life) mark() {
	f.step("mark")
	if err := f.l.writeMark(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *life) setMode(m Mode) {
	f.step("mode %v", m)
	f.note(func(b *ledger) { b.mode = max(b.mode, m) })
	if err := f.l.SetMode(context.Background(), m, 0); err != nil {
		f.t.Fatal(err)
	}
	f.note(func(b *ledger) {
		b.mode, b.durable = m, b.acked
		f.cfg.Mode = m // in here: the timer's mark may try a crash meanwhile, which reads it
	})
}

func (f *life) retain(bytes int64) {
	f.step("retain %d", bytes)
	f.note(func(b *ledger) { b.maxFirst = b.acked })
	f.l.SetRetention(Retention{Bytes: bytes})
	if _, err := f.l.Retain(context.Background()); err != nil {
		f.t.Fatal(err)
	}
	f.note(func(b *ledger) { b.maxFirst = f.l.Bounds().First })
}

func (f *life) truncate(seq uint64) {
	f.step("truncate after %d", seq)
	v := f.l.view.Load()
	p, err := f.l.locate(v, max(v.segmentOfSeq(seq), 0), indexTarget{seq: max(seq, 1)}, func(fr *segfmt.Frame) bool { return fr.Seq > seq })
	if err != nil {
		f.t.Fatal(err)
	}
	f.note(func(b *ledger) { b.acked, b.durable = min(b.acked, p.offset), min(b.durable, p.offset) })
	if err := f.l.TruncateAfter(context.Background(), seq); err != nil {
		f.t.Fatal(err)
	}
	f.note(func(b *ledger) { b.maxEnd, b.acked, b.durable = p.offset, p.offset, p.offset })
	if got := f.l.Bounds().End; got != p.offset {
		f.t.Fatalf("truncated to %d, not %d", got, p.offset)
	}
	// The producer's records may be gone: it starts over under a new id in the script's terms.
	f.seqs = 0
	if q := f.l.tail.producers.byID[9]; q != nil {
		f.seqs = record.NextSequence(q.LastSequence, 1)
	}
}

func (f *life) reset(seq uint64, offset int64) {
	f.step("reset to %d, %d", seq, offset)
	f.note(func(b *ledger) { b.empty, b.acked, b.durable = true, 0, 0 })
	if err := f.l.Reset(context.Background(), seq, offset, 3); err != nil {
		f.t.Fatal(err)
	}
	f.note(func(b *ledger) {
		*b = ledger{mode: b.mode, values: map[int64]map[string]bool{}, acked: offset, durable: offset, maxEnd: offset, maxFirst: offset}
	})
	f.seqs = 0
}

// generation starts one, with three offsets lost.
func (f *life) generation(g uint32) {
	at := f.l.Bounds().End
	f.step("generation %d at %d", g, at)
	if err := f.l.StartGeneration(context.Background(), g, nil); err != nil {
		f.t.Fatal(err)
	}
}

// TestCrashAtEveryOperation is the proof behind LOG-02, LOG-07, REC-01, REC-04 and REC-09 in process: whatever the
// moment, what was promised is there, in order, nothing else is, and recovering again changes nothing.
func TestCrashAtEveryOperation(t *testing.T) {
	seeds, rounds := 8, 3
	if testing.Short() {
		seeds, rounds = 1, 1
	}
	total := 0
	for round := range rounds {
		f := newLife(t, uint64(round), seeds)
		f.cfg.Mode = Mode(round % 3)
		f.script()
		total += f.states
	}
	t.Logf("%d crash states", total)
	if !testing.Short() && total < 20_000 {
		t.Errorf("only %d crash states", total)
	}
}

func (f *life) script() {
	f.open()
	for range 25 {
		f.append(1+f.rng.IntN(3), 60)
	}
	f.mark()
	f.append(1, 1500) // larger than a segment
	f.close()
	f.open()
	for i := range 20 {
		f.append(1+f.rng.IntN(4), 40)
		if i%7 == 3 {
			f.flush()
		}
		if i%7 == 5 {
			f.mark()
		}
	}
	f.setMode(Periodic)
	for range 20 {
		f.append(1+f.rng.IntN(3), 80)
	}
	f.flush()
	f.mark()
	f.retain(4 << 10)
	for range 10 {
		f.append(2, 50)
	}
	f.setMode(None)
	for range 15 {
		f.append(1+f.rng.IntN(3), 90)
	}
	f.generation(5)
	f.append(3, 20)
	f.setMode(OnCommit)
	b := f.l.Bounds()
	f.truncate(b.FirstSeq + (b.NextSeq-b.FirstSeq)/2)
	for range 12 {
		f.append(1+f.rng.IntN(3), 70)
	}
	f.truncate(f.l.Bounds().NextSeq - 3)
	f.append(2, 30)
	f.retain(1 << 10)
	f.close()
	f.open()
	f.append(1, 10)
	f.reset(1000, 5000)
	for range 12 {
		f.append(1+f.rng.IntN(2), 80)
	}
	f.mark()
	f.retain(1)
	f.append(2, 40)
	f.truncate(f.l.Bounds().FirstSeq - 1)
	f.append(2, 40)
	f.close()
}
