package dispatch

import (
	"time"

	"github.com/leveemq/levee/internal/cursor"
)

// Dispatcher decides for one subscription and one partition. One goroutine uses it.
type Dispatcher struct {
	stock
	saved   []cursor.Count // of records that were not read yet in this life, ascending
	next    int64          // where to read on
	reading bool           // WantsRead was answered, Read has not come
	stale   bool           // what Read brings next was asked for before a rewind
}

// stock is the records in hand: where each is, who has it, and who may have it next. Its methods are the moves of
// records; which of them an event means is the Dispatcher's.
type stock struct {
	cfg     Config
	now     Now // of the step under way
	set     *cursor.Set
	members members
	keys    keys
	failed  int64 // the oldest record there is, where the position was trimmed; -1: it was not

	held  index // every node
	pool  nodes
	ahead ring
	lists lists
	far   far

	waiting, delayed dueHeap
	expiry           time.Duration // no lease expires earlier; -1: none does

	sums
	out
}

// lists are the ready nodes without key, in the order of offsets.
type lists struct {
	again index // handed out before
	fresh index // not handed out yet: delayed ones that are due
	large index // of either kind, too large for some consumer
	stuck index // the policy is to block at them; they are not ready
}

// sums are counted as things move.
type sums struct {
	unsettled amount // handed out and not settled
	inFlight  amount // of those, with consumers
	queued    amount // look-ahead: read, to be handed out, never handed out before
	late      int    // nodes among them that were delayed
	poisoning int    // nodes on their way to the dead letters
	ignored   int64  // offsets in acknowledgements that meant nothing
	routed    int    // keys whose next record somebody may be handed
	steps     uint64 // membership changes
}

// out is what a step wants done. It is overwritten by the next one.
type out struct {
	effects []Effect
	spans   []Span
	blocked int64 // what the newest Blocked said; -1: it is not blocked
}

// maxPoisoning bounds the nodes on their way to the dead letters before reading stops.
const maxPoisoning = 1000

// New returns a dispatcher that goes on from a cursor. counts say how often unsettled records were handed out before,
// in the order of offsets.
func New(cfg Config, set *cursor.Set, counts []cursor.Count) *Dispatcher {
	d := &Dispatcher{stock: stock{cfg: cfg.WithDefaults(), set: set, failed: -1, expiry: -1, far: newFar()}, next: set.Position()}
	d.blocked = -1
	d.members.init()
	d.keys.init()
	for _, c := range counts {
		if c.Deliveries > 0 && !set.Has(c.Offset) && (len(d.saved) == 0 || d.saved[len(d.saved)-1].Offset < c.Offset) {
			d.saved = append(d.saved, c)
		}
	}
	return d
}

// Step takes one event. The effects, in order, and their slices are valid until the next step.
func (d *Dispatcher) Step(now Now, e *Event) []Effect {
	d.now = now
	d.effects, d.spans = d.effects[:0], d.spans[:0]
	d.elapse()
	switch e.Kind {
	case Join:
		d.join(e.Consumer, e.Member)
	case Leave:
		if c := d.members.byID[e.Consumer]; c != nil {
			d.leave(c)
			d.settleMembers()
		}
	case Ask:
		d.members.ask(e.Consumer, e.Bytes)
	case Unask:
		d.members.unask(e.Consumer)
	case Read:
		d.read(e.Items, e.Next)
	case Scanned:
		d.scanned(now, e.Items)
	case Ack:
		d.ack(e.Ranges)
	case AckBelow:
		if position := d.set.Position(); e.Offset > position {
			d.ackRange(cursor.Range{From: position, To: e.Offset - 1})
		}
	case Nack:
		d.nack(e)
	case Heartbeat:
		if c := d.members.byID[e.Consumer]; c != nil {
			c.beat = now.Mono
		}
	case Poisoned:
		d.poisoned(e.Ranges, e.Failed)
	case Seek:
		d.seek(e.Offset)
	case Trimmed:
		d.trimmed(e.Offset)
	case Lost:
		d.lost(e.Ranges)
	case Discharge:
		d.discharge(e.Ranges)
	case Reconfigure:
		d.reconfigure(*e.Config)
	}
	d.tellBlocked()
	d.serve()
	d.tellBlocked()
	return d.effects
}

