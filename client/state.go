package client

import (
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// state is what a Producer's mutex guards. Its methods do no I/O and call nobody.
type state struct {
	lanes    []*lane
	ready    []*lane // may have a batch to send, next one first
	waiting  []*lane // will have one when time has passed: their retryAt, or their open batch's linger
	sticky   int32   // partition that records without a place of their own go to
	inFlight map[uint64]*batch
	lastID   uint64
	budget   budget

	closed bool
	failed *Error // every record fails with it
	last   error  // what the last attempt to connect failed with

	answered  []*batch // to call back, in order
	answering bool     // somebody does
}

func newState(partitions int32, id record.ProducerInfo) state {
	s := state{lanes: make([]*lane, partitions), inFlight: map[uint64]*batch{}}
	for i := range s.lanes {
		s.lanes[i] = &lane{partition: int32(i), identity: id, identified: true} //nolint:gosec // below partitions
	}
	return s
}

// refuses returns why no record is taken any more, or nil.
func (s *state) refuses() error {
	switch {
	case s.failed != nil:
		return s.failed
	case s.closed:
		return &Error{Kind: KindCanceled, Message: "the producer is closed"}
	}
	return nil
}

// append adds a record, whose bytes are reserved, to its partition's batch, and reports whether the sender has something
// new to look at.
func (p *Producer) append(partition int32, r *record.Record, size int, done func(Ack, error)) (wake bool, err error) {
	s := &p.state
	if partition < 0 {
		partition = s.sticky
	}
	l := s.lanes[partition]
	sealed := l.open != nil && l.open.builder.Len()+size > p.config.BatchBytes
	if sealed {
		p.seal(l)
	}
	if l.open == nil {
		l.open = &batch{lane: l, builder: p.builder(), begun: time.Now()}
	}
	b := l.open
	if err := b.builder.Append(*r); err != nil { // above what any batch can hold: the limits do not let it come here
		s.budget.give(int64(size), p.config.MaxInFlightBytes)
		return false, fromRecord(err, "publish")
	}
	b.callbacks = append(b.callbacks, done)
	b.size += int64(size)
	full := b.builder.Len() >= p.config.BatchBytes || b.builder.Count() >= p.config.BatchRecords
	if full {
		p.seal(l)
	}
	return p.offer(l) || full || sealed, nil // a full one need not linger
}

func (p *Producer) builder() *record.Builder {
	if b, ok := p.builders.Get().(*record.Builder); ok {
		return b
	}
	return record.NewBuilder(p.config.Compression)
}

// recycle keeps b's memory for later batches. Only an acknowledgement of the first attempt says that gRPC does not read
// it any more: a stream that broke may still be about to send what lies there.
func (p *Producer) recycle(b *batch) {
	if b.ack == nil || b.attempts != 1 {
		return
	}
	builder := b.builder
	b.builder, b.data = nil, nil
	builder.Reset()
	p.builders.Put(builder)
}

func (p *Producer) seal(l *lane) {
	l.seal()
	if s := &p.state; l.partition == s.sticky { // the next records without a place go elsewhere
		s.sticky = (s.sticky + 1) % int32(len(s.lanes)) //nolint:gosec // as many as partitions
	}
}

// offer puts a lane that may have a batch to send on the list, and reports whether it was not there.
func (p *Producer) offer(l *lane) bool {
	if l.ready || !l.sendable(p.config.MaxInFlight) {
		return false
	}
	l.ready = true
	p.state.ready = append(p.state.ready, l)
	return true
}

// outgoing is a batch that the sender has taken, with its number on the stream (batch.id may change meanwhile).
type outgoing struct {
	*batch
	id uint64
}

// collect takes the batches to be sent next, at least one if there is any and then up to sendBytes, and numbers them. When there are none, wait is how
// long until there may be (0: until woken). It stops at a lane without an identity, and returns it.
func (p *Producer) collect(now time.Time) (batches []outgoing, nameless *lane, wait time.Duration) {
	s := &p.state
	wait = p.promote(now)
	most := int64(min(sendBytes, p.limits.batchBytes)) // a broker takes messages of at least one largest batch
	var bytes int64
	for len(s.ready) > 0 {
		l := s.ready[0]
		if p.due(l, now) > 0 {
			s.ready = s.ready[1:]
			s.waiting = append(s.waiting, l) // keeps its mark: it is on a list
			wait = shorter(wait, p.due(l, now))
			continue
		}
		b := p.peek(l)
		if b == nil {
			l.ready = false
			s.ready = s.ready[1:]
			continue
		}
		if len(batches) > 0 && bytes+b.size > most {
			break
		}
		if !l.identified {
			return batches, l, 0
		}
		if !b.numbered {
			b.producer, b.numbered = l.identity, true
			if l.identity.ID >= 0 {
				l.identity.Sequence = record.NextSequence(l.identity.Sequence, int32(len(b.callbacks))) //nolint:gosec // bounded
			}
		}
		l.next++
		l.outstanding++
		s.lastID++
		b.id = s.lastID
		b.attempts++
		s.inFlight[b.id] = b
		batches = append(batches, outgoing{b, b.id})
		bytes += b.size
		s.ready = append(s.ready[1:], l) // the others first
	}
	return batches, nil, wait
}

// peek returns the next batch of l to send, or nil.
func (p *Producer) peek(l *lane) *batch {
	l.skipDone()
	if !l.sendable(p.config.MaxInFlight) {
		return nil
	}
	if l.next == len(l.queue) {
		p.seal(l)
	}
	return l.queue[l.next]
}

// due returns how long l must still wait before its next batch may go.
func (p *Producer) due(l *lane, now time.Time) time.Duration {
	wait := l.retryAt.Sub(now)
	if l.next >= len(l.queue) && l.open != nil {
		wait = max(wait, l.open.begun.Add(p.config.Linger).Sub(now))
	}
	return max(wait, 0)
}

// promote moves lanes that have waited long enough to the ready ones, and returns how long the first of the others waits.
func (p *Producer) promote(now time.Time) (wait time.Duration) {
	s := &p.state
	kept := s.waiting[:0]
	for _, l := range s.waiting {
		if d := p.due(l, now); d > 0 {
			wait = shorter(wait, d)
			kept = append(kept, l)
			continue
		}
		s.ready = append(s.ready, l)
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
	return wait
}

func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// acknowledge takes one answer of the present stream.
func (p *Producer) acknowledge(ack *leveev1.Ack, now time.Time) {
	s := &p.state
	b := s.inFlight[ack.GetId()]
	if b == nil {
		return // given up meanwhile
	}
	delete(s.inFlight, ack.GetId())
	l := b.lane
	b.id = 0
	l.outstanding--
	if ack.GetError() == nil {
		b.done, b.ack = true, ack
		l.attempts, l.probing = 0, false
	} else {
		p.refused(b, fromMessage(ack.GetError()))
	}
	if l.held && l.outstanding == 0 {
		p.resume(l, now)
	}
	p.pop(l)
	p.offer(l)
}

// refused decides what a refusal means: for this batch, those behind it, and the producer.
func (p *Producer) refused(b *batch, e *Error) {
	b.refusal = e
	switch e.Kind {
	case KindDeleted, KindProducerFenced, KindUnauthenticated, KindForbidden:
		b.fail(e)
		p.failAll(e)
		return
	case KindOutcomeUnknown, KindTimeout, KindCanceled:
		b.unknown = true
	}
	// A gap behind a batch that is to be sent again is that batch's doing, and closes with it.
	follows := e.Kind == KindSequenceGap && b.lane.firstPending() != b
	if e.Retriable || follows {
		b.lane.held = true
		return
	}
	if b.producer.ID < 0 {
		b.fail(e)
		return
	}
	b.err = e
	b.lane.held = true // those behind it are refused, too: see what becomes of them before giving them up
}

// resume goes on with a lane after a refusal, when nothing of it is in flight any more.
func (p *Producer) resume(l *lane, now time.Time) {
	for i, b := range l.queue {
		if !b.done && b.err != nil {
			l.abandon(i, b.err)
			break
		}
	}
	l.rewind()
	if l.next < len(l.queue) && l.queue[l.next].refusal != nil {
		l.retryAt = now.Add(backoff(l.attempts))
		l.attempts++
		l.probing = true
	}
}

// pop takes what is answered, and has nothing before it that is not, out of l.
func (p *Producer) pop(l *lane) {
	s := &p.state
	for len(l.queue) > 0 && l.queue[0].done {
		b := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		l.next = max(l.next-1, 0)
		s.budget.give(b.size, p.config.MaxInFlightBytes)
		s.answered = append(s.answered, b)
	}
}

// flushLocked seals every open batch and returns a wait for everything published so far.
func (p *Producer) flushLocked() *flush {
	s := &p.state
	f := &flush{left: 1, done: make(chan struct{})}
	for _, l := range s.lanes {
		if l.open != nil {
			p.seal(l)
		}
		if n := len(l.queue); n > 0 {
			f.left++
			l.queue[n-1].flushes = append(l.queue[n-1].flushes, f)
		}
		p.offer(l)
	}
	if n := len(s.answered); n > 0 { // out of the queues, but its callbacks are not through
		f.left++
		s.answered[n-1].flushes = append(s.answered[n-1].flushes, f)
	}
	f.settle()
	return f
}

// answer calls back for all that is answered, in order. Whoever has settled something calls it, without the lock; one at a
// time does the work.
func (p *Producer) answer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.state
	if s.answering {
		return
	}
	s.answering = true
	for len(s.answered) > 0 {
		b := s.answered[0]
		p.mu.Unlock()
		b.answer()
		p.recycle(b)
		p.mu.Lock()
		for _, f := range b.flushes {
			f.settle()
		}
		s.answered[0] = nil
		s.answered = s.answered[1:]
	}
	s.answered = nil
	s.answering = false
}

// failAll ends the producer: every record that is not answered is, with err.
func (p *Producer) failAll(err *Error) {
	s := &p.state
	if s.failed != nil {
		return
	}
	s.failed = err
	for _, l := range s.lanes {
		if l.open != nil {
			l.seal()
		}
		for _, b := range l.queue {
			switch {
			case b.done:
			case err.Kind == KindCanceled && (b.unknown || b.id != 0):
				b.fail(&Error{
					Kind: KindOutcomeUnknown, Retriable: true, cause: err,
					Message: "sent, but the producer ended before it was answered",
				})
			default:
				b.fail(err)
			}
		}
		p.pop(l)
		l.next, l.outstanding = 0, 0
	}
	clear(s.inFlight)
	s.budget.wakeAll()
	p.cancel()
}

// disconnected makes everything that the broken stream left unanswered be sent again.
func (p *Producer) disconnected(now time.Time) {
	s := &p.state
	for _, b := range s.inFlight {
		b.id, b.unknown = 0, true
	}
	clear(s.inFlight)
	for _, l := range s.lanes {
		if len(l.queue) == 0 {
			continue
		}
		if l.held {
			p.resume(l, now)
		} else {
			l.rewind()
		}
		p.pop(l)
		p.offer(l)
	}
}

// expire gives up batches that were begun at or before since.
func (p *Producer) expire(since time.Time) {
	s := &p.state
	for _, l := range s.lanes {
		if l.open != nil && len(l.queue) == 0 && !l.open.begun.After(since) {
			p.seal(l)
		}
		expired := false
		for i, b := range l.queue {
			if b.begun.After(since) {
				break
			}
			if b.done {
				continue
			}
			expired = true
			if b.numbered && b.producer.ID >= 0 {
				l.abandon(i, p.overdue(b))
				break
			}
			b.fail(p.overdue(b))
		}
		if expired {
			p.forget(l)
			p.pop(l)
			p.offer(l)
		}
	}
}

// forget takes batches of l that are done, but for which no answer came, off the present stream.
func (p *Producer) forget(l *lane) {
	for id, b := range p.state.inFlight {
		if b.lane == l && b.done {
			delete(p.state.inFlight, id)
			l.outstanding--
		}
	}
	if l.held && l.outstanding == 0 {
		l.rewind()
	}
}

func (p *Producer) overdue(b *batch) *Error {
	e := newError(KindTimeout, "not delivered within %v", p.config.DeliveryTimeout)
	if b.unknown || b.id != 0 {
		e = newError(KindOutcomeUnknown, "sent, but not answered within %v", p.config.DeliveryTimeout)
	}
	e.Retriable = true
	switch {
	case b.refusal != nil:
		e.Message += "; last refusal: " + b.refusal.Error()
		e.Details = b.refusal.Details
	case p.state.last != nil:
		e.Message += "; last error: " + p.state.last.Error()
	}
	return e
}
