package danube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	api "github.com/leveemq/levee/api/danube"
	"google.golang.org/grpc"
)

// ConsumerConfig says what to consume.
type ConsumerConfig struct {
	Topic, Name, Subscription string
	Type                      api.ConsumerRequest_SubscriptionType
	Filters                   []string
	// Told, unless nil, is called when the broker has said that the consumer must subscribe again, and Subscribed, unless
	// nil, whenever it has: by partition, from any goroutine.
	Told, Subscribed func()
}

// Consumer receives messages, as a Danube client does.
type Consumer struct {
	// Messages is closed when nothing more can come: Err says why.
	Messages <-chan *api.StreamMessage

	cfg    ConsumerConfig
	parts  map[string]*topicConsumer
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu  sync.Mutex
	err error
}

// Consumer subscribes to every partition of a topic and begins to receive.
func (c *Client) Consumer(ctx context.Context, cfg ConsumerConfig) (*Consumer, error) {
	seed, err := c.Conn(c.Seed)
	if err != nil {
		return nil, err
	}
	resp, err := api.NewDiscoveryClient(seed).TopicPartitions(ctx, &api.TopicLookupRequest{RequestId: c.requests.Add(1), Topic: cfg.Topic})
	if err != nil {
		return nil, err
	}
	if len(resp.Partitions) == 0 {
		return nil, errors.New("no partitions found")
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	messages := make(chan *api.StreamMessage, 100)
	con := &Consumer{Messages: messages, cfg: cfg, parts: map[string]*topicConsumer{}, cancel: cancel}
	for _, topic := range resp.Partitions {
		tc := &topicConsumer{c: c, cfg: cfg, topic: topic, life: life, addr: c.Seed, out: messages}
		if err := tc.subscribe(ctx); err != nil {
			cancel()
			return nil, err
		}
		con.parts[topic] = tc
	}
	for _, tc := range con.parts {
		con.done.Go(func() {
			err := tc.run(life)
			con.mu.Lock()
			defer con.mu.Unlock()
			if con.err == nil {
				con.err = err
			}
		})
	}
	go func() {
		con.done.Wait()
		close(messages)
	}()
	return con, nil
}

// ID returns the id that the broker gave the consumer of a topic or partition.
func (c *Consumer) ID(topic string) uint64 {
	_, id := c.parts[topic].at()
	return id
}

// Err says why nothing more comes.
func (c *Consumer) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends it; the broker is not told.
func (c *Consumer) Close() {
	c.cancel()
	for range c.Messages {
	}
}

// Ack acknowledges a message, on the connection of the topic that it names: there has to be one.
func (c *Consumer) Ack(ctx context.Context, m *api.StreamMessage) error {
	tc := c.parts[m.GetMsgId().GetTopicName()]
	if tc == nil {
		return fmt.Errorf("message %v is of no topic that was subscribed to", m.MsgId)
	}
	conn, _ := tc.at()
	resp, err := api.NewConsumerServiceClient(conn).Ack(ctx, &api.AckRequest{RequestId: m.RequestId, MsgId: m.MsgId, SubscriptionName: c.cfg.Subscription})
	if err == nil && resp.RequestId != m.RequestId {
		err = fmt.Errorf("ack %d was answered as %d", m.RequestId, resp.RequestId)
	}
	return err
}

// Nack gives a message back; delayMs nil leaves the delay to the broker.
func (c *Consumer) Nack(ctx context.Context, m *api.StreamMessage, delayMs *uint64, reason string) error {
	tc := c.parts[m.GetMsgId().GetTopicName()]
	if tc == nil {
		return fmt.Errorf("message %v is of no topic that was subscribed to", m.MsgId)
	}
	conn, _ := tc.at()
	_, err := api.NewConsumerServiceClient(conn).Nack(ctx, &api.NackRequest{
		RequestId: m.RequestId, MsgId: m.MsgId, SubscriptionName: c.cfg.Subscription, DelayMs: delayMs, Reason: &reason,
	})
	return err
}

// topicConsumer is the part of a consumer that receives from one topic.
type topicConsumer struct {
	c     *Client
	cfg   ConsumerConfig
	topic string
	life  context.Context
	out   chan<- *api.StreamMessage

	addr   string
	closed atomic.Bool // the broker said CLOSE

	mu   sync.Mutex
	conn *grpc.ClientConn // guarded by mu; it subscribes again while others acknowledge
	id   uint64           // guarded by mu
}

// at returns where it is subscribed, and as whom.
func (t *topicConsumer) at() (*grpc.ClientConn, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conn, t.id
}

func (t *topicConsumer) subscribe(ctx context.Context) error {
	err := t.c.announce(ctx, &t.addr, t.topic, func(conn *grpc.ClientConn) error {
		resp, err := api.NewConsumerServiceClient(conn).Subscribe(ctx, &api.ConsumerRequest{
			RequestId: t.c.requests.Add(1), TopicName: t.topic, ConsumerName: t.cfg.Name, Subscription: t.cfg.Subscription,
			SubscriptionType: t.cfg.Type, KeyFilters: t.cfg.Filters,
		})
		if err == nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.conn, t.id = conn, resp.ConsumerId
		}
		return err
	})
	if err != nil {
		return err
	}
	t.closed.Store(false)
	if t.cfg.Subscribed != nil {
		t.cfg.Subscribed()
	}
	conn, id := t.at()
	t.c.check(t.life, conn, api.HealthCheckRequest_Consumer, id, func() {
		if t.cfg.Told != nil {
			t.cfg.Told()
		}
		t.closed.Store(true)
	})
	return nil
}

// run receives until ctx ends or a client would stop for good. It subscribes again only where the broker said CLOSE: a
// stream that opens counts as success, so that the number of tries never gets to where one would subscribe again.
func (t *topicConsumer) run(ctx context.Context) error {
	for n := 1; ; n++ {
		err := t.receive(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case t.closed.Load():
			if err := t.subscribe(ctx); err != nil {
				return fmt.Errorf("subscribe to %s again: %w", t.topic, err)
			}
			n = 0
		case !retriable(err):
			return fmt.Errorf("receive from %s: %w", t.topic, err)
		default:
			backoff(ctx, min(n, 2))
		}
	}
}

func (t *topicConsumer) receive(ctx context.Context) error {
	conn, id := t.at()
	stream, err := api.NewConsumerServiceClient(conn).ReceiveMessages(ctx, &api.ReceiveRequest{RequestId: t.c.requests.Add(1), ConsumerId: id})
	if err != nil {
		return err
	}
	for !t.closed.Load() {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the stream ended cleanly, which ends a client for good")
		}
		if err != nil {
			return err
		}
		select {
		case t.out <- m:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
