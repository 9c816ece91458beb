package subscription

import (
	"context"
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
)

// Member says who joins.
type Member struct {
	Name           string
	Priority       int32
	Filters        []string
	WindowMessages int   // 0: the subscription's
	WindowBytes    int64 // 0: the subscription's
	MaxRecordBytes int   // 0: any
	// Epoch is what Consumer.Epoch was where a consumer comes back; 0: it does not. While there was no seek since, its
	// acknowledgements count also of what this Run has not handed out: an earlier one may have.
	Epoch uint64
	// Memory gives the memory that deliveries are put together in; nil: it is allocated.
	Memory func(size int) []byte
}

// EventKind says what an Event is.
type EventKind uint8

// The kinds of event.
const (
	Data    EventKind = iota + 1 // Batches, Offsets, Counts, Records
	Active                       // from now on this consumer is the active one
	Standby                      // from now on another one is
	Lost                         // Range was lost in a crash; it counts as settled
	Skipped                      // Range was removed by retention before it was settled, and is skipped
)

// Event is one thing a consumer is told.
type Event struct {
	Kind    EventKind
	Batches []byte         // whole batches, back to back, with all records of Offsets, and maybe others
	Offsets []seglog.Range // handed out, ascending
	Counts  []Count        // of those handed out more than once, ascending
	Records int            // offsets handed out
	Range   seglog.Range   // Lost and Skipped
}

// Count says how often the offsets of a range were handed out, this time among them.
type Count struct {
	From, To   int64
	Deliveries int32
}

// Nack gives a range back: it is to be handed out again after Delay, or, where that is negative, as the subscription's
// backoff says.
type Nack struct {
	Range  seglog.Range
	Delay  time.Duration
	Reason string
}

// Settlement says what became of records that were handed out.
type Settlement struct {
	Acks  []seglog.Range
	Below int64 // everything below it that was handed out is done; negative: nothing
	Nacks []Nack
}

// Consumer is one consumer of a Run. Next is called by one goroutine at a time; everything else by any.
type Consumer struct {
	r         *Run
	id        dispatch.ConsumerID
	name      string
	maxRecord int
	since     uint64 // Member.Epoch
	memory    func(size int) []byte
	wake      chan struct{} // one slot: there is something, or it is over

	// Guarded by the Run's mutex.
	active bool
	asked  bool    // the dispatcher knows that it waits
	given  []piece // to be handed out
	news   []Event // to be told
	over   error

	building []piece // of the goroutine in Next: what given was
}

// piece is a run of records that a consumer was given.
type piece struct {
	dispatch.Span
	*stretch // it is here; nil: it has to be read again
}

// Join adds a consumer. It fails with kind conflict where the subscription is held by another, with what the Run has ended
// with, and where its source cannot be opened.
func (r *Run) Join(ctx context.Context, m Member) (*Consumer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over != nil {
		return nil, r.over
	}
	if r.feed == nil {
		r.mu.Unlock() // opening may wait for the disk
		source, err := r.open(ctx)
		r.mu.Lock()
		switch {
		case err != nil:
			return nil, err
		case r.over != nil:
			source.Close()
			return nil, r.over
		case r.feed != nil: // another one was faster
			source.Close()
		default:
			r.start(source)
		}
	}
	r.lastID++
	c := &Consumer{r: r, id: r.lastID, name: m.Name, maxRecord: m.MaxRecordBytes, since: m.Epoch, memory: m.Memory, wake: make(chan struct{}, 1), active: r.spec.Dispatch.Type != dispatch.Failover}
	if c.memory == nil {
		c.memory = allocate
	}
	r.consumers[c.id] = c
	r.cfg.Metrics.Consumers.Inc()
	r.refused = ""
	r.event.Kind, r.event.Consumer = dispatch.Join, c.id
	r.event.Member = dispatch.Member{
		Name: m.Name, Priority: m.Priority, Filters: m.Filters, MaxRecordBytes: m.MaxRecordBytes,
		Window: dispatch.Window{Messages: m.WindowMessages, Bytes: m.WindowBytes},
	}
	r.step()
	if r.refused != "" {
		delete(r.consumers, c.id)
		r.cfg.Metrics.Consumers.Dec()
		holder := r.refused
		r.rest()
		return nil, fault.New(fault.Conflict, "subscription %s on %s/%d is exclusive, and consumer %q has it: wait until that one is gone, or use its name to take over",
			r.spec.Name, r.spec.Topic, r.spec.Partition, holder).With("consumer", holder)
	}
	if c.over != nil { // the subscription stands failed: see dispatch.Failed
		r.event.Kind, r.event.Consumer = dispatch.Leave, c.id
		r.step()
		r.rest()
		return nil, c.over
	}
	return c, nil
}

