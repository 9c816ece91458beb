package history

// offsets checks that an offset has one value for ever: in all readings, in all deliveries and in what publishers were
// answered, and that nothing stands where readers were told that there is nothing and never will be.
func (c *checker) offsets() {
	for _, l := range c.h.logs {
		for _, o := range l.odd {
			has, _ := l.read.get(o.offset)
			c.complain(CheckOffsets, "%s: offset %d has value %v in %s, and had %v before", l, o.offset, o.value, o.who, has)
		}
		c.toldAndRead(l)
	}
	for _, p := range c.h.producers {
		p.each(func(v Value, pub *publish) {
			if pub.outcome != OK || pub.offset < 0 || pub.log < 0 {
				return
			}
			l := c.h.logs[pub.log]
			if has, ok := l.read.get(pub.offset); ok && has != v {
				c.complain(CheckOffsets, "%s: value %v was acknowledged at offset %d and is lost: %v stands there", l, v, pub.offset, has)
			}
			if has, _ := l.acked.get(pub.offset); has != v {
				c.complain(CheckOffsets, "%s: values %v and %v were both acknowledged at offset %d", l, has, v, pub.offset)
			}
		})
	}
}

// toldAndRead looks for records that a reading got although another, before it, was told that they are lost or that a
// marker stands there, and for markers where there was a record.
func (c *checker) toldAndRead(l *log) {
	var done spans
	for _, r := range l.readings {
		for _, g := range r.segments {
			if why := g.told(); why != Lost && why != Control || done.contains(g.from) && done.contains(g.to) {
				continue
			}
			done = done.add(span{g.from, g.to})
			l.read.each(g.from, g.to, func(offset int64, v Value) {
				for _, other := range l.readings {
					if (other.start >= r.end || g.told() == Control) && reads(other, offset) {
						c.complain(CheckOffsets, "%s: offset %d has value %v in %v, and %v was told: %v", l, offset, v, other, r, g.told())
						return
					}
				}
			})
		}
	}
}
