package dispatch

import (
	"sort"

	"github.com/leveemq/levee/internal/cursor"
)

// WantsRead returns where the shell reads on. It answers with Read, at the end of the log with no items and Next as it
// was; one read is under way at a time.
func (d *Dispatcher) WantsRead() (from int64, ok bool) {
	if !d.running() || !d.queued.below(d.cfg.LookAhead) || d.poisoning >= maxPoisoning || d.next-d.set.Position() >= d.cfg.MaxSpan {
		return d.next, false
	}
	d.reading = true
	return d.next, true
}

// read takes in what comes next in the log.
func (d *Dispatcher) read(items []Item, next int64) {
	d.reading = false
	if d.stale {
		d.stale = false
		return
	}
	at := d.next
	for i := range items {
		it := &items[i]
		from := max(it.From, at)
		if from > it.To {
			continue
		}
		d.hole(at, from-1)
		d.admit(it, from)
		at = it.To + 1
	}
	d.hole(at, next-1)
	d.next = max(at, next)
}

// hole settles offsets at which the log has nothing, and which nobody was handed.
func (d *Dispatcher) hole(from, to int64) {
	for from <= to {
		n := d.held.from(from)
		if n == nil || n.from > to {
			d.set.Add(from, to)
			return
		}
		d.set.Add(from, n.from-1)
		from = n.to + 1
	}
}

// admit takes in the records of an item from an offset on, but those that are settled or known.
func (d *Dispatcher) admit(it *Item, from int64) {
	if last := d.held.last(); (last == nil || last.to < from) && d.set.Span() == 0 && len(d.saved) == 0 {
		if from = max(from, d.set.Position()); from <= it.To {
			d.piece(it, from, it.To)
		}
		return
	}
	d.set.Unsettled(from, it.To, func(r cursor.Range) bool {
		for at := r.From; at <= r.To; {
			end := r.To
			if n := d.held.from(at); n != nil && n.from <= r.To {
				if n.key != nil {
					d.learn(n.key, it)
				}
				if n.from <= at {
					at = n.to + 1
					continue
				}
				end = n.from - 1
			}
			d.unsaved(it, at, end)
			at = end + 1
		}
		return true
	})
}

// learn takes in the text of a key that was read without, before anybody had filters.
func (d *Dispatcher) learn(k *key, it *Item) {
	if it.HasKey && it.Key == k.hash && !k.named {
		k.learn(it)
		d.reroute(k)
	}
}

// unsaved takes in records, those apart that were handed out in an earlier life.
func (d *Dispatcher) unsaved(it *Item, from, to int64) {
	for len(d.saved) > 0 && from <= to {
		i := sort.Search(len(d.saved), func(i int) bool { return d.saved[i].Offset >= from })
		if i == len(d.saved) || d.saved[i].Offset > to {
			break
		}
		s := d.saved[i]
		d.saved = append(d.saved[:i], d.saved[i+1:]...)
		if s.Offset > from {
			d.piece(it, from, s.Offset-1)
		}
		d.ready(d.newNode(it, s.Offset, s.Offset, share(it.Bytes, 1, it.To-it.From+1), s.Deliveries))
		from = s.Offset + 1
	}
	if from <= to {
		d.piece(it, from, to)
	}
}

// piece takes in records that are new.
func (d *Dispatcher) piece(it *Item, from, to int64) {
	hides := d.cfg.Type == Shared || d.cfg.Type == KeyShared
	switch {
	case hides && it.DueMs > d.now.WallMs && from == to:
		if d.delayed.len() >= d.cfg.MaxDelayed {
			d.spill()
		}
		d.delay(d.now, it)
	case d.cfg.Type == KeyShared && it.HasKey && from == to:
		d.ready(d.newNode(it, from, to, it.Bytes, 0))
	default:
		bytes := share(it.Bytes, to-from+1, it.To-it.From+1)
		d.queued.add(to-from+1, bytes)
		d.ahead.add(run{from, to, bytes})
	}
}

// unqueue takes the first k records off the look-ahead's first run.
func (d *stock) unqueue(k int64) run {
	r := d.ahead.first()
	n := r.to - r.from + 1
	first := run{r.from, r.from + k - 1, share(r.bytes, k, n)}
	d.queued.sub(k, first.bytes)
	if k == n {
		d.ahead.pop()
		return first
	}
	r.from += k
	r.bytes -= first.bytes
	return first
}

// rewind reads everything again that was not handed out.
func (d *Dispatcher) rewind() {
	var drop []*node
	d.held.each(0, func(n *node) bool {
		if n.count == 0 && n.place != placePoison && n.place != placeStuck {
			drop = append(drop, n)
		}
		return true
	})
	for _, n := range drop {
		d.detach(n)
		d.dispose(n)
	}
	for !d.ahead.empty() {
		r := d.ahead.first()
		d.unqueue(r.to - r.from + 1)
	}
	d.far = newFar()
	d.next = d.set.Position()
	d.stale = d.stale || d.reading
}
