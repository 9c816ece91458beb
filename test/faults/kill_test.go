package faults

import (
	"fmt"
	"testing"

	"github.com/leveemq/levee/client"
)

// topic is what most tests of this package publish to.
const (
	topic      = "default/load"
	partitions = 2
)

// begin starts a broker with one load on a topic of a mode.
func begin(t *testing.T, fsync string) *Campaign {
	t.Helper()
	c := Begin(t, Options{})
	c.Load(client.TopicSpec{Name: topic, Partitions: partitions, Settings: client.Settings{Fsync: &fsync, SegmentBytes: new(int64(64 << 10))}})
	return c
}

// TestKillNine kills a broker that publishers are busy with, at any moment, and starts it on what is left: in every
// fsync mode all that was acknowledged is there, at its offset, for what a process has written outlives it.
func TestKillNine(t *testing.T) {
	for _, mode := range Modes {
		t.Run(mode, func(t *testing.T) {
			c := begin(t, mode)
			cycles := Amount(20, 2, 500)
			for n := range cycles {
				if n%4 == 0 { // another number of publishers
					c.Loads[0].Finish()
					c.Loads[0].Start(Crowd(c.Rng), c.Rng)
				}
				c.Strike(fmt.Sprintf("cycle %d", n), c.Kill)
			}
			c.End()
			c.Report(cycles)
		})
	}
}
