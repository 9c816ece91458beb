package seglog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// busy returns a log whose file is written ahead of its tail, and the name of that file.
func busy(t testing.TB, fs *vfs.Mem) (*Log, Config, string) {
	t.Helper()
	cfg := testConfig(fs)
	cfg.SegmentBytes = 256 << 10
	l := mustOpen(t, cfg)
	for l.tail.ahead <= l.tail.end {
		mustAppend(t, l, batch(t, noProducer, strings.Repeat("x", 3000)))
	}
	return l, cfg, l.tail.active.path
}

func sizeOf(t testing.TB, fs vfs.FS, name string) int64 {
	t.Helper()
	info, err := fs.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size
}

// TestWriteAhead has a log become busy: its file is written ahead of the tail, and what is not used goes with the close,
// with an idle time, with a roll, and after a crash with the next open.
func TestWriteAhead(t *testing.T) {
	fs := vfs.NewMem()
	l, cfg, name := busy(t, fs)
	if size := sizeOf(t, fs, name); size != l.tail.ahead || size < l.tail.end+100<<10 {
		t.Fatalf("a busy log ends at %d, its file at %d, of which it knows %d", l.tail.end, size, l.tail.ahead)
	}
	want, end := l.Bounds().End, l.tail.end
	dead := fs.Crash(vfs.KeepAll)
	for range 2 {
		if _, err := l.Retain(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if size := sizeOf(t, fs, name); size != end {
		t.Errorf("an idle log ends at %d, its file at %d", end, size)
	}
	mustAppend(t, l, batch(t, noProducer, "y"))
	if size := sizeOf(t, fs, name); size <= l.tail.end {
		t.Errorf("busy again, the file ends at %d with the log", size)
	}
	mustClose(t, l)
	if size := sizeOf(t, fs, name); size != l.tail.end {
		t.Errorf("a closed log ends at %d, its file at %d", l.tail.end, size)
	}

	cfg.FS, cfg.Crash = dead, ProcessCrash
	l, report, err := Open(cfg)
	if err != nil || l.Bounds().End != want || report.Truncated != 0 || len(report.Repairs) != 1 || report.Repairs[0].Op != "give-back" || len(report.Salvaged) > 0 {
		t.Fatalf("after a crash: %v, to %d of %d, %+v", err, l.Bounds().End, want, report)
	}
	if size := sizeOf(t, dead, name); size != end {
		t.Errorf("opened after a crash, the log ends at %d, its file at %d", end, size)
	}
	for l.Bounds().Segments == 1 {
		mustAppend(t, l, batch(t, noProducer, strings.Repeat("z", 3000)))
	}
	if sealed := l.view.Load().segs[0]; sealed.end != sizeOf(t, dead, name) {
		t.Errorf("a sealed segment ends at %d, its file at %d", sealed.end, sizeOf(t, dead, name))
	}
	mustClose(t, l)
}

// TestWriteAheadNeverFails has a disk that takes records, and nothing ahead of them.
func TestWriteAheadNeverFails(t *testing.T) {
	fs := vfs.NewMem()
	l, _, _ := busy(t, fs)
	refused := 0
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite && op.Len > 10_000 {
			refused++
			return vfs.ErrNoSpace
		}
		return nil
	})
	l.tail.ahead = 0 // due again
	for range 20 {
		mustAppend(t, l, batch(t, noProducer, strings.Repeat("x", 3000)))
	}
	if refused != 1 {
		t.Errorf("writing ahead was tried %d times on a disk that refuses it", refused)
	}
	mustClose(t, l)
}

// TestTornIntoUnwrittenSpace kills the process in the middle of a write into space that was written before: at any page
// it is an append that was cut off; in any other shape it is damage.
func TestTornIntoUnwrittenSpace(t *testing.T) {
	synctest.Test(t, testTornIntoUnwrittenSpace) // no time passes, so no timer writes a mark
}

