package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// logLife is the life of one partition's log over several crashes of its process and its machine, on one disk. The log
// has goroutines of its own, for timers and for space it reserves: it runs in a bubble with a fake clock, in which one of
// them at most has something to do at a time that shows, and so one schedule is one execution here as well.
type logLife struct {
	c   *Choices
	tr  *Trace
	fs  *vfs.Mem
	cfg seglog.Config
	l   *seglog.Log
	bug logBug

	hook struct {
		sync.Mutex
		crashIn, failSync, failWrite int
		kind                         seglog.Crash
		dying                        *vfs.Mem
	}
	unsynced bool // a sync failed: what the log may do ends with this round

	// What the metadata would hold.
	generation uint32
	reserved   int64

	book     logBook
	fill     int
	producer idempotent
	steps    int
	stats    *logStats
}

// logBook is what was promised.
type logBook struct {
	names    map[int64]string          // what an offset was seen or acknowledged to hold: for ever
	maybe    map[int64]map[string]bool // what it may hold, of appends without an answer
	lost     []seglog.Range            // offsets that may be declared lost
	acked    int64                     // offsets below it are acknowledged
	durable  int64                     // and these are to survive a power cut
	maxEnd   int64                     // nothing may stand at or above it
	maxFirst int64                     // retention may have removed what is below
}

// idempotent is a producer that sends a batch again until it knows.
type idempotent struct {
	epoch   int16
	next    int32
	batch   []byte // the last one
	values  []string
	known   bool  // it was answered
	offset  int64 // where it is
	doubted bool  // the log may have lost what it acknowledged
}

type logStats struct {
	appends, crashes, power, during, syncErrors, full, lossy, resent, reopened, trimmed, truncated int
}

// logBug is a fault in how the log is used: its owner's part in keeping promises.
type logBug int

const (
	logRight    logBug = iota
	logReuses          // a lossy open starts no generation above what was given out
	logBelieves        // takes a machine's crash for a process's
)

// reservation is the seglog.OffsetLimit of a life.
type reservation struct{ f *logLife }

func (r reservation) Offset() int64 { return r.f.reserved }
func (r reservation) Extend(need int64) error {
	r.f.reserved = need + 12
	return nil
}

// logScenario runs each schedule in a bubble of its own.
func logScenario(t *testing.T, bug logBug, stats *logStats) Scenario {
	return func(c *Choices, tr *Trace) (err error) {
		synctest.Test(t, func(*testing.T) { err = newLogLife(c, tr, bug, stats).run() })
		return err
	}
}

func newLogLife(c *Choices, tr *Trace, bug logBug, stats *logStats) *logLife {
	f := &logLife{c: c, tr: tr, fs: vfs.NewMem(), bug: bug, stats: stats, generation: 1}
	f.book.names, f.book.maybe = map[int64]string{}, map[int64]map[string]bool{}
	f.cfg = seglog.Config{Dir: "/data/p", SalvageDir: "/salvage", Topic: "default/t", TopicID: [16]byte{1}, SegmentBytes: 900, IndexInterval: 200,
		FsyncInterval: 137_000_001, Limit: reservation{f}, Mode: seglog.Mode(c.Draw("log", 3))}
	return f
}

var errPowerless = errors.New("the process is dead")

// arm shows the life every operation on the disk.
func (f *logLife) arm() {
	h := &f.hook
	h.crashIn, h.failSync, h.failWrite, h.dying = 0, 0, 0, nil
	f.fs.SetHook(func(op vfs.Op) error {
		if !op.Kind.Changes() || op.Kind == vfs.OpReserve { // reservations come from a goroutine of their own, and change nothing that is read
			return nil
		}
		h.Lock()
		defer h.Unlock()
		if h.dying != nil {
			return errPowerless
		}
		f.tr.Mix(fmt.Appendf(nil, "%v %s %s %d %d", op.Kind, op.Path, op.To, op.Off, op.Len))
		if h.crashIn > 0 {
			if h.crashIn--; h.crashIn == 0 {
				f.tr.Step("  crash before %s %s", op.Kind, op.Path)
				h.dying = f.image(h.kind)
				return errPowerless
			}
		}
		if op.Kind == vfs.OpSync && h.failSync > 0 {
			if h.failSync--; h.failSync == 0 {
				f.tr.Step("  sync of %s fails", op.Path)
				f.stats.syncErrors++
				f.unsynced = true
				return vfs.ErrIO
			}
		}
		if op.Kind == vfs.OpWrite && h.failWrite > 0 {
			if h.failWrite--; h.failWrite == 0 {
				f.stats.full++
				return vfs.ShortWrite{N: f.c.Draw("short", int(op.Len)), Err: vfs.ErrNoSpace}
			}
		}
		return nil
	})
}

