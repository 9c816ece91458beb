package partition

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const dir = "/data/topics/default/t@1/0"

// world is what outlives a run of the broker: the disk and the metadata.
type world struct {
	t      *testing.T
	fs     *vfs.Mem
	meta   *meta.Memory
	topic  *meta.Topic
	store  meta.Store // what partitions are given; nil: meta
	chosen bool       // the topic sets its fsync mode itself
}

func newWorld(t *testing.T, mode seglog.Mode) *world {
	t.Helper()
	w := &world{t: t, fs: vfs.NewMem(), meta: meta.NewMemory(), chosen: true}
	name := mode.String()
	c := meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: "t"}, ID: meta.TopicID{1}, Partitions: 1,
		Dispatch: meta.Reliable, Settings: meta.Settings{Fsync: &name}}
	if mode != seglog.OnCommit {
		c.Reserved = FirstReservation
	}
	r, err := w.meta.Propose(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	w.topic = r.Topic
	return w
}

func (w *world) entry() meta.Partition {
	w.t.Helper()
	t, ok := w.meta.View().TopicByID(w.topic.ID)
	if !ok {
		w.t.Fatal("the topic is gone")
	}
	return t.Partitions[0]
}

func (w *world) config(tasks *task.Group, crash seglog.Crash) *Config {
	store := w.store
	if store == nil {
		store = w.meta
	}
	return &Config{
		Log: seglog.Config{FS: w.fs, Crash: crash}, Meta: store, Tasks: tasks,
		Place: func(*Topic, int32) (data, salvage string) { return dir, "/data/salvage" },
	}
}

func (w *world) new(cfg *Config, mode seglog.Mode) *Partition {
	t := &Topic{Name: w.topic.Name, Full: w.topic.Name.String(), ID: w.topic.ID, Incarnation: w.topic.Incarnation}
	return New(cfg, t, 0, Settings{Mode: mode, ModeChosen: w.chosen, FsyncInterval: time.Hour, SegmentBytes: 1 << 20})
}

// run opens a partition for the time of fn and then leaves it, closed, as a process that dies leaves it: whoever wants
// the disk without that close takes it inside fn.
func (w *world) run(mode seglog.Mode, crash seglog.Crash, fn func(p *Partition)) {
	w.t.Helper()
	tasks := task.NewGroup(context.Background())
	p := w.new(w.config(tasks, crash), mode)
	defer func() {
		_ = p.Close(context.Background(), errors.New("the test is over"))
		if err := tasks.Wait(); err != nil {
			w.t.Error(err)
		}
	}()
	fn(p)
}

func batch(t *testing.T, values ...string) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	for _, v := range values {
		if err := b.Append(record.Record{Value: []byte(v), Timestamp: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Build(record.NoProducer)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustAppend(t *testing.T, p *Partition, values ...string) seglog.Result {
	t.Helper()
	r, err := p.Append(context.Background(), batch(t, values...))
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return r
}

// history is what a reader from the oldest record on is told.
type history struct {
	values map[int64]string
	lost   []seglog.Range
	end    int64
}

func readAll(t *testing.T, p *Partition) history {
	t.Helper()
	if err := p.Ready(context.Background()); err != nil {
		t.Fatalf("ready: %v", err)
	}
	b, _ := p.Bounds()
	r, err := p.NewReader(context.Background(), b.First)
	if err != nil {
		t.Fatal(err)
	}
	h := history{values: map[int64]string{}, end: b.First}
	for {
		c, err := r.Next(t.Context(), 1<<20, math.MaxInt)
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		switch {
		case c.Lost != nil:
			if c.Lost.From != h.end {
				t.Fatalf("a gap before what is declared lost: %d to %d", h.end, c.Lost.From)
			}
			h.lost = append(h.lost, *c.Lost)
		case c.Data == nil:
			return h
		}
		for data := c.Data; len(data) > 0; {
			one, rest, err := record.Next(data)
			if err != nil {
				t.Fatal(err)
			}
			data = rest
			if err := record.Each(one, func(r record.Record) error {
				if r.Offset != h.end {
					return fmt.Errorf("offset %d after %d", r.Offset, h.end)
				}
				h.values[r.Offset] = string(r.Value)
				h.end++
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		h.end = c.Next
	}
}

func TestFirstUseOpens(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		if s := p.Status(); s.State != Opening || s.Opened || s.Settled {
			t.Fatalf("before its first use: %+v", s)
		}
		if _, ok := p.Bounds(); ok {
			t.Fatal("bounds without a log")
		}
		if r := mustAppend(t, p, "a", "b"); r.Offset != 0 || r.LastOffset != 1 {
			t.Fatalf("the first batch went to %+v", r)
		}
		if s := p.Status(); s.State != Serving || !s.Opened || !s.Settled {
			t.Fatalf("after its first use: %+v", s)
		}
		if b, _ := p.Bounds(); b.Generation != w.entry().Generation {
			t.Fatalf("records carry generation %d, the metadata has %d", b.Generation, w.entry().Generation)
		}
	})
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		if h := readAll(t, p); h.end != 2 || h.values[1] != "b" {
			t.Fatalf("reopened: %+v", h)
		}
	})
}

func TestManyUsesShareOneOpen(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) { mustAppend(t, p, "a") })
	hold, entered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.fs.SetHook(func(op vfs.Op) error {
		if strings.HasPrefix(op.Path, dir) {
			once.Do(func() { close(entered); <-hold })
		}
		return nil
	})
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		// A use whose context ends gives up without stopping the attempt.
		ctx, cancel := context.WithCancel(context.Background())
		go func() { <-entered; cancel() }()
		if err := p.Ready(ctx); fault.KindOf(err) != fault.Canceled || !strings.Contains(err.Error(), "default/t/0") {
			t.Fatalf("got %v", err)
		}
		results := make(chan error)
		for range 8 {
			go func() { results <- p.Ready(context.Background()) }()
		}
		close(hold)
		for range 8 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

func corrupt(t *testing.T, fs *vfs.Mem) {
	t.Helper()
	infos, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if strings.HasSuffix(info.Name, ".log") {
			f, err := fs.Open(dir+"/"+info.Name, false)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("rot"), 64+16+70); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f.Sync(), f.Close()); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no segment")
}

