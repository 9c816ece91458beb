package server

import (
	"sync"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/listener/admin"
)

// status is how far the server is, for whoever asks from outside. It is safe for concurrent use.
type status struct {
	mu    sync.Mutex
	phase phase  // guarded by mu
	doing string // guarded by mu; while starting
}

type phase uint8

const (
	phaseStarting phase = iota
	phaseStarted        // the broker says how far its partitions are
	phaseDraining
)

func (s *status) set(p phase, doing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.doing = p, doing
}

func (s *status) starting(doing string) { s.set(phaseStarting, doing) }
func (s *status) started()              { s.set(phaseStarted, "") }
func (s *status) draining()             { s.set(phaseDraining, "") }

func (s *status) get() (phase, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase, s.doing
}

// ending reports whether the stop has begun.
func (s *status) ending() bool {
	p, _ := s.get()
	return p == phaseDraining
}

// state is what health checks are told.
func (s *server) state() admin.State {
	p, doing := s.status.get()
	b := s.broker.Load()
	st := admin.State{Phase: admin.Starting, Detail: doing, Problems: s.problems(b)}
	switch {
	case p == phaseDraining:
		st.Phase = admin.Draining
	case p == phaseStarted && b.Ready() == nil:
		st.Phase = admin.Ready
	case p == phaseStarted:
		st.Detail = b.Ready().Error()
	}
	return st
}

// problems returns what is not as it should be, in words.
func (s *server) problems(b *broker.Broker) []string {
	var list []string
	if s.flushes.everRaised() {
		list = append(list, "a flush to the disk failed: see the log for the file; what was not acknowledged before may be lost, restart the broker once the disk works")
	}
	if s.reserve != nil && !s.reserve.isHeld() {
		list = append(list, "the disk is full: topics take no records until there is room, and no topic is created; make room, or delete topics")
	}
	if m := s.metadata.Load(); m != nil {
		if err := m.err(); err != nil {
			list = append(list, "metadata: "+err.Error())
		}
	}
	if b != nil {
		list = append(list, b.Problems()...)
	}
	return list
}
