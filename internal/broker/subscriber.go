package broker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/leveemq/levee/internal/fan"
	"github.com/leveemq/levee/internal/fault"
)

// Subscriber reads one partition of one incarnation of a topic. Next must be called by one goroutine at a time; Close
// and Info may be called by any, at any time.
type Subscriber struct {
	b    *Broker
	t    *topic
	info SubscriberInfo
	feed feed
	once sync.Once

	// life ends with Close, with the topic's and with the broker's; its cause is what Next answers then.
	life context.Context
	end  context.CancelCauseFunc
}

// feed is where a subscriber's events come from: a log, or a fan.
type feed interface {
	// next returns the next event, about maxBytes of data, or waits for one until ctx is done.
	next(ctx context.Context, maxBytes int) (Event, error)
	// close gives up what the feed holds. next may be running.
	close()
}

// Subscribe opens a subscriber. It waits for a partition that is being opened, bounded by ctx. It fails with kind
// not_found for an unknown topic or partition, deleted where ID names another incarnation, trimmed or out_of_range for an
// offset that is not there, exhausted where as many subscribers as allowed are open.
func (b *Broker) Subscribe(ctx context.Context, spec SubscribeSpec) (*Subscriber, error) {
	t, err := b.lookup(spec.Topic, spec.ID)
	if err != nil {
		return nil, err
	}
	if err := t.has(spec.Partition); err != nil {
		return nil, err
	}
	if err := b.seats.admit(); err != nil {
		return nil, err
	}
	s := &Subscriber{b: b, t: t}
	s.life, s.end = context.WithCancelCause(&t.life)
	s.info = SubscriberInfo{
		Topic: t.Full, TopicID: t.ID, Partition: spec.Partition, Partitions: int32(t.partitions()), Reliable: t.fans == nil, //nolint:gosec // bounded by meta
	}
	t.subscribers[spec.Partition].Add(1)
	if t.fans != nil {
		s.openFan()
	} else if err := s.openLog(ctx, spec.Start, spec.Memory); err != nil {
		s.Close()
		if ended := t.ended(); ended != nil {
			return nil, ended
		}
		return nil, onTopic("subscribe to", t.Full, err)
	}
	return s, nil
}

// Info returns what the subscriber was given when it opened.
func (s *Subscriber) Info() SubscriberInfo { return s.info }

// Close ends the subscriber, also a Next that waits: it returns kind canceled.
func (s *Subscriber) Close() {
	s.end(fault.New(fault.Canceled, "subscriber of %s/%d: it was closed", s.info.Topic, s.info.Partition))
	s.once.Do(func() {
		if s.feed != nil {
			s.feed.close()
		}
		s.t.subscribers[s.info.Partition].Add(-1)
		s.b.seats.leave()
	})
}

// seats bound how many subscribers and consumers are open at a time.
type seats struct {
	metrics *metrics
	limit   int
	taken   atomic.Int64
}

func (s *seats) admit() error {
	if s.taken.Add(1) > int64(s.limit) {
		s.taken.Add(-1)
		s.metrics.subscribersRefused.Inc()
		return fault.New(fault.Exhausted, "%d subscribers are open, as many as the broker takes: close some or raise the limit", s.limit).
			With("limit", s.limit)
	}
	s.metrics.subscribers.Inc()
	return nil
}

func (s *seats) leave() {
	s.taken.Add(-1)
	s.metrics.subscribers.Dec()
}

// Next returns what comes next: data of about maxBytes (0: Config.BytesPerRead) but at least one batch, a range that was lost, or the
// news that the end was reached, once for each time. Offsets are delivered in order, each once; a gap between one event's
// Next and the first record of the following is always announced (lost) or counted (dropped).
//
// It waits for something to come until ctx is done. Its other errors are final for this subscriber: trimmed where
// retention has passed its position, deleted, unavailable where the broker stops or the partition was unloaded, corrupt,
// stopped where a flush failed and nothing more can come, canceled after Close.
func (s *Subscriber) Next(ctx context.Context, maxBytes int) (Event, error) {
	if maxBytes <= 0 {
		maxBytes = s.b.cfg.BytesPerRead
	}
	if s.life.Err() != nil {
		return Event{}, context.Cause(s.life)
	}
	e, err := s.feed.next(ctx, maxBytes)
	if err != nil {
		if s.life.Err() != nil {
			return Event{}, context.Cause(s.life)
		}
		return Event{}, err
	}
	switch e.Kind {
	case EventData:
		s.b.metrics.deliveredRecords.Add(float64(e.Records))
		s.b.metrics.deliveredBytes.Add(float64(len(e.Batches)))
	case EventLost:
		s.b.metrics.lostRanges.Inc()
	}
	return e, nil
}

// errCaughtUp is how a feed says that it has to wait.
var errCaughtUp = errors.New("caught up")

// fanFeed feeds a subscriber of a non-reliable topic.
type fanFeed struct {
	fan  *fan.Fan
	ring *fan.Ring
	life context.Context // the subscriber's

	offset int64 // of the next record
	atEnd  bool  // the subscriber was told that nothing waits for it
}

func (s *Subscriber) openFan() {
	f := &fanFeed{fan: s.t.fans[s.info.Partition], ring: fan.NewRing(s.b.cfg.Limits.RingBytes, s.b.cfg.Limits.RingBatches), life: s.life}
	f.offset = f.fan.Join(f.ring)
	s.info.Start = f.offset
	s.info.End = s.info.Start
	s.feed = f
}

func (f *fanFeed) close() { f.fan.Leave(f.ring) }

func (f *fanFeed) next(ctx context.Context, maxBytes int) (Event, error) {
	for {
		if t, ok := f.ring.Take(maxBytes); ok {
			f.offset, f.atEnd = t.Next, false
			return Event{Kind: EventData, Batches: t.Batches, Records: t.Records, Next: t.Next, Dropped: t.Dropped}, nil
		}
		if !f.atEnd {
			f.atEnd = true
			return Event{Kind: EventAtEnd, Next: f.offset}, nil
		}
		select {
		case <-f.ring.Wake:
		case <-f.life.Done():
			return Event{}, context.Cause(f.life)
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}