func testTornIntoUnwrittenSpace(t *testing.T) {
	fs := vfs.NewMem()
	l, cfg, name := busy(t, fs)
	from := l.tail.end
	mustAppend(t, l, batch(t, noProducer, strings.Repeat("y", 30_000)))
	to, end := l.tail.end, l.Bounds().End
	whole, err := vfs.ReadFile(fs, name, 1<<20)
	if err != nil || to >= int64(len(whole)) {
		t.Fatalf("the frame to cut off ends at %d of %d: %v", to, len(whole), err)
	}
	left := fs.Crash(vfs.KeepAll)
	mustClose(t, l)
	open := func(b []byte, crash Crash) (int64, Report, error) {
		fs := left.Crash(vfs.KeepAll)
		put(t, fs, name, b)
		cfg := cfg
		cfg.FS, cfg.Crash = fs, crash
		l, report, err := Open(cfg)
		if err != nil {
			return 0, report, err
		}
		defer mustClose(t, l)
		return l.Bounds().End, report, nil
	}
	for cut := from; cut < to; cut++ {
		if near := cut%4096 < 2 || cut == from || cut%501 == 0 || cut%4096 == 4070; !near || cut%4096 > 4080 {
			continue
		}
		b := append([]byte(nil), whole...)
		segfmt.FillUnwritten(b[cut:to], cut)
		got, report, err := open(b, ProcessCrash)
		switch torn := cut%4096 == 0 || cut == from; {
		case torn && (err != nil || got != end-1 || report.Truncated != cut-from):
			t.Errorf("cut off at byte %d: %v, to %d of %d, %d bytes cut", cut, err, got, end, report.Truncated)
		case !torn && err == nil:
			t.Errorf("filled from byte %d on, which no kernel does: taken for a write that was cut off", cut)
		}
		if got, _, err := open(b, MachineCrash); err != nil || got != end-1 {
			t.Errorf("cut off at byte %d by a power loss: %v, to %d of %d", cut, err, got, end)
		}
		if _, _, err := open(b, CleanStop); cut != from && err == nil && cut%4096 != 0 {
			t.Errorf("filled from byte %d on: taken for what a clean stop leaves", cut)
		}
	}
	for at := from; at < to+100; at += 397 { // rot in the last frame or behind it is no write that was cut off
		b := append([]byte(nil), whole...)
		b[at] ^= 4
		if _, _, err := open(b, ProcessCrash); err == nil {
			t.Errorf("a flipped bit at byte %d of %d to %d: opened", at, from, to)
		}
	}
}

// TestUnwrittenSpaceBelowTheMark finds unwritten space where the durable mark says that a frame was.
func TestUnwrittenSpaceBelowTheMark(t *testing.T) {
	fs := vfs.NewMem()
	l, cfg, name := busy(t, fs)
	from := l.tail.end
	mustAppend(t, l, batch(t, noProducer, "marked"))
	if err := l.writeMark(); err != nil {
		t.Fatal(err)
	}
	left := fs.Crash(vfs.KeepAll)
	mustClose(t, l)
	b := contentOf(t, left, name)
	segfmt.FillUnwritten(b[from:], from)
	put(t, left, name, b)
	cfg.FS = left
	for _, cfg.Crash = range []Crash{CleanStop, ProcessCrash, MachineCrash} {
		var bad *CorruptionError
		if _, _, err := Open(cfg); !errors.As(err, &bad) || bad.Position != from {
			t.Errorf("after crash %v: %v, must be refused at byte %d", cfg.Crash, err, from)
		}
	}
}

// TestSealedWithUnwrittenSpace has a crash undo that the end of a sealed segment was given back.
func TestSealedWithUnwrittenSpace(t *testing.T) {
	fs := vfs.NewMem()
	l, cfg, name := busy(t, fs)
	for l.Bounds().Segments == 1 {
		mustAppend(t, l, batch(t, noProducer, strings.Repeat("x", 3000)))
	}
	want := l.Bounds().End
	mustClose(t, l)
	b, err := vfs.ReadFile(fs, name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(len(b))
	for _, more := range []int{1, 5, 15, 16, 1000, 100_000} {
		for _, all := range []bool{false, true} {
			fs := fs.Clone()
			cfg.FS, cfg.Crash, cfg.VerifyAllOnOpen = fs, MachineCrash, all
			again := append(b[:n:n], make([]byte, more)...)
			segfmt.FillUnwritten(again[n:], n)
			put(t, fs, name, again)
			l, report, err := Open(cfg)
			if err != nil || l.Bounds().End != want || report.Truncated != 0 || sizeOf(t, fs, name) != n {
				t.Fatalf("%d bytes came back: %v, to %d of %d, %+v", more, err, l.Bounds().End, want, report)
			}
			mustClose(t, l)

			again[n+int64(more)/2] ^= 1
			put(t, fs, name, again)
			if _, _, err := Open(cfg); err == nil {
				t.Fatalf("%d bytes came back, one of them another: opened", more)
			}
		}
	}
}

// TestFlushesTakeTurns has more logs flush at once than files are flushed side by side.
func TestFlushesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		files := NewFiles(0)
		logs := make([]*Log, 3*flushesAtOnce)
		for i := range logs {
			cfg := testConfig(fs)
			cfg.Dir, cfg.Files = fmt.Sprintf("/data/%d", i), files
			logs[i] = mustOpen(t, cfg)
			mustAppend(t, logs[i], batch(t, noProducer, "makes the file"))
		}
		var under, most atomic.Int64
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpSync && strings.HasSuffix(op.Path, segfmt.LogSuffix) {
				n := under.Add(1)
				for was := most.Load(); n > was; was = most.Load() {
					most.CompareAndSwap(was, n)
				}
				time.Sleep(time.Millisecond) // of the bubble
				under.Add(-1)
			}
			return nil
		})
		start := time.Now()
		var wg sync.WaitGroup
		for _, l := range logs {
			wg.Go(func() { mustAppend(t, l, batch(t, noProducer, "x")) })
		}
		wg.Wait()
		if most.Load() != flushesAtOnce || time.Since(start) != 3*time.Millisecond {
			t.Errorf("%d logs: %d flushes at once, %v for all", len(logs), most.Load(), time.Since(start))
		}
		fs.SetHook(nil)
		for _, l := range logs {
			mustClose(t, l)
		}
	})
}
