package history

import (
	"slices"
	"sort"
)

// recovery is what came of one topic's publishes after one heal.
type recovery struct {
	tried     int64 // when the first publish was under way, the heal's time at the earliest
	succeeded int64 // when the first was acknowledged
	example   Value
}

// liveness checks that after a heal, until the next fault, publishes succeed and waiting records are delivered soon.
// Heals after which there was no time to tell are counted.
func (c *checker) liveness() {
	h := c.h
	heals := make([]heal, 0, len(h.heals))
	limits := make([]int64, 0, len(h.heals)) // by heal: when its peace ends
	for _, e := range h.heals {
		i := sort.Search(len(c.faults), func(i int) bool { return c.faults[i].start > e.at })
		until := c.now
		if i < len(c.faults) {
			until = min(until, c.faults[i].start)
		}
		if slices.ContainsFunc(c.faults, func(f fault) bool { return f.start <= e.at && e.at < f.end }) {
			until = e.at // something was still broken
		}
		heals = append(heals, e)
		limits = append(limits, until)
	}
	short := make([]bool, len(heals))
	c.deliveredAfter(heals, limits, short)
	c.publishedAfter(heals, limits, short)
	for _, s := range short {
		if s {
			c.r.Counts.HealsShort++
		}
	}
}

func (c *checker) deliveredAfter(heals []heal, limits []int64, short []bool) {
	for i, e := range heals {
		for _, name := range e.subscriptions {
			deadline := e.at + int64(c.o.DeliverWithin)
			delivered := int64(forever)
			for _, s := range c.h.subs {
				if s.info.Subscription != name {
					continue
				}
				for _, d := range s.deliveries[sort.Search(len(s.deliveries), func(i int) bool { return s.deliveries[i].at >= e.at }):] {
					if d.why == 0 {
						delivered = min(delivered, d.at)
						break
					}
				}
			}
			switch {
			case delivered <= deadline:
			case limits[i] < deadline:
				short[i] = true
			default:
				c.complain(CheckLiveness, "subscription %s had records waiting and room for them at %s, and got nothing for %v", name, seconds(e.at), c.o.DeliverWithin)
			}
		}
	}
}

func (c *checker) publishedAfter(heals []heal, limits []int64, short []bool) {
	if len(heals) == 0 {
		return
	}
	after := map[*stream][]recovery{} // by topic and heal
	for _, p := range c.h.producers {
		s := c.h.stream(p.info.Topic, p.info.Incarnation)
		found := after[s]
		if found == nil {
			found = make([]recovery, len(heals))
			for i := range found {
				found[i] = recovery{tried: forever, succeeded: forever}
			}
			after[s] = found
		}
		p.each(func(v Value, pub *publish) {
			until := pub.end
			if pub.outcome == Pending {
				if until = p.gone; p.info.Mortal {
					until = pub.start // it may have died with its producer
				}
			}
			// The last heal before it began, and those while it was under way.
			first := max(sort.Search(len(heals), func(i int) bool { return heals[i].at > pub.start })-1, 0)
			for i := first; i < len(heals) && heals[i].at <= until; i++ {
				f := &found[i]
				if at := max(heals[i].at, pub.start); at < f.tried && at <= limits[i] {
					f.tried, f.example = at, v
				}
				if pub.outcome == OK && pub.end >= heals[i].at {
					f.succeeded = min(f.succeeded, pub.end)
				}
			}
		})
	}
	for _, s := range c.h.all() {
		for i, f := range after[s] {
			deadline := f.tried + int64(c.o.PublishWithin)
			switch {
			case f.tried == forever || f.succeeded <= deadline:
			case limits[i] < deadline:
				short[i] = true
			default:
				c.complain(CheckLiveness, "%s@%d: nothing was acknowledged for %v after the heal at %s, though %v was under way from %s on",
					s.topic, s.incarnation, c.o.PublishWithin, seconds(heals[i].at), f.example, seconds(f.tried))
			}
		}
	}
}
