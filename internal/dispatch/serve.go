package dispatch

import (
	"cmp"
	"slices"
)

// serve answers whoever asks, as far as there is something. Where that settles records, as at most once does, there may
// be more after it.
func (d *Dispatcher) serve() {
	for again := true; again && d.running() && len(d.members.asking) > 0; {
		position := d.set.Position()
		waiting := d.members.asking[:0]
		for i, c := range d.members.asking {
			if d.nothing() { // as with many consumers that wait for little
				waiting = append(waiting, d.members.asking[i:]...)
				break
			}
			if !d.give(c) {
				waiting = append(waiting, c)
			}
		}
		clear(d.members.asking[len(waiting):])
		d.members.asking = waiting
		again = d.set.Position() != position
	}
}

// nothing reports whether there is nothing for anybody.
func (d *Dispatcher) nothing() bool {
	l := &d.lists
	return d.ahead.empty() && l.again.size == 0 && l.fresh.size == 0 && l.large.size == 0 && d.routed == 0
}

// give makes one delivery to a consumer, and reports whether there was anything for it: first what is handed out again,
// then what is new.
func (d *Dispatcher) give(c *consumer) bool {
	if !d.eligible(c) || !d.running() {
		return false
	}
	start := len(d.spans)
	c.given = amount{}
	n := d.nextNode(c, &d.lists.again, 0)
	for n != nil && d.handOut(c, n) {
		n = d.nextNode(c, &d.lists.again, 0)
	}
	if n == nil { // else there is no room for it yet: new ones would take that room for ever
		for d.giveNew(c) {
		}
	}
	if len(d.spans) == start {
		return false
	}
	c.asked = 0
	d.spans = d.spans[:start+len(merge(d.spans[start:]))]
	d.emit(Effect{Kind: Deliver, Consumer: c.id, Spans: d.spans[start:len(d.spans):len(d.spans)]})
	return true
}

// merge puts spans in order, and joins those that are alike and adjacent.
func merge(spans []Span) []Span {
	byOffset := func(a, b Span) int { return cmp.Compare(a.From, b.From) }
	if !slices.IsSortedFunc(spans, byOffset) {
		slices.SortFunc(spans, byOffset)
	}
	out := spans[:1]
	for _, s := range spans[1:] {
		if last := &out[len(out)-1]; last.To+1 == s.From && last.Count == s.Count {
			last.To = s.To
			last.Bytes += s.Bytes
			continue
		}
		out = append(out, s)
	}
	return out
}

// nextNode returns the first node of a class that is for a consumer: of a list, of the keys it has, or of what is too large
// for others.
func (d *stock) nextNode(c *consumer, list *index, class int) *node {
	n := list.first()
	for n != nil && !c.takes(record(n.bytes, n.messages())) {
		d.setAside(n)
		n = list.first()
	}
	if !d.running() {
		return nil // blocked at what was set aside
	}
	if k := c.keyed[class].first(); k != nil && (n == nil || k.from < n.from) {
		n = k
	}
	if d.lists.large.size > 0 {
		d.lists.large.each(0, func(l *node) bool {
			if n != nil && n.from < l.from {
				return false
			}
			if (l.count > 0) == (class == 0) && c.takes(record(l.bytes, l.messages())) {
				n = l
				return false
			}
			return true
		})
	}
	return n
}

// handOut hands out a node, or as much of it as there is room for, and reports whether that was anything.
func (d *Dispatcher) handOut(c *consumer, n *node) bool {
	k := d.fit(c, n.from, n.messages(), n.bytes, n.count == 0)
	if k == 0 {
		return false
	}
	if k < n.messages() {
		d.split(n, n.from+k)
	}
	d.detach(n)
	d.lease(n, c)
	return true
}

// giveNew hands out what is next of what was not handed out before.
func (d *Dispatcher) giveNew(c *consumer) bool {
	n := d.nextNode(c, &d.lists.fresh, 1)
	if d.ahead.empty() || n != nil && n.from < d.ahead.first().from {
		return n != nil && d.handOut(c, n)
	}
	r := d.ahead.first()
	messages := r.to - r.from + 1
	if !c.takes(record(r.bytes, messages)) {
		r := d.unqueue(messages)
		n := d.newNode(nil, r.from, r.to, r.bytes, 0)
		d.ready(n)
		d.setAside(n)
		return d.running()
	}
	k := d.fit(c, r.from, messages, r.bytes, true)
	if k == 0 {
		return false
	}
	taken := d.unqueue(k)
	d.lease(d.newNode(nil, taken.from, taken.to, taken.bytes, 0), c)
	return true
}

// fit returns how many records of a run may be handed to a consumer now. A record larger than a window is possible for
// a consumer, and a subscription, that holds nothing; one larger than what was asked for, where it is the first.
func (d *Dispatcher) fit(c *consumer, from, messages, bytes int64, fresh bool) int64 {
	w := c.window(&d.cfg)
	k := min(messages, int64(w.Messages)-c.held.messages)
	each := record(bytes, messages)
	room := w.Bytes - c.held.bytes
	one := c.given.messages == 0 && (each <= room || c.held.messages == 0)
	if fresh {
		k = min(k, d.set.Position()+d.cfg.MaxSpan-from, int64(d.cfg.Total.Messages)-d.unsettled.messages)
		total := d.cfg.Total.Bytes - d.unsettled.bytes
		one = one && (each <= total || d.unsettled.messages == 0)
		room = min(room, total)
	}
	if k <= 0 || each <= 0 {
		return max(k, 0)
	}
	if fits := min(c.asked-c.given.bytes, room) / each; fits > 0 {
		return min(k, fits)
	}
	if one {
		return 1
	}
	return 0
}

// setAside takes a ready node that is too large for some consumer out of the way of the others.
func (d *stock) setAside(n *node) {
	n.list.remove(n)
	n.list = &d.lists.large
	n.list.insert(n)
	d.judgeSize(n)
}

// judgeSize applies the policy to a node that no consumer can take.
func (d *stock) judgeSize(n *node) {
	if !d.anyTakes(record(n.bytes, n.messages())) {
		d.detach(n)
		d.poison(n, ReasonTooLarge)
	}
}

// judgeLarge is judgeSize for all that was set aside, after consumers came or went.
func (d *stock) judgeLarge() {
	if len(d.members.order) == 0 {
		return
	}
	for n := d.lists.large.first(); n != nil; {
		next := n.to + 1
		d.judgeSize(n)
		n = d.lists.large.from(next)
	}
}
