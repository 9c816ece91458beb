package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/leveemq/levee/record"
)

// ConsumerConfig says what a Consumer reads and how. The zero value of a field means its default.
type ConsumerConfig struct {
	// Partitions to read. Default: all of the topic.
	Partitions []int32
	// From is where to begin in each partition that Positions does not name. Default Earliest.
	From Position
	// Positions says where to begin in single partitions, e.g. what Consumer.Positions returned earlier.
	Positions map[int32]Position
	// CreditBytes bounds how much the broker sends ahead of what the caller has taken, in bytes as stored, shared evenly
	// by the partitions, each having 64 KiB at least and one batch more. Default 4 MiB.
	CreditBytes int64
	// MaxBytes bounds one delivery; a single larger batch is delivered all the same. Default: the broker's, 1 MiB.
	MaxBytes int32

	// OnLost is told of offsets that a crash of the broker's machine has lost, from and to included; delivery goes on
	// behind them. OnCaughtUp is told, each time the end of a partition is reached, the offset that will be written next.
	// Both are called by Next and NextBatch, in order with the messages; they must not call the Consumer.
	OnLost     func(partition int32, from, to int64)
	OnCaughtUp func(partition int32, offset int64)
}

// leastCredit is a partition's share at least: less would make one round trip per batch.
const leastCredit = 64 << 10

func (c ConsumerConfig) withDefaults() ConsumerConfig {
	if c.CreditBytes == 0 {
		c.CreditBytes = 4 << 20
	}
	return c
}

// Validate returns every problem of c at once, or nil.
func (c ConsumerConfig) Validate() error {
	var problems []error
	seen := map[int32]bool{}
	for _, p := range c.Partitions {
		if p < 0 || seen[p] {
			problems = append(problems, fmt.Errorf("partition %d is negative or named twice", p))
		}
		seen[p] = true
	}
	if c.CreditBytes < 0 {
		problems = append(problems, errors.New("CreditBytes is negative"))
	}
	if c.MaxBytes < 0 {
		problems = append(problems, errors.New("MaxBytes is negative"))
	}
	if err := errors.Join(problems...); err != nil {
		return &Error{Kind: KindInvalidArgument, Message: "consumer: " + err.Error()}
	}
	return nil
}

// Message is a record and where it came from. Its slices are the receiver's; those of one batch share one piece of
// memory, which lives as long as any of them.
type Message struct {
	record.Record // with its offset
	Topic         string
	Partition     int32
}

// Consumer reads a topic's partitions, taking turns among those that have something. It reconnects by itself and goes
// on where it was. Next, NextBatch and All must be called by one goroutine at a time; everything else may be called at
// any time.
type Consumer struct {
	client *Client
	topic  string
	config ConsumerConfig

	ctx    context.Context // ends to make every goroutine return
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{} // holds one: there may be an event
	owing  chan struct{} // holds one: there may be credit to return

	// Of the goroutine that calls Next.
	current []Message // decoded and not handed out
	taken   payback   // for the batch that current came from

	mu sync.Mutex
	// Guarded by mu.
	topicID    []byte
	partitions int32 // the topic's
	readers    []*reader
	ready      []*reader // have an event, next one first
	debtors    []*reader // have credit to return
	failed     error     // what ended the Consumer
	lost       int64
	dropped    int64
}

// payback is credit that is returned once messages are handed out.
type payback struct {
	reader *reader
	bytes  int64
}

// Consume returns a Consumer of topic ("namespace/name", or a name in namespace "default"), which must exist. It waits
// until the broker has opened every partition, so that from then on nothing is missed with Latest, and retries what can
// be retried until ctx ends; ctx is not used any more after that. The caller must Close the Consumer.
func (c *Client) Consume(ctx context.Context, topic string, config ConsumerConfig) (*Consumer, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	consumer := &Consumer{
		client: c,
		topic:  topic,
		config: config.withDefaults(),
		wake:   make(chan struct{}, 1),
		owing:  make(chan struct{}, 1),
	}
	consumer.ctx, consumer.cancel = context.WithCancel(c.ctx)
	if err := consumer.start(ctx); err != nil {
		consumer.Close()
		return nil, err
	}
	return consumer, nil
}

// start opens the partitions. The first one tells how many there are.
func (c *Consumer) start(ctx context.Context) error {
	if !c.client.spawn(&c.wg, c.returnCredit) {
		return errClientClosed
	}
	partitions := c.config.Partitions
	if len(partitions) > 0 {
		return c.openAll(ctx, c.newReaders(partitions, len(partitions))...)
	}
	first := c.newReaders([]int32{0}, 0)
	if err := c.openAll(ctx, first...); err != nil {
		return err
	}
	c.mu.Lock()
	n := c.partitions
	c.mu.Unlock()
	first[0].setCredit(c.share(int(n)))
	for p := int32(1); p < n; p++ {
		partitions = append(partitions, p)
	}
	return c.openAll(ctx, c.newReaders(partitions, int(n))...)
}

// newReaders makes the readers of some partitions, each with its share among all of them; none for now if all is 0.
func (c *Consumer) newReaders(partitions []int32, all int) []*reader {
	readers := make([]*reader, len(partitions))
	for i, p := range partitions {
		readers[i] = c.newReader(p)
		if all > 0 {
			readers[i].credit = c.share(all)
		}
	}
	return readers
}

