package seglog

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// failOnce fails the first operation of a kind on names that end so.
func failOnce(fs *vfs.Mem, kind vfs.OpKind, suffix string) (hit *atomic.Bool) {
	hit = new(atomic.Bool)
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == kind && strings.HasSuffix(op.Path, suffix) && hit.CompareAndSwap(false, true) {
			return vfs.ErrIO
		}
		return nil
	})
	return hit
}

// TestReadersStopAtWhatWasFlushed covers LOG-05 where readers run ahead of the device: once a flush has failed they get
// what the device has, and no more.
func TestReadersStopAtWhatWasFlushed(t *testing.T) {
	for _, mode := range []Mode{Periodic, None} {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		cfg.Mode, cfg.FsyncInterval = mode, time.Hour
		l := mustOpen(t, cfg)
		mustAppend(t, l, batch(t, noProducer, "on the device"))
		if err := l.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, batch(t, noProducer, "in the cache"))
		if got := len(readAll(t, l, 0)); got != 2 {
			t.Fatalf("%v: %d records before the flush", mode, got)
		}
		failOnce(fs, vfs.OpSync, segfmt.LogSuffix)
		if err := l.Flush(context.Background()); fault.KindOf(err) != fault.Stopped {
			t.Fatalf("%v: a flush that fails: %v", mode, err)
		}
		recs, err := collectFrom(l, 0)
		if len(recs) != 1 || fault.KindOf(err) != fault.Stopped {
			t.Errorf("%v: readers got %d records, then %v", mode, len(recs), err)
		}
		if b := l.Bounds(); b.Durable != 1 || b.End != 1 {
			t.Errorf("%v: after a failed flush: %+v", mode, b)
		}
		if l.Close() == nil {
			t.Errorf("%v: a log that stopped was closed without a word", mode)
		}
	}
}

// TestTornMarkKeepsTheOneBefore tears the write of a mark at every byte: the one before it still counts.
func TestTornMarkKeepsTheOneBefore(t *testing.T) {
	synctest.Test(t, testTornMarkKeepsTheOneBefore) // no time passes, so no timer writes the mark first
}

func testTornMarkKeepsTheOneBefore(t *testing.T) {
	for n := range 64 {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		l := mustOpen(t, cfg)
		mustAppend(t, l, batch(t, noProducer, "1"))
		if err := l.writeMark(); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, batch(t, noProducer, "2"))
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpWrite && path.Base(op.Path) == segfmt.MarkName {
				return vfs.ShortWrite{N: n, Err: vfs.ErrIO}
			}
			return nil
		})
		if l.writeMark() == nil {
			t.Fatal("a write that fails was taken for a success")
		}
		fs.SetHook(nil)
		m, ok, err := segfmt.ParseMark(contentOf(t, fs, cfg.Dir+"/"+segfmt.MarkName))
		if err != nil || !ok || m.Seq != 1 && (n < 40 || m.Seq != 2) {
			t.Fatalf("after %d bytes: %+v, %v, %v", n, m, ok, err)
		}
		mustClose(t, l)
	}
}

// TestMarkThatFailedIsLoweredAllTheSame fails the flush of a mark, whose bytes may reach the device later, and removes
// what it claims.
func TestMarkThatFailedIsLoweredAllTheSame(t *testing.T) {
	synctest.Test(t, testMarkThatFailedIsLoweredAllTheSame) // no timer does before the test
}

