package broker

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/record"
)

// Publisher publishes into one incarnation of one topic. It is safe for concurrent use; batches submitted by one
// goroutine to one partition keep their order.
type Publisher struct {
	b      *Broker
	t      *topic
	closed atomic.Bool
}

// OpenPublisher returns a publisher into a topic; into that incarnation only where id is not empty. It fails with kind
// not_found where there is no such topic, deleted where id names another incarnation.
func (b *Broker) OpenPublisher(_ context.Context, topic string, id []byte) (*Publisher, error) {
	t, err := b.lookup(topic, id)
	if err != nil {
		return nil, err
	}
	b.metrics.publishers.Inc()
	return &Publisher{b: b, t: t}, nil
}

// Info describes the topic as it is set now.
func (p *Publisher) Info() TopicInfo { return *p.b.cfg.Defaults.info(p.t.meta.Load()) }

// Close ends the publisher. What it submitted is answered all the same.
func (p *Publisher) Close() {
	if p.closed.CompareAndSwap(false, true) {
		p.b.metrics.publishers.Dec()
	}
}

// Submit queues one encoded batch for a partition and returns.
//
// After nil, done is called exactly once with what became of the batch, from any goroutine, possibly before Submit
// returns; it must not block and must not call the broker. The batch must not be changed until then; the broker does not
// change it. After an error nothing was written and done is never called.
//
// The result has no error only once the bar of the topic's settings is passed. Submit waits for a partition that is being
// opened, and while the broker holds as many unanswered bytes as it may; ctx ends both waits, and takes nothing back that
// was queued.
func (p *Publisher) Submit(ctx context.Context, part int32, batch []byte, done func(PublishResult)) error {
	err := p.submit(ctx, part, batch, done)
	if err != nil {
		p.b.metrics.refused(err)
	}
	return err
}

func (p *Publisher) submit(ctx context.Context, part int32, batch []byte, done func(PublishResult)) error {
	t := p.t
	if err := t.ended(); err != nil {
		return err
	}
	if p.closed.Load() {
		return fault.New(fault.Canceled, "publish to %s: this publisher was closed", t.Full)
	}
	if err := t.has(part); err != nil {
		return err
	}
	info, err := record.Verify(batch, p.b.batches)
	if err != nil {
		return errBatch(err, t.Full, part, p.b.batches)
	}
	if g := t.guard.Load(); g != nil {
		if err := g.Check(batch, part); err != nil {
			return err
		}
	}
	if t.fans != nil {
		first := t.fans[part].Publish(batch, int(info.Count))
		p.b.metrics.published(int64(info.Count), len(batch), false)
		done(PublishResult{Offset: first, LastOffset: first + int64(info.Count) - 1})
		return nil
	}
	if p.b.cfg.Full() {
		p.b.cfg.LogMetrics.RefusedFull()
		return onTopic("publish to", t.Full, errFull())
	}
	size := int64(len(batch))
	if err := p.b.inFlight.Acquire(ctx, size); err != nil {
		return onTopic("too much is unanswered; wait to publish to", t.Full, err)
	}
	if err := t.ended(); err != nil { // a drain that began while this waited counts on it
		p.b.inFlight.Release(size)
		return err
	}
	s := newSubmission()
	s.b, s.t, s.part, s.done, s.records = p.b, t, t.parts[part], done, info.Count
	s.append = seglog.Append{Batch: batch, Done: s.finish}
	if err := s.part.Submit(ctx, &s.append); err != nil {
		s.recycle()
		p.b.inFlight.Release(size)
		t.noteRoom(p.b.cfg.Age, err)
		return onTopic("publish to", t.Full, err)
	}
	return nil
}

// submission is a batch on its way into a log. It is pooled together with the method value that the log calls, since
// publishing must not allocate for each batch more than the log does.
type submission struct {
	append  seglog.Append
	finish  func(*seglog.Append)
	b       *Broker
	t       *topic
	part    *partition.Partition
	done    func(PublishResult)
	records int32
}

var submissions sync.Pool

func newSubmission() *submission {
	if s, ok := submissions.Get().(*submission); ok {
		return s
	}
	s := &submission{}
	s.finish = s.answer
	return s
}

// answer passes the log's answer on. The log does not touch the append any more once it has called this.
func (s *submission) answer(a *seglog.Append) {
	r := PublishResult{Offset: a.Offset, LastOffset: a.LastOffset, Duplicate: a.Duplicate, Ranges: a.Ranges}
	b, size, records, done := s.b, len(a.Batch), int64(s.records), s.done
	s.t.noteRoom(b.cfg.Age, a.Err)
	if a.Err == nil {
		if !a.Duplicate {
			s.part.Assigned(a.LastOffset)
		}
		b.metrics.published(records, size, a.Duplicate)
	} else {
		err := a.Err
		if ended := s.t.ended(); ended != nil && fault.KindOf(err) == fault.Unavailable {
			err = ended
		}
		r = PublishResult{Offset: -1, LastOffset: -1, Err: onTopic("publish to", s.t.Full, err)}
		b.metrics.refused(err)
	}
	s.recycle()
	b.inFlight.Release(int64(size))
	done(r)
}

func (s *submission) recycle() {
	finish := s.finish
	*s = submission{finish: finish}
	submissions.Put(s)
}
