package client

import (
	"context"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

// closeTimeout bounds how long a broker may take to end a stream that has been closed.
const closeTimeout = 30 * time.Second

// request is the message that an outlet sends, one after another, in memory that it keeps.
type request struct {
	message leveev1.ConsumeRequest
	credit  leveev1.Credit
	ranges  []leveev1.Range
}

// send tells the broker what is to be told until the stream ends, or the subscription is closed.
func (o *outlet) send(rpc consumption, ended <-chan struct{}, cancel context.CancelFunc) {
	s := o.sub
	req := &request{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	s.mu.Lock()
	beat := o.beat
	s.mu.Unlock()
	nextBeat := time.Now().Add(beat)
	closing := s.closing
	for {
		s.mu.Lock()
		now := time.Now()
		if beat > 0 && !now.Before(nextBeat) {
			req.message.Heartbeat = o.leases.unsettled > 0
			nextBeat = now.Add(beat)
		}
		wait := o.collect(req, now)
		s.mu.Unlock()
		if !req.empty() {
			if err := rpc.Send(&req.message); err != nil {
				return // Recv learns why; the next stream begins with what may not have arrived
			}
			s.mu.Lock()
			o.box.flushed()
			s.mu.Unlock()
			req.reset()
			continue
		}
		if closing == nil {
			_ = rpc.CloseSend()
			cut := time.AfterFunc(closeTimeout, cancel)
			<-ended
			cut.Stop()
			return
		}
		if beat > 0 {
			wait = shorter(wait, max(nextBeat.Sub(now), 1))
		}
		if wait <= 0 {
			wait = time.Hour
		}
		timer.Reset(wait)
		select {
		case <-o.wake:
		case <-timer.C:
		case <-closing:
			closing = nil // once more, for what there is
		case <-ended:
			return
		}
	}
}

// collect puts into req what is to be sent now, and returns how long until there may be more (0: until woken). sub.mu is
// held.
func (o *outlet) collect(req *request, now time.Time) (wait time.Duration) {
	s := o.sub
	if o.creditDue() {
		req.credit.Bytes = o.owed
		req.message.Credit = &req.credit
		o.owed = 0
	}
	b := &o.box
	if due := b.since.Add(s.config.AckDelay).Sub(now); b.pending > 0 && due > 0 && b.pending < s.config.AckEvery && !b.urgent() && !s.closed {
		wait = due
	} else {
		b.take(req, now) // maybe nothing
	}
	req.message.Save = b.nextSave()
	if req.empty() {
		b.flushed()
	}
	return wait
}

func (r *request) empty() bool {
	m := &r.message
	return m.Credit == nil && len(m.Acks) == 0 && !m.HasAckBelow && len(m.Nacks) == 0 && !m.Heartbeat && m.Save == 0
}

func (r *request) reset() {
	m := &r.message
	m.Credit, m.Acks, m.HasAckBelow, m.AckBelow, m.Nacks, m.Heartbeat, m.Save = nil, m.Acks[:0], false, 0, nil, false, 0
}

// acks makes the message acknowledge ranges.
func (r *request) acks(ranges []span) {
	if len(ranges) > len(r.ranges) {
		r.ranges = make([]leveev1.Range, 2*len(ranges))
	}
	for i, a := range ranges {
		r.ranges[i].From, r.ranges[i].To = a.from, a.to
		r.message.Acks = append(r.message.Acks, &r.ranges[i])
	}
}

// settle notes what became of d, and reports whether that is to be sent. sub.mu is held.
func (d *Delivery) settle() bool {
	o := d.outlet
	if d.settled || !o.reliable || o.box.failed != nil {
		return false
	}
	d.settled = true
	if d.session == o.session.Load() && (d.Offset >= o.leases.below || d.number > o.leases.belowAt) {
		o.leases.unsettled--
	}
	return true
}

// ack acknowledges d. sub.mu is held.
func (d *Delivery) ack() {
	if d.settle() {
		d.outlet.pend(d.outlet.box.ack(d.Offset, d.Offset))
	}
}

// pend notes that something is to be sent, so many things now. sub.mu is held.
func (o *outlet) pend(pending int) {
	if pending == 1 {
		o.box.since = time.Now()
	}
	if pending == 1 || pending >= o.sub.config.AckEvery {
		o.poke()
	}
}

// AckBelow acknowledges everything of a partition below offset that was handed out to anybody. It is for exclusive and
// failover subscriptions, where that is what this consumer has passed.
func (s *Subscription) AckBelow(partition int32, offset int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.outlets {
		if o.partition != partition {
			continue
		}
		if o.kind != Exclusive && o.kind != Failover {
			return newError(KindInvalidArgument, "AckBelow: the subscription is %s: others handle what lies below, too", o.kind)
		}
		if offset < 0 {
			return newError(KindInvalidArgument, "AckBelow: offset %d is negative", offset)
		}
		if !o.reliable {
			return nil
		}
		if o.box.failed != nil {
			return o.box.failed
		}
		o.leases.below, o.leases.belowAt = offset, o.number
		if offset > o.box.newest {
			o.leases.unsettled = 0
		}
		o.pend(o.box.ackBelow(offset))
		return nil
	}
	return newError(KindInvalidArgument, "AckBelow: partition %d is not consumed", partition)
}

// Flush sends the acknowledgements that wait, and returns when the connection has taken them. That says nothing about
// the broker: see Save.
func (s *Subscription) Flush(ctx context.Context) error {
	return s.await(ctx, "sending acknowledgements", (*ackBox).flush)
}

// Save returns when everything that was acknowledged before is durable: it will not be handed out again, whatever
// happens to the broker.
func (s *Subscription) Save(ctx context.Context) error {
	return s.await(ctx, "saving acknowledgements", (*ackBox).save)
}

// await asks something of every outlet, or of those given, and waits for the answers.
func (s *Subscription) await(ctx context.Context, what string, ask func(*ackBox) <-chan error, of ...*outlet) error {
	s.mu.Lock()
	if of == nil {
		of = s.outlets
	}
	answers := make([]<-chan error, 0, len(of))
	for _, o := range of {
		if o.reliable { // otherwise there is nothing to tell
			answers = append(answers, ask(&o.box))
			o.poke()
		}
	}
	s.mu.Unlock()
	var failed error
	for _, answer := range answers {
		select {
		case err := <-answer:
			if failed == nil {
				failed = err
			}
		case <-ctx.Done():
			s.mu.Lock()
			last := of[0].last
			s.mu.Unlock()
			return gaveUp(ctx, what, last)
		}
	}
	return failed
}
