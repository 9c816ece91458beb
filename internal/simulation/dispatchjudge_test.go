package simulation

import (
	"path"
	"time"

	"github.com/leveemq/levee/internal/cursor"
	"github.com/leveemq/levee/internal/dispatch"
)

// simFate is what the judge knows of one record.
type simFate struct {
	ever    bool // it was handed out, in some life
	allowed bool // it may be settled: somebody acknowledged it, or it is with the dead letters

	// In this life of the broker:
	settled bool // it must be
	doomed  bool // it is on its way to the dead letters
	count   int32
	holder  dispatch.ConsumerID
	since   time.Duration
	due     time.Duration // not handed out again before
}

type simHolder struct {
	m     dispatch.Member
	beat  time.Duration
	asked bool
	held  int
}

// dispatchJudge follows each record by itself, from what goes into the dispatcher and what comes out of it.
type dispatchJudge struct {
	w         *World
	setup     *dispatchSetup
	fates     []simFate
	consumers map[dispatch.ConsumerID]*simHolder
	durable   *cursor.Set // of the newest save that is done
	position  int64
	highest   int64 // offset that was ever handed out

	delivered, again, dead, boots, saves, expired int
}

func newDispatchJudge(w *World, setup *dispatchSetup) *dispatchJudge {
	durable, err := cursor.NewSet(cursor.State{Position: setup.base})
	if err != nil {
		panic(err)
	}
	return &dispatchJudge{w: w, setup: setup, fates: make([]simFate, len(setup.records)), durable: durable, highest: setup.base - 1}
}

func (g *dispatchJudge) fate(off int64) *simFate { return &g.fates[off-g.setup.base] }

// each visits the records of a range that there are.
func (g *dispatchJudge) each(from, to int64, visit func(off int64, f *simFate)) {
	for off := max(from, g.setup.base); off <= to && off < g.setup.visible; off++ {
		visit(off, g.fate(off))
	}
}

// booted begins a life: what was saved is settled, and only what may be.
func (g *dispatchJudge) booted(d *dispatch.Dispatcher) {
	g.boots++
	g.consumers = map[dispatch.ConsumerID]*simHolder{}
	set := d.Set()
	if set.Position() < g.durable.Position() {
		g.w.Fail("saved", "position %d, it was saved at %d", set.Position(), g.durable.Position())
	}
	g.each(g.setup.base, g.setup.visible, func(off int64, f *simFate) {
		f.settled, f.doomed, f.count, f.holder, f.due = set.Has(off), false, 0, 0, 0
		if g.durable.Has(off) && !f.settled {
			g.w.Fail("saved", "offset %d was saved as settled, and is not", off)
		}
		if f.settled && !f.allowed {
			g.w.Fail("lost", "offset %d is settled in a new life, and nobody acknowledged it", off)
		}
	})
	g.position = set.Position()
}

// saved notes a save that is done.
func (g *dispatchJudge) saved(state cursor.State) {
	g.saves++
	set, err := cursor.NewSet(state)
	if err != nil {
		g.w.Fail("saved", "%v", err)
		return
	}
	g.durable = set
}

// clean checks that all is on the disk, where nothing is to be saved.
func (g *dispatchJudge) clean(set *cursor.Set) {
	g.each(g.setup.base, g.setup.visible, func(off int64, _ *simFate) {
		if set.Has(off) != g.durable.Has(off) {
			g.w.Fail("saved", "nothing is to be saved, but offset %d is settled %v, saved %v", off, set.Has(off), g.durable.Has(off))
		}
	})
}

func (g *dispatchJudge) backoff(count int32) time.Duration {
	b := g.setup.cfg.Backoff
	wait := b.Base
	if b.Exponential {
		wait <<= count - 1
	}
	return min(wait, b.Max)
}

// release takes a record from its holder.
func (g *dispatchJudge) release(f *simFate, due time.Duration) {
	if c := g.consumers[f.holder]; c != nil {
		c.held--
	}
	f.holder, f.due = 0, due
}

func (g *dispatchJudge) releaseAll(id dispatch.ConsumerID) {
	for i := range g.fates {
		if f := &g.fates[i]; f.holder == id {
			g.release(f, 0)
		}
	}
}