func (f *logLife) image(kind seglog.Crash) *vfs.Mem {
	if kind == seglog.ProcessCrash {
		f.stats.crashes++
		return f.fs.Crash(vfs.KeepAll)
	}
	f.stats.power++
	choose := Losses(f.c, "loss")
	return f.fs.Crash(vfs.ChooserFunc(func(u vfs.Unsynced) vfs.Fate {
		fate := choose.Decide(u)
		if fate.How != vfs.Kept {
			f.tr.Step("    loses %s of %s [%d,+%d) (%d)", u.Kind, u.Path, u.Off, u.Len, fate.How)
		}
		return fate
	}))
}

func (f *logLife) dead() bool {
	f.hook.Lock()
	defer f.hook.Unlock()
	return f.hook.dying != nil
}

// run is a few rounds of open, work, and an end.
func (f *logLife) run() error {
	crash := seglog.CleanStop
	rounds := 2 + f.c.Draw("log", 4)
	for round := range rounds {
		if err := f.open(crash); err != nil {
			return err
		}
		for range 4 + f.c.Draw("log", 16) {
			err := f.step()
			synctest.Wait()
			if err != nil {
				f.abandon()
				return err
			}
			if f.dead() || f.l.Err() != nil {
				break
			}
		}
		var err error
		if crash, err = f.end(round == rounds-1); err != nil {
			return err
		}
	}
	return f.open(crash)
}

// abandon closes the log of a run that failed.
func (f *logLife) abandon() {
	f.fs.SetHook(func(vfs.Op) error { return errPowerless })
	_ = f.l.Close() // its goroutines must end with the bubble
}

// end ends a round: by the crash that struck, by one now, or cleanly.
func (f *logLife) end(last bool) (seglog.Crash, error) {
	kind := seglog.CleanStop
	if !f.dead() && f.l.Err() == nil {
		kind = seglog.Crash(f.c.Pick("end", 3, 2, 3))
		if kind == seglog.CleanStop || last {
			err := f.l.Close()
			synctest.Wait()
			f.tr.Step("close: %v", err)
			if err == nil && !f.dead() && !f.unsynced {
				f.book.durable = f.book.acked
				return seglog.CleanStop, nil
			}
		}
	}
	if !f.dead() {
		if kind == seglog.CleanStop {
			kind = seglog.Crash(1 + f.c.Draw("end", 2))
		}
		f.tr.Step("crash")
		f.hook.Lock()
		f.hook.kind, f.hook.dying = kind, f.image(kind)
		f.hook.Unlock()
	}
	_ = f.l.Close() // the dead process writes nothing any more
	synctest.Wait()
	kind = f.hook.kind
	if f.unsynced {
		kind = seglog.MachineCrash // what a run records about itself after a failed sync
	}
	f.fs = f.hook.dying
	if f.bug == logBelieves {
		kind = seglog.ProcessCrash
	}
	return kind, nil
}

func (f *logLife) fail(rule, format string, args ...any) error {
	failure := &Failure{rule, fmt.Sprintf(format, args...)}
	f.tr.Step("BROKEN %v", failure)
	f.abandon()
	return failure
}

// open opens the log as a partition does, however often that crashes, and checks what it holds.
func (f *logLife) open(crash seglog.Crash) error {
	f.unsynced = false
	for {
		f.arm()
		if crash != seglog.CleanStop && f.c.Pick("faults", 4, 1) == 1 {
			f.hook.crashIn, f.hook.kind = 1+f.c.Draw("faults", 10), seglog.Crash(1+f.c.Draw("faults", 2))
		}
		err := f.tryOpen(crash)
		if !f.dead() {
			f.hook.crashIn = 0
			return err
		}
		f.stats.during++
		if f.l != nil {
			_ = f.l.Close()
			synctest.Wait()
		}
		crash = max(crash, f.hook.kind)
		f.fs = f.hook.dying
	}
}

