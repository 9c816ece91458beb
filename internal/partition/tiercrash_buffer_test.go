package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore/faulty"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
)

var crashBufferID = writebuf.ID{Topic: meta.TopicID{1}}

// copyBuffer returns another buffer that holds the same of the one partition.
func copyBuffer(from *writebuf.Mem) (*writebuf.Mem, error) {
	for ctx, old := context.Background(), from.Buffer(crashBufferID); ; {
		s, err := old.Bounds(ctx)
		if err != nil || !s.Known {
			return writebuf.NewMem(), err
		}
		entries, err := old.Read(ctx, max(s.Floor, 1), writebuf.Limit{Entries: 1 << 30, Bytes: 1 << 30})
		if same, _ := old.Bounds(ctx); same != s {
			continue // it was changed meanwhile
		}
		if err != nil {
			return nil, err
		}
		return filledBuffer(s, entries)
	}
}

func filledBuffer(s writebuf.State, entries []writebuf.Entry) (*writebuf.Mem, error) {
	ctx, to := context.Background(), writebuf.NewMem()
	b, floor := to.Buffer(crashBufferID), s.Floor
	if len(entries) == 0 && s.Last > 0 { // it was trimmed to its end
		entries, floor = []writebuf.Entry{{Seq: s.Last, Frame: []byte("x")}}, s.Last
	}
	if len(entries) > 0 {
		if err := b.Append(ctx, writebuf.Batch{Generation: s.Generation, Floor: floor, Entries: entries}); err != nil {
			return nil, err
		}
		if err := b.Trim(ctx, s.Generation, s.Floor); err != nil {
			return nil, err
		}
	}
	_, err := b.Fence(ctx, s.Generation)
	return to, err
}

// covered reports whether the write buffer has everything that was acknowledged and is in no object.
func (s *shore) covered(topic *meta.Topic) bool {
	if s.buffer == nil {
		return false
	}
	c := s.meta.View().Custody(topic.ID, 0)
	b, err := s.buffer.Buffer(crashBufferID).Bounds(context.Background())
	return err == nil && b.Known && b.Whole() && (c == nil || c.Uncovered == nil)
}

// takeOver loses the directory: another broker goes on without it.
func (s *shore) takeOver() error {
	s.fs, s.taken = vfs.NewMem(), true
	_, err := s.propose(context.Background(), meta.TakeOver{AtMs: 1, From: "broker 1 on a", By: "broker 1 on b"})
	return err
}

// hookedBuffers shows every change of the buffer to hook before it is made and before it is answered. It fails and forgets
// when it is told to.
type hookedBuffers struct {
	*writebuf.Mem
	hook func(at string, underWay func(*shore) error) error
	fail func(at string) (made bool, err error) // nil: never
	read func() error                           // before each read; nil: nothing
}

// Buffer implements writebuf.Store.
func (h *hookedBuffers) Buffer(id writebuf.ID) writebuf.Buffer {
	return &hookedBuffer{Buffer: h.Mem.Buffer(id), h: h, id: id}
}

type hookedBuffer struct {
	writebuf.Buffer
	h  *hookedBuffers
	id writebuf.ID
}

func (b *hookedBuffer) change(at string, do func(writebuf.Buffer) error) error {
	late := func(s *shore) error {
		if !s.taken {
			return nil // it is the same broker's
		}
		if err := do(s.buffer.Buffer(b.id)); !errors.Is(err, writebuf.ErrFenced) {
			return fmt.Errorf("the %s of a broker that was lost: %w", at, err)
		}
		return nil
	}
	if err := b.h.hook("buffer before "+at, late); err != nil {
		return err
	}
	made, failed := true, error(nil)
	if b.h.fail != nil {
		made, failed = b.h.fail(at)
	}
	if failed != nil && !made {
		return failed
	}
	if err := do(b.Buffer); err != nil {
		return err
	}
	return errors.Join(b.h.hook("buffer after "+at, nil), failed)
}

func (b *hookedBuffer) Read(ctx context.Context, from uint64, limit writebuf.Limit) ([]writebuf.Entry, error) {
	if b.h.read != nil {
		if err := b.h.read(); err != nil {
			return nil, err
		}
	}
	return b.Buffer.Read(ctx, from, limit)
}

func (b *hookedBuffer) Append(ctx context.Context, batch writebuf.Batch) error {
	return b.change("append", func(to writebuf.Buffer) error { return to.Append(context.WithoutCancel(ctx), batch) })
}

func (b *hookedBuffer) Submit(ctx context.Context, batch writebuf.Batch, done func(error)) {
	done(b.Append(ctx, batch))
}

func (b *hookedBuffer) Fence(ctx context.Context, generation uint32) (before writebuf.State, err error) {
	err = b.change("fence", func(to writebuf.Buffer) (err error) {
		before, err = to.Fence(context.WithoutCancel(ctx), generation)
		return err
	})
	return before, err
}

func (b *hookedBuffer) Trim(ctx context.Context, generation uint32, below uint64) error {
	return b.change("trim", func(to writebuf.Buffer) error { return to.Trim(context.WithoutCancel(ctx), generation, below) })
}

func (b *hookedBuffer) Reset(ctx context.Context, generation uint32) error {
	return b.change("reset", func(to writebuf.Buffer) error { return to.Reset(context.WithoutCancel(ctx), generation) })
}

