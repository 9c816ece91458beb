package server

import (
	"fmt"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/datadir"
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
	list = append(list, s.hanging()...)
	if s.reserve != nil {
		if p := s.reserve.problem(); p != "" {
			list = append(list, p)
		}
	}
	list = append(list, s.bufferHealth.Load().problems()...)
	if p := s.lostChanges.Load(); p != nil {
		list = append(list, *p)
	}
	if m := s.metadata.Load(); m != nil {
		if err := m.err(); err != nil {
			list = append(list, "metadata: "+err.Error())
		}
	}
	if c := s.confirmer.Load(); c != nil {
		if p := c.Problem(); p != "" {
			list = append(list, p)
		}
	}
	if k := s.keeper.Load(); k != nil {
		if p := k.Problem(); p != "" {
			list = append(list, p)
		}
	}
	if b != nil {
		list = append(list, b.Problems()...)
	}
	return list
}

const (
	hangingFor = 5 * time.Second // a flush that takes so long is told of
	maxHanging = 20              // of how many at most: where a whole disk hangs, all do
)

// hanging tells of flushes that the disk does not get done with.
func (s *server) hanging() []string {
	var list []string
	found := s.fs.flushes.hanging(hangingFor)
	for i, f := range found {
		if i == maxHanging {
			return append(list, fmt.Sprintf("and %d more flushes are under way for as long", len(found)-i))
		}
		what := f.path
		if p, ok := datadir.PartitionAt(s.dir, f.path); ok {
			what = fmt.Sprintf("%s (%s)", p, f.path)
		}
		list = append(list, fmt.Sprintf("a flush of %s has been under way for %v: the disk is slow, or hangs", what, time.Since(f.began).Round(time.Second)))
	}
	return list
}
