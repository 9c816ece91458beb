package grpc

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/leveemq/levee/internal/broker"
)

func (b *fakeBroker) OpenConsumer(_ context.Context, spec broker.ConsumerSpec) (consumer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.joined = spec
	if b.openErr != nil {
		return nil, b.openErr
	}
	return b.cons, nil
}

// fakeConsumer gives out what the test puts into events, a broker.ConsumerEvent or an error, and keeps what is settled.
type fakeConsumer struct {
	events chan any
	news   chan any   // of those what needs no credit; Next does not look here
	save   chan error // Save waits for it

	mu     sync.Mutex
	info   broker.ConsumerInfo // guarded by mu
	asked  []int               // maxBytes of each Next; guarded by mu
	calls  []string            // settle, heartbeat, save, close, in order; guarded by mu
	acks   []broker.Range      // guarded by mu
	below  []int64             // guarded by mu
	nacks  []broker.Nack       // guarded by mu
	refuse error               // Settle's answer; guarded by mu
}

func newFakeConsumer() *fakeConsumer {
	return &fakeConsumer{events: make(chan any, 100), news: make(chan any, 100), save: make(chan error, 100), info: broker.ConsumerInfo{
		TopicID: [16]byte{1, 2}, Partitions: 4, Type: broker.Shared, Name: "me", Position: 5, Reliable: true, AckTimeout: 60e9,
	}}
}

func (c *fakeConsumer) called(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, what)
}

func (c *fakeConsumer) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

func (c *fakeConsumer) bytesAsked() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}

func (c *fakeConsumer) Info() broker.ConsumerInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.info
}

func (c *fakeConsumer) Next(ctx context.Context, maxBytes int) (broker.ConsumerEvent, error) {
	c.mu.Lock()
	c.asked = append(c.asked, maxBytes)
	c.mu.Unlock()
	select {
	case e := <-c.events:
		return eventOf(e)
	case <-ctx.Done():
		return broker.ConsumerEvent{}, ctx.Err()
	}
}

func (c *fakeConsumer) News(ctx context.Context, room <-chan struct{}) (broker.ConsumerEvent, bool, error) {
	select {
	case e := <-c.news:
		event, err := eventOf(e)
		return event, err == nil, err
	case <-room:
		return broker.ConsumerEvent{}, false, nil
	case <-ctx.Done():
		return broker.ConsumerEvent{}, false, ctx.Err()
	}
}

func eventOf(e any) (broker.ConsumerEvent, error) {
	switch e := e.(type) {
	case error:
		return broker.ConsumerEvent{}, e
	case broker.ConsumerEvent:
		return e, nil
	}
	return broker.ConsumerEvent{}, errors.New("fake: neither an event nor an error")
}

func (c *fakeConsumer) Settle(s broker.Settlement) error {
	c.called("settle")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acks = append(c.acks, s.Acks...)
	c.nacks = append(c.nacks, s.Nacks...)
	c.below = append(c.below, s.Below)
	return c.refuse
}

func (c *fakeConsumer) Heartbeat() { c.called("heartbeat") }

func (c *fakeConsumer) Save(ctx context.Context) error {
	c.called("save")
	select {
	case err := <-c.save:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *fakeConsumer) Close() { c.called("close") }

// fakeSubscriptions keeps the arguments of the last call and answers with what the test has set.
type fakeSubscriptions struct {
	spec      broker.SubscriptionSpec
	set       broker.SubscriptionSettings
	unset     []string
	topic     string
	name      string
	partition int32
	to        broker.Position
	most      int

	info    broker.SubscriptionInfo
	letters []broker.DeadLetter
	err     error
}

func (f *fakeSubscriptions) CreateSubscription(_ context.Context, spec broker.SubscriptionSpec) (broker.SubscriptionInfo, error) {
	f.spec = spec
	return f.info, f.err
}

func (f *fakeSubscriptions) Subscriptions(_ context.Context, topic string) ([]broker.SubscriptionInfo, error) {
	f.topic = topic
	return []broker.SubscriptionInfo{f.info, f.info}, f.err
}

func (f *fakeSubscriptions) DescribeSubscription(_ context.Context, topic, name string) (broker.SubscriptionInfo, error) {
	f.topic, f.name = topic, name
	return f.info, f.err
}

func (f *fakeSubscriptions) SetSubscription(_ context.Context, topic, name string, set broker.SubscriptionSettings, unset []string) (broker.SubscriptionInfo, error) {
	f.topic, f.name, f.set, f.unset = topic, name, set, unset
	return f.info, f.err
}

func (f *fakeSubscriptions) SeekSubscription(_ context.Context, topic, name string, partition int32, to broker.Position) error {
	f.topic, f.name, f.partition, f.to = topic, name, partition, to
	return f.err
}

func (f *fakeSubscriptions) DeleteSubscription(_ context.Context, topic, name string) error {
	f.topic, f.name = topic, name
	return f.err
}

func (f *fakeSubscriptions) DeadLetters(_ context.Context, topic, name string, most int, each func(broker.DeadLetter) error) error {
	f.topic, f.name, f.most = topic, name, most
	for _, d := range f.letters {
		if err := each(d); err != nil {
			return err
		}
	}
	return f.err
}

func (f *fakeSubscriptions) RedriveDeadLetters(ctx context.Context, topic, name string, each func(broker.DeadLetter) error) (int, error) {
	err := f.DeadLetters(ctx, topic, name, 0, each)
	return len(f.letters), err
}

func (f *fakeSubscriptions) PurgeDeadLetters(_ context.Context, topic, name string) (int, error) {
	f.topic, f.name = topic, name
	return len(f.letters), f.err
}
