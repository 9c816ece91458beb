package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func TestNextBlock(t *testing.T) {
	at := time.Unix(1000, 0)
	for _, c := range []struct {
		size    int64
		started time.Time
		want    int64
	}{
		{0, time.Time{}, minBlock},
		{4 * minBlock, time.Time{}, 4 * minBlock},
		{minBlock, at.Add(-fastBlock + 1), 2 * minBlock},
		{minBlock, at.Add(-fastBlock), minBlock},
		{maxBlock, at, maxBlock},
		{4 * minBlock, at.Add(-slowBlock - 1), 2 * minBlock},
		{minBlock, at.Add(-slowBlock - 1), minBlock},
	} {
		if got := nextBlock(c.size, c.started, at); got != c.want {
			t.Errorf("after %d for %v: %d, want %d", c.size, at.Sub(c.started), got, c.want)
		}
	}
}

// wide returns a batch of n tiny records.
func wide(t *testing.T, n int) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	for range n {
		if err := b.Append(record.Record{Timestamp: 1}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Build(record.NoProducer)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReservesAheadOfNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seglog.Periodic)
		w.run(seglog.Periodic, seglog.CleanStop, func(p *Partition) {
			append := func(n int) {
				t.Helper()
				if _, err := p.Append(context.Background(), wide(t, n)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // for the extension in the background, if one began
			}
			append(minBlock/2 - 1)
			if got := w.entry().Reserved; got != FirstReservation {
				t.Fatalf("with half left: reserved to %d", got)
			}
			append(2)
			second := w.entry().Reserved
			if second <= FirstReservation || second > FirstReservation+minBlock+1 {
				t.Fatalf("with less than half left: reserved to %d", second)
			}
			append(int(second) - minBlock/2 - minBlock/2)
			if got := w.entry().Reserved; got < second+2*minBlock {
				t.Fatalf("a block that lasted no time is followed by one of %d", got-second)
			}
			// More at once than is left: the append itself has to wait for the metadata.
			append(8 * minBlock)
			if b, _ := p.Bounds(); w.entry().Reserved < b.End {
				t.Fatalf("offsets to %d were assigned with %d reserved", b.End, w.entry().Reserved)
			}
		})
	})
}

// brokenStore refuses reservations while broken.
type brokenStore struct {
	*meta.Memory
	broken bool
	asked  int
}

func (s *brokenStore) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if _, ok := c.(meta.ReserveOffsets); ok {
		s.asked++
		if s.broken {
			return meta.Result{}, fault.New(fault.NoSpace, "the metadata's disk is full")
		}
	}
	return s.Memory.Propose(ctx, c)
}

func TestExhaustedReservationRefusesAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seglog.None)
		store := &brokenStore{Memory: w.meta, broken: true}
		w.store = store
		w.run(seglog.None, seglog.CleanStop, func(p *Partition) {
			ctx := context.Background()
			for range 8 {
				if _, err := p.Append(ctx, wide(t, minBlock/8)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			if store.asked == 0 || store.asked > 8 {
				t.Errorf("asked for more %d times while half of the block was used up", store.asked)
			}
			if _, err := p.Append(ctx, wide(t, 1)); fault.KindOf(err) != fault.NoSpace || !strings.Contains(err.Error(), "default/t/0") {
				t.Fatalf("append without a reservation: %v", err)
			}
			// Opened again with nothing left, it extends the reservation without being asked.
			store.broken = false
			if err := errors.Join(p.Unload(ctx), p.Ready(ctx)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := w.entry().Reserved; got <= minBlock {
				t.Fatalf("reserved to %d", got)
			}
			r, err := p.Append(ctx, wide(t, 1))
			if err != nil || r.Offset != minBlock {
				t.Fatalf("once the metadata works again: %+v, %v", r, err)
			}
		})
	})
}

func TestOnCommitReservesNothing(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		for range 5 {
			if _, err := p.Append(context.Background(), wide(t, minBlock)); err != nil {
				t.Fatal(err)
			}
		}
		if got := w.entry().Reserved; got != 0 {
			t.Fatalf("reserved to %d", got)
		}
	})
}

