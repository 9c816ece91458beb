// Package meta owns the facts a cluster agrees on: namespaces, topics, their incarnations, generations and offset
// reservations, what was deleted, the numbers given out, subscriptions with their cursors, and schemas. It is a pure
// state machine: it does no I/O, reads no clock and no randomness, starts no goroutine, and does not know how commands
// are made durable or ordered.
// Invariant: the same sequence of commands gives the same state, byte for byte, whatever snapshots lie between.
//
// size: one state with one snapshot; a fact kept elsewhere could not be changed in the same step as those it depends on
package meta

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/leveemq/levee/internal/fault"
)

// maxTombstones bounds what is kept of names that no longer exist. It is part of what Apply does, as the bounds of
// settings are.
const maxTombstones = 100_000

// State is the state machine. Apply and Restore must not be called at the same time; View and Changed may be called at
// any time from anywhere.
type State struct {
	view atomic.Pointer[View]

	// Derived from the view, and so in no snapshot.
	partNames map[string]int       // full name X to how many topics X-part-N exist
	evictable tree[uint64, string] // index of deletion to full name: tombstones whose data is removed everywhere

	tombstones int // maxTombstones, lower in tests

	mu      sync.Mutex
	changed chan struct{} // guarded by mu; nil while nobody waits
}

// NewState returns the state before the first command: the default namespace and nothing else.
func NewState() *State {
	s := &State{tombstones: maxTombstones}
	v := &View{nextProducerID: 1}
	v.namespaces = v.namespaces.set(DefaultNamespace, &Namespace{Name: DefaultNamespace})
	s.adopt(v)
	return s
}

// View returns the newest state. Each is at least as new as the one before.
func (s *State) View() *View { return s.view.Load() }

// Changed returns a channel that is closed once there is a newer view than the one View returned before the call.
// Commands that were refused close nothing.
func (s *State) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

func (s *State) publish(v *View, changed bool) {
	s.view.Store(v)
	if !changed {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Apply carries out one command. index is its position in the sequence of commands and must rise from call to call. A
// command that the state refuses is no failure: it is a Result with Refused set, and everybody who applies it there
// refuses it alike. An error means that the sequence itself is wrong and nothing was done: the caller must stop.
func (s *State) Apply(index uint64, c Command) (Result, error) {
	old := s.view.Load()
	if index <= old.index {
		return Result{}, fault.New(fault.Internal, "apply %s: index %d is not above %d, the last one applied", c.Op(), index, old.index)
	}
	v := *old
	v.index = index
	if err := c.Validate(); err != nil {
		s.publish(&v, false)
		return Result{Index: index, Refused: &fault.Error{Kind: fault.KindOf(err), Msg: err.Error(), Details: fault.DetailsOf(err), Err: err}}, nil
	}
	r, refused := c.apply(s, &v, index)
	if refused != nil {
		// Nothing that the command may have prepared is kept.
		v = *old
		v.index = index
		r = Result{Refused: refused}
	}
	r.Index = index
	s.publish(&v, refused == nil)
	return r, nil
}

// ApplyEncoded is Apply for a command as Encode wrote it. A command of an unknown kind or version is an error: to skip
// it would make this state differ from that of whoever understands it.
func (s *State) ApplyEncoded(index uint64, b []byte) (Result, error) {
	c, err := Decode(b)
	if err != nil {
		return Result{}, fmt.Errorf("apply command %d: %w", index, err)
	}
	return s.Apply(index, c)
}

// adopt makes v the state and derives what is not in it.
func (s *State) adopt(v *View) {
	s.partNames = map[string]int{}
	for _, t := range v.topics.all() {
		s.countPartName(t.Name, 1)
	}
	s.evictable = tree[uint64, string]{}
	for key, t := range v.tombstones.all() {
		if !v.pending(t.Name) {
			s.evictable = s.evictable.set(t.Index, key)
		}
	}
	s.publish(v, true)
}

// countPartName notes that a topic named X-part-N comes (1) or goes (-1).
func (s *State) countPartName(n Name, by int) {
	base, ok := partitionOf(n.Topic)
	if !ok {
		return
	}
	key := Name{n.Namespace, base}.String()
	if s.partNames[key] += by; s.partNames[key] == 0 {
		delete(s.partNames, key)
	}
}
