package seglog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

var errDevice = fmt.Errorf("injected: %w", vfs.ErrIO)

// countErrors counts what is logged as an error.
type countErrors struct {
	slog.Handler
	n *int
}

func (c countErrors) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}
func (c countErrors) Handle(context.Context, slog.Record) error { *c.n++; return nil }
func (c countErrors) WithAttrs([]slog.Attr) slog.Handler        { return c }

// TestFailedFlushStopsTheLog covers LOG-03 and LOG-05 at the flush of an append.
func TestFailedFlushStopsTheLog(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	stopped := 0
	cfg.Logger = slog.New(countErrors{slog.DiscardHandler, &stopped})
	l := mustOpen(t, cfg)
	mustAppend(t, l, batch(t, noProducer, "safe"))
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			return errDevice
		}
		return nil
	})
	err := appendErr(l, batch(t, noProducer, "never acknowledged"))
	if fault.KindOf(err) != fault.OutcomeUnknown || !errors.Is(err, vfs.ErrIO) {
		t.Fatalf("append: %v", err)
	}
	fs.SetHook(nil) // the next flush would report success: it must not be asked
	if err := appendErr(l, batch(t, noProducer, "later")); fault.KindOf(err) != fault.Stopped {
		t.Fatalf("a later append: %v", err)
	}
	if recs, err := collectFrom(l, 0); len(recs) != 1 || fault.KindOf(err) != fault.Stopped {
		t.Fatalf("readers must stop at the durable offset: %d records, %v", len(recs), err)
	}
	if err := l.Wait(context.Background(), 5); fault.KindOf(err) != fault.Stopped {
		t.Fatalf("wait: %v", err)
	}
	if err := l.Close(); fault.KindOf(err) != fault.Stopped || stopped != 1 {
		t.Fatalf("close: %v, %d events", err, stopped)
	}
	// Restarted, the log reads what the device holds, not what the page cache shows.
	cfg.Crash = MachineCrash // what the run file says after a failed flush
	l = mustOpen(t, cfg)
	if got := readAll(t, l, 0); len(got) != 1 {
		t.Fatalf("%d records after the restart: the cache was believed", len(got))
	}
	mustAppend(t, l, batch(t, noProducer, "goes on"))
	mustClose(t, l)
}

// TestEveryFlushSite fails every flush of a life, one at a time: none may be followed by an acknowledgement, and what
// was acknowledged before is there after a restart, even on a device that lost everything else (R8).
func TestEveryFlushSite(t *testing.T) {
	life := func(fs *vfs.Mem, l *Log) (acked int64) {
		for i := range 60 {
			if i == 40 {
				l.SetRetention(Retention{Bytes: 6 << 10})
				_, _ = l.Retain(context.Background())
			}
			if i == 50 {
				_ = l.writeMark()
			}
			r, err := l.Append(context.Background(), batch(t, noProducer, fmt.Sprintf("%0200d", i)))
			if err != nil {
				return acked
			}
			acked = r.LastOffset + 1
		}
		return acked
	}
	fs := vfs.NewMem()
	l := mustOpen(t, testConfig(fs))
	life(fs, l)
	_ = l.Close()
	total := fs.Ops()
	sites := 0
	for n := 1; n <= total; n++ {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		hit := ""
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind.Changes() && op.N == n && (op.Kind == vfs.OpSync || op.Kind == vfs.OpSyncDir) {
				hit = op.String()
				return errDevice
			}
			return nil
		})
		l := mustOpen(t, cfg)
		acked := life(fs, l)
		_ = l.Close()
		if hit == "" {
			continue
		}
		sites++
		fs.SetHook(nil)
		cfg.FS, cfg.Crash = fs.Crash(vfs.KeepNothing), MachineCrash
		l = mustOpen(t, cfg)
		b := l.Bounds()
		if b.End < acked {
			t.Fatalf("%s failed: %d acknowledged, %d left", hit, acked, b.End)
		}
		for i, r := range readAll(t, l, b.First) {
			if want := fmt.Sprintf("%0200d", b.First+int64(i)); string(r.Value) != want {
				t.Fatalf("%s failed: offset %d holds %q", hit, r.Offset, r.Value)
			}
		}
		mustClose(t, l)
	}
	if sites < 70 {
		t.Fatalf("only %d flush sites met", sites)
	}
}