func TestLoosenedModeReservesWhatWasUsed(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		ctx := context.Background()
		for range 5 {
			if _, err := p.Append(ctx, wide(t, minBlock)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Apply(ctx, Settings{Mode: seglog.Periodic, ModeChosen: true, FsyncInterval: time.Hour, SegmentBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		if got := w.entry().Reserved; got < 5*minBlock {
			t.Fatalf("reserved to %d with %d used", got, 5*minBlock)
		}
		if _, err := p.Append(ctx, wide(t, 3*minBlock)); err != nil {
			t.Fatal(err)
		}
		if got := w.entry().Reserved; got < 8*minBlock {
			t.Fatalf("reserved to %d with %d used", got, 8*minBlock)
		}
		w.fs = w.fs.Crash(vfs.ChooserFunc(func(vfs.Unsynced) vfs.Fate { return vfs.Fate{How: vfs.Lost} }))
	})
	reserved := w.entry().Reserved
	w.run(seglog.Periodic, seglog.MachineCrash, func(p *Partition) {
		h := readAll(t, p)
		want := seglog.Range{From: 5 * minBlock, To: reserved - 1}
		if len(h.lost) != 1 || h.lost[0] != want {
			t.Fatalf("declared lost: %v, want %v", h.lost, want)
		}
	})
}

func loseAll(vfs.Unsynced) vfs.Fate { return vfs.Fate{How: vfs.Lost} }

func TestTightenedModeLosesNothing(t *testing.T) {
	w := newWorld(t, seglog.Periodic)
	w.run(seglog.Periodic, seglog.CleanStop, func(p *Partition) {
		mustAppend(t, p, "a", "b")
		if err := p.Apply(context.Background(), Settings{Mode: seglog.OnCommit, ModeChosen: true, SegmentBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, p, "c")
		w.fs = w.fs.Crash(vfs.ChooserFunc(loseAll))
	})
	w.run(seglog.OnCommit, seglog.MachineCrash, func(p *Partition) {
		if h := readAll(t, p); len(h.lost) != 0 || h.end != 3 {
			t.Fatalf("%+v", h)
		}
	})
}

// The topic sets no mode and the broker's default changed between two runs, with a power loss in between: nobody
// flushed when it changed.
func TestTightenedDefaultIsNotTrusted(t *testing.T) {
	w := newWorld(t, seglog.Periodic)
	w.run(seglog.Periodic, seglog.CleanStop, func(p *Partition) {
		mustAppend(t, p, "a")
		w.fs = w.fs.Crash(vfs.ChooserFunc(loseAll))
	})
	w.chosen = false
	for range 2 { // and once that was dealt with, it is over
		w.run(seglog.OnCommit, seglog.MachineCrash, func(p *Partition) {
			h := readAll(t, p)
			if len(h.lost) != 1 || h.lost[0].From != 0 || h.lost[0].To != w.entry().Reserved-1 {
				t.Fatalf("declared lost: %v with %d reserved", h.lost, w.entry().Reserved)
			}
		})
	}
}

func TestUntouchedTopicLosesNothing(t *testing.T) {
	w := newWorld(t, seglog.None)
	for range 3 {
		w.run(seglog.None, seglog.MachineCrash, func(p *Partition) {
			if h := readAll(t, p); len(h.lost) != 0 || h.end != 0 {
				t.Fatalf("nothing was ever written, and this is said to be lost: %+v", h)
			}
		})
	}
	if e := w.entry(); e != w.topic.Partitions[0] {
		t.Fatalf("the metadata moved: %+v", e)
	}
}

func TestLossyOpenDeclaresTheLostRange(t *testing.T) {
	w := newWorld(t, seglog.Periodic)
	w.run(seglog.Periodic, seglog.CleanStop, func(p *Partition) {
		mustAppend(t, p, "a", "b")
		if err := p.log.Load().Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, p, "c", "d") // acknowledged, and read, but not flushed
		w.fs = w.fs.Crash(vfs.ChooserFunc(loseAll))
	})
	before := w.entry()
	w.run(seglog.Periodic, seglog.MachineCrash, func(p *Partition) {
		h := readAll(t, p)
		if want := (seglog.Range{From: 2, To: before.Reserved - 1}); len(h.lost) != 1 || h.lost[0] != want {
			t.Fatalf("declared lost: %v, want %v", h.lost, want)
		}
		if r := mustAppend(t, p, "e"); r.Offset != before.Reserved {
			t.Fatalf("the next record is at %d, not behind the reservation at %d", r.Offset, before.Reserved)
		}
		if b, _ := p.Bounds(); b.Generation != before.Generation+1 || w.entry().Generation != b.Generation {
			t.Fatalf("generation %d of the log, %d of the metadata, was %d", b.Generation, w.entry().Generation, before.Generation)
		}
	})
	w.run(seglog.Periodic, seglog.CleanStop, func(p *Partition) {
		if h := readAll(t, p); len(h.lost) != 1 || h.values[before.Reserved] != "e" || w.entry().Generation != before.Generation+1 {
			t.Fatalf("opened again after a clean stop: %+v, %+v", h, w.entry())
		}
	})
}

// TestFailedFlushAtOpenIsReckonedWith opens the log of a process that died, and the flush of what it left fails: the next
// attempt knows that it may be gone.
func TestFailedFlushAtOpenIsReckonedWith(t *testing.T) {
	w := newWorld(t, seglog.Periodic)
	w.run(seglog.Periodic, seglog.CleanStop, func(p *Partition) {
		mustAppend(t, p, "a", "b")
		w.fs = w.fs.Crash(vfs.KeepAll)
	})
	before := w.entry()
	failed := false
	w.fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync && strings.HasSuffix(op.Path, ".log") && !failed {
			failed = true
			return vfs.ErrIO
		}
		return nil
	})
	w.run(seglog.Periodic, seglog.ProcessCrash, func(p *Partition) {
		if err := p.Ready(context.Background()); fault.KindOf(err) != fault.Stopped {
			t.Fatal(err)
		}
		if s := p.Status(); s.Settled {
			t.Errorf("%+v", s)
		}
		if err := p.Unload(context.Background()); err != nil { // so that it is tried at once
			t.Fatal(err)
		}
		h := readAll(t, p)
		if len(h.lost) != 1 || h.lost[0].To < before.Reserved-1 || w.entry().Generation != before.Generation+1 {
			t.Fatalf("%+v, generation %d", h, w.entry().Generation)
		}
	})
}

