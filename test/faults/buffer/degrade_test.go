package buffer

import (
	"slices"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/faults"
)

// TestDegrade has the server away for a while, again and again, where the operator chose to go on without: publishes are
// acknowledged meanwhile, the broker says from which offset on they are on its disk alone, and the server has them afterwards.
func TestDegrade(t *testing.T) {
	r := begin(t, map[string]string{"LEVEE_VALKEY_ON_FAILURE": "degrade"})
	n := faults.Amount(3, 1, 50)
	for range n {
		r.strike("away", func() {
			r.server.Pause()
			defer r.server.Continue()
			hit := r.load.After(underWay) // more than may have been confirmed before
			faults.Await(t, hit, "acknowledgements without the write buffer")
			if !slices.ContainsFunc(r.states(), func(p client.Partition) bool { return p.Uncovered != nil }) {
				t.Error("the broker acknowledges without the write buffer, and does not say so")
			}
		})
		r.Broker.Await("covered again", func() bool {
			return !slices.ContainsFunc(r.states(), func(p client.Partition) bool { return p.Uncovered != nil || p.Confirmed < p.End })
		})
	}
	r.load.Finish()
	r.Check("at the end")
	r.held()
	r.env["LEVEE_VALKEY_ON_FAILURE"] = "reject" // whoever degrades has to ask an operator, see test/faults/tiers
	r.replace()                                 // and nothing is on the disk alone any more
	r.Check("without the disk")
	r.Report(n)
}
