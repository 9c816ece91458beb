package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/leveemq/levee/record"
)

// covered is a partition beside a write buffer and, where objects is not nil, objects.
type coveredWorld struct {
	*world
	mode    seglog.Mode
	buffer  *writebuf.Mem // nil: none
	objects objstore.Store
	policy  Buffer
	without bool // this run has no write buffer, though others have

	retention seglog.Retention
}

// newCoveredWorld returns one whose buffer answers at once, so its time-out is far above what a busy machine takes; a test
// with a time of its own sets another.
func newCoveredWorld(t *testing.T, mode seglog.Mode) *coveredWorld {
	return &coveredWorld{world: newWorld(t, mode), mode: mode, buffer: writebuf.NewMem(), policy: Buffer{Timeout: time.Minute}}
}

// run is world.run.
func (w *coveredWorld) run(crash seglog.Crash, fn func(p *Partition)) {
	w.t.Helper()
	tasks := task.NewGroup(context.Background())
	cfg := w.config(tasks, crash)
	if w.buffer != nil {
		w.policy.Store = w.buffer
		cfg.Buffer = &w.policy
	}
	if w.without {
		cfg.Buffer, cfg.Unbuffered = nil, true
	}
	end := func() error { return nil }
	if w.objects != nil {
		cold, err := tier.NewCold(context.Background(), w.objects, tier.ColdConfig{CacheBytes: 1 << 20, StretchBytes: 4 << 10})
		if err != nil {
			w.t.Fatal(err)
		}
		exporter, err := tier.NewExporter(context.Background(), w.objects, tier.ExporterConfig{})
		if err != nil {
			w.t.Fatal(err)
		}
		cfg.Tier = &Tier{Store: w.objects, Cold: cold, Exporter: exporter, Prefix: "levee", Cluster: "test", SealAge: time.Hour}
		end = func() error { return errors.Join(exporter.Stop(), cold.Close()) }
	}
	t := &Topic{Name: w.topic.Name, Full: w.topic.Name.String(), ID: w.topic.ID, Incarnation: w.topic.Incarnation}
	p := New(cfg, t, 0, Settings{Mode: w.mode, ModeChosen: w.chosen, FsyncInterval: time.Hour, SegmentBytes: 8 << 10, Retention: w.retention})
	defer func() {
		w.t.Helper()
		_ = p.Close(context.Background(), errors.New("the test is over"))
		if err := errors.Join(end(), tasks.Wait()); err != nil {
			w.t.Error(err)
		}
	}()
	fn(p)
}

func (w *coveredWorld) id() writebuf.ID { return writebuf.ID{Topic: w.topic.ID} }

// loseDirectory is what a broker finds that goes on where another was lost with its disk.
func (w *coveredWorld) loseDirectory() {
	w.t.Helper()
	w.fs = vfs.NewMem()
	if _, err := w.meta.Propose(context.Background(), meta.TakeOver{AtMs: 1, From: "broker 1 on a", By: "broker 1 on b"}); err != nil {
		w.t.Fatal(err)
	}
}

// fill appends records that say their offset, from one on.
func fill(t *testing.T, p *Partition, from, to int64) {
	t.Helper()
	for at := from; at < to; at++ {
		r, err := p.Append(t.Context(), batch(t, fmt.Sprintf("value %d", at)))
		if err != nil || r.Offset != at {
			t.Fatalf("record %d: at %d, %v", at, r.Offset, err)
		}
	}
}

// finds checks that records that say their offset are there, and nothing behind them.
func finds(t *testing.T, p *Partition, from, to int64) {
	t.Helper()
	if err := readOn(t, p, from, int(to-from), func(at int64) string { return fmt.Sprintf("value %d", at) }); err != nil {
		t.Fatal(err)
	}
	if b, ok := p.Bounds(); !ok || b.End != to {
		t.Fatalf("it ends at %d, not at %d", b.End, to)
	}
}