// Active reports whether records go to this consumer; only a failover subscription has others.
func (c *Consumer) Active() bool {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.active
}

// Position returns the offset below which everything is settled.
func (c *Consumer) Position() int64 {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.r.core.Set().Position()
}

// Epoch tells positions before a seek from those after it; 0 where nothing is kept.
func (c *Consumer) Epoch() uint64 {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.r.epoch
}

// Next returns what comes next: about maxBytes of records, or news. It waits until ctx is done. Its other errors are
// final. What it hands out is this consumer's until it is settled, its time is over, or the consumer is closed.
func (c *Consumer) Next(ctx context.Context, maxBytes int) (Event, error) {
	r := c.r
	for {
		r.mu.Lock()
		if e, ok, err := c.next(maxBytes); err != nil || ok {
			r.mu.Unlock()
			return e, err
		}
		if len(c.given) > 0 {
			c.building = append(c.building[:0], c.given...)
			clear(c.given)
			c.given = c.given[:0]
			r.mu.Unlock()
			e, err := c.build(ctx)
			if err != nil || e.Records > 0 {
				return e, err
			}
			continue
		}
		r.mu.Unlock()
		select {
		case <-c.wake:
		case <-ctx.Done():
			r.mu.Lock()
			c.unask()
			r.mu.Unlock()
			return Event{}, context.Cause(ctx)
		}
	}
}

// News is Next for a caller that has no room for records now: it returns news, and why there is nothing more. It returns
// false once room says that there may be some.
func (c *Consumer) News(ctx context.Context, room <-chan struct{}) (e Event, ok bool, err error) {
	for {
		c.r.mu.Lock()
		c.unask() // a Next that returned news may have left it
		e, ok, err = c.heard()
		c.r.mu.Unlock()
		if ok || err != nil {
			return e, ok, err
		}
		select {
		case <-c.wake:
		case <-room:
			return Event{}, false, nil
		case <-ctx.Done():
			return Event{}, false, context.Cause(ctx)
		}
	}
}

// heard returns news, or why there is nothing more. The caller holds mu.
func (c *Consumer) heard() (e Event, ok bool, err error) {
	if len(c.news) > 0 {
		e = c.news[0]
		c.news = c.news[1:]
		return e, true, nil
	}
	return e, false, c.over
}

// next is heard, and asks for records where nothing was. The caller holds mu.
func (c *Consumer) next(maxBytes int) (e Event, ok bool, err error) {
	if e, ok, err = c.heard(); ok || err != nil || len(c.given) > 0 || c.asked {
		return e, ok, err
	}
	c.asked = true
	c.r.event.Kind, c.r.event.Consumer, c.r.event.Bytes = dispatch.Ask, c.id, int64(maxBytes)
	c.r.step()
	return c.heard()
}

// unask has the dispatcher give nothing any more. The caller holds mu.
func (c *Consumer) unask() {
	if c.asked {
		c.asked = false
		c.r.event.Kind, c.r.event.Consumer = dispatch.Unask, c.id
		c.r.step()
	}
}

// give takes what the dispatcher has given. The caller holds mu.
func (c *Consumer) give(spans []dispatch.Span) {
	c.asked = false
	m := c.r.cfg.Metrics
	for _, s := range spans {
		if c.r.cache.shared {
			c.givePassing(s)
			continue
		}
		c.given = append(c.given, piece{s, c.r.cache.find(s.From)})
		n := float64(s.To - s.From + 1)
		m.Delivered.Add(n)
		if s.Count > 1 {
			m.Redelivered.Add(n)
		}
	}
	c.signal()
}

// givePassing is give for a span of what cannot be read again: what is not here any more is lost, and what is here stays
// until it is built.
func (c *Consumer) givePassing(s dispatch.Span) {
	r := c.r
	each := s.Bytes / (s.To - s.From + 1)
	for s.From <= s.To {
		at := r.cache.from(s.From)
		if at == nil || at.first > s.To {
			r.cfg.Metrics.Dropped.Add(float64(s.To - s.From + 1))
			return
		}
		at.users++
		from, to := max(s.From, at.first), min(s.To, at.next-1)
		r.cfg.Metrics.Dropped.Add(float64(from - s.From))
		c.given = append(c.given, piece{dispatch.Span{From: from, To: to, Count: s.Count, Bytes: each * (to - from + 1)}, at})
		r.cfg.Metrics.Delivered.Add(float64(to - from + 1))
		s.From = to + 1
	}
}

