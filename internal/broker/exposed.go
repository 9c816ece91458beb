package broker

import (
	"time"

	"github.com/leveemq/levee/internal/partition"
)

// Exposed is what this broker's disk has alone, of all partitions together, and what waits for another one's.
type Exposed struct {
	Copied      bool          // sealed segments are copied to a store of objects
	Bytes       int64         // with Copied: of records that have no copy
	Age         time.Duration // with Copied: how long ago the oldest segment of those was begun
	Buffered    bool          // records are acknowledged once the write buffer has them
	Unconfirmed int64         // with Buffered: records that it has not confirmed yet
	Uncovered   int           // with Buffered: partitions of which records were acknowledged without it
	Waiting     int           // partitions that are not served because a lost broker may have acknowledged more
}

// Exposed sums up what only this broker's disk has now. It does no I/O.
func (b *Broker) Exposed() Exposed {
	e := Exposed{Copied: b.cfg.Tier != nil, Buffered: b.cfg.Buffer != nil}
	view := b.cfg.Meta.View()
	var backlog partition.Backlog
	for _, t := range b.topics.all() {
		for i, p := range t.parts {
			backlog.Add(p)
			if bounds, ok := p.Bounds(); ok && e.Buffered {
				if c, ok := p.Covered(); ok {
					e.Unconfirmed += max(bounds.Written-c.Below, 0)
				}
			}
			switch c := view.Custody(t.ID, int32(i)); { //nolint:gosec // bounded by meta
			case c == nil:
			case c.Pending != nil:
				e.Waiting++
			case c.Uncovered != nil:
				e.Uncovered++
			}
		}
	}
	e.Bytes, e.Age = backlog.Exposed, backlog.ExposedAge
	return e
}
