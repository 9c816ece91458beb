package seglog

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// standsAt returns the value of a metric; of a histogram, the sum of what was observed.
func standsAt(t testing.TB, m prometheus.Metric) float64 {
	t.Helper()
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		t.Fatal(err)
	}
	return d.GetGauge().GetValue() + d.GetCounter().GetValue() + d.GetHistogram().GetSampleSum()
}

// logFiles returns how many segment files are in the log's directory, and their bytes.
func logFiles(t testing.TB, fs vfs.FS, dir string) (files, size float64) {
	t.Helper()
	infos, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if strings.HasSuffix(info.Name, segfmt.LogSuffix) {
			files++
			size += float64(info.Size)
		}
	}
	return files, size
}

// gauged is a log with its gauges.
type gauged struct {
	*Log
	t  *testing.T
	fs *vfs.Mem
	m  *Metrics
}

func (g *gauged) fill(frames int) {
	g.t.Helper()
	for range frames {
		mustAppend(g.t, g.Log, batch(g.t, noProducer, strings.Repeat("x", 900)))
	}
}

// fail makes operations of one kind on segment files fail.
func (g *gauged) fail(kind vfs.OpKind, err error) {
	g.fs.SetHook(func(op vfs.Op) error {
		if op.Kind == kind && strings.HasSuffix(op.Path, segfmt.LogSuffix) {
			return err
		}
		return nil
	})
}

// check compares the gauges with the disk.
func (g *gauged) check(after string, unsynced float64) {
	g.t.Helper()
	files, size := logFiles(g.t, g.fs, g.cfg.Dir)
	if got := standsAt(g.t, g.m.segments); got != files {
		g.t.Errorf("%s: %v segments, and %v are on disk", after, got, files)
	}
	if got := standsAt(g.t, g.m.bytes); got != size {
		g.t.Errorf("%s: %v bytes, and %v are on disk", after, got, size)
	}
	if got := standsAt(g.t, g.m.unsynced); got != unsynced {
		g.t.Errorf("%s: %v bytes unsynced, want %v", after, got, unsynced)
	}
}

// gone closes the log and finds nothing of it in the gauges.
func (g *gauged) gone(what string) {
	g.t.Helper()
	_ = g.Close() // some stand stopped
	g.fs.SetHook(nil)
	for _, gauge := range []prometheus.Gauge{g.m.segments, g.m.bytes, g.m.unsynced} {
		if got := standsAt(g.t, gauge); got != 0 {
			g.t.Errorf("%v: %v is left of %s", gauge.Desc(), got, what)
		}
	}
}