func testMarkThatFailedIsLoweredAllTheSame(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpSync, vfs.OpSyncDir} {
		fs := vfs.NewMem()
		l, cfg := fourSegments(t, fs)
		hit := failOnce(fs, kind, map[vfs.OpKind]string{vfs.OpSync: segfmt.MarkName, vfs.OpSyncDir: cfg.Dir}[kind])
		if l.writeMark() == nil || !hit.Load() {
			t.Fatal("the mark was written")
		}
		fs.SetHook(nil)
		if err := l.TruncateAfter(context.Background(), 4); err != nil {
			t.Fatal(err)
		}
		for _, choice := range []vfs.Chooser{vfs.KeepAll, vfs.KeepNothing} {
			cfg.FS, cfg.Crash = fs.Crash(choice), MachineCrash
			again, _, err := Open(cfg)
			if err != nil {
				t.Fatalf("%v: %v", kind, err)
			}
			if end := again.Bounds().End; end != 4 {
				t.Errorf("%v: truncated to 4, opened with end %d", kind, end)
			}
			mustClose(t, again)
		}
		mustClose(t, l)
	}
}

// TestTrimGoesOnWhereItFailed fails each removal of a trim once: the segment that could not be removed goes before the
// next one, so that no crash finds a gap.
func TestTrimGoesOnWhereItFailed(t *testing.T) {
	synctest.Test(t, testTrimGoesOnWhereItFailed) // no time passes, so it is not a mark of the timer that fails
}

func testTrimGoesOnWhereItFailed(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpRemove, vfs.OpSyncDir} {
		fs := vfs.NewMem()
		l, cfg := fourSegments(t, fs)
		suffix := segfmt.LogSuffix
		if kind == vfs.OpSyncDir {
			suffix = cfg.Dir
		}
		failOnce(fs, kind, suffix)
		l.SetRetention(Retention{Bytes: 1})
		if _, err := l.Retain(context.Background()); err == nil {
			t.Fatalf("%v: a trim that fails says nothing", kind)
		}
		stopped := l.Err()
		if want := kind == vfs.OpSyncDir; (fault.KindOf(stopped) == fault.Stopped) != want {
			t.Fatalf("%v: the log is stopped by %v", kind, stopped)
		}
		fs.SetHook(nil)
		if _, err := l.Retain(context.Background()); stopped == nil && err != nil {
			t.Fatalf("%v: the next trim: %v", kind, err)
		}
		for _, choice := range []vfs.Chooser{vfs.KeepAll, vfs.KeepNothing} {
			cfg.FS, cfg.Crash = fs.Crash(choice), MachineCrash
			again, _, err := Open(cfg)
			if err != nil {
				t.Fatalf("%v: %v", kind, err)
			}
			if b := again.Bounds(); b.End != 10 || stopped == nil && b.First == 0 {
				t.Errorf("%v: opened with %+v", kind, b)
			}
			mustClose(t, again)
		}
		if err := l.Close(); (err != nil) != (stopped != nil) {
			t.Fatal(err)
		}
	}
}

// TestRetentionKeepsWhatProducersNeed cuts a roll off before the producers' snapshot, or fails it, and has retention
// work: a re-send is recognised, then and after a restart.
func TestRetentionKeepsWhatProducersNeed(t *testing.T) {
	first := batch(t, record.ProducerInfo{ID: 7}, strings.Repeat("x", 100))
	fill := func(l *Log, n int) {
		for i := range n {
			mustAppend(t, l, batch(t, noProducer, fmt.Sprintf("%0300d", i)))
		}
	}
	recognised := func(l *Log, when string) {
		t.Helper()
		if r := mustAppend(t, l, first); !r.Duplicate {
			t.Errorf("%s: a re-send was stored again, at offset %d", when, r.Offset)
		}
	}
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	cfg.SegmentBytes, cfg.Retention = 512, Retention{Bytes: 1}
	l := mustOpen(t, cfg)
	mustAppend(t, l, first)
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpCreate && strings.Contains(op.Path, segfmt.ProducersPrefix) {
			return vfs.ErrNoSpace
		}
		return nil
	})
	fill(l, 3)
	if deleted, err := l.Retain(context.Background()); err != nil || deleted > 0 {
		t.Fatalf("without a snapshot retention removed %d bytes, %v", deleted, err)
	}
	// The process dies like this, and the next one is not kept from writing.
	cfg.FS, cfg.Crash = fs.Crash(vfs.KeepAll), ProcessCrash
	again := mustOpen(t, cfg)
	if deleted, err := again.Retain(context.Background()); err != nil || deleted == 0 {
		t.Fatalf("retention removed %d bytes, %v", deleted, err)
	}
	recognised(again, "after a crash and retention")
	mustClose(t, again)
	cfg.Crash = CleanStop
	again = mustOpen(t, cfg)
	recognised(again, "after a restart")
	mustClose(t, again)
	fs.SetHook(nil)
	fill(l, 1)
	if deleted, err := l.Retain(context.Background()); err != nil || deleted == 0 {
		t.Fatalf("with a snapshot retention removed %d bytes, %v", deleted, err)
	}
	recognised(l, "after a later snapshot and retention")
	mustClose(t, l)
}

