package cursor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/task"
)

// Saved is one cursor that a Saver keeps: that of one subscription on one partition. Its methods are called by the Saver
// alone, Take and Done in turns.
type Saved interface {
	// Take returns what changed since the last save that worked; ok is false where nothing did.
	Take() (s meta.CursorSave, ok bool)
	// Done says what became of what Take returned last: it is durable where err is nil.
	Done(err error)
}

// Saver makes cursors durable. Those that changed go into the metadata together, one command for many of them and
// usually not more often than once in a while: acknowledging costs no flush of its own. It is safe for concurrent use.
type Saver struct {
	store  meta.Store
	every  time.Duration
	logger *slog.Logger
	saves  func(cursors int, err error)
	wake   chan struct{} // one slot: there is something to do
	quiet  obs.Throttle
	turn   task.Turn // held by a round

	mu      sync.Mutex
	dirty   map[Saved]struct{} // guarded by mu
	waiting []waiter           // guarded by mu; for the next round
}

type waiter struct {
	of   Saved // nil: all
	done chan error
}

// commandBytes is about how large a command becomes before the next one is begun.
const commandBytes = 128 << 10

// NewSaver returns a Saver that saves what changed at most once in every, and at once where somebody waits for it. saves,
// unless nil, is told of each command. Until Run, nothing is saved that nobody waits for.
func NewSaver(store meta.Store, every time.Duration, logger *slog.Logger, saves func(cursors int, err error)) *Saver {
	if saves == nil {
		saves = func(int, error) {}
	}
	return &Saver{
		store: store, every: every, logger: obs.Logger(logger), saves: saves, wake: make(chan struct{}, 1),
		dirty: map[Saved]struct{}{}, quiet: obs.Throttle{Every: time.Minute},
	}
}

// Dirty notes that c has something to save. It does not wait.
func (s *Saver) Dirty(c Saved) {
	s.mu.Lock()
	s.dirty[c] = struct{}{}
	s.mu.Unlock()
	s.kick()
}

func (s *Saver) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Save returns nil once all that c had to save when it was called is durable. ctx ends it and takes nothing back.
func (s *Saver) Save(ctx context.Context, c Saved) error { return s.now(ctx, c) }

// Flush is Save for all cursors there are.
func (s *Saver) Flush(ctx context.Context) error { return s.now(ctx, nil) }

// now joins the next round, or makes it: whoever waits for the turn meanwhile is served by it, too.
func (s *Saver) now(ctx context.Context, c Saved) error {
	w := waiter{c, make(chan error, 1)}
	s.mu.Lock()
	if c != nil {
		s.dirty[c] = struct{}{}
	}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	if !s.turn.Take(ctx.Done()) {
		return context.Cause(ctx)
	}
	defer s.turn.Give()
	select {
	case err := <-w.done:
		return err
	default:
	}
	s.round(ctx, w.done)
	return <-w.done
}

// Run saves what is dirty, every once in a while, until ctx is done.
func (s *Saver) Run(ctx context.Context) error {
	var due <-chan time.Time // nil while nothing is dirty
	for {
		select {
		case <-s.wake:
			if due == nil {
				due = time.After(s.every)
			}
			continue
		case <-due:
		case <-ctx.Done():
			return ctx.Err()
		}
		due = nil
		if s.turn.Take(ctx.Done()) {
			s.round(ctx, nil)
			s.turn.Give()
		}
	}
}

// round saves everything that is dirty now, and answers whoever waits for it. The caller has the turn; mine is its own
// answer, if it waits for one. Where it is ctx that ends the round, the others' cursors did not fail: they make a round of
// their own.
func (s *Saver) round(ctx context.Context, mine chan error) {
	s.mu.Lock()
	dirty, waiting := s.dirty, s.waiting
	s.dirty, s.waiting = map[Saved]struct{}{}, nil
	s.mu.Unlock()
	failed := map[Saved]error{}
	var first error
	var command meta.SaveCursors
	var of []Saved
	size := 0
	send := func() {
		if len(of) == 0 {
			return
		}
		err := s.propose(ctx, command)
		for _, c := range of {
			c.Done(err)
			if err != nil {
				failed[c] = err
			}
		}
		if first == nil {
			first = err
		}
		command.Cursors, of, size = nil, nil, 0
	}
	for c := range dirty {
		save, ok := c.Take()
		if !ok {
			continue
		}
		command.Cursors, of = append(command.Cursors, save), append(of, c)
		if size += weight(&save); size > commandBytes {
			send()
		}
	}
	send()
	var again []waiter
	for _, w := range waiting {
		err := first
		if w.of != nil {
			err = failed[w.of]
		}
		if err != nil && ctx.Err() != nil && w.done != mine {
			again = append(again, w)
		} else {
			w.done <- err
		}
	}
	if len(failed) > 0 {
		s.mu.Lock()
		for c := range failed {
			s.dirty[c] = struct{}{} // the next round tries again
		}
		s.waiting = append(s.waiting, again...)
		s.mu.Unlock()
		s.kick()
	}
}

func (s *Saver) propose(ctx context.Context, c meta.SaveCursors) error {
	_, err := s.store.Propose(ctx, c)
	s.saves(len(c.Cursors), err)
	if err != nil && ctx.Err() == nil {
		if held, ok := s.quiet.Allow("save", time.Now()); ok {
			s.logger.Warn("cursors could not be saved; it is tried again, and after a crash meanwhile more is delivered again", "cursors", len(c.Cursors), "err", err, "held_back", held)
		}
	}
	return err
}

// weight is about how many bytes a save takes in a command.
func weight(c *meta.CursorSave) int {
	n := 120 + len(c.Subscription) + 12*len(c.Counts)
	for _, b := range c.Blocks {
		n += 16 + len(b.Bits)*4/3
	}
	return n
}