// TestFullDisk covers LOG-04 and LOG-06: a short write is cut off, nothing is lost, and appends resume by themselves.
func TestFullDisk(t *testing.T) {
	for _, mode := range []Mode{OnCommit, Periodic} {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		cfg.Mode = mode
		cfg.Dir = "/p"
		l := mustOpen(t, cfg)
		var want []string
		full := 0
		for i := range 3000 {
			if i%100 == 0 {
				fs.SetSpace(-1)
				if i%200 == 0 && i > 0 {
					l.SetRetention(Retention{Bytes: 1})
					if _, err := l.Retain(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if i%100 == 20 {
				fs.SetSpace(int64(len(want)%7) * 1000)
			}
			v := fmt.Sprintf("%0150d", i)
			r, err := l.Append(context.Background(), batch(t, noProducer, v))
			switch {
			case err == nil && r.Offset != int64(len(want)):
				t.Fatalf("append went to %d, not %d: a refused one took an offset", r.Offset, len(want))
			case err == nil:
				want = append(want, v)
			case fault.KindOf(err) == fault.NoSpace:
				full++
			default:
				t.Fatal(err)
			}
		}
		if full == 0 {
			t.Fatal("the disk was never full")
		}
		fs.SetSpace(-1)
		mustClose(t, l)
		l = mustOpen(t, cfg)
		first := l.Bounds().First
		got := readAll(t, l, first)
		if int64(len(got)) != int64(len(want))-first {
			t.Fatalf("%d records from %d, acknowledged were %d", len(got), first, len(want))
		}
		for _, r := range got {
			if string(r.Value) != want[r.Offset] {
				t.Fatalf("offset %d holds %q", r.Offset, r.Value)
			}
		}
		mustClose(t, l)
	}
}

// TestPeriodicFlushes checks LOG-02's window: within one interval everything is on the device, and an idle log is left
// alone.
func TestPeriodicFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		cfg.Mode, cfg.FsyncInterval = Periodic, 250*time.Millisecond
		l := mustOpen(t, cfg)
		mustAppend(t, l, batch(t, noProducer, "a"))
		if b := l.Bounds(); b.End != 1 || b.Durable != 0 {
			t.Fatalf("right after: %+v", b)
		}
		time.Sleep(251 * time.Millisecond)
		synctest.Wait()
		if b := l.Bounds(); b.Durable != 1 {
			t.Fatalf("after the interval: %+v", b)
		}
		ops := fs.Ops()
		time.Sleep(10 * time.Second)
		if n := fs.Ops() - ops; n > 4 { // the mark, once: create, write, flush, directory
			t.Fatalf("%d operations on an idle log", n)
		}
		crashed := cfg
		crashed.FS, crashed.Crash = fs.Crash(vfs.KeepNothing), MachineCrash
		l2, rep, err := Open(crashed)
		if err != nil || l2.Bounds().End != 1 || !rep.Lossy {
			t.Fatalf("after a power cut: %v, %+v, lossy %v", err, l2.Bounds(), rep.Lossy)
		}
		mustClose(t, l2)
		mustClose(t, l)
	})
}

func TestModeChangesLive(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	cfg.Mode = None
	l := mustOpen(t, cfg)
	defer mustClose(t, l)
	mustAppend(t, l, batch(t, noProducer, "a", "b"))
	if err := l.SetMode(context.Background(), OnCommit, 0); err != nil {
		t.Fatal(err)
	}
	if b := l.Bounds(); b.Durable != 2 {
		t.Fatalf("the change must flush what was acknowledged: %+v", b)
	}
	mustAppend(t, l, batch(t, noProducer, "c"))
	if b := l.Bounds(); b.Durable != 3 {
		t.Fatalf("%+v", b)
	}
}

func TestOffsetForTime(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	l := mustOpen(t, cfg)
	var times []int64
	clock := int64(1000)
	for i := range 300 {
		at := clock
		if i%10 == 7 {
			at -= 500 // producers' clocks disagree
		}
		mustAppend(t, l, batchAt(t, noProducer, at, fmt.Sprintf("%0100d", i)))
		times = append(times, at)
		clock += 10
	}
	check := func(l *Log) {
		t.Helper()
		for ms := int64(400); ms < clock+20; ms += 37 {
			want := int64(len(times))
			for i, at := range times {
				if at >= ms {
					want = int64(i)
					break
				}
			}
			if got, err := l.OffsetForTime(context.Background(), ms); err != nil || got != want {
				t.Fatalf("at %d: offset %d, %v, want %d", ms, got, err, want)
			}
		}
	}
	check(l)
	mustClose(t, l)
	l = mustOpen(t, cfg)
	check(l)
	mustClose(t, l)
}