func (d *stock) emit(e Effect) { d.effects = append(d.effects, e) }

// elapse carries out what the time that passed brings.
func (d *stock) elapse() {
	for n := d.waiting.first(); n != nil && n.due <= int64(d.now.Mono); n = d.waiting.first() {
		d.detach(n)
		d.ready(n)
	}
	for n := d.delayed.first(); n != nil && n.due <= d.now.WallMs; n = d.delayed.first() {
		d.detach(n)
		d.ready(n)
	}
	if d.expiry >= 0 && d.now.Mono >= d.expiry {
		d.expire()
	}
}

// expire takes back what consumers held for too long, and finds out when to look again.
func (d *stock) expire() {
	d.expiry = -1
	if d.cfg.AckTimeout <= 0 {
		return
	}
	for _, c := range d.members.order {
		for n := c.leases.first; n != nil; n = c.leases.first {
			at := max(n.leasedAt, c.beat) + d.cfg.AckTimeout
			if at > d.now.Mono {
				if d.expiry < 0 || at < d.expiry {
					d.expiry = at
				}
				break
			}
			d.release(n, d.backoff(n.count), ReasonTimeout)
		}
	}
}

// backoff is how long a record waits that was handed out that often.
func (d *stock) backoff(count int32) time.Duration {
	b := d.cfg.Backoff
	wait := b.Base
	for i := int32(1); b.Exponential && i < count && wait > 0 && wait < 1<<61 && (b.Max <= 0 || wait < b.Max); i++ {
		wait *= 2
	}
	if b.Max > 0 {
		wait = min(wait, b.Max)
	}
	return wait
}

// Wake returns after how long a Tick is due, if no other event comes first.
func (d *Dispatcher) Wake(now Now) (after time.Duration, ok bool) {
	sooner := func(wait time.Duration) {
		if !ok || wait < after {
			after, ok = max(wait, 0), true
		}
	}
	if n := d.waiting.first(); n != nil {
		sooner(time.Duration(n.due) - now.Mono)
	}
	if n := d.delayed.first(); n != nil {
		sooner(untilWall(now, n.due))
	}
	if d.expiry >= 0 {
		sooner(d.expiry - now.Mono)
	}
	if _, due, far := d.far.first(); far && d.running() {
		switch wait := untilWall(now, due); { // what is left out is what WantsScan says already, or has no room for
		case wait > scanAhead:
			sooner(wait - scanAhead)
		case wait > 0:
			sooner(wait)
		}
	}
	return after, ok
}

// untilWall is how long until the wall clock says so; a year at most.
func untilWall(now Now, ms int64) time.Duration {
	const year = 365 * 24 * time.Hour
	return time.Duration(min(max(ms, 0)-now.WallMs, year.Milliseconds())) * time.Millisecond
}

// running reports whether anything is handed out at all.
func (d *stock) running() bool {
	return len(d.members.order) > 0 && d.lists.stuck.size == 0 && d.failed < 0
}

// reconfigure changes the configuration, but not the type. Records that the old one stopped at are judged again.
func (d *Dispatcher) reconfigure(cfg Config) {
	cfg.Type, cfg.AtMostOnce = d.cfg.Type, d.cfg.AtMostOnce
	d.cfg = cfg.WithDefaults()
	if d.failed >= 0 && d.cfg.SkipTrimmed {
		d.trimmed(d.failed)
	}
	d.expiry = 0   // look at once
	d.blocked = -1 // said again, where it still is
	for n := d.lists.stuck.first(); n != nil; n = d.lists.stuck.first() {
		d.detach(n)
		n.place = placeWaiting // judged once all are out
		n.due = 0
		d.waiting.add(n)
		d.keep(n)
	}
	d.elapse()
	d.rerouteAll()
}
