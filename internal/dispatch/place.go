package dispatch

import (
	"math"
	"time"
)

// The moves of nodes from one place to another. A node that detach took out of its place is put into one by ready, wait,
// poison, lease or dispose before the step ends; every move of a node with a key ends in reroute.

// newNode makes a node of records that are not known yet. It is in the index, and in no place.
func (d *stock) newNode(it *Item, from, to, bytes int64, count int32) *node {
	n := d.pool.get()
	n.from, n.to, n.bytes, n.count = from, to, bytes, count
	if it != nil && it.HasKey && d.cfg.Type == KeyShared {
		n.key = d.keys.get(it)
		n.key.refs++
	}
	if count > 0 {
		d.unsettled.add(n.messages(), bytes)
	}
	d.held.insert(n)
	return n
}

// dispose forgets a node that is in no place.
func (d *stock) dispose(n *node) {
	d.held.remove(n)
	if n.count > 0 {
		d.unsettled.sub(n.messages(), n.bytes)
	}
	if k := n.key; k != nil {
		k.refs--
		d.reroute(k)
		d.keys.drop(k)
	}
	d.pool.put(n)
}

// settle ends a node: its records are done with.
func (d *stock) settle(n *node) {
	d.detach(n)
	d.set.Add(n.from, n.to)
	d.dispose(n)
}

// tellBlocked says where the subscription is blocked, as often as that changes.
func (d *stock) tellBlocked() {
	n := d.lists.stuck.first()
	switch {
	case n == nil:
		d.blocked = -1
	case n.from != d.blocked:
		d.blocked = n.from
		d.emit(Effect{Kind: Blocked, From: n.from, To: n.from, Count: n.count, Reason: n.reason})
	}
}

// detach takes a node out of its place.
func (d *stock) detach(n *node) {
	switch n.place {
	case placeLeased:
		n.consumer.leases.remove(n)
		n.consumer.held.sub(n.messages(), n.bytes)
		d.inFlight.sub(n.messages(), n.bytes)
		n.consumer = nil
		if n.key != nil {
			n.key.inFlight--
		}
	case placeWaiting:
		d.waiting.remove(n)
		d.unkeep(n)
	case placeDelayed:
		d.delayed.remove(n)
	case placeReady:
		if n.key == nil {
			n.list.remove(n)
			n.list = nil
		}
		d.unkeep(n)
		if n.count == 0 {
			d.queued.sub(n.messages(), n.bytes)
			d.countLate(n, -1)
		}
	case placePoison:
		d.poisoning--
		d.unkeep(n)
	case placeStuck:
		d.lists.stuck.remove(n)
		d.unkeep(n)
	}
	n.place = placeNone
}

func (d *stock) countLate(n *node, by int) {
	if n.late {
		d.late += by
	}
}

// keep has a node hold back its key, or be the next of it. unkeep is its inverse.
func (d *stock) keep(n *node) {
	if n.key != nil {
		n.key.queue.insert(n)
		d.reroute(n.key)
	}
}

func (d *stock) unkeep(n *node) {
	if n.key != nil {
		d.unroute(n.key)
		n.key.queue.remove(n)
	}
}

// ready has a node handed out to whoever may have it, unless it was handed out too often.
func (d *stock) ready(n *node) {
	if d.cfg.MaxDeliveries > 0 && n.count >= d.cfg.MaxDeliveries {
		reason := n.reason
		if reason == "" {
			reason = ReasonMax
		}
		d.poison(n, reason)
		return
	}
	n.place = placeReady
	if n.count == 0 {
		d.queued.add(n.messages(), n.bytes)
		d.countLate(n, 1)
	}
	if n.key == nil {
		n.list = &d.lists.fresh
		if n.count > 0 {
			n.list = &d.lists.again
		}
		n.list.insert(n)
	}
	d.keep(n)
}

// release takes a leased node back, to be handed out again after a delay.
func (d *stock) release(n *node, delay time.Duration, reason string) {
	d.detach(n)
	n.reason = reason
	d.wait(n, delay)
}

// wait has a node wait until it is ready.
func (d *stock) wait(n *node, delay time.Duration) {
	if delay <= 0 {
		d.ready(n)
		return
	}
	n.place = placeWaiting
	n.due = int64(min(delay, math.MaxInt64/2-d.now.Mono) + d.now.Mono)
	d.waiting.add(n)
	d.keep(n)
}

// lease gives a node that is in no place to a consumer.
func (d *stock) lease(n *node, c *consumer) {
	if n.count == 0 {
		d.unsettled.add(n.messages(), n.bytes)
	}
	n.count++
	c.given.add(n.messages(), n.bytes)
	d.spans = append(d.spans, Span{n.from, n.to, n.count, n.bytes})
	if d.cfg.AtMostOnce {
		d.set.Add(n.from, n.to)
		d.dispose(n)
		return
	}
	n.place, n.consumer, n.leasedAt = placeLeased, c, d.now.Mono
	c.leases.add(n)
	c.held.add(n.messages(), n.bytes)
	d.inFlight.add(n.messages(), n.bytes)
	if d.expiry < 0 && d.cfg.AckTimeout > 0 {
		d.expiry = d.now.Mono + d.cfg.AckTimeout
	}
	if k := n.key; k != nil {
		k.inFlight++
		k.holder = c
		d.reroute(k)
	}
}

// poison applies the policy to a node that is in no place.
func (d *stock) poison(n *node, reason string) {
	n.reason = reason
	policy := d.cfg.Poison
	if d.cfg.AtMostOnce {
		policy = Drop
	}
	switch policy {
	case Drop:
		d.emit(Effect{Kind: Dropped, From: n.from, To: n.to, Count: n.count, Reason: reason})
		d.set.Add(n.from, n.to)
		d.dispose(n)
	case Block:
		n.place = placeStuck
		d.lists.stuck.insert(n)
		d.keep(n)
	default:
		d.emit(Effect{Kind: ToDeadLetter, From: n.from, To: n.to, Count: n.count, Reason: reason})
		n.place = placePoison
		d.poisoning++
		d.keep(n)
	}
}

// split cuts a node in two before an offset, both in the same place, and returns the second. Nodes with keys have one
// record, and are never split.
func (d *stock) split(n *node, at int64) *node {
	m := d.pool.get()
	m.from, m.to, m.count, m.place, m.late, m.list, m.reason = at, n.to, n.count, n.place, n.late, n.list, n.reason
	m.consumer, m.leasedAt, m.due = n.consumer, n.leasedAt, n.due
	first := share(n.bytes, at-n.from, n.messages())
	m.bytes = n.bytes - first
	n.to, n.bytes = at-1, first
	d.held.insert(m)
	switch n.place {
	case placeLeased:
		m.consumer.leases.after(n, m)
	case placeWaiting:
		d.waiting.add(m)
	case placeReady:
		m.list.insert(m)
	case placePoison:
		d.poisoning++
	case placeStuck:
		d.lists.stuck.insert(m)
	}
	return m
}

// isolate cuts a node so that one has just the offsets between from and to, and returns that.
func (d *stock) isolate(n *node, from, to int64) *node {
	if from > n.from {
		n = d.split(n, from)
	}
	if to < n.to {
		d.split(n, to+1)
	}
	return n
}