func (g *dispatchJudge) settle(f *simFate) {
	if f.holder != 0 {
		g.release(f, 0)
	}
	f.settled = true
}

// before is what time and the event bring.
func (g *dispatchJudge) before(now Now, e *dispatch.Event) {
	for i := range g.fates {
		f := &g.fates[i]
		if f.holder != 0 && max(f.since, g.consumers[f.holder].beat)+g.setup.cfg.AckTimeout <= now.Mono {
			g.expired++
			g.release(f, now.Mono+g.backoff(f.count))
		}
	}
	c := g.consumers[e.Consumer]
	switch e.Kind {
	case dispatch.Join:
		g.consumers[e.Consumer] = &simHolder{m: e.Member, beat: now.Mono}
	case dispatch.Leave:
		g.releaseAll(e.Consumer)
		delete(g.consumers, e.Consumer)
	case dispatch.Ask:
		c.asked = true
	case dispatch.Heartbeat:
		c.beat = now.Mono
	case dispatch.Ack:
		for _, r := range e.Ranges {
			g.each(r.From, r.To, g.ack)
		}
	case dispatch.AckBelow:
		g.each(g.setup.base, e.Offset-1, g.ack)
	case dispatch.Nack:
		for _, r := range e.Ranges {
			g.each(r.From, r.To, func(_ int64, f *simFate) {
				if f.holder != 0 && f.holder == e.Consumer {
					delay := e.Delay
					if delay < 0 {
						delay = g.backoff(f.count)
					}
					g.release(f, now.Mono+delay)
				}
			})
		}
	case dispatch.Poisoned:
		for _, r := range e.Ranges {
			g.each(r.From, r.To, func(_ int64, f *simFate) {
				if !e.Failed {
					g.dead++
					f.allowed, f.settled = true, true
				}
			})
		}
	}
}

func (g *dispatchJudge) ack(_ int64, f *simFate) {
	f.allowed = f.allowed || f.ever
	if f.count > 0 {
		g.settle(f)
	}
}

// after judges what a step brought.
func (g *dispatchJudge) after(now Now, d *dispatch.Dispatcher, e *dispatch.Event, effects []dispatch.Effect) {
	for off := g.position; off < g.setup.visible; off++ { // what an earlier life handed out may be settled, or not
		if f := g.fate(off); f.count == 0 && f.allowed && d.Set().Has(off) {
			f.settled = true
		}
	}
	for i := range effects {
		f := &effects[i]
		switch f.Kind {
		case dispatch.Evicted, dispatch.Refused:
			g.releaseAll(f.Consumer)
			delete(g.consumers, f.Consumer)
		case dispatch.Standby:
			g.releaseAll(f.Consumer)
		case dispatch.ToDeadLetter:
			g.each(f.From, f.To, func(_ int64, f *simFate) { f.doomed = true })
		case dispatch.Deliver:
			g.deliver(now, f)
		}
	}
	set := d.Set()
	inFlight := 0
	for off := g.position; off < g.setup.visible; off++ {
		f := g.fate(off)
		if f.holder != 0 {
			inFlight++
		}
		if set.Has(off) && !f.allowed {
			g.w.Fail("lost", "offset %d is settled, and nobody acknowledged it", off)
		}
		if f.settled && !set.Has(off) {
			g.w.Fail("acknowledged", "offset %d was acknowledged, and is not settled", off)
		}
	}
	if p := set.Position(); p < g.position || p > g.setup.visible {
		g.w.Fail("position", "from %d to %d of %d", g.position, p, g.setup.visible)
	}
	g.position = set.Position()
	st := d.Stats()
	if int(st.InFlightMessages) != inFlight || int(st.InFlightBytes) != inFlight*simBytes {
		g.w.Fail("in flight", "%d messages, %d bytes; expected %d", st.InFlightMessages, st.InFlightBytes, inFlight)
	}
	if len(g.consumers) != st.Consumers {
		g.w.Fail("consumers", "%d after %+v, expected %d", st.Consumers, *e, len(g.consumers))
	}
	d.Holders(func(h dispatch.Holder) bool {
		if c := g.consumers[h.ID]; c == nil || c.held != h.Messages {
			g.w.Fail("in flight", "%s has %d, expected %+v", h.Name, h.Messages, c)
		}
		if h.Messages > g.setup.cfg.Consumer.Messages {
			g.w.Fail("window", "%s has %d", h.Name, h.Messages)
		}
		return true
	})
	if total := inFlight; total > g.setup.cfg.Total.Messages {
		g.w.Fail("window", "%d are in flight", total)
	}
}