// TestNothingCountsBeforeTheBufferHasIt: what the buffer has not confirmed is neither acknowledged nor read; while it is known
// to be away, nothing is taken; and once it answers, everything that is in the log counts, once.
func TestNothingCountsBeforeTheBufferHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCoveredWorld(t, seglog.OnCommit)
		w.policy.Timeout = time.Second
		var away atomic.Bool
		w.buffer.Fail = func(string, writebuf.ID) (bool, error) { // set before anything runs that asks it
			if away.Load() {
				return false, writebuf.ErrUnavailable
			}
			return false, nil
		}
		w.run(seglog.CleanStop, func(p *Partition) {
			fill(t, p, 0, 10)
			away.Store(true)
			reader, err := p.NewReader(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			answered := make(chan error, 1)
			go func() {
				_, err := p.Append(context.Background(), batch(t, "value 10"))
				answered <- err
			}()
			<-time.After(500 * time.Millisecond)
			synctest.Wait()
			select {
			case err := <-answered:
				t.Fatal("answered: ", err)
			default:
			}
			if c, err := reader.Next(t.Context(), 1<<20, 100); err != nil || c.Data != nil || c.Next != c.End {
				t.Fatalf("%+v, %v", c, err)
			}
			if b, _ := p.Bounds(); b.End != 10 {
				t.Fatal(b.End)
			}
			if err := <-answered; fault.KindOf(err) != fault.OutcomeUnknown || !errors.Is(err, writebuf.ErrUnavailable) {
				t.Fatal(err)
			}
			if _, err := p.Append(t.Context(), batch(t, "refused")); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "nothing was written") {
				t.Fatal(err)
			}
			if c, ok := p.Covered(); !ok || c.Below != 10 || c.Err == nil || c.Uncovered != nil {
				t.Fatalf("%+v", c)
			}
			away.Store(false)
			if err := reader.Wait(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			synctest.Wait()
			fill(t, p, 11, 20)
			finds(t, p, 0, 20)
		})
	})
}

// TestGoingOnWithout: under degrade, the metadata says from where on the buffer lacks records before the first of them is
// acknowledged, and that it lacks none once it has them.
func TestGoingOnWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCoveredWorld(t, seglog.OnCommit)
		w.policy.Degrade, w.policy.Timeout = true, time.Second
		var away atomic.Bool
		w.buffer.Fail = func(string, writebuf.ID) (bool, error) {
			if away.Load() {
				return false, writebuf.ErrUnavailable
			}
			return false, nil
		}
		uncovered := func() int64 {
			if c := w.meta.View().Custody(w.topic.ID, 0); c != nil && c.Uncovered != nil {
				return *c.Uncovered
			}
			return -1
		}
		w.run(seglog.CleanStop, func(p *Partition) {
			fill(t, p, 0, 5)
			away.Store(true)
			fill(t, p, 5, 9)
			if at := uncovered(); at != 5 {
				t.Fatalf("uncovered from %d", at)
			}
			finds(t, p, 0, 9)
		})
		// So does a start without it, which does not know what it has.
		w.run(seglog.CleanStop, func(p *Partition) {
			fill(t, p, 9, 12)
			finds(t, p, 0, 12)
			if at := uncovered(); at != 0 {
				t.Fatalf("uncovered from %d", at)
			}
			away.Store(false)
			<-time.After(5 * time.Second)
			synctest.Wait()
			fill(t, p, 12, 15)
			synctest.Wait()
			if at := uncovered(); at != -1 {
				t.Fatalf("uncovered from %d", at)
			}
			if c, ok := p.Covered(); !ok || c.Below != 15 || c.Err != nil || c.Uncovered != nil {
				t.Fatalf("%+v", c)
			}
		})
		w.loseDirectory()
		w.policy.Degrade = false // otherwise it would have to ask, see TestLossIsAccepted
		w.run(seglog.CleanStop, func(p *Partition) {
			fill(t, p, 15, 18)
			finds(t, p, 0, 18)
		})
	})
}

// refusing is metadata that takes no note of what is uncovered.
type refusing struct {
	meta.Store
	refuse *atomic.Bool
}

func (r refusing) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if _, ok := c.(meta.SetUncovered); ok && r.refuse.Load() {
		return meta.Result{}, fault.New(fault.Unavailable, "no")
	}
	return r.Store.Propose(ctx, c)
}

