package danube

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	api "github.com/leveemq/levee/api/danube"
	admin "github.com/leveemq/levee/api/danube/admin"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
)

func TestNackAndDeadLetters(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	r.producer(ProducerConfig{Topic: "/default/dead", Name: "nobody", Reliable: true})
	c := r.consumer("/default/t", "c", shared)
	dead := r.consumer("/default/dead", "c", exclusive)
	deadTopic := "/default/dead"
	if _, err := r.topics().SetSubscriptionFailurePolicy(r.ctx, &admin.SetSubscriptionFailurePolicyRequest{
		Topic: "/default/t", Subscription: "sub", FailurePolicy: &admin.SubscriptionFailurePolicy{
			MaxRedeliveryCount: 2, AckTimeoutMs: 60_000, BaseRedeliveryDelayMs: 10, MaxRedeliveryDelayMs: 1000, DeadLetterTopic: &deadTopic,
		},
	}); err != nil {
		t.Fatal(err)
	}
	r.send(p, "good", 1)
	r.take(c, 1)
	r.send(p, "bad", 1)
	var nacked time.Time
	for n, delay := range []*uint64{new(uint64(200)), nil, nil} { // once, and two redeliveries
		m := r.next(c)
		if string(m.Payload) != "bad0" {
			t.Fatalf("delivery %d is %v", n+1, m)
		}
		if n == 1 && time.Since(nacked) < 200*time.Millisecond {
			t.Errorf("it came again after %v", time.Since(nacked))
		}
		nacked = time.Now()
		if err := c.Nack(r.ctx, m, delay, "it is no good"); err != nil {
			t.Fatal(err)
		}
	}
	m := r.next(dead)
	if string(m.Payload) != "bad0" || m.Attributes["levee-source-offset"] != "1" || m.Attributes["levee-subscription"] != "sub" ||
		!strings.HasSuffix(m.Attributes["levee-source-topic"], "default/t") || m.Attributes["levee-delivery-count"] != "3" || m.ProducerName != "p" {
		t.Errorf("the dead letter is %v", m)
	}
	r.ack(dead, m)
	r.send(p, "more", 1)
	if got := r.take(c, 1); got[0] != "more0" {
		t.Errorf("then came %s", got)
	}
}

// What was not acknowledged comes again to who subscribes again; what was does not.
func TestUnacknowledgedComesAgain(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	first := r.consumer("/default/t", "c", exclusive)
	r.send(p, "m", 10)
	for range 10 {
		if m := r.next(first); m.MsgId.TopicOffset%2 == 0 {
			r.ack(first, m)
		}
	}
	first.Close()
	second := r.consumer("/default/t", "c", exclusive)
	got := r.take(second, 5)
	if want := []string{"m1", "m3", "m5", "m7", "m9"}; !slices.Equal(sorted(got), want) {
		t.Errorf("got %v, want %v", got, want)
	}
	r.nothing(second)
}

func TestAckTimeout(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	c := r.consumer("/default/t", "c", shared)
	if _, err := r.topics().SetSubscriptionFailurePolicy(r.ctx, &admin.SetSubscriptionFailurePolicyRequest{
		Topic: "/default/t", Subscription: "sub", FailurePolicy: &admin.SubscriptionFailurePolicy{
			MaxRedeliveryCount: 1000, AckTimeoutMs: 300, BaseRedeliveryDelayMs: 10, MaxRedeliveryDelayMs: 10,
		},
	}); err != nil {
		t.Fatal(err)
	}
	r.send(p, "m", 1)
	m := r.next(c) // health checks go on, and are no sign that it is being worked on
	if again := r.next(c); again.MsgId.TopicOffset != m.MsgId.TopicOffset || again.RequestId == m.RequestId {
		t.Errorf("%v came again as %v", m, again)
	}
	r.ack(c, m) // late, and of the first delivery
	// It may have come again before that, any number of times on a slow machine, but does not behind what is published now.
	r.send(p, "end", 1)
	end := r.next(c)
	for string(end.Payload) != "end0" {
		end = r.next(c)
	}
	r.ack(c, end)
	for timeout := time.After(800 * time.Millisecond); ; { // more than twice the ack timeout
		select {
		case again, ok := <-c.Messages:
			if !ok || again.MsgId.TopicOffset != end.MsgId.TopicOffset { // whose acknowledgement may be late, too
				t.Fatalf("acknowledged, it came again: %v (open: %v, %v)", again, ok, c.Err())
			}
		case <-timeout:
			return
		}
	}
}