// TestLostRangeReachesReaders covers LOG-19 in the log.
func TestLostRangeReachesReaders(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	l := mustOpen(t, cfg)
	mustAppend(t, l, batch(t, noProducer, "a", "b"))
	if err := l.StartGeneration(context.Background(), 1, nil); fault.KindOf(err) != fault.Fenced {
		t.Fatalf("an old generation: %v", err)
	}
	if err := l.StartGeneration(context.Background(), 4, &Range{2, 99}); err != nil {
		t.Fatal(err)
	}
	if r := mustAppend(t, l, batch(t, noProducer, "c")); r.Offset != 100 {
		t.Fatalf("%+v", r)
	}
	check := func(l *Log) {
		t.Helper()
		var events []string
		for _, from := range []int64{0, 1, 50, 100} {
			r := l.NewReader(from)
			for {
				c, err := r.Next(1<<20, 1000)
				if err != nil {
					t.Fatal(err)
				}
				if c.Lost == nil && c.Data == nil {
					break
				}
				if c.Lost != nil {
					events = append(events, fmt.Sprintf("%d: lost %d-%d", from, c.Lost.From, c.Lost.To))
				} else {
					events = append(events, fmt.Sprintf("%d: %d+%d", from, c.First, c.Records))
				}
			}
		}
		want := []string{"0: 0+2", "0: lost 2-99", "0: 100+1", "1: 0+2", "1: lost 2-99", "1: 100+1", "50: lost 50-99", "50: 100+1", "100: 100+1"}
		if !reflect.DeepEqual(events, want) {
			t.Fatalf("%q", events)
		}
		if b := l.Bounds(); b.Generation != 4 {
			t.Fatalf("%+v", b)
		}
	}
	check(l)
	mustClose(t, l)
	l = mustOpen(t, cfg)
	check(l)
	mustClose(t, l)
}

type fixedLimit struct{ offset, grow int64 }

func (f *fixedLimit) Offset() int64 { return f.offset }
func (f *fixedLimit) Extend(need int64) error {
	if f.grow == 0 {
		return fault.New(fault.Unavailable, "no metadata")
	}
	f.offset = need + f.grow
	return nil
}

func TestOffsetsStayBelowTheReservation(t *testing.T) {
	cfg := testConfig(vfs.NewMem())
	limit := &fixedLimit{offset: 3}
	cfg.Limit, cfg.Mode = limit, None
	l := mustOpen(t, cfg)
	defer mustClose(t, l)
	mustAppend(t, l, batch(t, noProducer, "a", "b"))
	if err := appendErr(l, batch(t, noProducer, "c", "d")); fault.KindOf(err) != fault.Unavailable {
		t.Fatalf("beyond the reservation: %v", err)
	}
	mustAppend(t, l, batch(t, noProducer, "c"))
	limit.grow = 10
	if r := mustAppend(t, l, batch(t, noProducer, "d", "e")); r.Offset != 3 || limit.offset != 15 {
		t.Fatalf("%+v, limit %d", r, limit.offset)
	}
}

func TestEntries(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	l := mustOpen(t, cfg)
	var want []Entry
	for i := range 200 {
		e := Entry{Seq: uint64(i + 1), Generation: uint32(1 + i/50), Kind: segfmt.KindData, Batch: batch(t, noProducer, fmt.Sprintf("%0100d", i))}
		if i%50 == 0 {
			e.Kind, e.Batch = segfmt.KindGenerationStart, segfmt.ControlBatch(nil)
		}
		want = append(want, e)
	}
	for i := 0; i < len(want); i += 7 {
		if err := l.AppendEntries(context.Background(), want[i:min(i+7, len(want))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.AppendEntries(context.Background(), []Entry{{Seq: 300, Generation: 9, Batch: want[1].Batch}}); fault.KindOf(err) != fault.Conflict {
		t.Fatalf("a gap: %v", err)
	}
	check := func(l *Log, from, to uint64) {
		t.Helper()
		for seq := from; seq <= to; {
			got, err := l.ReadEntries(seq, 1000)
			if err != nil || len(got) == 0 {
				t.Fatalf("read %d: %d, %v", seq, len(got), err)
			}
			for _, e := range got {
				w := want[seq-1]
				if e.Seq != seq || e.Generation != w.Generation || e.Kind != w.Kind || len(e.Batch) != len(w.Batch) {
					t.Fatalf("entry %d: %+v", seq, e)
				}
				seq++
			}
		}
		for seq := from - 1; seq <= to; seq++ {
			g, err := l.GenerationAt(seq)
			if seq > 0 && (err != nil || g != want[seq-1].Generation) {
				t.Fatalf("generation at %d: %d, %v", seq, g, err)
			}
		}
	}
	check(l, 1, 200)
	if err := l.TruncateAfter(context.Background(), 120); err != nil {
		t.Fatal(err)
	}
	check(l, 1, 120)
	if err := l.AppendEntries(context.Background(), want[120:130]); err != nil {
		t.Fatal(err)
	}
	if err := l.TrimBefore(context.Background(), 100); err != nil {
		t.Fatal(err)
	}
	first := l.Bounds().FirstSeq
	if first <= 1 || first > 100 {
		t.Fatalf("trimmed to %d", first)
	}
	check(l, first, 130)
	mustClose(t, l)
	l = mustOpen(t, cfg)
	check(l, first, 130)
	var trimmed *TrimmedError
	if _, err := l.ReadEntries(1, 10); !errors.As(err, &trimmed) {
		t.Fatalf("below the first: %v", err)
	}
	if err := l.Reset(context.Background(), 500, 1000, 9); err != nil {
		t.Fatal(err)
	}
	if g, err := l.GenerationAt(499); err != nil || g != 9 {
		t.Fatalf("generation before a reset log: %d, %v", g, err)
	}
	if b := l.Bounds(); b.NextSeq != 500 || b.End != 1000 || b.First != 1000 {
		t.Fatalf("%+v", b)
	}
	mustClose(t, l)
}

func TestWaitWakesAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustOpen(t, testConfig(vfs.NewMem()))
		errs := make(chan error, 3)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { errs <- l.Wait(context.Background(), 0) }()
		synctest.Wait()
		mustAppend(t, l, batch(t, noProducer, "a"))
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		go func() { errs <- l.Wait(ctx, 1) }()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		go func() { errs <- l.Wait(context.Background(), 1) }()
		synctest.Wait()
		mustClose(t, l)
		if err := <-errs; fault.KindOf(err) != fault.Unavailable {
			t.Fatal(err)
		}
		if err := appendErr(l, batch(t, noProducer, "b")); fault.KindOf(err) != fault.Unavailable {
			t.Fatal(err)
		}
	})
}