func (f *logLife) tryOpen(crash seglog.Crash) error {
	f.l = nil
	f.cfg.FS, f.cfg.Crash, f.cfg.Generation = f.fs, crash, f.generation
	l, report, err := seglog.Open(f.cfg)
	f.tr.Step("open after %d: %v, lossy %v, %d repairs", crash, err, report.Lossy, len(report.Repairs))
	if f.dead() {
		f.l = l
		return nil
	}
	if err != nil {
		return &Failure{"open", err.Error()}
	}
	f.l = l
	need := f.book.acked
	if crash == seglog.MachineCrash || f.bug == logBelieves {
		need = f.book.durable
	}
	if err := f.check(need); err != nil {
		return err
	}
	b := f.l.Bounds()
	f.book.durable = b.End // readers see it now
	if report.Lossy {
		f.stats.lossy++
		f.producer.doubted = true
		if f.bug == logReuses {
			return nil
		}
		f.generation++
	}
	if b.Generation < f.generation && (b.NextSeq > 1 || report.Lossy || f.generation > 1) {
		return f.startGeneration(b.End, f.reserved-1)
	}
	return nil
}

// check compares what the log holds with the book, and settles what was open in it.
func (f *logLife) check(need int64) error {
	b, book := f.l.Bounds(), &f.book
	f.tr.Step("  holds %d to %d, generation %d, %d segments; %d acknowledged, %d needed", b.First, b.End, b.Generation, b.Segments, book.acked, need)
	switch {
	case b.End < need:
		return f.fail("lost", "the log ends before %d, everything below %d was promised", b.End, need)
	case b.End > book.maxEnd:
		return f.fail("invented", "the log ends before %d, only %d were ever written", b.End, book.maxEnd)
	case b.First > book.maxFirst:
		return f.fail("trimmed", "the log begins at %d, retention allows %d at most", b.First, book.maxFirst)
	}
	seen := map[string]int64{}
	at := b.First
	for r := f.l.NewReader(at); ; {
		chunk, err := r.Next(700, 50)
		if err != nil {
			return f.fail("read", "at %d: %v", at, err)
		}
		if chunk.Lost != nil {
			if chunk.Lost.From != at || !slices.ContainsFunc(book.lost, func(l seglog.Range) bool { return l.From <= at && chunk.Lost.To <= l.To }) {
				return f.fail("lost range", "%v at %d; declared were %v", *chunk.Lost, at, book.lost)
			}
			at = chunk.Lost.To + 1
			continue
		}
		if chunk.Data == nil {
			break
		}
		for data := chunk.Data; len(data) > 0; {
			batch, rest, err := record.Next(data)
			if err != nil {
				return f.fail("read", "at %d: %v", at, err)
			}
			data = rest
			records, err := record.Records(batch)
			if err != nil {
				return f.fail("read", "at %d: %v", at, err)
			}
			for _, rec := range records {
				value := string(rec.Value)
				if rec.Offset != at {
					return f.fail("order", "offset %d comes where %d should", rec.Offset, at)
				}
				if first, twice := seen[value]; twice {
					return f.fail("twice", "%q stands at %d and %d", value, first, at)
				}
				seen[value] = at
				if name, named := book.names[at]; named && name != value {
					return f.fail("one offset, one record", "%d held %q and holds %q", at, name, value)
				} else if !named && !book.maybe[at][value] {
					return f.fail("invented", "%d holds %q, which nobody wrote there", at, value)
				}
				book.names[at] = value
				at++
			}
		}
	}
	if at != b.End {
		return f.fail("hole", "reading stopped at %d, the log ends before %d", at, b.End)
	}
	clear(book.maybe)
	book.acked, book.maxEnd, book.maxFirst = b.End, b.End, b.First
	return nil
}

// step draws a fault and something to do.
func (f *logLife) step() error {
	f.steps++
	switch h := &f.hook; f.c.Pick("faults", 40, 4, 1, 2) {
	case 1:
		h.crashIn, h.kind = 1+f.c.Draw("faults", 12), seglog.Crash(1+f.c.Draw("faults", 2))
	case 2:
		h.failSync = 1 + f.c.Draw("faults", 3)
	case 3:
		h.failWrite = 1 + f.c.Draw("faults", 2)
	}
	switch f.c.Pick("log", 3, 14, 6, 4, 3, 2, 2, 2, 2, 2, 2) {
	case 0:
		return nil
	case 1:
		return f.append(1+f.c.Draw("log", 3), 5+f.c.Draw("log", 150))
	case 2:
		return f.produce(1 + f.c.Draw("log", 3))
	case 3:
		return f.resend()
	case 4:
		return f.outcome("flush", f.l.Flush(context.Background()), func() { f.book.durable = f.book.acked })
	case 5:
		return f.setMode(seglog.Mode(f.c.Draw("log", 3)))
	case 6:
		return f.retain()
	case 7:
		return f.truncate()
	case 8:
		f.generation++
		return f.startGeneration(f.l.Bounds().End, f.l.Bounds().End+int64(f.c.Draw("log", 4))-1)
	case 9:
		return f.wait()
	}
	return f.reopen()
}