// TestNotedBeforeItIsAcknowledged: under degrade nothing is acknowledged that the metadata could not note as uncovered.
func TestNotedBeforeItIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCoveredWorld(t, seglog.OnCommit)
		w.policy.Degrade, w.policy.Timeout = true, time.Second
		var away, refuse atomic.Bool
		w.world.store = refusing{w.meta, &refuse}
		w.buffer.Fail = func(string, writebuf.ID) (bool, error) {
			if away.Load() {
				return false, writebuf.ErrUnavailable
			}
			return false, nil
		}
		w.run(seglog.CleanStop, func(p *Partition) {
			fill(t, p, 0, 5)
			away.Store(true)
			refuse.Store(true)
			if r, err := p.Append(t.Context(), batch(t, "value 5")); fault.KindOf(err) != fault.OutcomeUnknown {
				t.Fatal(r, err)
			}
			refuse.Store(false)
			<-time.After(10 * time.Second)
			synctest.Wait()
			fill(t, p, 6, 9)
			finds(t, p, 0, 9)
			if c := w.meta.View().Custody(w.topic.ID, 0); c == nil || c.Uncovered == nil || *c.Uncovered != 5 {
				t.Fatalf("%+v", c)
			}
		})
	})
}

// TestClosingExportsNothing: of a log that is being closed nothing is copied or told of that the buffer has not confirmed.
func TestClosingExportsNothing(t *testing.T) {
	w := newCoveredWorld(t, seglog.OnCommit)
	w.objects = objstore.NewMem()
	ctx, refused := context.WithCancel(t.Context())
	w.buffer.Fail = func(op string, _ writebuf.ID) (bool, error) {
		if op == "append" {
			refused() // it is in the log: nobody need wait for the time-out
			return false, writebuf.ErrUnavailable
		}
		return false, nil
	}
	w.run(seglog.CleanStop, func(p *Partition) {
		if err := p.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Append(ctx, batch(t, "not confirmed")); fault.KindOf(err) != fault.OutcomeUnknown {
			t.Fatal(err)
		}
		if sealed, err := p.log.Load().SealOlder(t.Context(), -time.Hour); err != nil || !sealed {
			t.Fatal(sealed, err)
		}
		next := func() {
			t.Helper()
			if s, err := (*exporting)(p).Next(t.Context()); s != nil || err != nil {
				t.Errorf("%+v, %v", s, err)
			}
			if b, ok := p.Bounds(); ok && b.End != 0 {
				t.Errorf("%+v", b)
			}
			if at, err := p.OffsetForTime(t.Context(), 1<<60); err == nil && at != 0 {
				t.Error(at)
			}
		}
		next()
		c := p.cover.Swap(nil) // as Close does, after it has taken the log away from under whoever has it already
		next()
		p.cover.Store(c)
	})
}

// TestClosingIsNoWayAround: a log that is being closed, and has no cover any more, is not used as if there were no buffer.
func TestClosingIsNoWayAround(t *testing.T) {
	w := newCoveredWorld(t, seglog.OnCommit)
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 0, 5)
		c := p.cover.Swap(nil) // as Unload does, for somebody who has seen the log before
		defer p.cover.Store(c)
		if r, err := p.Append(t.Context(), batch(t, "x")); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%+v, %v", r, err)
		}
		if err := p.Submit(t.Context(), &seglog.Append{Batch: batch(t, "x"), Done: func(*seglog.Append) { t.Error("taken") }}); fault.KindOf(err) != fault.Unavailable {
			t.Error(err)
		}
		if _, err := p.NewReader(t.Context(), 0); fault.KindOf(err) != fault.Unavailable {
			t.Error(err)
		}
	})
}

