package partition

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

// returningWorld is a partition whose broker is lost with its disk, and may come back.
type returningWorld struct {
	*coveredWorld
	was   *vfs.Mem // the lost broker's disk
	entry meta.Partition
}

// newReturningWorld has records below n acknowledged, some of them exported, and then loses the directory. spoil, where not
// nil, is told before that.
func newReturningWorld(t *testing.T, mode seglog.Mode, n int64, bare bool, spoil func(w *coveredWorld)) *returningWorld {
	t.Helper()
	w := &returningWorld{coveredWorld: newCoveredWorld(t, mode)}
	store := &refusingStore{Store: objstore.NewMem(), tried: make(chan struct{}, 1)}
	if w.objects = store; bare {
		w.buffer = nil
	}
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 0, n/2)
		if at := exportAll(t, w.world, p); at == 0 || at == n/2 {
			t.Fatalf("exported below %d", at)
		}
		store.on.Store(true) // what follows is nowhere else
		fill(t, p, n/2, n)
	})
	store.on.Store(false)
	w.entry = w.coveredWorld.entry()
	if spoil != nil {
		spoil(w.coveredWorld)
	}
	w.was = w.fs
	w.loseDirectory()
	return w
}

// former is what the lost broker left, on a disk that nobody may change.
func (w *returningWorld) former(crash seglog.Crash) Former {
	return Former{FS: untouchable(w.t, w.was), Directory: "/old", Log: dir, Crash: crash, Generation: w.entry.Generation, Reserved: w.entry.Reserved}
}

// untouchable is a file system whose change fails the test.
func untouchable(t *testing.T, fs vfs.FS) vfs.FS {
	return vfs.Inject(fs, func(op vfs.Op) error {
		switch op.Kind {
		case vfs.OpOpen, vfs.OpRead, vfs.OpList, vfs.OpStat:
			return nil
		}
		t.Errorf("%v of a directory that may only be read", op)
		return errors.New("it may only be read")
	})
}

func (w *returningWorld) report() *meta.TakeoverReport {
	w.t.Helper()
	c := w.meta.View().Custody(w.topic.ID, 0)
	if c == nil || c.Pending != nil || c.Report == nil {
		w.t.Fatalf("not settled: %+v", c)
	}
	return c.Report
}

// waits checks that the partition is not served.
func (w *returningWorld) waits(p *Partition) {
	w.t.Helper()
	if err := p.Ready(context.Background()); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "waiting for broker 1 on a") || !strings.Contains(err.Error(), "levee partition recover default/t/0 --from DIR") {
		w.t.Fatalf("it should wait: %v", err)
	}
}

// A directory that comes back brings what the tiers lack: nothing is lost, every record keeps its offset, and the report says
// what came from where.
func TestFormerComesBack(t *testing.T) {
	for _, mode := range []seglog.Mode{seglog.OnCommit, seglog.Periodic} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newReturningWorld(t, mode, 400, true, nil)
			before := w.was.Clone()
			w.run(seglog.CleanStop, func(p *Partition) {
				w.waits(p)
				released := 0
				f := w.former(seglog.ProcessCrash)
				f.Release = func() error { released++; return nil }
				if err := f.Return(t.Context(), p); err != nil || released != 1 {
					t.Fatal(err, released)
				}
				finds(t, p, 0, 400)
				fill(t, p, 400, 410)
				r := w.report()
				if r.Directory != "/old" || r.Lost != nil || r.Replayed != 400 || r.Returned == nil || *r.Returned != (meta.OffsetRange{From: r.Objects, To: 399}) || r.Objects == 0 {
					t.Fatalf("%+v %+v", r, r.Returned)
				}
				if b, _ := p.Bounds(); b.Generation != 2 {
					t.Errorf("generation %d", b.Generation)
				}
			})
			w.run(seglog.CleanStop, func(p *Partition) { finds(t, p, 0, 410) })
			same(t, before, w.was)
		})
	}
}

