package history

// invented checks that whatever was read was published, to that partition, and did not certainly fail.
func (c *checker) invented() {
	for _, l := range c.h.logs {
		judge := func(offset int64, v Value) {
			pub := c.h.publish(v)
			switch {
			case pub == nil:
				c.complain(CheckInvented, "%s: offset %d has value %v, which nobody published", l, offset, v)
			case pub.log >= 0 && pub.log != l.index:
				c.complain(CheckInvented, "%s: offset %d has value %v, which was published to %s", l, offset, v, c.h.logs[pub.log])
			case pub.log < 0 && c.h.producers[v.Producer].info.Topic != l.id.topic:
				c.complain(CheckInvented, "%s: offset %d has value %v, which was published to topic %s", l, offset, v, c.h.producers[v.Producer].info.Topic)
			case pub.outcome == Fail:
				c.complain(CheckInvented, "%s: offset %d has value %v, whose publish had failed: %s", l, offset, v, c.h.names.list[pub.err])
			}
		}
		l.read.each(0, forever, judge)
		for _, o := range l.odd {
			judge(o.offset, o.value)
		}
	}
}