// TestGaugesAreWhatIsOnDisk puts a log through all that makes its files longer, shorter, more and fewer, also where it
// fails, and finds nothing left of it in the gauges at the end.
func TestGaugesAreWhatIsOnDisk(t *testing.T) {
	ctx := context.Background()
	fs, m := vfs.NewMem(), NewMetrics(nil)
	cfg := testConfig(fs)
	cfg.Metrics = m
	g := &gauged{t: t, fs: fs, m: m, Log: mustOpen(t, cfg)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	g.fill(12)
	g.check("appends and rolls", 0)
	g.fail(vfs.OpWrite, vfs.ShortWrite{N: 100, Err: vfs.ErrNoSpace})
	if _, err := g.Append(ctx, batch(t, noProducer, "no room")); err == nil {
		t.Fatal("a write that failed was acknowledged")
	}
	fs.SetHook(nil)
	g.check("a write that was taken back", 0)
	must(g.TruncateAfter(ctx, 11))
	g.check("a frame cut off the active segment", 0)
	must(g.TruncateAfter(ctx, 6))
	g.check("segments cut off, and a part of one", 0)
	g.fill(10)
	must(g.TrimBefore(ctx, 8))
	g.check("a trim", 0)
	if got := standsAt(t, m.deleted); got != 0 {
		t.Errorf("a trim behind a snapshot counts %v bytes as retention's", got)
	}
	_, before := logFiles(t, fs, cfg.Dir)
	g.SetRetention(Retention{Bytes: 5 << 10})
	if _, err := g.Retain(ctx); err != nil {
		t.Fatal(err)
	}
	g.check("retention", 0)
	if _, now := logFiles(t, fs, cfg.Dir); standsAt(t, m.deleted) != before-now || before == now {
		t.Errorf("retention took %v bytes and counted %v", before-now, standsAt(t, m.deleted))
	}
	must(g.Reset(ctx, 100, 1000, 1))
	g.check("a reset", 0)
	must(g.SetMode(ctx, None, 0))
	b := batch(t, noProducer, "not flushed")
	unsynced := float64(segfmt.FrameHeaderSize + len(b))
	mustAppend(t, g.Log, b)
	g.check("an append without a flush", unsynced)
	g.fail(vfs.OpSync, vfs.ErrIO)
	if g.Flush(ctx) == nil {
		t.Fatal("a flush that failed")
	}
	g.check("a flush that failed", unsynced)
	g.gone("a log that stood stopped")
	g.Log = mustOpen(t, cfg)
	g.check("opening it again", 0)
	g.gone("a log that was closed")
}

// TestFailedFlushesOfAppendsAreCounted covers both flushes that an append can need: of what was written, and of the file
// as it was before a write that failed.
func TestFailedFlushesOfAppendsAreCounted(t *testing.T) {
	for _, short := range []bool{false, true} {
		fs, m := vfs.NewMem(), NewMetrics(nil)
		cfg := testConfig(fs)
		cfg.Metrics = m
		g := &gauged{t: t, fs: fs, m: m, Log: mustOpen(t, cfg)}
		g.fill(1)
		b := batch(t, noProducer, "lost")
		fs.SetHook(func(op vfs.Op) error {
			switch {
			case !strings.HasSuffix(op.Path, segfmt.LogSuffix):
			case op.Kind == vfs.OpSync:
				return vfs.ErrIO
			case op.Kind == vfs.OpWrite && short:
				return vfs.ShortWrite{N: 10, Err: vfs.ErrIO}
			}
			return nil
		})
		if _, err := g.Append(context.Background(), b); err == nil {
			t.Fatal("acknowledged without a flush")
		}
		if got := standsAt(t, m.syncFailures); got != 1 || g.Err() == nil {
			t.Errorf("short write %v: %v failed flushes, and the log is stopped by %v", short, got, g.Err())
		}
		if !short {
			g.check("an append whose flush failed", float64(segfmt.FrameHeaderSize+len(b)))
		}
		g.gone("a log that could not flush")
	}
}

// TestLostOffsetsAreNoRecords: a range of offsets that is declared lost has none that a flush could make durable.
func TestLostOffsetsAreNoRecords(t *testing.T) {
	cfg := testConfig(vfs.NewMem())
	cfg.Metrics, cfg.Mode, cfg.FsyncInterval = NewMetrics(nil), Periodic, time.Hour
	l := mustOpen(t, cfg)
	defer mustClose(t, l)
	mustAppend(t, l, batch(t, noProducer, "a", "b"))
	if err := l.StartGeneration(context.Background(), 2, &Range{2, 999}); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, batch(t, noProducer, "c"))
	if err := l.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := standsAt(t, cfg.Metrics.syncRecords); got != 3 {
		t.Errorf("flushes made %v records durable, want 3", got)
	}
}

// TestRepairsCountWhereOpeningFails: what recovery did stays counted when a later step of it fails.
func TestRepairsCountWhereOpeningFails(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	l := mustOpen(t, cfg)
	mustAppend(t, l, batch(t, noProducer, "kept"))
	mustClose(t, l)
	write := func(name string, at int64) {
		f, err := fs.Open(cfg.Dir+"/"+name, true)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte("0123456789"), at); err != nil {
			t.Fatal(err)
		}
	}
	_, size := logFiles(t, fs, cfg.Dir)
	write(segfmt.FileName(0, segfmt.LogSuffix), int64(size))
	write("left-over"+segfmt.TempSuffix, 0)
	cfg.Metrics, cfg.Crash = NewMetrics(nil), MachineCrash
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpRemove {
			return vfs.ErrIO
		}
		return nil
	})
	if _, _, err := Open(cfg); err == nil {
		t.Fatal("opened")
	}
	fs.SetHook(nil)
	mustClose(t, mustOpen(t, cfg))
	if cut, kept := standsAt(t, cfg.Metrics.truncated), standsAt(t, cfg.Metrics.salvaged); cut != 10 || kept != 10 {
		t.Errorf("%v bytes cut, %v kept aside, want 10 each", cut, kept)
	}
}
