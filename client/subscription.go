package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"path"
	"sync"
	"time"
)

// SubscriptionType says who of a subscription's consumers is handed out what.
type SubscriptionType string

// The subscription types.
const (
	Exclusive SubscriptionType = "exclusive"  // one consumer; another is refused while it is connected
	Shared    SubscriptionType = "shared"     // each record to one consumer, whoever asks first
	Failover  SubscriptionType = "failover"   // one consumer at a time; the next takes over when it is gone
	KeyShared SubscriptionType = "key_shared" // as Shared, but records of one key to one consumer, in order
)

// SubscriptionConfig says how to consume a subscription. The zero value of a field means its default.
type SubscriptionConfig struct {
	// Create makes the subscription where there is none: of type Type (default Exclusive), from From on in each partition
	// (default Earliest). Without it a missing subscription is an error of kind not_found.
	Create bool
	From   Position
	// Type is the subscription's; another than the one it has is an error of kind conflict. Default: whatever it is.
	Type SubscriptionType

	// Name is this consumer's, unique in the subscription: whoever has it already is taken over from, and ends with an
	// error of kind fenced. Default: a random one.
	Name string
	// Priority orders the consumers of a failover subscription: the lowest is active, by name among equals.
	Priority int32
	// KeyFilters are globs (see path.Match): only records with a key that one of them matches are wanted. Default: all.
	KeyFilters []string
	// Partitions to consume. Default: all of the topic.
	Partitions []int32

	// WindowMessages and WindowBytes bound what this consumer holds unsettled in each partition, what waits here
	// unhandled among it: where handling takes long, a small window leaves more to other consumers. Default: the
	// subscription's.
	WindowMessages int32
	WindowBytes    int64
	// CreditBytes bounds how much the broker sends ahead of what the caller has taken, in bytes as stored, shared evenly
	// by the partitions, each having 64 KiB at least and one batch more. Default 4 MiB.
	CreditBytes int64
	// MaxBytes bounds one delivery; a single larger batch is delivered all the same. Default: the broker's, 1 MiB.
	MaxBytes int32

	// Acknowledgements are sent when there are AckEvery, or the first of them has waited for AckDelay. Defaults 256 and
	// 10 ms; with AckEvery 1 each is sent at once.
	AckEvery int
	AckDelay time.Duration
	// HeartbeatEvery is how often the broker is told that this consumer lives, as long as it holds anything, which keeps
	// the subscription's ack timeout from running out. Default: a third of that timeout, or 10 s where there is none;
	// negative: never.
	HeartbeatEvery time.Duration

	// OnActive is told, for a failover subscription, whether this consumer is the active one of a partition, first when it
	// has opened. OnLost is told of offsets that a crash of the broker's machine has lost, and OnSkipped of those that
	// retention removed before they were settled, from and to included; both count as settled. All are called by Next and
	// NextBatch, in order with the messages; they must not call the Subscription.
	OnActive  func(partition int32, active bool)
	OnLost    func(partition int32, from, to int64)
	OnSkipped func(partition int32, from, to int64)
}

func (c SubscriptionConfig) withDefaults() SubscriptionConfig {
	if c.Name == "" {
		c.Name = fmt.Sprintf("go-%016x", rand.Uint64()) //nolint:gosec // a name, not a secret
	}
	if c.CreditBytes == 0 {
		c.CreditBytes = 4 << 20
	}
	if c.AckEvery == 0 {
		c.AckEvery = 256
	}
	if c.AckDelay == 0 {
		c.AckDelay = 10 * time.Millisecond
	}
	return c
}

// Validate returns every problem of c at once, or nil.
func (c SubscriptionConfig) Validate() error {
	var problems []error
	seen := map[int32]bool{}
	for _, p := range c.Partitions {
		if p < 0 || seen[p] {
			problems = append(problems, fmt.Errorf("partition %d is negative or named twice", p))
		}
		seen[p] = true
	}
	for _, f := range c.KeyFilters {
		if _, err := path.Match(f, ""); err != nil {
			problems = append(problems, fmt.Errorf("key filter %q: %w", f, err))
		}
	}
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"WindowMessages", int64(c.WindowMessages)}, {"WindowBytes", c.WindowBytes}, {"CreditBytes", c.CreditBytes},
		{"MaxBytes", int64(c.MaxBytes)}, {"AckEvery", int64(c.AckEvery)}, {"AckDelay", int64(c.AckDelay)},
	} {
		if n.value < 0 {
			problems = append(problems, fmt.Errorf("%s is negative", n.name))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return &Error{Kind: KindInvalidArgument, Message: "subscription: " + err.Error()}
	}
	return nil
}