// TestFilesAreBounded: many logs share few descriptors, and none with unflushed writes is closed.
func TestFilesAreBounded(t *testing.T) { synctest.Test(t, testFilesAreBounded) }

func testFilesAreBounded(t *testing.T) {
	fs := vfs.NewMem()
	files := NewFiles(4)
	var logs []*Log
	for i := range 50 {
		cfg := testConfig(fs)
		cfg.Dir, cfg.Files = fmt.Sprintf("/data/%d", i), files
		logs = append(logs, mustOpen(t, cfg))
	}
	for round := range 3 {
		for i, l := range logs {
			mustAppend(t, l, batch(t, noProducer, fmt.Sprint(i, round)))
		}
		synctest.Wait() // reservations hold a file for a moment
		if n := files.Open(); n > 5 {
			t.Fatalf("%d files open", n)
		}
	}
	for i, l := range logs {
		if got := readAll(t, l, 0); len(got) != 3 || string(got[2].Value) != fmt.Sprint(i, 2) {
			t.Fatalf("log %d: %v", i, got)
		}
		mustClose(t, l)
	}
	if n := files.Open(); n != 0 {
		t.Fatalf("%d files left open", n)
	}
}

// TestQueueIsBounded: publishers wait while too much is queued, and their wait ends with their context.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		cfg.QueueBytes = 1000
		l := mustOpen(t, cfg)
		release := make(chan struct{})
		blocked := false
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpSync && !blocked {
				blocked = true
				<-release
			}
			return nil
		})
		done := 0
		submit := func(ctx context.Context) error {
			return l.Submit(ctx, &Append{Batch: batch(t, noProducer, fmt.Sprintf("%0300d", 1)), Done: func(*Append) { done++ }})
		}
		for range 3 { // one is being written, two fit the queue
			if err := submit(context.Background()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := submit(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the queue is full: %v", err)
		}
		close(release)
		synctest.Wait()
		if done != 3 {
			t.Fatalf("%d answered", done)
		}
		mustClose(t, l)
	})
}

func TestBadInput(t *testing.T) {
	cfg := testConfig(vfs.NewMem())
	cfg.MaxBatchBytes = 10_000
	l := mustOpen(t, cfg)
	defer mustClose(t, l)
	good := batch(t, noProducer, "x")
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)-1] ^= 1
	for name, c := range map[string]struct {
		b    []byte
		want fault.Kind
	}{
		"empty":        {nil, fault.InvalidArgument},
		"short":        {good[:50], fault.InvalidArgument},
		"cut":          {good[:len(good)-1], fault.InvalidArgument},
		"followed":     {append(append([]byte(nil), good...), 0), fault.InvalidArgument},
		"flipped":      {flipped, fault.InvalidArgument},
		"no records":   {segfmt.ControlBatch(nil), fault.InvalidArgument},
		"too large":    {batch(t, noProducer, string(make([]byte, 10_000))), fault.TooLarge},
		"bad sequence": {batch(t, record.ProducerInfo{ID: 1, Epoch: 0, Sequence: -5}, "x"), fault.InvalidArgument},
	} {
		if err := appendErr(l, c.b); fault.KindOf(err) != c.want {
			t.Errorf("%s: %v, want kind %v", name, err, c.want)
		}
	}
	if b := l.Bounds(); b.End != 0 {
		t.Fatalf("something was appended: %+v", b)
	}
	mustAppend(t, l, good)
}