// share returns how many bytes of credit each of n partitions has.
func (c *Consumer) share(n int) int64 {
	return max(c.config.CreditBytes/int64(max(n, 1)), min(leastCredit, c.config.CreditBytes))
}

// openAll starts readers and waits until each has opened once.
func (c *Consumer) openAll(ctx context.Context, readers ...*reader) error {
	c.mu.Lock()
	c.readers = append(c.readers, readers...)
	c.mu.Unlock()
	for _, r := range readers {
		if !c.client.spawn(&c.wg, r.run) {
			return errClientClosed
		}
	}
	for _, r := range readers {
		select {
		case <-r.opened:
		case <-c.ctx.Done():
			return errClientClosed
		case <-ctx.Done():
			return gaveUp(ctx, fmt.Sprintf("opening partition %d of %s", r.partition, c.topic), r.lastError())
		}
		if err := r.refused(); err != nil {
			return err
		}
	}
	return nil
}

// Next returns the next message. It waits until there is one, or ctx ends, and fails for good with an error that is not
// ctx's own: of kind trimmed (details: requested, oldest) when retention has removed what is next to be read, deleted when
// the topic is gone, corrupt when a batch is not what was written. Messages received before the error come before it.
func (c *Consumer) Next(ctx context.Context) (Message, error) {
	for len(c.current) == 0 {
		if err := c.advance(ctx); err != nil {
			return Message{}, err
		}
	}
	m := c.current[0]
	c.current = c.current[1:]
	c.taken.reader.passed(m.Offset + 1)
	return m, nil
}

// NextBatch is Next for all messages of a batch at once, at least one, all of one partition. The slice is the caller's.
func (c *Consumer) NextBatch(ctx context.Context) ([]Message, error) {
	for len(c.current) == 0 {
		if err := c.advance(ctx); err != nil {
			return nil, err
		}
	}
	batch := c.current
	c.current = nil
	c.taken.reader.passed(batch[len(batch)-1].Offset + 1)
	return batch, nil
}

// All returns what Next does, until Next fails: that error is the last pair.
func (c *Consumer) All(ctx context.Context) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for {
			m, err := c.Next(ctx)
			if !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// Positions returns the position behind the last message that was handed out, for each partition: where to begin to go
// on. A partition that has handed out nothing is at the offset its reading began at.
func (c *Consumer) Positions() map[int32]Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	positions := make(map[int32]Position, len(c.readers))
	for _, r := range c.readers {
		positions[r.partition] = Offset(r.handed)
	}
	return positions
}

// Lost returns how many offsets the broker has said are lost in a crash, among those passed so far.
func (c *Consumer) Lost() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Dropped returns how many messages of a non-reliable topic the broker has dropped because this Consumer was slow.
func (c *Consumer) Dropped() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// Close ends reading and waits until every goroutine of c has returned. Next returns an error of kind canceled then. It
// may be called twice.
func (c *Consumer) Close() {
	c.cancel()
	c.wg.Wait()
}

// advance handles the next event: a batch becomes current, others are told. It waits for one if there is none.
func (c *Consumer) advance(ctx context.Context) error {
	c.payBack()
	for {
		if c.ctx.Err() != nil {
			return &Error{Kind: KindCanceled, Message: "the consumer is closed"}
		}
		r, ev, err := c.nextEvent()
		if err != nil {
			return err
		}
		if r != nil {
			return c.handle(r, ev)
		}
		select {
		case <-c.wake:
		case <-c.ctx.Done():
		case <-ctx.Done():
			return gaveUp(ctx, "waiting for a message", nil)
		}
	}
}

// nextEvent takes the next event from the partition whose turn it is; a nil reader means that there is none.
func (c *Consumer) nextEvent() (*reader, event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return nil, event{}, c.failed
	}
	if len(c.ready) == 0 {
		return nil, event{}, nil
	}
	r := shift(&c.ready)
	ev := shift(&r.events)
	if len(r.events) > 0 {
		c.ready = append(c.ready, r)
	}
	return r, ev, nil
}

// shift takes the first element off a list, which keeps no hold of it.
func shift[T any](list *[]T) (first T) {
	var none T
	first, (*list)[0] = (*list)[0], none
	*list = (*list)[1:]
	return first
}

func (c *Consumer) handle(r *reader, ev event) error {
	switch ev.kind {
	case batchEvent:
		messages, err := r.decode(ev)
		if err != nil {
			return c.fail(err)
		}
		c.current = messages
		c.taken = payback{r, int64(len(ev.batch))}
		if len(messages) == 0 {
			c.payBack()
		}
	case lostEvent:
		c.mu.Lock()
		c.lost += ev.to - ev.from + 1
		c.mu.Unlock()
		r.passed(ev.to + 1)
		if c.config.OnLost != nil {
			c.config.OnLost(r.partition, ev.from, ev.to)
		}
	case caughtUpEvent:
		if c.config.OnCaughtUp != nil {
			c.config.OnCaughtUp(r.partition, ev.to)
		}
	case failedEvent:
		return c.fail(ev.err)
	}
	return nil
}

// fail ends the Consumer: every further Next returns err.
func (c *Consumer) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
	return c.failed
}
