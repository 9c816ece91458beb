package danube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"testing"
	"time"

	api "github.com/leveemq/levee/api/danube"
	admin "github.com/leveemq/levee/api/danube/admin"
	"github.com/leveemq/levee/test/proc"
)

func TestMain(m *testing.M) { os.Exit(proc.Main(m)) }

const (
	exclusive = api.ConsumerRequest_Exclusive
	shared    = api.ConsumerRequest_Shared
	failover  = api.ConsumerRequest_Failover
	keyShared = api.ConsumerRequest_KeyShared
)

// rig is a broker behind a door, and a Danube client of it.
type rig struct {
	*proc.Broker
	t      *testing.T
	ctx    context.Context
	dir    string
	door   *Door
	client *Client
	env    map[string]string
}

func newRig(t *testing.T, env map[string]string) *rig {
	t.Helper()
	r := &rig{t: t, dir: filepath.Join(proc.Dir(t), "data"), door: NewDoor(t), env: env}
	r.client = &Client{Seed: r.door.Addr, HealthEvery: 100 * time.Millisecond}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(context.Background(), proc.Patience)
	t.Cleanup(cancel)
	t.Cleanup(r.client.Close)
	r.start()
	return r
}

func (r *rig) start() {
	r.t.Helper()
	r.Broker = proc.Start(r.t, r.dir, proc.Options{Env: r.env})
	r.door.Lead(r.GRPC)
}

// crash kills the broker's process and starts another one.
func (r *rig) crash() {
	r.t.Helper()
	r.door.Lead("")
	r.Kill()
	r.start()
}

func (r *rig) topics() admin.TopicAdminClient {
	r.t.Helper()
	conn, err := r.client.Conn(r.client.Seed)
	if err != nil {
		r.t.Fatal(err)
	}
	return admin.NewTopicAdminClient(conn)
}

// producer announces a producer, which the test's end closes.
func (r *rig) producer(cfg ProducerConfig) *Producer {
	r.t.Helper()
	p, err := r.client.Producer(r.ctx, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(p.Close)
	return p
}

// consumer subscribes, as name to subscription "sub"; the test's end closes it.
func (r *rig) consumer(topic, name string, kind api.ConsumerRequest_SubscriptionType, filters ...string) *Consumer {
	r.t.Helper()
	return r.consumerOf(ConsumerConfig{Topic: topic, Name: name, Subscription: "sub", Type: kind, Filters: filters})
}

func (r *rig) consumerOf(cfg ConsumerConfig) *Consumer {
	r.t.Helper()
	c, err := r.client.Consumer(r.ctx, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// send publishes n messages: prefix and number.
func (r *rig) send(p *Producer, prefix string, n int) {
	r.t.Helper()
	for i := range n {
		if err := p.Send(r.ctx, Message{Payload: fmt.Appendf(nil, "%s%d", prefix, i)}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// next returns the next message of a consumer.
func (r *rig) next(c *Consumer) *api.StreamMessage {
	r.t.Helper()
	select {
	case m, ok := <-c.Messages:
		if !ok {
			r.t.Fatalf("the consumer ended: %v", c.Err())
		}
		return m
	case <-r.ctx.Done():
		r.t.Fatal("no message came")
	}
	return nil
}

// take receives n messages and acknowledges them; it returns their payloads in order of arrival.
func (r *rig) take(c *Consumer, n int) (payloads []string) {
	r.t.Helper()
	for range n {
		m := r.next(c)
		r.ack(c, m)
		payloads = append(payloads, string(m.Payload))
	}
	return payloads
}

func (r *rig) ack(c *Consumer, m *api.StreamMessage) {
	r.t.Helper()
	if err := c.Ack(r.ctx, m); err != nil {
		r.t.Fatal(err)
	}
}

// nothing checks that nothing comes for a while.
func (r *rig) nothing(c *Consumer) {
	r.t.Helper()
	select {
	case m, ok := <-c.Messages:
		r.t.Fatalf("got %v (open: %v, %v)", m, ok, c.Err())
	case <-time.After(300 * time.Millisecond):
	}
}

// ended waits until a consumer has given up, and returns why.
func (r *rig) ended(c *Consumer) error {
	r.t.Helper()
	for {
		select {
		case _, ok := <-c.Messages:
			if !ok {
				return c.Err()
			}
		case <-r.ctx.Done():
			r.t.Fatal("the consumer does not end")
			return errors.New("it does not end")
		}
	}
}

// numbers returns prefix0 to prefix(n-1), sorted.
func numbers(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(prefix, i))
	}
	sort.Strings(all)
	return all
}

func sorted(s []string) []string {
	sort.Strings(s)
	return s
}