// The run that finds the crash dies, or cannot open the log, before the log says what is lost; the next one was told of
// a milder end.
func TestInterruptedLossyOpenIsFinishedLater(t *testing.T) {
	for _, empty := range []bool{false, true} {
		for _, when := range []string{"before the open", "at the declaration"} {
			t.Run(fmt.Sprintf("empty %t %s", empty, when), func(t *testing.T) {
				w := newWorld(t, seglog.None)
				w.run(seglog.None, seglog.CleanStop, func(p *Partition) {
					if !empty {
						mustAppend(t, p, "a")
						if err := p.log.Load().Flush(context.Background()); err != nil {
							t.Fatal(err)
						}
					}
					mustAppend(t, p, "b")
					w.fs = w.fs.Crash(vfs.ChooserFunc(loseAll))
				})
				before := w.entry()
				w.fs.SetHook(func(op vfs.Op) error {
					if when == "before the open" && op.Kind == vfs.OpList || when != "before the open" && op.Kind == vfs.OpWrite && strings.HasSuffix(op.Path, ".log") {
						return vfs.ErrIO
					}
					return nil
				})
				w.run(seglog.None, seglog.MachineCrash, func(p *Partition) {
					if err := p.Ready(context.Background()); err == nil {
						t.Fatal("it opened")
					}
					if s := p.Status(); s.Settled != (when == "before the open") {
						t.Fatalf("%+v", s)
					}
				})
				w.fs.SetHook(nil)
				if w.entry().Generation == before.Generation {
					t.Fatal("the metadata does not know")
				}
				w.run(seglog.None, seglog.ProcessCrash, func(p *Partition) {
					h := readAll(t, p)
					first := int64(1)
					if empty {
						first = 0
					}
					if len(h.lost) != 1 || h.lost[0].From != first || h.lost[0].To < before.Reserved-1 {
						t.Fatalf("declared lost: %v, want from %d to at least %d", h.lost, first, before.Reserved-1)
					}
					if r := mustAppend(t, p, "c"); r.Offset <= h.lost[0].To {
						t.Fatalf("offset %d was declared lost and is used", r.Offset)
					}
				})
			})
		}
	}
}