// same fails the test unless two disks have the same files.
func same(t *testing.T, a, b vfs.FS) {
	t.Helper()
	names, err := a.List(dir)
	also, err2 := b.List(dir)
	if err := errors.Join(err, err2); err != nil || !slices.Equal(names, also) {
		t.Fatalf("%v, %v, %v", names, also, err)
	}
	for _, n := range names {
		x, err := vfs.ReadFile(a, dir+"/"+n.Name, 1<<30)
		y, err2 := vfs.ReadFile(b, dir+"/"+n.Name, 1<<30)
		if err := errors.Join(err, err2); err != nil || string(x) != string(y) {
			t.Errorf("%s changed, %v", n.Name, err)
		}
	}
}

// What had no object yet, and what never had a record, comes back as well.
func TestFormerWithoutObjects(t *testing.T) {
	for _, n := range []int64{0, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := &returningWorld{coveredWorld: newCoveredWorld(t, seglog.OnCommit)}
			w.objects, w.buffer = objstore.NewMem(), nil
			w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, 0, n) })
			w.entry, w.was = w.coveredWorld.entry(), w.fs
			w.loseDirectory()
			w.run(seglog.CleanStop, func(p *Partition) {
				if err := w.former(seglog.ProcessCrash).Return(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				fill(t, p, n, n+5)
				finds(t, p, 0, n+5)
			})
		})
	}
}