// forget drops what was given and not taken. The caller holds mu.
func (c *Consumer) forget() {
	for i := range c.given {
		if s := c.given[i].stretch; s != nil {
			c.r.cache.release(s)
		}
	}
	c.given, c.asked = nil, false
	c.signal()
}

// mostNews bounds what a consumer that does not listen is not told yet. Who is active counts as it is last; what is lost
// or skipped is in the log of the broker, too.
const mostNews = 1000

// notify queues news. The caller holds mu.
func (c *Consumer) notify(e Event) {
	if n := len(c.news); n > 0 && (e.Kind == Active || e.Kind == Standby) && (c.news[n-1].Kind == Active || c.news[n-1].Kind == Standby) {
		c.news[n-1] = e
	} else if n < mostNews {
		c.news = append(c.news, e)
	}
	c.signal()
}

// finish ends the consumer. The caller holds mu, has taken it out of the Run, and tells the dispatcher.
func (c *Consumer) finish(err error) {
	if c.over == nil {
		c.over = err
		c.r.cfg.Metrics.Consumers.Dec()
	}
	c.forget()
}

func (c *Consumer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Close ends the consumer: what it holds is handed to others at once. A Next that waits returns kind canceled.
func (c *Consumer) Close() {
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.consumers[c.id] == nil {
		return
	}
	delete(r.consumers, c.id)
	c.finish(fault.New(fault.Canceled, "consumer %q of subscription %s on %s/%d: it was closed", c.name, r.spec.Name, r.spec.Topic, r.spec.Partition))
	r.event.Kind, r.event.Consumer = dispatch.Leave, c.id
	r.step()
	r.rest()
}

// Settle says what became of records, whoever they were handed to. What was never handed out is passed over.
func (c *Consumer) Settle(s Settlement) error {
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.consumers[c.id] == nil && r.over != nil {
		return r.over
	}
	if c.since != 0 && c.since == r.epoch {
		s = r.trust(s)
	}
	r.settle(s, c.id)
	return nil
}

// Settle is Consumer.Settle for who is no consumer.
func (r *Run) Settle(s Settlement) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over != nil {
		return r.over
	}
	r.settle(s, 0)
	return nil
}

// trust settles what a consumer acknowledges that has come back, up to the end of the log, and returns what is left to be
// said. The caller holds mu.
func (r *Run) trust(s Settlement) Settlement {
	end := r.spec.End()
	r.event.Kind = dispatch.Discharge
	for _, a := range s.Acks {
		r.about(seglog.Range{From: a.From, To: min(a.To, end-1)})
	}
	if s.Below > 0 {
		r.about(seglog.Range{From: 0, To: min(s.Below, end) - 1})
	}
	if len(r.event.Ranges) > 0 {
		r.cfg.Metrics.Settlements.WithLabelValues("ack").Inc()
		r.step()
		r.changed()
	}
	return Settlement{Below: -1, Nacks: s.Nacks}
}

func (r *Run) settle(s Settlement, by dispatch.ConsumerID) {
	m := r.cfg.Metrics
	if len(s.Acks) > 0 {
		r.event.Kind, r.event.Consumer = dispatch.Ack, by
		r.about(s.Acks...)
		r.step()
	}
	if s.Below >= 0 {
		r.event.Consumer = by
		r.tell(dispatch.AckBelow, s.Below)
	}
	if len(s.Acks) > 0 || s.Below >= 0 {
		m.Settlements.WithLabelValues("ack").Inc()
		r.changed()
	}
	for _, n := range s.Nacks {
		m.Settlements.WithLabelValues("nack").Inc()
		r.event.Kind, r.event.Consumer, r.event.Delay, r.event.Reason = dispatch.Nack, by, n.Delay, n.Reason
		r.about(n.Range)
		r.step()
	}
}

// Heartbeat says that what the consumer holds is still being worked on.
func (c *Consumer) Heartbeat() {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.event.Kind, c.r.event.Consumer = dispatch.Heartbeat, c.id
	c.r.step()
}
