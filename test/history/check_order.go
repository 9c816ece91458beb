package history

// order checks that a producer's records keep their order in a partition, and that first deliveries never go back.
//
// The values of an idempotent producer rise. Those of an ordered one may stand again behind a fault, and one whose
// outcome is unknown may still come when others have overtaken it; first copies of acknowledged values rise. What
// either is answered goes to rising offsets.
func (c *checker) order() {
	last := make([]int32, len(c.h.producers)) // by producer: the value before, in this log
	for _, l := range c.h.logs {
		for i := range last {
			last[i] = -1
		}
		gone := l.declaredLost()
		again := map[Value]bool{} // values with copies that have been met
		l.read.each(0, forever, func(offset int64, v Value) {
			pub := c.h.publish(v)
			if pub == nil || len(gone) > 0 && gone.contains(offset) {
				return
			}
			info := &c.h.producers[v.Producer].info
			if !info.Idempotent {
				if !info.Ordered || pub.outcome != OK || again[v] {
					return
				}
				if pub.copies > 1 {
					again[v] = true
				}
			}
			if before := last[v.Producer]; v.Seq <= before {
				c.complain(CheckOrder, "%s: offset %d has value %v of an %s producer, behind its %d", l, offset, v, info.kind(), before)
			}
			last[v.Producer] = max(last[v.Producer], v.Seq)
		})
	}
	c.answers()
	for _, s := range c.h.subs {
		c.firstDeliveries(s)
	}
}

func (i *ProducerInfo) kind() string {
	switch {
	case i.Idempotent:
		return "idempotent"
	case i.Ordered:
		return "ordered"
	}
	return "unordered"
}

// answers checks that acknowledgements rise.
func (c *checker) answers() {
	type before struct {
		producer int32
		offset   int64
		value    Value
	}
	last := make([]before, len(c.h.logs))
	for i := range last {
		last[i].producer = -1
	}
	for _, p := range c.h.producers {
		if !p.info.Idempotent && !p.info.Ordered {
			continue
		}
		p.each(func(v Value, pub *publish) {
			if pub.outcome != OK || pub.offset < 0 || pub.log < 0 {
				return
			}
			b := &last[pub.log]
			if b.producer == p.id && pub.offset <= b.offset {
				c.complain(CheckOrder, "%s: value %v of an %s producer was acknowledged at offset %d, and %v before it at %d",
					c.h.logs[pub.log], v, p.info.kind(), pub.offset, b.value, b.offset)
			}
			*b = before{p.id, pub.offset, v}
		})
	}
}

// firstDeliveries checks that a subscription gives a record for the first time only when it has given those before it,
// as far as its order says.
func (c *checker) firstDeliveries(s *Subscriber) {
	if s.info.Order == OrderNone {
		return
	}
	var given spans
	last := map[uint32]int64{} // by key
	for i := range s.deliveries {
		d := &s.deliveries[i]
		if d.why != 0 || given.contains(d.from) {
			continue
		}
		given = given.add(span{d.from, d.from})
		key := d.key
		if s.info.Order == OrderPartition {
			key = 0
		} else if key == 0 {
			continue // without a key there is no order
		}
		if before, any := last[key]; any && d.from < before {
			c.complain(CheckOrder, "%v: offset %d (key %q) was delivered for the first time after %d", s, d.from, c.h.names.list[d.key], before)
			continue
		}
		last[key] = d.from
	}
}
