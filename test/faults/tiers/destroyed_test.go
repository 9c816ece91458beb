package tiers

import (
	"strings"
	"testing"

	"github.com/leveemq/levee/test/history"
)

// TestNodeLost destroys the broker with its disk, and starts one on an empty disk, where there are copies alone: lost is at
// most what had none, and nobody is told otherwise before an operator has accepted it.
func TestNodeLost(t *testing.T) {
	cell{setups: only(having(true, false), func(s setup) bool { return s.buffer == nil }), cost: history.CostUncopied, strike: (*rig).destroy, after: (*rig).accept}.run(t)
}

// TestNodeLostWithValkey does that where Valkey has what has no copy: nothing is lost, and nobody has to be asked.
func TestNodeLostWithValkey(t *testing.T) {
	cell{setups: having(false, true), strike: (*rig).destroy}.run(t)
}

// TestValkeyRestartsEmpty takes the Valkey server away with all that it had: the broker brings it what it lacks, and nothing
// is lost, also if the broker's disk goes as soon as it is acknowledging again.
func TestValkeyRestartsEmpty(t *testing.T) {
	cell{setups: having(false, true), strike: func(r *rig) {
		r.valkey.lose()
		r.goOn()
		r.covered()
		r.Resume()
		r.destroy()
	}}.run(t)
}

// TestValkeyFailsOver kills the primary, and its replica takes its place: nothing is lost, also if the broker's disk goes at
// the same moment.
func TestValkeyFailsOver(t *testing.T) {
	failingOver := having(false, true)
	for i := range failingOver {
		failingOver[i].buffer = replicated
	}
	t.Run("the broker stays", func(t *testing.T) {
		cell{setups: failingOver, strike: func(r *rig) { r.valkey.failOver() }}.run(t)
	})
	t.Run("the node is lost", func(t *testing.T) {
		cell{setups: failingOver, strike: func(r *rig) {
			r.destroy()
			r.valkey.failOver()
		}}.run(t)
	})
}

// TestNodeAndValkeyLost destroys the broker with its disk and the Valkey server with what it had: what was copied is safe.
func TestNodeAndValkeyLost(t *testing.T) {
	cell{setups: having(true, true), cost: history.CostUncopied, strike: func(r *rig) {
		r.destroy()
		r.valkey.lose()
	}, after: (*rig).accept}.run(t)
}

// accept has the operator accept what is lost, once the broker has said that it does not serve before.
func (r *rig) accept() {
	r.T.Helper()
	for _, l := range r.Loads {
		for _, p := range r.states(l) {
			if !strings.HasPrefix(p.State, "unavailable") || !strings.Contains(p.State, "waiting for ") {
				r.T.Errorf("%s/%d may have lost records and is %s", l.Topic, p.Partition, p.State)
			}
		}
		if res := r.levee("partition", "recover", l.Topic); res.Code == 0 {
			r.T.Errorf("recovering %s without accepting a loss: %+v", l.Topic, res)
		}
		if res := r.levee("partition", "recover", l.Topic, "--accept-loss"); res.Code != 0 {
			r.T.Fatalf("recovering %s: %+v", l.Topic, res)
		}
		r.Broker.Await("serving "+l.Topic, func() bool {
			for _, p := range r.states(l) {
				if p.State != "serving" {
					return false
				}
			}
			return true
		})
		if text := r.levee("topic", "describe", l.Topic).Stdout; !strings.Contains(text, "lost") {
			r.T.Errorf("after a loss was accepted, described as:\n%s", text)
		}
	}
}

// covered waits until Valkey has everything, and /readyz and the topics' descriptions say so. Nobody may begin to publish
// meanwhile; what is under way may come yet.
func (r *rig) covered() {
	r.T.Helper()
	r.Broker.Await("done with bringing Valkey everything", func() bool {
		for _, l := range r.Loads {
			for _, p := range r.states(l) {
				if !p.Buffered || p.Confirmed < p.End || p.Uncovered != nil {
					return false
				}
			}
		}
		e := r.exposed()
		return e.Buffer.Unconfirmed == 0 && e.Buffer.Uncovered == 0
	})
}
