package history

import (
	"slices"
	"sort"
)

// duplicates checks that a value stands a further time only where a fault fell between its publish and its answer: its
// client may have sent it again, once for each fault. An idempotent producer's values stand once.
func (c *checker) duplicates() {
	ends := make([]int64, len(c.faults))
	for i, f := range c.faults {
		ends[i] = f.end
	}
	slices.Sort(ends)
	for _, p := range c.h.producers {
		p.each(func(v Value, pub *publish) {
			extra := int(pub.copies) - 1
			if extra <= 0 {
				return
			}
			until := pub.until(p.gone)
			begun := sort.Search(len(c.faults), func(i int) bool { return c.faults[i].start > until })
			over := sort.Search(len(ends), func(i int) bool { return ends[i] >= pub.start })
			switch faults := begun - over; {
			case p.info.Idempotent:
				c.complain(CheckCopies, "%s: value %v of an idempotent producer stands %d times", c.where(pub), v, extra+1)
			case extra > faults:
				c.complain(CheckCopies, "%s: value %v stands %d times, and only %d faults fell between its publish and its answer (outcome %v %s)",
					c.where(pub), v, extra+1, faults, pub.outcome, c.h.names.list[pub.err])
			default:
				c.r.Counts.Duplicates += extra
			}
		})
	}
}

// where names a publish's log.
func (c *checker) where(pub *publish) string {
	if pub.log < 0 {
		return "some partition"
	}
	return c.h.logs[pub.log].String()
}