// Subscription is one consumer of a subscription, in some or all partitions of its topic. It hands out deliveries, takes
// what became of them, and reconnects by itself. What was handed out before it lost the broker may be acknowledged
// after that all the same; the broker may meanwhile have handed it out again.
//
// Next, NextBatch and All must be called by one goroutine at a time; everything else may be called at any time.
type Subscription struct {
	client *Client
	topic  string
	name   string
	config SubscriptionConfig

	ctx     context.Context // ends to make every goroutine return
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	wake    chan struct{} // holds one: there may be an event
	closing chan struct{} // closed by Close: what is acknowledged is sent, and nothing more handed out

	// Of the goroutine that calls Next.
	current []Delivery // decoded and not handed out
	taken   refund     // for the batch that current came from

	mu sync.Mutex
	// Guarded by mu, as is most of the outlets.
	topicID    []byte
	partitions int32 // the topic's
	outlets    []*outlet
	ready      []*outlet // have an event, next one first
	failed     error     // what ended the Subscription
	closed     bool      // closing is closed
}

// refund is credit that is returned once deliveries are handed out.
type refund struct {
	outlet *outlet
	bytes  int64
}

// Subscribe consumes a subscription of topic ("namespace/name", or a name in namespace "default"). It waits until the
// broker has opened every partition, and retries what can be retried until ctx ends; ctx is not used any more after that.
// It fails with kind conflict where the subscription is exclusive and another consumer has it (details: consumer), or
// is of another type (details: type). The caller must Close the Subscription.
func (c *Client) Subscribe(ctx context.Context, topic, subscription string, config SubscriptionConfig) (*Subscription, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	s := &Subscription{
		client: c, topic: topic, name: subscription, config: config.withDefaults(),
		wake: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	if err := s.start(ctx); err != nil {
		s.cancel()
		s.wg.Wait()
		return nil, err
	}
	return s, nil
}

// start opens the partitions. The first one tells how many there are.
func (s *Subscription) start(ctx context.Context) error {
	partitions := s.config.Partitions
	if len(partitions) > 0 {
		return s.openAll(ctx, partitions, len(partitions))
	}
	if err := s.openAll(ctx, []int32{0}, 0); err != nil {
		return err
	}
	s.mu.Lock()
	n := s.partitions
	s.outlets[0].setCredit(s.share(int(n)))
	s.mu.Unlock()
	for p := int32(1); p < n; p++ {
		partitions = append(partitions, p)
	}
	return s.openAll(ctx, partitions, int(n))
}

// share returns how many bytes of credit each of n partitions has.
func (s *Subscription) share(n int) int64 {
	return max(s.config.CreditBytes/int64(max(n, 1)), min(leastCredit, s.config.CreditBytes))
}

// openAll starts consuming partitions and waits until each has opened once. Each has its share of the credit among all of
// them; none for now if all is 0.
func (s *Subscription) openAll(ctx context.Context, partitions []int32, all int) error {
	outlets := make([]*outlet, len(partitions))
	for i, p := range partitions {
		outlets[i] = newOutlet(s, p)
		if all > 0 {
			outlets[i].credit = s.share(all)
		}
	}
	s.mu.Lock()
	s.outlets = append(s.outlets, outlets...)
	s.mu.Unlock()
	for _, o := range outlets {
		if !s.client.spawn(&s.wg, o.run) {
			return errClientClosed
		}
	}
	for _, o := range outlets {
		select {
		case <-o.opened:
		case <-s.ctx.Done():
			return errClientClosed
		case <-ctx.Done():
			s.mu.Lock()
			last := o.last
			s.mu.Unlock()
			return gaveUp(ctx, fmt.Sprintf("opening partition %d of subscription %s of %s", o.partition, s.name, s.topic), last)
		}
		s.mu.Lock()
		refusal := o.refusal
		s.mu.Unlock()
		if refusal != nil {
			return refusal
		}
	}
	return nil
}

// Next returns the next delivery. It waits until there is one, or ctx ends, and fails for good with an error that is not
// ctx's own: of kind fenced when another consumer of the same name has taken over, deleted when the topic or the
// subscription is gone, trimmed (details: requested, oldest) when retention has removed what is next and the subscription
// does not skip that, conflict when another consumer got an exclusive subscription while the broker was away, corrupt when
// a batch is not what was written.
func (s *Subscription) Next(ctx context.Context) (*Delivery, error) {
	for {
		for len(s.current) == 0 {
			if err := s.advance(ctx); err != nil {
				return nil, err
			}
		}
		d := &s.current[0]
		s.current = s.current[1:]
		if d.isOurs() {
			return d, nil
		}
		s.current = nil // the broker hands them out again
	}
}

// NextBatch is Next for all deliveries of a batch at once, at least one, all of one partition. The slice is the caller's.
func (s *Subscription) NextBatch(ctx context.Context) ([]Delivery, error) {
	for {
		for len(s.current) == 0 {
			if err := s.advance(ctx); err != nil {
				return nil, err
			}
		}
		batch := s.current
		s.current = nil
		if batch[0].isOurs() {
			return batch, nil
		}
	}
}

// All returns what Next does, until Next fails: that error is the last pair.
func (s *Subscription) All(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		for {
			d, err := s.Next(ctx)
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// Name returns the consumer's name, as configured or made up.
func (s *Subscription) Name() string { return s.config.Name }

// Type returns the subscription's type.
func (s *Subscription) Type() SubscriptionType {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outlets[0].kind
}

// advance handles the next event: a batch becomes current, others are told. It waits for one if there is none.
func (s *Subscription) advance(ctx context.Context) error {
	s.payBack()
	for {
		o, ev, err := s.nextEvent()
		if err != nil {
			return err
		}
		if o != nil {
			return s.handle(o, ev)
		}
		select {
		case <-s.wake:
		case <-s.closing:
		case <-s.ctx.Done():
		case <-ctx.Done():
			return gaveUp(ctx, "waiting for a delivery", nil)
		}
	}
}

// nextEvent takes the next event from the partition whose turn it is; a nil outlet means that there is none.
func (s *Subscription) nextEvent() (*outlet, delivered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return nil, delivered{}, s.failed
	case s.closed || s.ctx.Err() != nil:
		return nil, delivered{}, errSubscriptionClosed
	case len(s.ready) == 0:
		return nil, delivered{}, nil
	}
	o := shift(&s.ready)
	ev := shift(&o.events)
	if len(o.events) > 0 {
		s.ready = append(s.ready, o)
	}
	return o, ev, nil
}

var errSubscriptionClosed = &Error{Kind: KindCanceled, Message: "the subscription is closed"}

func (s *Subscription) handle(o *outlet, ev delivered) error {
	switch ev.kind {
	case deliveredBatch:
		deliveries, err := o.decode(ev)
		if err != nil {
			return s.fail(err)
		}
		s.current = deliveries
		s.taken = refund{o, int64(len(ev.batch))}
	case deliveredActive:
		if s.config.OnActive != nil {
			s.config.OnActive(o.partition, ev.active)
		}
	case deliveredLost:
		if s.config.OnLost != nil {
			s.config.OnLost(o.partition, ev.from, ev.to)
		}
	case deliveredSkipped:
		if s.config.OnSkipped != nil {
			s.config.OnSkipped(o.partition, ev.from, ev.to)
		}
	case deliveredError:
		return s.fail(ev.err)
	}
	return nil
}

// fail ends the Subscription: every further Next returns err.
func (s *Subscription) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
	return s.failed
}

// payBack owes the broker what the batch handed out last cost.
func (s *Subscription) payBack() {
	o, bytes := s.taken.outlet, s.taken.bytes
	s.taken = refund{}
	if o == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o.held -= bytes
	o.owed += bytes
	if o.creditDue() {
		o.poke()
	}
}

// Close sends what was acknowledged, leaves the subscription, and waits until every goroutine of s has returned. What
// was handed out and is not settled, the broker hands out again. When ctx ends first, acknowledgements may be lost, and
// the error says so. It may be called twice.
func (s *Subscription) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, s.cancel)
	s.wg.Wait() // soon after s.ctx is done, at the latest
	stop()
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.outlets {
		if !o.box.empty() && s.failed == nil {
			return gaveUpClosing(ctx, o)
		}
	}
	return nil
}

func gaveUpClosing(ctx context.Context, o *outlet) error {
	message := fmt.Sprintf("acknowledgements of partition %d were not sent", o.partition)
	if ctx.Err() != nil {
		return gaveUp(ctx, message, o.last)
	}
	e := newError(KindUnavailable, "%s", message)
	e.Retriable = true
	if o.last != nil {
		e.Message += "; last error: " + o.last.Error()
	}
	return e
}
