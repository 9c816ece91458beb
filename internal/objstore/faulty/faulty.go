// Package faulty owns the bad days of an object store: a wrapper that does to each call what services and networks do,
// scripted or by chance, the same for the same seed. It never gives out other bytes or another outcome than the fault that
// it was told to play. Invariant: what lies below it has every object whole, so a test can tell what was promised from what
// is there.
package faulty

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/objstore"
)

// Kind is one thing that goes wrong.
type Kind uint8

// The kinds. Those of the first group are answers that say so; the rest have to be found out.
const (
	None        Kind = iota
	Throttled        // 429: too many requests; nothing was done
	Unavailable      // 503, or no connection; nothing was done
	Busy             // 409: another request for the key is under way; nothing was done
	Denied           // 403; nothing was done
	Missing          // 404 of an object that is there

	LostAnswer  // it was done, and the answer did not come
	LostRequest // it was not done, and no answer came
	Late        // no answer came, and it is done some operations later
	OwnConflict // it was done twice by something between, so that the second time met the first: exists, conflict
	Torn        // the upload broke off half way; nothing was done
	Rotten      // it was stored, but its bytes are others

	Short     // the body ends early
	Cut       // the connection breaks in the middle of the body
	Flipped   // a bit of the body is another
	Shifted   // the body is of another place
	Truncated // the object looks shorter than it is, everywhere in the answer

	Hang    // no answer until the caller gives up
	HangMid // the body stops coming until the caller gives up
	Slow    // it takes long: Config.Delay

	Lagging // a list without what was put last, and with what was deleted last
	Half    // a list that breaks off with an error in the middle
	Stale   // the state before the last change of the key
	kinds
)

var kindNames = [...]string{
	"none", "throttled", "unavailable", "busy", "denied", "missing", "lost answer", "lost request", "late", "own conflict", "torn", "rotten",
	"short", "cut", "flipped", "shifted", "truncated", "hang", "hang in the middle", "slow", "lagging", "half", "stale",
}

// String returns the kind's name.
func (k Kind) String() string { return kindNames[k] }

// Kinds returns every kind that may happen to an operation.
func Kinds(op objstore.Op) []Kind {
	always := []Kind{Throttled, Unavailable, Denied, Hang, Slow}
	switch op {
	case objstore.OpPutIfAbsent, objstore.OpPutIfMatch:
		return append(always, Busy, LostAnswer, LostRequest, Late, OwnConflict, Torn, Rotten)
	case objstore.OpDelete:
		return append(always, Busy, LostAnswer, LostRequest)
	case objstore.OpGet:
		return append(always, Missing, Short, Cut, Flipped, Shifted, Truncated, HangMid)
	case objstore.OpHead:
		return append(always, Missing, Stale)
	}
	return append(always, Lagging, Half)
}

// Event makes the Nth operation of a kind, from 1, go wrong.
type Event struct {
	Op   objstore.Op
	Nth  int
	Kind Kind
}

// Config says what goes wrong. Its zero value is nothing.
type Config struct {
	Script []Event
	Seed   uint64
	Rate   map[Kind]float64 // probability of each kind at each operation that it may happen to; together at most 1

	Delay     time.Duration // of Slow; 0: one second
	Bandwidth int64         // bytes a second of every body; 0: no limit
	Lag       int           // operations until Late happens and a list has caught up; 0: three
}

// Store plays faults on another store. It is safe for concurrent use; the same seed is the same run for one caller at a
// time.
type Store struct {
	under objstore.Store
	cfg   Config

	mu struct {
		sync.Mutex
		rnd     *rand.Rand
		total   int
		done    [objstore.OpDelete + 1]int // operations begun
		played  map[Kind]int
		late    []lateWrite
		changes map[string]change // by key
		rotten  map[string]bool   // by key and version
	}
}

// change is the last one of a key.
type change struct {
	at   int
	was  objstore.Info // there: the object before
	had  bool
	gone bool // it was a deletion
}

type lateWrite struct {
	due int
	do  func() error
}

var _ objstore.Store = (*Store)(nil)

// New wraps a store.
func New(under objstore.Store, cfg Config) *Store {
	if cfg.Delay == 0 {
		cfg.Delay = time.Second
	}
	if cfg.Lag == 0 {
		cfg.Lag = 3
	}
	s := &Store{under: under, cfg: cfg}
	s.mu.rnd = rand.New(rand.NewPCG(cfg.Seed, 0xfa017))
	s.mu.played, s.mu.changes, s.mu.rotten = map[Kind]int{}, map[string]change{}, map[string]bool{}
	return s
}

// Played returns how often each kind has happened.
func (s *Store) Played() map[Kind]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.played)
}

// Settle makes everything happen that is still to happen late.
func (s *Store) Settle() error {
	s.mu.Lock()
	due := s.mu.late
	s.mu.late = nil
	s.mu.Unlock()
	return doAll(due)
}

// doAll does what was late. That its condition no longer holds is what may happen to it.
func doAll(due []lateWrite) error {
	var errs []error
	for _, w := range due {
		if err := w.do(); err != nil && !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrConflict) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// turn is what is decided for one operation.
type turn struct {
	kind Kind
	at   int    // ordinal of the operation among all
	luck uint64 // for where in the bytes it happens
}

// begin decides, and lets happen what is due.
func (s *Store) begin(op objstore.Op) (turn, error) {
	s.mu.Lock()
	s.mu.total++
	s.mu.done[op]++
	t := turn{kind: s.chooseLocked(op), at: s.mu.total, luck: s.mu.rnd.Uint64()}
	if t.kind != None {
		s.mu.played[t.kind]++
	}
	var due, later []lateWrite
	for _, w := range s.mu.late {
		if w.due <= t.at {
			due = append(due, w)
		} else {
			later = append(later, w)
		}
	}
	s.mu.late = later
	s.mu.Unlock()
	return t, doAll(due)
}

func (s *Store) chooseLocked(op objstore.Op) Kind {
	chance := s.mu.rnd.Float64() // drawn every time, so that a script does not change what comes by chance
	for _, e := range s.cfg.Script {
		if e.Op == op && e.Nth == s.mu.done[op] {
			return e.Kind
		}
	}
	for _, k := range Kinds(op) {
		if chance -= s.cfg.Rate[k]; chance < 0 {
			return k
		}
	}
	return None
}

// refuse plays the kinds that any operation may meet before anything is done: an error, or nil to go on.
func (s *Store) refuse(ctx context.Context, op objstore.Op, key string, t turn) error {
	fail := func(status int, cause string) error {
		return objstore.Failure{Op: op, Key: key, Status: status, Cause: errors.New(cause)}.Err()
	}
	switch t.kind {
	case Throttled:
		return fail(429, "slow down")
	case Unavailable:
		return fail(503, "service unavailable")
	case Busy:
		return objstore.Failure{Op: objstore.OpPutIfAbsent, Key: key, Status: 409, Cause: errors.New("conflicting operation")}.Err()
	case Denied:
		return fail(403, "access denied")
	case Missing:
		return fail(404, "not found")
	case LostRequest:
		return objstore.Failure{Op: op, Key: key, Sent: true, Cause: errors.New("connection reset")}.Err()
	case Hang:
		<-ctx.Done()
		return objstore.Failure{Op: op, Key: key, Sent: true, Cause: ctx.Err()}.Err()
	case Slow:
		return pause(ctx, s.cfg.Delay)
	}
	return nil
}

// pause waits, or fails where the caller gives up first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait: %w", ctx.Err())
	}
}

// Close implements objstore.Store.
func (s *Store) Close() error { return errors.Join(s.Settle(), s.under.Close()) }