// TestFullDiskOpensWithoutIndexes opens a log on a full disk, whose indexes and producers' snapshots are gone: it serves
// every record, by offset and by time, and keeps what only its records tell.
func TestFullDiskOpensWithoutIndexes(t *testing.T) {
	fs := vfs.NewMem()
	l, cfg := fourSegments(t, fs)
	mustClose(t, l)
	infos, err := fs.List(cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if _, kind, ok := segfmt.ParseName(info.Name); ok && kind != segfmt.LogSuffix {
			if err := fs.Remove(path.Join(cfg.Dir, info.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	fs.SetSpace(0)
	cfg.Retention = Retention{Bytes: 1}
	l = mustOpen(t, cfg)
	for from := range int64(10) {
		if got := len(readAll(t, l, from)); got != int(10-from) {
			t.Fatalf("%d records from offset %d on", got, from)
		}
	}
	if at, err := l.OffsetForTime(context.Background(), 0); err != nil || at != 0 {
		t.Fatal(at, err)
	}
	if deleted, err := l.Retain(context.Background()); err != nil || deleted > 0 {
		t.Fatalf("retention removed %d bytes, %v", deleted, err)
	}
	mustClose(t, l)
}

// TestNamesSurviveAProcessThatDied kills a process at every step of its first append, or of a roll, and then the machine:
// what the next process was told is on the device stays.
func TestNamesSurviveAProcessThatDied(t *testing.T) {
	for _, segments := range []int{0, 1} {
		for n := 1; ; n++ {
			fs := vfs.NewMem()
			cfg := testConfig(fs)
			cfg.SegmentBytes = 100
			l := mustOpen(t, cfg)
			for range segments {
				mustAppend(t, l, batch(t, noProducer, "1"))
			}
			died := diesAt(fs, n)
			mustAppend(t, l, batch(t, noProducer, strings.Repeat("2", 100)))
			fs.SetHook(nil)
			mustClose(t, l)
			if *died == nil {
				break
			}
			cfg.FS, cfg.Crash = *died, ProcessCrash
			second := mustOpen(t, cfg)
			end := mustAppend(t, second, batch(t, noProducer, "3")).Offset + 1
			cfg.FS, cfg.Crash = (*died).Crash(vfs.KeepNothing), MachineCrash
			third := mustOpen(t, cfg)
			if got := third.Bounds().End; got != end {
				t.Fatalf("with %d segments, died before operation %d: acknowledged up to offset %d, and the log ends at %d", segments, n, end, got)
			}
			mustClose(t, third)
			mustClose(t, second)
		}
	}
}

// diesAt takes a copy of what a process leaves that dies before the nth change.
func diesAt(fs *vfs.Mem, n int) (died **vfs.Mem) {
	died = new(*vfs.Mem)
	seen := atomic.Int64{}
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind.Changes() && op.Kind != vfs.OpReserve && seen.Add(1) == int64(n) {
			*died = fs.Crash(vfs.KeepAll)
		}
		return nil
	})
	return died
}