func TestCorruptLogIsUnavailable(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		mustAppend(t, p, "first", "second", "third")
		mustAppend(t, p, "fourth")
	})
	corrupt(t, w.fs)
	w.run(seglog.OnCommit, seglog.ProcessCrash, func(p *Partition) {
		for range 2 {
			_, err := p.Append(context.Background(), batch(t, "x"))
			var ce *seglog.CorruptionError
			if !errors.As(err, &ce) || ce.Topic != "default/t" || ce.Position == 0 {
				t.Fatalf("append to a corrupt log: %v", err)
			}
		}
		if s := p.Status(); s.State != Unavailable || fault.KindOf(s.Err) != fault.Corrupt || s.Opened {
			t.Fatalf("%+v", s)
		}
		if err := p.Unload(context.Background()); err != nil {
			t.Fatal(err)
		}
		if s := p.Status(); s.State != Unloaded {
			t.Fatalf("%+v", s)
		}
	})
}

func TestPassingErrorIsRetried(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) { mustAppend(t, p, "a") })
	now := time.Unix(1000, 0)
	broken := true
	attempts := 0
	w.fs.SetHook(func(op vfs.Op) error {
		if op.Path == dir && broken {
			attempts++
			return vfs.ErrIO
		}
		return nil
	})
	tasks := task.NewGroup(context.Background())
	cfg := w.config(tasks, seglog.CleanStop)
	cfg.Now = func() time.Time { return now }
	p := w.new(cfg, seglog.OnCommit)
	ctx := context.Background()
	for i, step := range []struct {
		wait time.Duration
		want int
	}{{0, 1}, {firstRetry - 1, 1}, {1, 2}, {2*firstRetry - 1, 2}, {1, 3}} {
		now = now.Add(step.wait)
		if err := p.Ready(ctx); fault.KindOf(err) != fault.IO {
			t.Fatalf("step %d: %v", i, err)
		}
		if attempts != step.want {
			t.Fatalf("step %d: %d attempts, want %d", i, attempts, step.want)
		}
	}
	broken = false
	now = now.Add(lastRetry)
	p.RetryDue()
	if err := p.Ready(ctx); err != nil {
		t.Fatalf("once the cause is gone: %v", err)
	}
	if err := errors.Join(p.Close(ctx, errors.New("over")), tasks.Wait()); err != nil {
		t.Fatal(err)
	}
}

