package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leveemq/levee/record"
)

// ProducerConfig says how a Producer sends. The zero value of a field means its default.
type ProducerConfig struct {
	// Compression of batches; one it does not make smaller is sent plain. Default none.
	Compression record.Codec
	// BatchBytes and BatchRecords bound a batch: bytes before compression (default 256 KiB; the broker's own limit
	// counts, too) and records (default 10,000). A single larger record makes a batch of its own.
	BatchBytes   int
	BatchRecords int
	// Linger is how long a batch waits for more records. Default 0: it goes as soon as the stream can take it, and
	// batches fill up while earlier ones are on their way. Times below a millisecond are longer in reality.
	Linger time.Duration
	// MaxInFlightBytes bounds the records that are not answered yet, in bytes before compression; Publish waits while
	// it is reached. A single record may exceed it when nothing else is in flight. Default 16 MiB.
	MaxInFlightBytes int64
	// MaxInFlight bounds the batches of one partition that are sent and not answered. Default 64.
	MaxInFlight int
	// Idempotent makes every record be stored once however often it had to be sent. See Producer.
	Idempotent bool
	// Partitioner chooses a record's partition. Default ByKey.
	Partitioner Partitioner
	// DeliveryTimeout is how long a record is retried, counted from when its batch was begun. Default 2 minutes.
	DeliveryTimeout time.Duration
}

func (c ProducerConfig) withDefaults() ProducerConfig {
	if c.BatchBytes == 0 {
		c.BatchBytes = 256 << 10
	}
	if c.BatchRecords == 0 {
		c.BatchRecords = 10_000
	}
	if c.MaxInFlightBytes == 0 {
		c.MaxInFlightBytes = 16 << 20
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 64
	}
	if c.Partitioner == nil {
		c.Partitioner = ByKey
	}
	if c.DeliveryTimeout == 0 {
		c.DeliveryTimeout = 2 * time.Minute
	}
	return c
}

// Validate returns every problem of c at once, or nil.
func (c ProducerConfig) Validate() error {
	var problems []error
	if c.Compression > record.Zstd {
		problems = append(problems, fmt.Errorf("unknown compression %d", c.Compression))
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"BatchBytes", int64(c.BatchBytes)},
		{"BatchRecords", int64(c.BatchRecords)},
		{"Linger", int64(c.Linger)},
		{"MaxInFlightBytes", c.MaxInFlightBytes},
		{"MaxInFlight", int64(c.MaxInFlight)},
		{"DeliveryTimeout", int64(c.DeliveryTimeout)},
	} {
		if f.value < 0 {
			problems = append(problems, fmt.Errorf("%s is negative", f.name))
		}
	}
	if c.BatchRecords > math.MaxInt32 {
		problems = append(problems, errors.New("BatchRecords is above 2^31-1"))
	}
	if err := errors.Join(problems...); err != nil {
		return &Error{Kind: KindInvalidArgument, Message: "producer: " + err.Error()}
	}
	return nil
}

// Ack says where a record went. With a topic's default settings it is on the broker's device by then.
type Ack struct {
	Partition int32
	Offset    int64 // -1: a duplicate that retention has removed meanwhile
	Duplicate bool  // an earlier attempt had stored it already
}

// Producer publishes records to one topic. It is safe for concurrent use.
//
// Records of one partition are sent in the order of their Publish calls, also when batches are refused or the
// connection breaks and they are sent again. Without Idempotent, delivery is at least once: a batch whose answer got
// lost is sent again, and may then be stored twice; and when the broker refuses one of several batches in flight,
// those behind it may be stored before it (MaxInFlight 1 prevents that, at the price of one batch per round trip).
// With Idempotent each record is stored once and in order: a batch sent again carries the same sequences and the
// broker recognises it. When a batch is given up all the same (its DeliveryTimeout passed, or the broker refused it for
// good), the batches of that partition that were made after it fail too, and later records go on under a new identity.
//
// Every record is answered exactly once. A Producer whose topic was deleted, or that was fenced or refused for good, fails
// every record from then on with that error.
type Producer struct {
	client  *Client
	topic   string
	config  ProducerConfig
	limits  limits
	topicID []byte

	ctx     context.Context // ends to make every goroutine return at once
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	wake    chan struct{} // holds one: the sender may have something to do
	closing chan struct{} // closed: the session ends when all that was sent is answered

	builders sync.Pool // of *record.Builder, reset

	mu sync.Mutex
	// Guarded by mu.
	state state
}

