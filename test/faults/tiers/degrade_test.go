package tiers

import (
	"testing"

	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
)

// degrading is a single server that a broker goes on without.
func degrading(t *testing.T) *buffer {
	t.Helper()
	b := single(t)
	b.env["LEVEE_VALKEY_ON_FAILURE"] = "degrade"
	b.env["LEVEE_VALKEY_CONFIRM_TIMEOUT"] = "1s" // it goes on after that
	return b
}

// degraded puts degrading servers in the place of those that there are.
func degraded(all []setup) []setup {
	for i := range all {
		all[i].buffer = degrading
	}
	return all
}

// goneAlone has Valkey not answer, and waits until every partition acknowledges without it. What Valkey has until then may
// not be lost with the node.
func (r *rig) goneAlone() {
	r.T.Helper()
	r.valkey.primary.Pause()
	for _, l := range r.Loads {
		r.Broker.Await("publishing to "+l.Topic+" without Valkey", func() bool {
			for _, p := range r.states(l) {
				if p.Uncovered == nil {
					return false
				}
			}
			return true
		})
		for _, p := range r.states(l) {
			r.History.Copied(l.Topic, l.Incarnation, p.Partition, *p.Uncovered)
		}
	}
	if e := r.exposed(); e.Buffer.Uncovered == 0 {
		r.T.Errorf("without Valkey, /readyz says of what it lacks: %+v", *e.Buffer)
	}
	for _, l := range r.Loads {
		faults.Await(r.T, l.After(200), "acknowledgements of "+l.Topic+" without Valkey")
	}
}

// TestNodeLostUncovered takes Valkey away while publishing goes on without it, as the operator chose, and then the broker with
// its disk: lost is at most what the broker said that Valkey may lack, and nobody is told otherwise before an operator has
// accepted it.
func TestNodeLostUncovered(t *testing.T) {
	cell{setups: degraded(having(false, true)), cost: history.CostUncopied, loses: true, strike: func(r *rig) {
		r.goneAlone()
		r.destroy()
		r.valkey.primary.Continue()
	}, after: (*rig).accept}.run(t)
}

// TestNodeLostCoveredAgain has Valkey back before the broker is lost with its disk: nothing is lost. Without an object store
// nobody can tell, and an operator is asked all the same.
func TestNodeLostCoveredAgain(t *testing.T) {
	strike := func(r *rig) {
		r.goneAlone()
		r.valkey.primary.Continue()
		r.goOn()
		r.covered()
		r.Resume()
		r.destroy()
	}
	cell{setups: degraded(having(true, true)), strike: strike}.run(t)
	alone := only(having(false, true), func(s setup) bool { return s.store == nil })
	cell{setups: degraded(alone), cost: history.CostUncopied, keeps: true, strike: strike, after: (*rig).accept}.run(t)
}