func TestWindow(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	c := r.consumer("/default/t", "c", shared)
	if _, err := r.topics().SetSubscriptionDispatchConfig(r.ctx, &admin.SetSubscriptionDispatchConfigRequest{
		Topic: "/default/t", Subscription: "sub", DispatchConfig: &admin.SubscriptionDispatchConfig{MaxUnackedMessages: 5},
	}); err != nil {
		t.Fatal(err)
	}
	r.send(p, "m", 20)
	for range 4 {
		var held []*api.StreamMessage
		for range 5 {
			held = append(held, r.next(c))
		}
		r.nothing(c)
		for _, m := range held {
			r.ack(c, m)
		}
	}
}

// A message that Danube's clients cannot receive becomes a dead letter, and the ones behind it come.
func TestTooLarge(t *testing.T) {
	r := newRig(t, nil)
	r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	c := r.consumer("/default/t", "c", shared)
	pub := r.native()
	most := 4<<20 - 128<<10
	for _, size := range []int{5 << 20, most, 10} {
		if _, err := pub.PublishSync(r.ctx, record.Record{Value: bytes.Repeat([]byte("x"), size)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{most, 10} {
		m := r.next(c)
		if len(m.Payload) != want {
			t.Errorf("got a message of %d bytes, not %d", len(m.Payload), want)
		}
		r.ack(c, m)
	}
	r.Await("done with the dead letter", func() bool { // it is made beside what is delivered
		subs, err := r.topics().ListNamespaceTopics(r.ctx, &admin.NamespaceRequest{Name: "default"})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(subs.Topics, func(i *admin.TopicInfo) bool { return i.Name == "/default/t-sub-dlq" })
	})
}

func TestDelayed(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	c := r.consumer("/default/t", "c", shared)
	began := time.Now()
	// So late that the other one overtakes it on a slow machine, too.
	if err := p.Send(r.ctx, Message{Payload: []byte("later"), Attributes: map[string]string{"deliver_after_ms": "5000"}}); err != nil {
		t.Fatal(err)
	}
	r.send(p, "now", 1)
	if got := r.take(c, 2); got[0] != "now0" || got[1] != "later" || time.Since(began) < 4500*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(began), got)
	}
}

// Messages are the same records to every kind of client.
func TestBesideNativeClients(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	c := r.consumer("/default/t", "c", shared)
	pub := r.native()
	sub, err := r.Dial().Consume(r.ctx, "t", client.ConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	key := "k"
	if err := p.Send(r.ctx, Message{Payload: []byte("from danube"), Key: &key, Attributes: map[string]string{"a": "1"}}); err != nil {
		t.Fatal(err)
	}
	got, err := sub.Next(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	headers := map[string]string{}
	for _, h := range got.Headers {
		headers[h.Key] = string(h.Value)
	}
	if string(got.Value) != "from danube" || string(got.Key) != "k" || headers["a"] != "1" || headers["levee-producer"] != "p" {
		t.Errorf("got %+v", got)
	}
	r.take(c, 1)
	if _, err := pub.PublishSync(r.ctx, record.Record{Key: []byte("n"), Value: []byte("native"), Headers: []record.Header{{Key: "h", Value: []byte("v")}}, Timestamp: 12345}); err != nil {
		t.Fatal(err)
	}
	m := r.next(c)
	if string(m.Payload) != "native" || m.GetRoutingKey() != "n" || m.Attributes["h"] != "v" || m.PublishTime != 12345 || m.MsgId.TopicOffset != 1 {
		t.Errorf("got %v", m)
	}
}

// native is a producer of topic t that is not Danube's.
func (r *rig) native() *client.Producer {
	r.t.Helper()
	p, err := r.Dial().NewProducer(r.ctx, "t", client.ProducerConfig{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}
