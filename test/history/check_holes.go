package history

import "slices"

// holes checks that whoever reads sees a record or is told why there is none, for each offset from the one asked for.
func (c *checker) holes() {
	for _, l := range c.h.logs {
		for _, r := range l.readings {
			c.holesInReading(r)
		}
		for _, s := range l.subs {
			c.holesInSubscription(s)
		}
	}
}

// untold reports whether a log has nothing about which readers could be told this.
func untold(l *log, why Told) bool {
	switch why {
	case Trimmed:
		return !l.stream.ever(func(t TopicInfo) bool { return t.Retention })
	case Compacted:
		return !l.stream.ever(func(t TopicInfo) bool { return t.Compacted })
	}
	return false
}

func (c *checker) holesInReading(r *Reading) {
	next := r.from // the offset to come
	for i := range r.segments {
		g := &r.segments[i]
		why := g.told()
		switch {
		case why != 0 && untold(r.log, why):
			c.complain(CheckHoles, "%s: %v was told that offsets %d to %d are %v, and nothing of the topic is", r.log, r, g.from, g.to, why)
		case g.to < g.from:
			c.complain(CheckHoles, "%s: %v was told of offsets %d to %d", r.log, r, g.from, g.to)
		}
		switch {
		case next < 0: // it may begin anywhere
		case g.from > next && i == 0:
			c.complain(CheckHoles, "%s: %v was to begin at offset %d and began at %d without a word", r.log, r, next, g.from)
		case g.from > next:
			c.complain(CheckHoles, "%s: %v went from offset %d to %d without a word of those between", r.log, r, next-1, g.from)
		case g.from < next && why == 0:
			c.complain(CheckHoles, "%s: %v got offset %d when it was at %d", r.log, r, g.from, next)
		}
		next = max(next, g.to+1)
	}
	if r.ended() && next >= 0 && r.next != next {
		c.complain(CheckHoles, "%s: %v was at offset %d when it was told that the end is %d", r.log, r, next, r.next)
	}
}

// holesInSubscription looks at all consumers of a subscription together. With the order of the partition, nothing may be
// delivered before all in front of it was. Otherwise several consumers are served side by side, and one that has died may
// have taken records with it that are due again: an offset is missed when a later one was delivered long ago.
func (c *checker) holesInSubscription(s *Subscriber) {
	var seen spans
	var first, top int64 = s.info.From, -1
	patience := int64(c.o.DeliverWithin)
	if s.info.Order == OrderPartition {
		patience = 0
	}
	complained := map[int64]bool{}
	judge := func(upTo int64) {
		if first < 0 {
			return
		}
		seen.missing(first, upTo, func(gap span) {
			if !complained[gap.from] {
				complained[gap.from] = true
				c.complain(CheckHoles, "%v delivered offset %d without a word of %d to %d", s, upTo+1, gap.from, gap.to)
			}
		})
	}
	for i := range s.deliveries {
		d := &s.deliveries[i]
		if first < 0 {
			first = d.from
		}
		if d.why != 0 && untold(s.log, d.why) {
			c.complain(CheckHoles, "%v was told that offsets %d to %d are %v, and nothing of the topic is", s, d.from, d.to, d.why)
		}
		if s.info.Order == OrderPartition && d.from > top {
			judge(d.from - 1)
		}
		seen = seen.add(span{d.from, d.to})
		if d.at <= c.now-patience {
			top = max(top, d.from)
		}
	}
	if s.info.Order == OrderPartition {
		return
	}
	for _, a := range s.acks { // acknowledged by a consumer that did not live to note the delivery
		if a.outcome == OK {
			seen = seen.add(span{a.offset, a.offset})
		}
	}
	if top >= 0 && first >= 0 {
		first = min(first, slices.MinFunc(s.deliveries, func(a, b delivery) int { return int(min(max(a.from-b.from, -1), 1)) }).from)
		if s.info.From >= 0 {
			first = s.info.From
		}
		judge(top - 1)
	}
}