// TestDirectoryLost: a log is made again from what objects and the buffer hold, under the offsets it had, and goes on.
func TestDirectoryLost(t *testing.T) {
	for _, mode := range []seglog.Mode{seglog.OnCommit, seglog.Periodic} {
		for _, stored := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/objects=%v", mode, stored), func(t *testing.T) {
				w := newCoveredWorld(t, mode)
				if stored {
					w.objects = objstore.NewMem()
				}
				at := int64(0)
				resets := 0
				w.buffer.Fail = func(op string, _ writebuf.ID) (bool, error) {
					if op == "reset" {
						resets++
					}
					return false, nil
				}
				for round := range 4 {
					w.run(seglog.CleanStop, func(p *Partition) {
						fill(t, p, at, at+400)
						at += 400
						finds(t, p, 0, at)
						if stored && round < 3 {
							exportAll(t, w.world, p)
						}
					})
					w.loseDirectory()
				}
				w.run(seglog.CleanStop, func(p *Partition) {
					fill(t, p, at, at+10)
					finds(t, p, 0, at+10)
				})
				if resets > 0 {
					t.Errorf("the buffer was emptied %d times", resets)
				}
				c := w.meta.View().Custody(w.topic.ID, 0)
				if c == nil || c.Pending != nil || c.Report == nil || c.Report.Lost != nil || c.Report.Replayed != at || (c.Report.Objects > 0) != stored {
					t.Fatalf("%+v, %+v", c, c.Report)
				}
			})
		}
	}
}

// TestLossIsAccepted: where the tiers may lack what was acknowledged, a partition waits for an operator; given up, those
// offsets are declared lost, and none is used twice.
func TestLossIsAccepted(t *testing.T) {
	for name, spoil := range map[string]func(w *coveredWorld){
		"the buffer forgot": func(w *coveredWorld) { w.buffer.Lose(w.id()) },
		"one in the middle": func(w *coveredWorld) { w.buffer.Lose(w.id(), 300) },
		"the newest":        func(w *coveredWorld) { w.buffer.Lose(w.id(), 400) },
		"uncovered":         func(w *coveredWorld) { w.uncover(200) },
		"forgot, and was asked": func(w *coveredWorld) {
			w.buffer.Lose(w.id())
			w.run(seglog.CleanStop, func(p *Partition) {
				w.buffer.Fail = func(op string, _ writebuf.ID) (bool, error) { // the broker dies before it has filled it again
					if op == "append" {
						return false, writebuf.ErrUnavailable
					}
					return false, nil
				}
				_ = p.Ready(context.Background())
			})
			w.buffer.Fail = nil
		},
		"forgot while it was used": func(w *coveredWorld) {
			var armed atomic.Bool
			told := false
			ctx, refused := context.WithCancel(context.Background())
			w.buffer.Fail = func(op string, _ writebuf.ID) (bool, error) { // and the broker dies before it is filled again
				if told = armed.Load() && (told || op == "fence"); told && op == "append" {
					refused()
					return false, writebuf.ErrUnavailable
				}
				return false, nil
			}
			w.run(seglog.CleanStop, func(p *Partition) {
				if err := p.Ready(context.Background()); err != nil {
					w.t.Fatal(err)
				}
				// What is joined with the buffer only after it was emptied fills it before it is to fail.
				if err := p.cover.Load().mirror.Wait(context.Background(), 400); err != nil {
					w.t.Fatal(err)
				}
				w.buffer.Lose(w.id())
				armed.Store(true)
				if _, err := p.Append(ctx, batch(w.t, "x")); fault.KindOf(err) != fault.OutcomeUnknown {
					w.t.Fatal(err)
				}
			})
			w.buffer.Fail = nil
		},
		"it may have gone on without": func(w *coveredWorld) { w.policy.Degrade = true },
		"the buffer is new here":      func(w *coveredWorld) { w.buffer = writebuf.NewMem() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newCoveredWorld(t, seglog.OnCommit)
			w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, 0, 400) })
			spoil(w)
			w.loseDirectory()
			w.run(seglog.CleanStop, func(p *Partition) {
				_, err := p.Append(t.Context(), batch(t, "x"))
				if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "broker 1 on a") || !strings.Contains(err.Error(), "levee partition recover default/t/0 --accept-loss") {
					t.Fatal(err)
				}
			})
			if _, err := w.meta.Propose(t.Context(), meta.AcceptLoss{Name: w.topic.Name, ID: w.topic.ID}); err != nil {
				t.Fatal(err)
			}
			w.run(seglog.CleanStop, func(p *Partition) {
				r, err := p.Append(t.Context(), batch(t, "after"))
				if err != nil || r.Offset < unknownLoss {
					t.Fatal(r, err)
				}
				c := w.meta.View().Custody(w.topic.ID, 0)
				if c.Pending != nil || c.Report == nil || c.Report.Lost == nil || c.Report.Lost.To+1 != r.Offset || c.Report.Lost.From > 400 {
					t.Fatalf("%+v", c.Report)
				}
				b, _ := p.Bounds()
				if b.End != r.Offset+1 {
					t.Fatal(b)
				}
				if from := c.Report.Lost.From; from > 0 {
					if err := readOn(t, p, 0, int(from), func(at int64) string { return fmt.Sprintf("value %d", at) }); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// uncover says that the buffer may lack records.
func (w *coveredWorld) uncover(from int64) {
	if _, err := w.meta.Propose(context.Background(), meta.SetUncovered{Name: w.topic.Name, ID: w.topic.ID, Generation: w.entry().Generation, From: from}); err != nil {
		w.t.Fatal(err)
	}
}

// TestBufferOutlivesTheMachine: a log that acknowledges before its flush loses nothing with its machine that the buffer has.
func TestBufferOutlivesTheMachine(t *testing.T) {
	for _, mode := range []seglog.Mode{seglog.Periodic, seglog.None} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newCoveredWorld(t, mode)
			w.run(seglog.CleanStop, func(p *Partition) {
				fill(t, p, 0, 50)
				w.fs = w.fs.Crash(vfs.ChooserFunc(func(vfs.Unsynced) vfs.Fate { return vfs.Fate{How: vfs.Lost} }))
			})
			w.run(seglog.MachineCrash, func(p *Partition) {
				finds(t, p, 0, 50)
				fill(t, p, 50, 60)
				finds(t, p, 0, 60)
			})
			if g := w.entry().Generation; g != 1 {
				t.Fatalf("generation %d", g)
			}
		})
	}
}

