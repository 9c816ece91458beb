package dispatch

import (
	"math"
	"sort"
	"time"

	"github.com/leveemq/levee/internal/cursor"
)

// overlapping calls visit for each node that has offsets of a range, with those offsets. visit may settle, split or move
// the node.
func (d *stock) overlapping(r cursor.Range, visit func(n *node, from, to int64)) {
	for n := d.held.from(r.From); n != nil && n.from <= r.To; {
		from, to := max(n.from, r.From), min(n.to, r.To)
		visit(n, from, to)
		if to == r.To {
			return
		}
		n = d.held.from(to + 1)
	}
}

func (d *Dispatcher) ack(ranges []cursor.Range) {
	for _, r := range ranges {
		r.From, r.To = clampOffset(max(r.From, 0)), clampOffset(r.To)
		if r.From <= r.To {
			ignored := r.To - r.From + 1 - d.ackRange(r)
			d.ignored = min(d.ignored+ignored, math.MaxInt64/2) // whoever acknowledges everything often stays at that
		}
	}
}

// ackRange settles what was ever handed out of a range, whoever had it, and returns how much that was.
func (d *Dispatcher) ackRange(r cursor.Range) (settled int64) {
	for n := d.held.from(r.From); n != nil && n.from <= r.To; {
		from, to := max(n.from, r.From), min(n.to, r.To)
		if n.count > 0 {
			settled += to - from + 1
			d.settlePart(n, from, to)
		}
		n = d.held.from(to + 1)
	}
	if len(d.saved) == 0 {
		return settled
	}
	first := sort.Search(len(d.saved), func(i int) bool { return d.saved[i].Offset >= r.From })
	last := first
	for ; last < len(d.saved) && d.saved[last].Offset <= r.To; last++ { // handed out in an earlier life
		settled += d.set.Add(d.saved[last].Offset, d.saved[last].Offset)
	}
	d.saved = append(d.saved[:first], d.saved[last:]...)
	return settled
}

// settlePart settles some records of a node. Those at an end of a leased one, as most acknowledgements have it, make no
// new node.
func (d *stock) settlePart(n *node, from, to int64) {
	if from == n.from && to == n.to {
		d.settle(n)
		return
	}
	if n.place != placeLeased {
		d.settle(d.isolate(n, from, to))
		return
	}
	if from > n.from && to < n.to {
		d.split(n, to+1)
	}
	k := to - from + 1
	bytes := share(n.bytes, k, n.messages())
	if from == n.from {
		n.from = to + 1
	} else {
		n.to = from - 1
	}
	n.bytes -= bytes
	n.consumer.held.sub(k, bytes)
	d.inFlight.sub(k, bytes)
	d.unsettled.sub(k, bytes)
	d.set.Add(from, to)
}

// nack takes back what is in flight of some ranges.
func (d *Dispatcher) nack(e *Event) {
	for _, r := range e.Ranges {
		d.overlapping(r, func(n *node, from, to int64) {
			if n.place != placeLeased || e.Consumer != 0 && n.consumer.id != e.Consumer {
				return
			}
			delay := e.Delay
			if delay < 0 {
				delay = d.backoff(n.count)
			}
			d.release(d.isolate(n, from, to), delay, e.Reason)
		})
	}
}

// againPoison is how long a dead letter that failed waits where there is no backoff.
const againPoison = time.Second

// poisoned settles what reached the dead letters, and has the rest asked for again.
func (d *Dispatcher) poisoned(ranges []cursor.Range, failed bool) {
	for _, r := range ranges {
		d.overlapping(r, func(n *node, from, to int64) {
			if n.place != placePoison {
				return
			}
			n = d.isolate(n, from, to)
			if !failed {
				d.settle(n)
				return
			}
			wait := d.backoff(max(n.count, 1))
			if wait <= 0 {
				wait = againPoison
			}
			d.detach(n)
			d.wait(n, wait)
		})
	}
}

// forget settles offsets whose records are gone from the log, and returns how many were not settled.
func (d *Dispatcher) forget(r cursor.Range) int64 {
	before := int64(0)
	d.overlapping(r, func(n *node, from, to int64) {
		before += to - from + 1
		d.settle(d.isolate(n, from, to))
	})
	d.cutAhead(r)
	return before + d.set.Add(r.From, r.To)
}

// cutAhead takes offsets out of the look-ahead.
func (d *stock) cutAhead(r cursor.Range) {
	var kept []run
	for !d.ahead.empty() {
		first := d.ahead.first()
		n := first.to - first.from + 1
		switch {
		case first.to < r.From || first.from > r.To:
			kept = append(kept, d.unqueue(n))
		case first.from < r.From:
			kept = append(kept, d.unqueue(r.From-first.from))
		case first.to > r.To:
			d.unqueue(r.To - first.from + 1)
		default:
			d.unqueue(n)
		}
	}
	for _, x := range kept {
		d.queued.add(x.to-x.from+1, x.bytes)
		d.ahead.add(x)
	}
}

func (d *Dispatcher) lost(ranges []cursor.Range) {
	for _, r := range ranges {
		r.From, r.To = d.set.Next(r.From), clampOffset(r.To) // what was settled, and told, before is not told again
		if r.From <= r.To && d.forget(r) > 0 {
			d.emit(Effect{Kind: LostRange, From: r.From, To: r.To})
		}
	}
}

// discharge settles ranges that somebody has done with, of whom this dispatcher may know nothing.
func (d *Dispatcher) discharge(ranges []cursor.Range) {
	for _, r := range ranges {
		r.From, r.To = max(r.From, d.set.Position()), min(clampOffset(r.To), d.set.Position()+d.cfg.MaxSpan)
		if r.From <= r.To {
			d.forget(r)
		}
	}
}

// trimmed notes that the log begins at an offset.
func (d *Dispatcher) trimmed(oldest int64) {
	position := d.set.Position()
	if oldest <= position {
		return
	}
	if !d.cfg.SkipTrimmed {
		if d.failed < 0 {
			d.emit(Effect{Kind: Failed, From: position, To: oldest})
		}
		d.failed = max(d.failed, oldest)
		return
	}
	d.failed = -1
	d.forget(cursor.Range{From: position, To: oldest - 1})
	d.set.MoveTo(oldest)
	d.next = max(d.next, oldest)
	d.emit(Effect{Kind: Skipped, From: position, To: oldest - 1})
}

// seek goes on from an offset, as a new subscription would that has these consumers.
func (d *Dispatcher) seek(off int64) {
	d.set.Reset(off)
	for _, c := range d.members.order {
		c.leases, c.held = leases{}, amount{}
		c.keyed = [2]index{}
	}
	d.held, d.pool, d.ahead, d.lists, d.far = index{}, nodes{}, ring{}, lists{}, newFar()
	d.waiting, d.delayed = dueHeap{}, dueHeap{}
	d.keys.byHash = map[uint64]*key{}
	d.sums = sums{ignored: d.ignored, steps: d.steps}
	d.saved, d.failed, d.expiry = nil, -1, -1
	d.next = d.set.Position()
	d.stale = d.stale || d.reading
}