// A tail that a crash tore is left out, as a start there would have cut it.
func TestFormerWithATornTail(t *testing.T) {
	w := newReturningWorld(t, seglog.OnCommit, 400, true, nil)
	name := newestSegment(t, w.was)
	b, err := vfs.ReadFile(w.was, name, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	f, err := w.was.Open(name, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(int64(len(b)) - 3); err != nil { // it is the last frame's
		t.Fatal(err)
	}
	_ = w.was.Remove(dir + "/" + segfmt.MarkName) // or it says that this was durable
	w.run(seglog.CleanStop, func(p *Partition) {
		if err := w.former(seglog.MachineCrash).Return(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		finds(t, p, 0, 399)
	})
}

func newestSegment(t *testing.T, fs vfs.FS) string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	newest := ""
	for _, n := range names {
		if strings.HasSuffix(n.Name, ".log") {
			newest = max(newest, n.Name)
		}
	}
	return dir + "/" + newest
}

// What acknowledges before its flush may have lost its end with its machine. What may have been given out is declared lost, as
// the lost broker itself would have done, and no more.
func TestFormerOfACrashedMachine(t *testing.T) {
	w := newReturningWorld(t, seglog.Periodic, 400, true, nil)
	w.run(seglog.CleanStop, func(p *Partition) {
		if err := w.former(seglog.MachineCrash).Return(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		r := w.report()
		if r.Lost == nil || r.Lost.From != 400 || r.Lost.To != w.entry.Reserved-1 || r.Directory == "" {
			t.Fatalf("%+v", r)
		}
		if a, err := p.Append(t.Context(), batch(t, "after")); err != nil || a.Offset != w.entry.Reserved {
			t.Fatal(a, err)
		}
	})
}

// What is not the directory that the partition waits for is refused, says why, and changes nothing: the right one is still
// taken afterwards.
func TestFormerIsRefused(t *testing.T) {
	for name, x := range map[string]struct {
		spoil func(w *returningWorld, f *Former)
		kind  fault.Kind
		says  string
	}{
		"of an older generation":   {func(_ *returningWorld, f *Former) { f.Generation = 0 }, fault.Conflict, "generation 0"},
		"of a younger generation":  {func(_ *returningWorld, f *Former) { f.Generation = 2 }, fault.Conflict, "generation 2"},
		"of another topic":         {func(w *returningWorld, f *Former) { other(w, f, meta.TopicID{9}, 400) }, fault.Corrupt, "belongs to partition 0 of topic id"},
		"with other records":       {func(w *returningWorld, f *Former) { other(w, f, w.topic.ID, 500) }, fault.Conflict, "it has other records"},
		"of an earlier time":       {func(w *returningWorld, f *Former) { other(w, f, w.topic.ID, 3) }, fault.Conflict, "of an earlier time"},
		"empty":                    {func(_ *returningWorld, f *Former) { f.FS = vfs.NewMem() }, fault.Conflict, "the copy is not whole"},
		"with a gap":               {func(w *returningWorld, f *Former) { f.FS = onlyNewest(w) }, fault.Conflict, "does not go on"},
		"damaged in the middle":    {func(w *returningWorld, f *Former) { f.FS = damaged(w) }, fault.Corrupt, ".log"},
		"unreadable":               {func(w *returningWorld, f *Former) { f.FS = unreadable(w) }, fault.IO, ".log"},
		"behind what was consumed": {func(w *returningWorld, _ *Former) { w.consumed(1000) }, fault.Conflict, "subscription s had read up to 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReturningWorld(t, seglog.OnCommit, 400, true, nil)
			w.run(seglog.CleanStop, func(p *Partition) {
				f := w.former(seglog.ProcessCrash)
				x.spoil(w, &f)
				if err := f.Return(t.Context(), p); fault.KindOf(err) != x.kind || !strings.Contains(err.Error(), x.says) {
					t.Fatalf("%v: %v", fault.KindOf(err), err)
				}
				w.waits(p)
				if strings.HasPrefix(name, "behind") {
					return
				}
				if err := w.former(seglog.ProcessCrash).Return(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				finds(t, p, 0, 400)
			})
		})
	}
}

// other is the directory of a log that has n other records.
func other(w *returningWorld, f *Former, id meta.TopicID, n int) {
	w.t.Helper()
	fs := vfs.NewMem()
	l, _, err := seglog.Open(seglog.Config{FS: fs, Dir: dir, Topic: "default/t", TopicID: id, SegmentBytes: 8 << 10})
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range n {
		if _, err := l.Append(w.t.Context(), batch(w.t, fmt.Sprintf("other %d", i))); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		w.t.Fatal(err)
	}
	f.FS = untouchable(w.t, fs)
}

// onlyNewest is the lost disk without all but the log's newest segment, which begins above what is in objects.
func onlyNewest(w *returningWorld) vfs.FS {
	w.t.Helper()
	fs := w.was.Clone()
	newest := newestSegment(w.t, fs)
	names, err := fs.List(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, n := range names {
		if name := dir + "/" + n.Name; strings.HasSuffix(name, ".log") && name != newest {
			if err := fs.Remove(name); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	return fs
}

func damaged(w *returningWorld) vfs.FS {
	w.t.Helper()
	fs := w.was.Clone()
	f, err := fs.Open(newestSegment(w.t, fs), false)
	if err == nil {
		_, err = f.WriteAt([]byte{1, 2, 3}, 200)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return untouchable(w.t, fs)
}

func unreadable(w *returningWorld) vfs.FS {
	newest := newestSegment(w.t, w.was)
	return vfs.Inject(w.was, func(op vfs.Op) error {
		if op.Kind == vfs.OpRead && op.Path == newest {
			return vfs.ErrIO
		}
		return nil
	})
}

// consumed says that a subscription has read what is below to.
func (w *returningWorld) consumed(to int64) {
	w.t.Helper()
	if _, err := w.meta.Propose(context.Background(), meta.CreateSubscription{Topic: w.topic.Name, ID: w.topic.ID, Name: "s", Type: meta.Shared, TimeMs: 5, Starts: []int64{to}}); err != nil {
		w.t.Fatal(err)
	}
}

// Where the write buffer has some of it, too: what is in both must be the same, whoever has more of it brings that, and
// nothing is lost.
func TestFormerBesideABuffer(t *testing.T) {
	for name, x := range map[string]struct {
		spoil func(w *coveredWorld)
		from  int64 // the first offset that only the directory had; -1: none
	}{
		"forgot everything":      {func(w *coveredWorld) { w.buffer.Lose(w.id()) }, 0},
		"lacks one":              {func(w *coveredWorld) { w.buffer.Lose(w.id(), 300) }, 299},
		"lacks the newest":       {func(w *coveredWorld) { w.buffer.Lose(w.id(), 400) }, 399},
		"has all, nobody knows":  {func(w *coveredWorld) { w.uncover(200) }, -1},
		"lacks one, and goes on": {func(w *coveredWorld) { w.buffer.Lose(w.id(), 300); w.cutBack(t, 10) }, 299},
	} {
		t.Run(name, func(t *testing.T) {
			mode, crash := seglog.OnCommit, seglog.ProcessCrash
			if strings.HasSuffix(name, "goes on") {
				mode = seglog.Periodic // its machine crashed before it had flushed the newest
			}
			w := newReturningWorld(t, mode, 400, false, x.spoil)
			w.run(seglog.CleanStop, func(p *Partition) {
				w.waits(p)
				if err := w.former(crash).Return(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				finds(t, p, 0, 400)
				fill(t, p, 400, 420)
				r := w.report()
				switch {
				case r.Directory != "/old" || r.Lost != nil || r.Replayed != 400:
					t.Fatalf("%+v", r)
				case x.from < 0 && r.Returned != nil, x.from >= 0 && (r.Returned == nil || r.Returned.From != max(x.from, r.Objects)):
					t.Fatalf("%+v", r.Returned)
				}
			})
			w.loseDirectory() // the buffer has it all again
			w.run(seglog.CleanStop, func(p *Partition) { finds(t, p, 0, 420) })
		})
	}
}

// cutBack takes so many of the newest records from the log, as a crash does that comes before their flush.
func (w *coveredWorld) cutBack(t *testing.T, records uint64) {
	t.Helper()
	l, _, err := seglog.Open(seglog.Config{FS: w.fs, Dir: dir, Topic: "default/t", TopicID: w.topic.ID, SegmentBytes: 8 << 10})
	if err == nil {
		err = errors.Join(l.TruncateAfter(t.Context(), l.Bounds().NextSeq-1-records), l.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Records that are other ones in the directory than in the write buffer are told, and not served.
func TestFormerAndBufferDiffer(t *testing.T) {
	w := newReturningWorld(t, seglog.OnCommit, 400, false, func(w *coveredWorld) { w.uncover(200) })
	l, _, err := seglog.Open(seglog.Config{FS: w.was, Dir: dir, Topic: "default/t", TopicID: w.topic.ID, SegmentBytes: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.TruncateAfter(t.Context(), 350); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if _, err := l.Append(t.Context(), batch(t, fmt.Sprintf("other %d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	w.run(seglog.CleanStop, func(p *Partition) {
		if err := w.former(seglog.ProcessCrash).Return(t.Context(), p); fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), "at offset 350, frame 351") {
			t.Fatal(err)
		}
		w.waits(p)
	})
}

// What was lost for good cannot come back, and whoever brings it to a partition that serves changes nothing.
func TestFormerComesTooLate(t *testing.T) {
	w := newReturningWorld(t, seglog.OnCommit, 400, true, nil)
	if _, err := w.meta.Propose(t.Context(), meta.AcceptLoss{Name: w.topic.Name, ID: w.topic.ID}); err != nil {
		t.Fatal(err)
	}
	w.run(seglog.CleanStop, func(p *Partition) {
		a, err := p.Append(t.Context(), batch(t, "after"))
		if err != nil || a.Offset < unknownLoss {
			t.Fatal(a, err)
		}
		released := false
		f := w.former(seglog.ProcessCrash)
		f.Release = func() error { released = true; return nil }
		if err := f.Return(t.Context(), p); err != nil || !released {
			t.Fatal(err, released)
		}
		if r := w.report(); r.Directory != "" || r.Lost == nil {
			t.Errorf("%+v", r)
		}
		if b, _ := p.Bounds(); b.End != a.Offset+1 {
			t.Errorf("%+v", b)
		}
	})
}

// mortalMeta is metadata whose broker dies before, or right after, a command takes effect.
type mortalMeta struct {
	*meta.Memory
	dies  string // the command
	after bool
}

func (m *mortalMeta) Propose(ctx context.Context, c meta.Command) (r meta.Result, err error) {
	if c.Op() == m.dies {
		if m.after {
			_, err = m.Memory.Propose(ctx, c)
		}
		return r, errors.Join(err, fault.New(fault.Unavailable, "the broker died"))
	}
	return m.Memory.Propose(ctx, c)
}

// Whatever the step at which a broker dies that takes a lost one's directory back: the next one goes on, and nothing is lost.
func TestCrashWhileFormerComesBack(t *testing.T) {
	const n = 300
	seed := testSeed(t)
	goesOn := func(t *testing.T, w *returningWorld, where string) {
		t.Helper()
		w.store = nil
		w.run(seglog.MachineCrash, func(p *Partition) {
			if c := w.meta.View().Custody(w.topic.ID, 0); c.Pending != nil {
				if err := w.former(seglog.ProcessCrash).Return(t.Context(), p); err != nil {
					t.Fatalf("%s: %v", where, err)
				}
			}
			finds(t, p, 0, n)
			if r := w.report(); r.Lost != nil || r.Replayed != n {
				t.Fatalf("%s: %+v", where, r)
			}
			fill(t, p, n, n+3)
			if b, _ := p.Bounds(); b.Generation != 2 {
				t.Errorf("%s: generation %d", where, b.Generation)
			}
		})
		w.run(seglog.CleanStop, func(p *Partition) { finds(t, p, 0, n+3) })
	}
	states, stride := 0, 2
	switch {
	case testing.Short():
		stride = 10
	case os.Getenv("LEVEE_FAULTS") == "full":
		stride = 1
	}
	for step, last := 1+int(seed%uint64(stride)), false; !last; step += stride { //nolint:gosec // small
		for i, choice := range []vfs.Chooser{vfs.KeepNothing, vfs.KeepAll, vfs.Random(seed + uint64(step))} {
			w := newReturningWorld(t, seglog.OnCommit, n, true, nil)
			var mu sync.Mutex
			var left *vfs.Mem
			w.fs.SetHook(func(op vfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case left != nil:
					return vfs.ErrIO
				case op.Kind.Changes() && op.N >= step:
					left = w.fs.Crash(choice)
					return vfs.ErrIO
				}
				return nil
			})
			w.run(seglog.CleanStop, func(p *Partition) { _ = w.former(seglog.ProcessCrash).Return(t.Context(), p) })
			if last = left == nil; last {
				break
			}
			w.fs = left
			goesOn(t, w, fmt.Sprintf("step %d, choice %d", step, i))
			states++
		}
	}
	for _, after := range []bool{false, true} {
		w := newReturningWorld(t, seglog.OnCommit, n, true, nil)
		w.store = &mortalMeta{Memory: w.meta, dies: meta.SettleTakeover{}.Op(), after: after}
		w.run(seglog.CleanStop, func(p *Partition) {
			if err := w.former(seglog.ProcessCrash).Return(t.Context(), p); err == nil {
				t.Error("it did not die")
			}
			w.fs = w.fs.Crash(vfs.KeepNothing)
		})
		goesOn(t, w, fmt.Sprintf("settled=%v", after))
		states++
	}
	t.Logf("%d crash states", states)
	if states < 20 {
		t.Error("these are too few")
	}
}