// TestStaleOwnerIsShutOut: once another broker has taken over, the one that was thought lost acknowledges nothing.
func TestStaleOwnerIsShutOut(t *testing.T) {
	w := newCoveredWorld(t, seglog.OnCommit)
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 0, 5)
		if _, err := w.buffer.Buffer(w.id()).Fence(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Append(t.Context(), batch(t, "stale")); fault.KindOf(err) != fault.OutcomeUnknown && fault.KindOf(err) != fault.Fenced {
			t.Fatal(err)
		}
		if _, err := p.Append(t.Context(), batch(t, "stale")); fault.KindOf(err) != fault.Fenced {
			t.Fatal(err)
		}
		if s := p.Status(); s.State != Unavailable || fault.KindOf(s.Err) != fault.Fenced {
			t.Fatalf("%v, %v", s.State, s.Err)
		}
		finds(t, p, 0, 5)
	})
	w.run(seglog.CleanStop, func(p *Partition) {
		if _, err := p.Append(t.Context(), batch(t, "stale")); fault.KindOf(err) != fault.Fenced {
			t.Fatal(err)
		}
	})
}

// TestFencedWhileTheLogAnswers: an append that the log is done with only after the mirror has been fenced, and has ended, is
// answered all the same.
func TestFencedWhileTheLogAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCoveredWorld(t, seglog.OnCommit)
		w.run(seglog.CleanStop, func(p *Partition) {
			fill(t, p, 0, 5)
			if _, err := w.buffer.Buffer(w.id()).Fence(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			_, _ = p.Append(t.Context(), batch(t, "stale"))
			synctest.Wait()
			var answered *seglog.Append
			late := &seglog.Append{Result: seglog.Result{Offset: 6, LastOffset: 6}}
			p.cover.Load().written(late, func(a *seglog.Append) { answered = a })
			if answered != late || fault.KindOf(late.Err) != fault.OutcomeUnknown {
				t.Errorf("answered: %v, %v", answered != nil, late.Err)
			}
		})
	})
}

