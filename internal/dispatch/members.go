package dispatch

import (
	"cmp"
	"math"
	"path"
	"slices"
	"time"
)

// consumer is one that is connected.
type consumer struct {
	id     ConsumerID
	m      Member
	held   amount
	leases leases
	beat   time.Duration // of its last heartbeat
	asked  int64         // bytes it waits for; 0: it does not
	given  amount        // in the delivery under way
	keyed  [2]index      // the first record of each key that it may be handed: handed out before, and not
}

func (c *consumer) window(cfg *Config) Window {
	w := c.m.Window
	if w.Messages <= 0 {
		w.Messages = cfg.Consumer.Messages
	}
	if w.Bytes <= 0 {
		w.Bytes = cfg.Consumer.Bytes
	}
	return w
}

// takes reports whether a record of that size is for it.
func (c *consumer) takes(size int64) bool {
	return c.m.MaxRecordBytes <= 0 || size <= int64(c.m.MaxRecordBytes)
}

// wants reports whether a key is for it.
func (c *consumer) wants(key string) bool {
	if len(c.m.Filters) == 0 {
		return true
	}
	for _, glob := range c.m.Filters {
		if ok, err := path.Match(glob, key); ok && err == nil {
			return true
		}
	}
	return false
}

// members are the consumers.
type members struct {
	byID   map[ConsumerID]*consumer
	order  []*consumer // failover: who is first in line; otherwise as they joined
	asking []*consumer // whoever asked first
	active *consumer   // failover
	filter int         // how many have filters
	limit  int         // how many have a largest record
}

func (m *members) init() { m.byID = map[ConsumerID]*consumer{} }

func (m *members) named(name string) *consumer {
	for _, c := range m.order {
		if c.m.Name == name {
			return c
		}
	}
	return nil
}

func (m *members) add(c *consumer) {
	m.byID[c.id] = c
	m.order = append(m.order, c)
	m.count(c, 1)
}

func (m *members) count(c *consumer, by int) {
	if len(c.m.Filters) > 0 {
		m.filter += by
	}
	if c.m.MaxRecordBytes > 0 {
		m.limit += by
	}
}

func (m *members) remove(c *consumer) {
	m.unask(c.id)
	delete(m.byID, c.id)
	m.order = slices.DeleteFunc(m.order, func(o *consumer) bool { return o == c })
	m.count(c, -1)
	if m.active == c {
		m.active = nil
	}
}

func (m *members) ask(id ConsumerID, bytes int64) {
	c := m.byID[id]
	if c == nil {
		return
	}
	if c.asked == 0 {
		m.asking = append(m.asking, c)
	}
	c.asked = max(bytes, 1)
}

func (m *members) unask(id ConsumerID) {
	if c := m.byID[id]; c != nil && c.asked > 0 {
		c.asked = 0
		m.asking = slices.DeleteFunc(m.asking, func(o *consumer) bool { return o == c })
	}
}

// eligible reports whether a consumer gets anything now.
func (d *stock) eligible(c *consumer) bool {
	return d.cfg.Type != Failover || c == d.members.active
}

// anyTakes reports whether a record of that size is for any consumer that gets anything.
func (d *stock) anyTakes(size int64) bool {
	for _, c := range d.members.order {
		if d.eligible(c) && c.takes(size) {
			return true
		}
	}
	return false
}

func (d *Dispatcher) join(id ConsumerID, m Member) {
	if d.members.byID[id] != nil {
		return
	}
	if old := d.members.named(m.Name); old != nil {
		d.emit(Effect{Kind: Evicted, Consumer: old.id})
		d.leave(old)
	} else if d.cfg.Type == Exclusive && len(d.members.order) > 0 {
		d.emit(Effect{Kind: Refused, Consumer: id, Reason: d.members.order[0].m.Name})
		return
	}
	if d.cfg.Type != KeyShared {
		m.Filters = nil
	}
	needed := d.NeedsKeys()
	c := &consumer{id: id, m: m, beat: d.now.Mono}
	d.members.add(c)
	if d.NeedsKeys() && !needed {
		d.rewind() // what was read came without the text of keys
	}
	d.settleMembers()
	if d.cfg.Type == Failover && c != d.members.active {
		d.emit(Effect{Kind: Standby, Consumer: id})
	}
	if d.failed >= 0 {
		d.emit(Effect{Kind: Failed, Consumer: id, From: d.set.Position(), To: d.failed})
	}
}

// leave takes everything from a consumer that is gone. settleMembers comes after it.
func (d *Dispatcher) leave(c *consumer) {
	d.members.remove(c)
	d.takeBack(c)
}

// takeBack has all that a consumer holds handed out again at once.
func (d *stock) takeBack(c *consumer) {
	for n := c.leases.first; n != nil; n = c.leases.first {
		d.release(n, 0, ReasonGone)
	}
}

// settleMembers makes good who is active, which key is whose, and what nobody can take, after consumers came or went.
func (d *Dispatcher) settleMembers() {
	d.steps++
	if d.cfg.Type == Failover {
		slices.SortStableFunc(d.members.order, func(a, b *consumer) int {
			return cmp.Or(cmp.Compare(a.m.Priority, b.m.Priority), cmp.Compare(a.m.Name, b.m.Name))
		})
		d.elect()
	}
	if d.cfg.Type == KeyShared {
		d.keys.place(d.members.order)
		d.rerouteAll()
	}
	d.judgeLarge()
}

// elect makes the first in line the active consumer. What the one before it holds goes to the new one: there is one at
// a time that processes.
func (d *stock) elect() {
	var first *consumer
	if len(d.members.order) > 0 {
		first = d.members.order[0]
	}
	old := d.members.active
	if first == old {
		return
	}
	d.members.active = first
	if old != nil {
		d.takeBack(old)
		d.emit(Effect{Kind: Standby, Consumer: old.id})
	}
	if first != nil {
		d.emit(Effect{Kind: Active, Consumer: first.id})
	}
}

// Holder is a consumer and what it holds.
type Holder struct {
	ID       ConsumerID
	Name     string
	Active   bool // it gets records, if there are any for it
	Messages int
	Bytes    int64
}

// Holders yields the consumers.
func (d *Dispatcher) Holders(yield func(Holder) bool) {
	for _, c := range d.members.order {
		if !yield(Holder{c.id, c.m.Name, d.eligible(c), int(c.held.messages), c.held.bytes}) {
			return
		}
	}
}

// NeedsKeys reports whether items must come with the text of their keys: somebody filters by it, or may later, when what
// was read cannot be read again.
func (d *Dispatcher) NeedsKeys() bool {
	return d.members.filter > 0 || d.cfg.AtMostOnce && d.cfg.Type == KeyShared
}

// clampOffset keeps sums of offsets from running over.
func clampOffset(off int64) int64 { return min(off, math.MaxInt64/4) }