func TestUnloadAndUseAgain(t *testing.T) {
	w := newWorld(t, seglog.Periodic)
	w.run(seglog.Periodic, seglog.CleanStop, func(p *Partition) {
		ctx := context.Background()
		mustAppend(t, p, "a")
		r, err := p.NewReader(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		waited := make(chan error)
		go func() { waited <- r.Wait(ctx, 1) }()
		if err := p.Unload(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; fault.KindOf(err) != fault.Unavailable {
			t.Fatalf("a reader that waited: %v", err)
		}
		if _, err := r.Next(t.Context(), 1<<20, 1); fault.KindOf(err) != fault.Unavailable {
			t.Fatalf("a reader of the unloaded log: %v", err)
		}
		if r := mustAppend(t, p, "b"); r.Offset != 1 {
			t.Fatalf("after reopening: %+v", r)
		}
		if h := readAll(t, p); len(h.lost) != 0 || h.values[0] != "a" || h.values[1] != "b" {
			t.Fatalf("%+v", h)
		}
	})
}

// TestPrepareOpensAhead: who only looks has a partition opened that nobody has tried yet, and none that was unloaded.
func TestPrepareOpensAhead(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) { mustAppend(t, p, "a") })
	entered := make(chan struct{})
	var once sync.Once
	w.fs.SetHook(func(op vfs.Op) error {
		if strings.HasPrefix(op.Path, dir) {
			once.Do(func() { close(entered) })
		}
		return nil
	})
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		p.Prepare(false)
		<-entered
		p.Prepare(false) // one attempt is enough
		if err := p.Ready(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := p.Unload(context.Background()); err != nil {
			t.Fatal(err)
		}
		p.Prepare(false)
		if s := p.Status(); s.State != Unloaded {
			t.Fatalf("looking at it opened it again: %v", s.State)
		}
		p.Prepare(true)
		if s := p.Status(); s.State != Opening && s.State != Serving {
			t.Fatalf("it is not opened again: %v", s.State)
		}
	})
}

func TestCloseAnswersEverybody(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	reason := fault.New(fault.Deleted, "topic default/t was deleted")
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		ctx := context.Background()
		mustAppend(t, p, "a")
		r, err := p.NewReader(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		waited := make(chan error)
		go func() { waited <- r.Wait(ctx, 1) }()
		if err := p.Close(ctx, reason); err != nil {
			t.Fatal(err)
		}
		_, appendErr := p.Append(ctx, batch(t, "x"))
		_, readerErr := p.NewReader(ctx, 0)
		for i, err := range []error{<-waited, appendErr, readerErr, p.Ready(ctx), p.Unload(ctx), p.Apply(ctx, Settings{})} {
			if !errors.Is(err, reason) {
				t.Errorf("use %d after the end: %v", i, err)
			}
		}
		if s := p.Status(); s.State != Closed || !errors.Is(s.Err, reason) {
			t.Fatalf("%+v", s)
		}
	})
}

func TestCloseWhileOpening(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) { mustAppend(t, p, "a") })
	hold, entered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.fs.SetHook(func(op vfs.Op) error {
		if strings.HasPrefix(op.Path, dir) {
			once.Do(func() { close(entered); <-hold })
		}
		return nil
	})
	reason := fault.New(fault.Unavailable, "stopping")
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		ready, closed := make(chan error), make(chan error)
		go func() { ready <- p.Ready(context.Background()) }()
		<-entered
		go func() { closed <- p.Close(context.Background(), reason) }()
		<-p.life.Done()
		close(hold)
		if err := <-ready; !errors.Is(err, reason) {
			t.Errorf("waiting to open: %v", err)
		}
		if err := <-closed; err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func TestStoppedLogIsReportedAndReopensAsAfterACrash(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		ctx := context.Background()
		mustAppend(t, p, "kept")
		w.fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpSync && strings.HasSuffix(op.Path, ".log") {
				return vfs.ErrIO
			}
			return nil
		})
		if _, err := p.Append(ctx, batch(t, "gone")); fault.KindOf(err) != fault.OutcomeUnknown {
			t.Fatalf("append whose flush fails: %v", err)
		}
		if s := p.Status(); s.State != Unavailable || fault.KindOf(s.Err) != fault.Stopped {
			t.Fatalf("%+v", s)
		}
		w.fs.SetHook(nil)
		if err := p.Unload(ctx); fault.KindOf(err) != fault.Stopped {
			t.Fatalf("unloading a stopped log must say so: %v", err)
		}
		if h := readAll(t, p); h.end != 1 || h.values[0] != "kept" {
			t.Fatalf("reopened: %+v", h)
		}
	})
}

// TestFullDiskDoesNotSpoilAClose closes and unloads a log on a full disk: everything in it was flushed, and that the note
// of it finds no room is no failed flush.
func TestFullDiskDoesNotSpoilAClose(t *testing.T) {
	for name, end := range map[string]func(p *Partition) error{
		"close":  func(p *Partition) error { return p.Close(context.Background(), errors.New("the broker stops")) },
		"unload": func(p *Partition) error { return p.Unload(context.Background()) },
	} {
		w := newWorld(t, seglog.Periodic)
		w.run(seglog.Periodic, seglog.CleanStop, func(p *Partition) {
			mustAppend(t, p, "one")
			w.fs.SetHook(func(op vfs.Op) error {
				if op.Kind == vfs.OpWrite || op.Kind == vfs.OpCreate {
					return vfs.ErrNoSpace
				}
				return nil
			})
			defer w.fs.SetHook(nil)
			if err := end(p); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}