func (g *dispatchJudge) deliver(now Now, e *dispatch.Effect) {
	c := g.consumers[e.Consumer]
	if c == nil || !c.asked {
		g.w.Fail("asked", "%d is given %v", e.Consumer, e.Spans)
		return
	}
	c.asked = false
	for _, s := range e.Spans {
		for off := s.From; off <= s.To; off++ {
			if off < g.setup.base || off >= g.setup.visible {
				g.w.Fail("position", "%d is handed out", off)
				return
			}
			g.record(now, e.Consumer, c, off, s.Count)
			g.highest = max(g.highest, off)
		}
	}
}

// record judges one record that is handed out.
func (g *dispatchJudge) record(now Now, id dispatch.ConsumerID, c *simHolder, off int64, count int32) {
	f, r, cfg := g.fate(off), g.setup.at(off), &g.setup.cfg
	hides := cfg.Type == dispatch.Shared || cfg.Type == dispatch.KeyShared
	switch {
	case f.holder != 0:
		g.w.Fail("two holders", "offset %d is with %d and goes to %d", off, f.holder, id)
	case f.settled || f.doomed:
		g.w.Fail("again", "offset %d is settled, or with the dead letters", off)
	case f.due > now.Mono:
		g.w.Fail("backoff", "offset %d waits until %v, it is %v", off, f.due, now.Mono)
	case cfg.MaxDeliveries > 0 && count > cfg.MaxDeliveries || count <= f.count:
		g.w.Fail("deliveries", "offset %d for the %dth time", off, count)
	case hides && f.count == 0 && r.due > now.WallMs:
		g.w.Fail("delayed", "offset %d is due at %d, it is %d", off, r.due, now.WallMs)
	}
	if len(c.m.Filters) > 0 && cfg.Type == dispatch.KeyShared && r.key != "" {
		if ok, _ := path.Match(c.m.Filters[0], r.key); !ok {
			g.w.Fail("filter", "offset %d has key %s, the filter is %s", off, r.key, c.m.Filters[0])
		}
	}
	g.order(id, off, count)
	g.delivered++
	if f.ever {
		g.again++
	}
	f.ever, f.count, f.holder, f.since = true, count, id, now.Mono
	c.held++
}

// order judges whether others had to be handed out before.
func (g *dispatchJudge) order(id dispatch.ConsumerID, off int64, count int32) {
	r, keyed := g.setup.at(off), g.setup.cfg.Type == dispatch.KeyShared
	delayed := func(r *simRecord) bool {
		return r.due > 0 && (keyed || g.setup.cfg.Type == dispatch.Shared)
	}
	for o := g.position; o < g.setup.visible; o++ {
		f, other := g.fate(o), g.setup.at(o)
		if o == off || keyed && r.key != other.key || f.settled {
			continue
		}
		switch {
		case keyed && r.key != "" && f.holder != 0 && f.holder != id:
			g.w.Fail("key", "offset %d of key %s goes to %d, %d has %d", off, r.key, id, f.holder, o)
		case o > off:
		case keyed && r.key != "" && (f.count > 0 || f.doomed) && f.holder == 0:
			g.w.Fail("order", "offset %d of key %s goes to %d, %d waits", off, r.key, id, o)
		case count == 1 && f.count == 0 && !f.doomed && !delayed(r) && !delayed(other):
			g.w.Fail("order", "offset %d is handed out before %d", off, o)
		}
	}
}

// verdict is what must be when all is done.
func (g *dispatchJudge) verdict() error {
	for i := range g.fates {
		if f := &g.fates[i]; !f.allowed {
			return &Failure{"lost", "a record was never acknowledged"}
		}
	}
	return nil
}