// An operator lets a log open without a batch that rotted on the device: its offsets had been given out.
func TestOffsetsOfWhatWasCutOffAreNotUsedAgain(t *testing.T) {
	w := newWorld(t, seglog.OnCommit)
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		mustAppend(t, p, "a")
		mustAppend(t, p, "b", "c")
	})
	name := dir + "/00000000000000000000.log"
	f, err := w.fs.Open(name, false)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte{0xff}, size-2)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	w.run(seglog.OnCommit, seglog.CleanStop, func(p *Partition) {
		if err := p.Ready(context.Background()); fault.KindOf(err) != fault.Corrupt {
			t.Fatalf("got %v", err)
		}
	})
	tasks := task.NewGroup(context.Background())
	cfg := w.config(tasks, seglog.CleanStop)
	cfg.Log.RepairChecksumTail = true
	p := w.new(cfg, seglog.OnCommit)
	h := readAll(t, p)
	if len(h.lost) != 1 || h.lost[0] != (seglog.Range{From: 1, To: 2}) || h.values[0] != "a" {
		t.Errorf("%+v", h)
	}
	if r := mustAppend(t, p, "d"); r.Offset != 3 {
		t.Errorf("the next record is at %d", r.Offset)
	}
	if err := errors.Join(p.Close(context.Background(), errors.New("over")), tasks.Wait()); err != nil {
		t.Fatal(err)
	}
}

func TestOldMetadataIsRefused(t *testing.T) {
	w := newWorld(t, seglog.None)
	w.run(seglog.None, seglog.CleanStop, func(p *Partition) { mustAppend(t, p, "a") })
	w.run(seglog.None, seglog.MachineCrash, func(p *Partition) { mustAppend(t, p, "b") })
	older := newWorld(t, seglog.None)
	older.fs = w.fs
	older.run(seglog.None, seglog.CleanStop, func(p *Partition) {
		if err := p.Ready(context.Background()); fault.KindOf(err) != fault.Fenced {
			t.Fatalf("got %v", err)
		}
	})
}

// TestOffsetsNeverNameTwoRecords cuts power at random moments, and interrupts the opens that follow, and checks that
// whatever anybody was told about an offset stays true: its value, or that it is lost.
func TestOffsetsNeverNameTwoRecords(t *testing.T) {
	for seed := range uint64(15) {
		for _, mode := range []seglog.Mode{seglog.Periodic, seglog.None} {
			rng := rand.New(rand.NewPCG(seed, uint64(mode)))
			w := newWorld(t, mode)
			told := map[int64]string{}
			tell := func(offset int64, value string) {
				if old, ok := told[offset]; ok && old != value {
					t.Fatalf("seed %d, %s: offset %d was %q and is %q", seed, mode, offset, old, value)
				}
				told[offset] = value
			}
			crash := seglog.CleanStop
			for run := range 6 {
				cut := rng.IntN(25)
				fates := rng.Uint64()
				var mu sync.Mutex
				var left *vfs.Mem
				w.fs.SetHook(func(op vfs.Op) error {
					mu.Lock()
					defer mu.Unlock()
					if left == nil && op.Kind.Changes() && op.N >= cut {
						left = w.fs.Crash(vfs.Random(fates))
					}
					if left != nil {
						return errors.New("the machine is off")
					}
					return nil
				})
				w.run(mode, crash, func(p *Partition) {
					for i := range 12 {
						value := fmt.Sprintf("%d-%d", run, i)
						size := 1
						if rng.IntN(10) == 0 {
							size = 1 + rng.IntN(2*minBlock)
						}
						values := make([]string, size)
						for i := range values {
							values[i] = value
						}
						r, err := p.Append(context.Background(), batch(t, values...))
						if err != nil {
							continue
						}
						tell(r.Offset, value)
						tell(r.LastOffset, value)
						if rng.IntN(6) == 0 {
							_ = p.log.Load().Flush(context.Background())
						}
					}
				})
				crash = seglog.MachineCrash
				if left == nil {
					left, crash = w.fs.Clone(), seglog.CleanStop
				}
				w.fs = left
			}
			w.run(mode, crash, func(p *Partition) {
				h := readAll(t, p)
				for offset, value := range h.values {
					if old, ok := told[offset]; ok && old != value {
						t.Fatalf("seed %d, %s: offset %d was acknowledged as %q and is read as %q", seed, mode, offset, old, value)
					}
				}
				for offset := range told {
					if _, ok := h.values[offset]; !ok && !covered(h.lost, offset) {
						t.Fatalf("seed %d, %s: offset %d was acknowledged, and is neither there nor declared lost: %v", seed, mode, offset, h.lost)
					}
				}
			})
		}
	}
}

func covered(ranges []seglog.Range, offset int64) bool {
	for _, r := range ranges {
		if r.From <= offset && offset <= r.To {
			return true
		}
	}
	return false
}