func (b *hookedBuffer) Delete(ctx context.Context, generation uint32) error {
	return b.change("delete", func(to writebuf.Buffer) error { return to.Delete(context.WithoutCancel(ctx), generation) })
}

// loses tries the loss of the directory, and that of what the write buffer has, with and without the directory.
func (f *tierLife) loses(where string, underWay func(*shore) error) {
	if f.buffer == nil {
		return
	}
	for _, loss := range []struct {
		name              string
		directory, buffer bool
	}{{"the directory is lost", true, false}, {"the buffer forgets", false, true}, {"the directory is lost and the buffer forgets", true, true}} {
		s, err := f.shore.crash(vfs.KeepAll)
		if err != nil {
			f.t.Errorf("%s: %v", where, err)
			return
		}
		if loss.buffer {
			s.buffer.Lose(crashBufferID)
		}
		f.states++
		n := &nextLife{shore: s, topic: f.topic, mode: f.mode, crash: seglog.ProcessCrash, book: f.book, again: f.states%f.again == 0}
		if _, live := s.meta.View().TopicByID(f.topic.ID); live {
			n.whole = s.covered(f.topic)
		}
		if loss.directory {
			if n.lost = true; n.whole {
				f.taken++
			}
			n.underWay = underWay
			if err := s.takeOver(); err != nil {
				f.t.Errorf("%s: %v", where, err)
				return
			}
		}
		f.goesOn(n, where+", "+loss.name)
	}
}

// takesOver has the log made again. Where the tiers may lack what was acknowledged it must say so, and the operator gives
// that up.
func (n *nextLife) takesOver(k *keeper) (*keeper, error) {
	err := k.Ready(context.Background())
	if err == nil && (n.whole || n.second) {
		return k, nil
	}
	c := n.meta.View().Custody(n.topic.ID, 0)
	st, _ := n.buffer.Buffer(crashBufferID).Bounds(context.Background())
	switch {
	case n.whole, c != nil && c.Pending != nil && c.Pending.Accepted:
		return k, errors.Join(fmt.Errorf("the tiers have everything, and it is not taken over (the buffer: %+v, custody: %+v): %w", st, c, err), k.stop())
	case fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "waiting for broker 1 on a"):
		return k, errors.Join(fmt.Errorf("the tiers may lack what was acknowledged, and what it says is: %w", err), k.stop())
	}
	if err := k.stop(); err != nil {
		return k, err
	}
	if _, err := n.propose(context.Background(), meta.AcceptLoss{Name: n.topic.Name, ID: n.topic.ID}); err != nil {
		return k, err
	}
	n.accepted = true
	return n.keeping(n.crash).open()
}

// beset returns the buffer to which what the lost broker still asks for comes while the next one reads it.
func (n *nextLife) beset() writebuf.Store {
	return &hookedBuffers{Mem: n.buffer, hook: func(string, func(*shore) error) error { return nil }, read: func() error { return n.underWay(n.shore) }}
}

// Whatever the moment at which a broker dies that has a write buffer, with its directory or without: what was confirmed is
// there, at its offset, and where the tiers may lack some of it, that is said before anything is served.
func TestCrashAtEveryStepBesideTheBuffer(t *testing.T) {
	lives := []struct {
		mode    seglog.Mode
		faults  float64
		forgets bool
	}{{mode: seglog.OnCommit}, {mode: seglog.Periodic, faults: 0.1}, {mode: seglog.OnCommit, faults: 0.1, forgets: true}}
	rounds, seeds, again := 1, 0, 900
	switch {
	case testing.Short():
		lives, seeds, again = lives[:1], 0, 1000
	case os.Getenv("LEVEE_FAULTS") == "full":
		rounds, seeds, again = 20, 4, 50
	}
	seed := testSeed(t)
	states, steps, taken, points := 0, 0, 0, map[string]int{}
	for i := range rounds * len(lives) {
		life := lives[i%len(lives)]
		synctest.Test(t, func(t *testing.T) {
			f := newTierLife(t, seed+uint64(i), life.mode, seeds, again)
			f.buffer = writebuf.NewMem()
			if testing.Short() {
				f.every = 5
			}
			f.watch(0, faulty.Config{Seed: seed + uint64(i), Rate: putFaults(life.faults)})
			rng := rand.New(rand.NewPCG(seed+uint64(i), 17))
			appends := 0
			f.buffers.(*hookedBuffers).fail = func(at string) (bool, error) {
				if at == "append" {
					appends++
				}
				switch {
				case at != "append" || life.faults == 0:
				case life.forgets && appends%11 == 0:
					f.buffer.Lose(crashBufferID)
				case rng.IntN(10) == 0:
					return false, writebuf.ErrUnavailable
				case rng.IntN(10) == 0:
					return rng.IntN(2) == 0, writebuf.ErrOutcomeUnknown
				}
				return true, nil
			}
			f.script()
			states, steps, taken = states+f.states, steps+f.steps, taken+f.taken
			for p, n := range f.points {
				points[p] += n
			}
		})
		if t.Failed() {
			break
		}
	}
	t.Logf("%d crash states at %d steps, in %d of them the directory was lost and nothing else: %v", states, steps, taken, points)
	if !testing.Short() && (states < 2000 || taken < 300) {
		t.Errorf("only %d crash states, %d without the directory", states, taken)
	}
}
