package danube

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	api "github.com/leveemq/levee/api/danube"
	schema "github.com/leveemq/levee/api/danube/schema"
	"google.golang.org/grpc"
)

// ProducerConfig says what to produce to.
type ProducerConfig struct {
	Topic, Name string
	Partitions  int // 0: the topic itself; else n topics named for it
	Reliable    bool
	Schema      *api.SchemaReference
}

// Producer publishes messages, as a Danube client does.
type Producer struct {
	parts  []*topicProducer
	next   atomic.Uint32
	cancel context.CancelFunc
}

// Message is what a user of a client sends.
type Message struct {
	Payload    []byte
	Key        *string
	Attributes map[string]string
}

// Producer announces a producer.
func (c *Client) Producer(ctx context.Context, cfg ProducerConfig) (*Producer, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &Producer{cancel: cancel}
	for n := range max(1, cfg.Partitions) {
		tp := &topicProducer{c: c, cfg: cfg, life: life, addr: c.Seed}
		if cfg.Partitions > 0 {
			tp.cfg.Topic, tp.cfg.Name = fmt.Sprint(cfg.Topic, "-part-", n), fmt.Sprint(cfg.Name, "-", n)
		}
		if err := tp.create(ctx); err != nil {
			cancel()
			return nil, err
		}
		p.parts = append(p.parts, tp)
	}
	return p, nil
}

// ID returns the id that the broker gave the producer of partition n.
func (p *Producer) ID(n int) uint64 { return p.parts[n].id }

// Close ends its health checks; the broker is not told.
func (p *Producer) Close() { p.cancel() }

// Partition returns where a key goes.
func (p *Producer) Partition(key string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum64() % uint64(len(p.parts)))
}

// Send publishes a message and waits for it, trying again until ctx ends.
func (p *Producer) Send(ctx context.Context, m Message) error {
	n := 0
	switch {
	case m.Key != nil:
		n = p.Partition(*m.Key)
	case len(p.parts) > 1:
		n = int(p.next.Add(1)-1) % len(p.parts)
	}
	return p.parts[n].send(ctx, m)
}

// topicProducer is the part of a producer that publishes to one topic.
type topicProducer struct {
	c    *Client
	cfg  ProducerConfig
	life context.Context // ends with the producer

	mu      sync.Mutex // one message at a time
	addr    string
	conn    *grpc.ClientConn
	id      uint64
	closed  atomic.Bool // the broker said CLOSE
	schema  *uint64
	version *uint32
}

func (p *topicProducer) create(ctx context.Context) error {
	req := &api.ProducerRequest{ProducerName: p.cfg.Name, TopicName: p.cfg.Topic, SchemaRef: p.cfg.Schema}
	if p.cfg.Reliable {
		req.DispatchStrategy = api.DispatchStrategy_Reliable
	}
	err := p.c.announce(ctx, &p.addr, p.cfg.Topic, func(conn *grpc.ClientConn) error {
		req.RequestId = p.c.requests.Add(1)
		resp, err := api.NewProducerServiceClient(conn).CreateProducer(ctx, req)
		if err == nil {
			p.conn, p.id = conn, resp.ProducerId
		}
		return err
	})
	if err != nil {
		return err
	}
	p.closed.Store(false)
	p.c.check(p.life, p.conn, api.HealthCheckRequest_Producer, p.id, func() { p.closed.Store(true) })
	if p.cfg.Schema == nil {
		return nil
	}
	return p.learnSchema(ctx)
}

// learnSchema finds out which schema messages are written with.
func (p *topicProducer) learnSchema(ctx context.Context) error {
	seed, err := p.c.Conn(p.c.Seed)
	if err != nil {
		return err
	}
	registry, ref := schema.NewSchemaRegistryClient(seed), p.cfg.Schema
	got, err := registry.GetLatestSchema(ctx, &schema.GetLatestSchemaRequest{Subject: ref.Subject})
	if err != nil {
		return err
	}
	if pinned, ok := ref.VersionRef.(*api.SchemaReference_PinnedVersion); ok && pinned.PinnedVersion != got.Version {
		got, err = registry.GetSchema(ctx, &schema.GetSchemaRequest{SchemaId: got.SchemaId, Version: &pinned.PinnedVersion})
		if err != nil {
			return err
		}
	}
	p.schema, p.version = &got.SchemaId, &got.Version
	return nil
}

func (p *topicProducer) send(ctx context.Context, m Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := 1; ; n++ {
		var err error
		if p.closed.Load() {
			err = p.create(ctx)
		}
		if err == nil {
			err = p.once(ctx, m)
		}
		switch {
		case err == nil || !retriable(err) || ctx.Err() != nil:
			return err
		case n > mostTries:
			p.closed.Store(true) // look up and announce again
			n = 0
		default:
			backoff(ctx, n)
		}
	}
}

func (p *topicProducer) once(ctx context.Context, m Message) error {
	req := &api.StreamMessage{
		RequestId: p.c.requests.Add(1), MsgId: &api.MsgID{ProducerId: p.id, TopicName: p.cfg.Topic, BrokerAddr: p.addr},
		Payload: m.Payload, PublishTime: uint64(time.Now().UnixMilli()), ProducerName: p.cfg.Name, Attributes: m.Attributes,
		SchemaId: p.schema, SchemaVersion: p.version, RoutingKey: m.Key,
	}
	resp, err := api.NewProducerServiceClient(p.conn).SendMessage(ctx, req)
	if err == nil && resp.RequestId != req.RequestId {
		err = fmt.Errorf("message %d was answered as %d", req.RequestId, resp.RequestId)
	}
	return err
}
