package subscription

import (
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/obs"
)

// A subscription whose position stands still, because a record there is not settled, remembers one by one what is settled
// above it. How far that may reach is bounded: at the bound nothing new is handed out until the position moves. People are
// told of it before, when there is time to do something: at four fifths. They are told again once there was room
// meanwhile, down to three fifths.
func strained(span, most int64) bool { return span >= most-most/5 }

func relaxed(span, most int64) bool { return span < most-most*2/5 }

// strain is what people were told of it.
type strain struct {
	told  bool // since there was room
	quiet obs.Throttle
}

// warn tells people of a strained subscription, once. The caller holds mu.
func (r *Run) warn() {
	span, most := r.core.Span()
	if r.strain.told {
		r.strain.told = !relaxed(span, most)
		return
	}
	if !strained(span, most) || r.core.Stats().FailedOldest >= 0 {
		return
	}
	r.strain.told = true
	r.cfg.Metrics.Strained.Inc()
	if held, ok := r.strain.quiet.Allow("strained", time.Now()); ok {
		r.logger().Warn("a subscription has settled much above a record that it has not: when it has come so far above it as it may, nothing new is handed out until that record is settled",
			"topic", r.spec.Topic, "partition", r.spec.Partition, "subscription", r.spec.Name, "position", r.core.Set().Position(), "above", span, "most", most,
			"holder", r.holderOf(r.core.Stats()), "held_back", held)
	}
}

// holderOf names a consumer that holds records, where there is one: most likely the one to look at.
func (r *Run) holderOf(s dispatch.Stats) string {
	name, most := "", 0
	if s.InFlightMessages == 0 {
		return name
	}
	for h := range r.core.Holders {
		if h.Messages > most {
			name, most = h.Name, h.Messages
		}
	}
	return name
}