// TestOnlySomeSegmentsAreKept: where the operator chose that the buffer keeps few segments, or retention has removed some, a
// log that is made again begins with the oldest that is kept, says so, and everything from there on is there.
func TestOnlySomeSegmentsAreKept(t *testing.T) {
	for name, set := range map[string]func(w *coveredWorld){
		"keep_segments": func(w *coveredWorld) { w.policy.KeepSegments = 2 },
		"retention":     func(w *coveredWorld) { w.retention = seglog.Retention{Bytes: 20 << 10} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newCoveredWorld(t, seglog.OnCommit)
			set(w)
			floor := func() uint64 {
				st, err := w.buffer.Buffer(w.id()).Bounds(t.Context())
				if err != nil || !st.Whole() {
					t.Fatalf("%+v, %v", st, err)
				}
				return st.Floor
			}
			w.run(seglog.CleanStop, func(p *Partition) {
				fill(t, p, 0, 1000)
				if _, err := p.Maintain(t.Context()); err != nil {
					t.Fatal(err)
				}
				deadline := time.After(10 * time.Second)
				for floor() <= 1 {
					select {
					case <-deadline:
						t.Fatal("nothing is trimmed")
					case <-time.After(time.Millisecond):
					}
				}
			})
			kept := floor() // now that nobody trims any more
			w.loseDirectory()
			w.run(seglog.CleanStop, func(p *Partition) {
				fill(t, p, 1000, 1010)
				b, _ := p.Bounds()
				if b.First != int64(kept)-1 { // each record is a frame here
					t.Fatalf("it begins at %d, the buffer with frame %d", b.First, kept)
				}
				finds(t, p, b.First, 1010)
				_, err := p.NewReader(t.Context(), 0)
				if err == nil {
					err = readOn(t, p, 0, 1, nil)
				}
				if fault.KindOf(err) != fault.Trimmed {
					t.Fatal(err)
				}
			})
			if c := w.meta.View().Custody(w.topic.ID, 0); c.Report == nil || c.Report.Lost != nil || c.Report.Replayed != 1000 {
				t.Fatalf("%+v", c.Report)
			}
		})
	}
}

// TestSentAgainAfterTheTakeOver: a batch that a producer sends again, since the broker that took it was lost before it
// answered, is known where it was, though other segments were exported after it.
func TestSentAgainAfterTheTakeOver(t *testing.T) {
	w := newCoveredWorld(t, seglog.OnCommit)
	w.objects, w.retention = objstore.NewMem(), seglog.Retention{Bytes: 1}
	b := record.NewBuilder(record.None)
	if err := b.Append(record.Record{Value: []byte("value 100")}); err != nil {
		t.Fatal(err)
	}
	sent, err := b.Build(record.ProducerInfo{ID: 7, Epoch: 0, Sequence: 0})
	if err != nil {
		t.Fatal(err)
	}
	send := func(p *Partition) seglog.Result {
		r, err := p.Append(t.Context(), slices.Clone(sent))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 0, 100)
		if r := send(p); r.Offset != 100 || r.Duplicate {
			t.Fatal(r)
		}
		fill(t, p, 101, 900)
		exportAll(t, w.world, p)
		if _, err := p.Retain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first := p.log.Load().Bounds().First; first <= 100 {
			t.Fatalf("the log begins at %d", first)
		}
		if r := send(p); r.Offset != 100 || r.LastOffset != 100 || !r.Duplicate {
			t.Fatalf("with the record in an object alone: %+v", r)
		}
	})
	w.run(seglog.CleanStop, func(p *Partition) {
		if r := send(p); r.Offset != 100 || !r.Duplicate {
			t.Fatalf("after a restart: %+v", r)
		}
	})
	if e := w.meta.View().Export(w.topic.ID, 0); len(e.Objects) < 3 {
		t.Fatalf("%d objects", len(e.Objects))
	}
	w.loseDirectory()
	w.run(seglog.CleanStop, func(p *Partition) {
		if r := send(p); r.Offset != 100 || !r.Duplicate {
			t.Fatalf("%+v", r)
		}
		finds(t, p, 0, 900)
	})
}
