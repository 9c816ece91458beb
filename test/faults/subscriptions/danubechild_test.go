package subscriptions

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/test/compat/danube"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// danubeSpec is what else a consumer process is told that is a client of Danube's.
type danubeSpec struct {
	Type  api.ConsumerRequest_SubscriptionType
	Check time.Duration // between health checks
	Nack  int           // gives back every so manieth message, the first time
}

// danubeChild is such a process. It says what it is handed as soon as that has arrived, acknowledges a few messages at a
// time, each with a call, and says what it acknowledges before each call and after it.
type danubeChild struct {
	*childSpec
	client *danube.Client
	work   chan handed
	mu     sync.Mutex // one line at a time
	back   map[uint64]bool
}

type handed struct {
	from *danube.Consumer
	m    *api.StreamMessage
	e    event
}

func (c *childSpec) consumeDanube(ctx context.Context) error {
	d := &danubeChild{
		childSpec: c, client: &danube.Client{Seed: c.Addr, HealthEvery: c.Danube.Check}, work: make(chan handed, 1<<12), back: map[uint64]bool{},
	}
	defer d.client.Close()
	topics := []string{c.Topic}
	if c.Danube.Type == api.ConsumerRequest_Exclusive { // it may hold some partitions and wait for others
		conn, err := d.client.Conn(c.Addr)
		if err != nil {
			return err
		}
		resp, err := api.NewDiscoveryClient(conn).TopicPartitions(ctx, &api.TopicLookupRequest{Topic: c.Topic})
		if err != nil {
			return err
		}
		topics = resp.Partitions
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, topic := range topics {
		all.Go(func() { cancel(d.receive(ctx, topic)) })
	}
	all.Go(func() { cancel(d.settle(ctx)) })
	all.Wait()
	return context.Cause(ctx)
}

// receive consumes a topic. Where somebody else has it, or nobody answers, it tries again until that is over.
func (d *danubeChild) receive(ctx context.Context, topic string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	cfg := danube.ConsumerConfig{
		Topic: topic, Name: d.Name, Subscription: d.Subscription, Type: d.Danube.Type,
		Told:       func() { d.say(event{at: time.Now().UnixNano(), kind: left, who: d.Who}) },
		Subscribed: func() { d.say(event{at: time.Now().UnixNano(), kind: joined, who: d.Who}) },
	}
	for {
		con, err := d.client.Consumer(ctx, cfg)
		if err == nil {
			err = d.from(ctx, con)
		}
		if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unavailable {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *danubeChild) from(ctx context.Context, con *danube.Consumer) error {
	defer con.Close()
	for {
		select {
		case m, ok := <-con.Messages:
			if !ok {
				return con.Err()
			}
			e, err := d.eventOf(m)
			if err != nil {
				return err
			}
			d.say(e)
			d.work <- handed{con, m, e}
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *danubeChild) eventOf(m *api.StreamMessage) (event, error) {
	e := event{at: time.Now().UnixNano(), kind: given, who: d.Who, key: -1}
	if len(m.Payload) < 8 || m.GetMsgId() == nil {
		return e, fmt.Errorf("got %v", m)
	}
	e.value, e.offset = binary.BigEndian.Uint64(m.Payload), int64(m.MsgId.TopicOffset)
	if part, ok := strings.CutPrefix(m.MsgId.TopicName, d.Topic+"-part-"); ok {
		n, err := strconv.ParseInt(part, 10, 32)
		if err != nil {
			return e, fmt.Errorf("got a message of %s: %w", m.MsgId.TopicName, err)
		}
		e.partition = int32(n)
	}
	if m.RoutingKey != nil {
		n, err := strconv.ParseInt(*m.RoutingKey, 10, 32)
		if err != nil {
			return e, fmt.Errorf("got a message with key %q: %w", *m.RoutingKey, err)
		}
		e.key = int32(n)
	}
	return e, nil
}

// gatherFor is how long a batch is waited for.
const gatherFor = 20 * time.Millisecond

// settle works on what was handed out, a batch at a time, until ctx ends.
func (d *danubeChild) settle(ctx context.Context) error {
	timer := time.NewTimer(gatherFor)
	defer timer.Stop()
	batch := make([]handed, 0, d.Ack)
	for {
		batch = batch[:0]
		timer.Reset(gatherFor)
		for more := true; more && len(batch) < d.Ack; {
			select {
			case h := <-d.work:
				batch = append(batch, h)
			case <-timer.C:
				more = false
			case <-ctx.Done():
				return nil
			}
		}
		for i := range batch {
			if err := d.settleOne(ctx, &batch[i]); err != nil {
				return err
			}
		}
	}
}

func (d *danubeChild) settleOne(ctx context.Context, h *handed) error {
	e := h.e
	e.at, e.kind = time.Now().UnixNano(), acked
	var err error
	if e.value%uint64(d.Danube.Nack) == 0 && !d.back[e.value] {
		d.back[e.value] = true
		e.kind = nacked
		d.say(e)
		err = h.from.Nack(ctx, h.m, new(e.value%3), "again")
	} else {
		d.say(e)
		if err = h.from.Ack(ctx, h.m); err == nil {
			e.at, e.kind = time.Now().UnixNano(), heard
			d.say(e)
		}
	}
	switch {
	case ctx.Err() != nil, status.Code(err) == codes.Unavailable: // a broker that comes back hands it out again
		return nil
	case err != nil:
		return fmt.Errorf("settle %v: %w", e, err)
	}
	return nil
}

// say writes an event, wholly or not at all.
func (d *danubeChild) say(e event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := os.Stdout.Write(appendEvent(nil, e)); err != nil {
		panic(err) // who started it is gone
	}
}