// limits are what the broker told when the first stream opened.
type limits struct {
	partitions  int32
	recordBytes int
	batchBytes  int
}

// NewProducer returns a Producer to topic ("namespace/name", or a name in namespace "default"), which must exist. It
// waits until the broker has taken it, retrying what can be retried until ctx ends; ctx is not used any more after that.
// The caller must Close the Producer.
func (c *Client) NewProducer(ctx context.Context, topic string, config ProducerConfig) (*Producer, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	p := &Producer{
		client:  c,
		topic:   topic,
		config:  config.withDefaults(),
		wake:    make(chan struct{}, 1),
		closing: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(c.ctx)
	first, err := p.openFirst(ctx)
	if err != nil {
		p.cancel()
		return nil, err
	}
	if !c.spawn(&p.wg, func() { p.run(first) }, p.watchDeadlines) {
		first.cancel()
		p.cancel()
		return nil, errClientClosed
	}
	return p, nil
}

// openFirst opens the first stream and, for an idempotent producer, gets its identity.
func (p *Producer) openFirst(ctx context.Context) (*stream, error) {
	var last error
	for attempt := 0; ; attempt++ {
		s, err := p.open(ctx)
		if err == nil {
			if err = p.adopt(ctx, s); err == nil {
				return s, nil
			}
			s.cancel()
		}
		if p.ctx.Err() != nil {
			return nil, errClientClosed
		}
		if ctx.Err() != nil { // err only says that ctx ended
			return nil, gaveUp(ctx, fmt.Sprintf("opening a producer to %s", p.topic), last)
		}
		if last = err; !streamError(err).Retriable {
			return nil, asError(err)
		}
		sleep(ctx, backoff(attempt))
	}
}

// adopt takes what the first stream told.
func (p *Producer) adopt(ctx context.Context, s *stream) error {
	n := s.opened.GetPartitions()
	if n <= 0 {
		return newError(KindInternal, "the broker says that topic %s has %d partitions", p.topic, n)
	}
	p.topicID = s.opened.GetTopicId()
	p.limits = limits{partitions: n, recordBytes: record.DefaultRecordBytes, batchBytes: record.DefaultBatchBytes}
	if b := s.opened.GetMaxRecordBytes(); b > 0 {
		p.limits.recordBytes = int(min(b, record.MaxBatchBytes))
	}
	if b := s.opened.GetMaxBatchBytes(); b > 0 {
		p.limits.batchBytes = int(min(b, record.MaxBatchBytes))
	}
	p.config.BatchBytes = min(p.config.BatchBytes, p.limits.batchBytes)
	id := record.NoProducer
	if p.config.Idempotent {
		var err error
		if id, err = p.newIdentity(ctx); err != nil {
			return err
		}
	}
	p.state = newState(n, id)
	p.state.sticky = rand.Int32N(n)
	return nil
}

// Partitions returns how many partitions the topic has.
func (p *Producer) Partitions() int32 { return p.limits.partitions }

// Publish sends r and calls done, unless it is nil, when the answer is known: exactly once, in the order of Publish calls
// within a partition. done must not block, as it holds up other answers, and must not call Flush or Close. A record that
// is refused at once (too large, ctx ended, Producer closed) is answered before Publish returns, without waiting its turn.
//
// Publish copies r before it returns. It waits while MaxInFlightBytes is reached; ctx bounds that wait only, not the
// delivery. A zero Timestamp becomes the present time.
func (p *Producer) Publish(ctx context.Context, r record.Record, done func(Ack, error)) {
	if err := p.enqueue(ctx, r, done); err != nil && done != nil {
		done(Ack{}, err)
	}
}

// PublishSync is Publish that waits for the answer. When ctx ends first the error is of kind outcome_unknown if the
// record may still be stored.
func (p *Producer) PublishSync(ctx context.Context, r record.Record) (Ack, error) {
	type answer struct {
		ack Ack
		err error
	}
	answers := make(chan answer, 1)
	if err := p.enqueue(ctx, r, func(a Ack, err error) { answers <- answer{a, err} }); err != nil {
		return Ack{}, err
	}
	select {
	case a := <-answers:
		return a.ack, a.err
	case <-ctx.Done():
		select {
		case a := <-answers:
			return a.ack, a.err
		default:
		}
		return Ack{}, &Error{
			Kind: KindOutcomeUnknown, Message: "the caller stopped waiting for the answer", Retriable: true, cause: ctx.Err(),
		}
	}
}

func (p *Producer) enqueue(ctx context.Context, r record.Record, done func(Ack, error)) error {
	if r.Timestamp == 0 {
		r.Timestamp = time.Now().UnixMilli()
	}
	size := r.Size()
	if limit := min(p.limits.recordBytes, p.limits.batchBytes-record.HeaderSize); size > limit {
		e := newError(KindTooLarge, "a record of %d bytes is above the limit of %d", size, limit)
		e.Details = map[string]string{"limit": fmt.Sprint(limit)}
		return e
	}
	partition := p.config.Partitioner(r, p.limits.partitions)
	if partition < -1 || partition >= p.limits.partitions {
		return newError(KindInvalidArgument, "partition %d: topic %s has %d", partition, p.topic, p.limits.partitions)
	}
	p.mu.Lock()
	if err := p.reserveLocked(ctx, int64(size)); err != nil {
		p.mu.Unlock()
		return err
	}
	wake, err := p.append(partition, &r, size, done)
	p.mu.Unlock()
	if wake {
		p.poke()
	}
	return err
}

// reserveLocked takes size bytes of the budget. It waits, without the lock, while there are none.
func (p *Producer) reserveLocked(ctx context.Context, size int64) error {
	if err := p.state.refuses(); err != nil {
		return err
	}
	w := p.state.budget.take(size, p.config.MaxInFlightBytes)
	if w == nil {
		return nil
	}
	p.mu.Unlock()
	select {
	case <-w.woken:
	case <-ctx.Done():
	}
	p.mu.Lock()
	has := p.state.budget.settle(w, p.config.MaxInFlightBytes)
	if err := p.state.refuses(); err != nil {
		if has {
			p.state.budget.give(size, p.config.MaxInFlightBytes)
		}
		return err
	}
	if !has {
		return gaveUp(ctx, "waiting for room to publish", nil)
	}
	return nil
}

// poke tells the sender to look for work.
func (p *Producer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Flush sends what is waiting, whatever Linger says, and waits until every record published before the call is answered
// and its callback has returned. It fails only when ctx ends first: how records fared, their callbacks tell.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	f := p.flushLocked()
	p.mu.Unlock()
	p.poke()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return gaveUp(ctx, "flushing", nil)
	}
}

// Close refuses new records, waits like Flush, and stops. Records that are not answered when ctx ends are answered with
// an error then, of kind outcome_unknown where they may be stored, and Close returns an error. Further calls do nothing.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.state.closed {
		p.mu.Unlock()
		p.wg.Wait()
		return nil
	}
	p.state.closed = true
	p.state.budget.wakeAll()
	p.mu.Unlock()
	err := p.Flush(ctx)
	close(p.closing)
	stop := context.AfterFunc(ctx, p.cancel)
	p.wg.Wait()
	stop()
	p.cancel()
	return err
}
