package danube

import (
	"fmt"
	"slices"
	"testing"
	"time"

	api "github.com/leveemq/levee/api/danube"
	admin "github.com/leveemq/levee/api/danube/admin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// dispatches runs a test on topics of both kinds.
func dispatches(t *testing.T, test func(t *testing.T, r *rig, reliable bool)) {
	t.Helper()
	r := newRig(t, nil)
	for _, reliable := range []bool{true, false} {
		t.Run(fmt.Sprint("reliable=", reliable), func(t *testing.T) {
			sub := *r
			sub.t = t
			test(t, &sub, reliable)
		})
	}
}

func TestExclusive(t *testing.T) {
	dispatches(t, func(t *testing.T, r *rig, reliable bool) {
		topic := fmt.Sprint("/default/exclusive-", reliable)
		p := r.producer(ProducerConfig{Topic: topic, Name: "p", Reliable: reliable})
		r.send(p, "before", 3) // a new subscription begins behind them
		first := r.consumer(topic, "first", exclusive)
		_, err := r.client.Consumer(r.ctx, ConsumerConfig{Topic: topic, Name: "second", Subscription: "sub", Type: exclusive})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("a second consumer got %v", err)
		}
		other := r.consumerOf(ConsumerConfig{Topic: topic, Name: "second", Subscription: "another", Type: exclusive})
		r.send(p, "m", 20)
		for _, c := range []*Consumer{first, other} {
			for i, got := range r.take(c, 20) {
				if want := fmt.Sprint("m", i); got != want {
					t.Errorf("message %d is %s", i, got)
				}
			}
		}
	})
}

func TestShared(t *testing.T) {
	dispatches(t, func(t *testing.T, r *rig, reliable bool) {
		topic := fmt.Sprint("/default/shared-", reliable)
		p := r.producer(ProducerConfig{Topic: topic, Name: "p", Reliable: reliable})
		a, b := r.consumer(topic, "a", shared), r.consumer(topic, "b", shared)
		var got []string
		for i := range 100 { // one at a time, so that neither can take all
			if err := p.Send(r.ctx, Message{Payload: fmt.Append(nil, "m", i)}); err != nil {
				t.Fatal(err)
			}
			var m *api.StreamMessage
			var c *Consumer
			select {
			case m = <-a.Messages:
				c = a
			case m = <-b.Messages:
				c = b
			case <-r.ctx.Done():
				t.Fatal("no message came")
			}
			r.ack(c, m)
			got = append(got, string(m.Payload))
		}
		if !slices.Equal(sorted(got), numbers("m", 100)) {
			t.Errorf("got %v", got)
		}
	})
}

func TestFailover(t *testing.T) {
	dispatches(t, func(t *testing.T, r *rig, reliable bool) {
		topic := fmt.Sprint("/default/failover-", reliable)
		p := r.producer(ProducerConfig{Topic: topic, Name: "p", Reliable: reliable})
		a := r.consumer(topic, "a", failover)
		b := r.consumer(topic, "b", failover)
		r.send(p, "m", 10)
		r.take(a, 10)
		r.nothing(b)
		a.Close()
		if !reliable { // nobody may be there for a moment
			r.untilDelivered(p, b)
		}
		r.send(p, "n", 10)
		if got := r.take(b, 10); !slices.Equal(sorted(got), numbers("n", 10)) {
			t.Errorf("got %v", got)
		}
	})
}

// untilDelivered publishes until a message arrives at c, and takes what it published.
func (r *rig) untilDelivered(p *Producer, c *Consumer) {
	r.t.Helper()
	for arrived := false; !arrived; {
		r.send(p, "probe", 1)
		select {
		case m := <-c.Messages:
			arrived = string(m.GetPayload()) == "probe0" // not what was there before
		case <-r.ctx.Done():
			r.t.Fatal("no message came")
		case <-time.After(50 * time.Millisecond):
		}
	}
	r.send(p, "end", 1)
	for string(r.next(c).Payload) != "end0" {
	}
}

func TestKeyShared(t *testing.T) {
	dispatches(t, func(t *testing.T, r *rig, reliable bool) {
		topic := fmt.Sprint("/default/keyed-", reliable)
		p := r.producer(ProducerConfig{Topic: topic, Name: "p", Reliable: reliable})
		consumers := map[string]*Consumer{}
		for _, name := range []string{"a", "b", "c"} {
			consumers[name] = r.consumer(topic, name, keyShared)
		}
		type got struct {
			by string
			m  *api.StreamMessage
		}
		arrived := make(chan got)
		for name, c := range consumers {
			go func() {
				for m := range c.Messages {
					select {
					case arrived <- got{name, m}:
					case <-r.ctx.Done():
						return
					}
				}
			}()
		}
		const keys, each = 30, 10
		go func() {
			for i := range keys * each {
				key := fmt.Sprint("key-", i%keys)
				if err := p.Send(r.ctx, Message{Payload: fmt.Append(nil, i/keys), Key: &key}); err != nil {
					t.Error(err)
				}
			}
		}()
		owner, last, used := map[string]string{}, map[string]int{}, map[string]bool{}
		for range keys * each {
			var g got
			select {
			case g = <-arrived:
			case <-r.ctx.Done():
				t.Fatal("no message came")
			}
			key := g.m.GetRoutingKey()
			if was := owner[key]; was != "" && was != g.by {
				t.Errorf("%s went to %s and %s", key, was, g.by)
			}
			if string(g.m.Payload) != fmt.Sprint(last[key]) {
				t.Errorf("%s: message %s came as number %d", key, g.m.Payload, last[key])
			}
			last[key]++
			owner[key] = g.by
			used[g.by] = true
			r.ack(consumers[g.by], g.m)
		}
		if len(used) < 2 {
			t.Errorf("all keys went to %v", used)
		}
	})
}

func TestKeyFilters(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	eu, us := r.consumer("/default/t", "eu", keyShared, "eu-*"), r.consumer("/default/t", "us", keyShared, "us-*")
	for i := range 10 {
		for _, key := range []string{fmt.Sprint("eu-", i), fmt.Sprint("us-", i)} {
			if err := p.Send(r.ctx, Message{Payload: []byte(key), Key: &key}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := r.take(eu, 10); !slices.Equal(sorted(got), numbers("eu-", 10)) {
		t.Errorf("got %v", got)
	}
	if got := r.take(us, 10); !slices.Equal(sorted(got), numbers("us-", 10)) {
		t.Errorf("got %v", got)
	}
}

// A producer makes a partitioned topic by producing to its partitions; an operator makes it at once. Consumers see no
// difference.
func TestPartitioned(t *testing.T) {
	dispatches(t, func(t *testing.T, r *rig, reliable bool) {
		for _, by := range []string{"producer", "operator"} {
			topic := fmt.Sprint("/default/parts-", by, "-", reliable)
			req := &admin.PartitionedTopicRequest{BaseName: topic, Partitions: 3}
			if reliable {
				req.DispatchStrategy = admin.DispatchStrategy_Reliable
			}
			if by == "operator" {
				if _, err := r.topics().CreatePartitionedTopic(r.ctx, req); err != nil {
					t.Fatal(err)
				}
			}
			p := r.producer(ProducerConfig{Topic: topic, Name: "p", Partitions: 3, Reliable: reliable})
			c := r.consumer(topic, "c", shared)
			r.send(p, "m", 30)
			for i := range 30 {
				key := fmt.Sprint("k", i%5)
				if err := p.Send(r.ctx, Message{Payload: []byte("keyed"), Key: &key}); err != nil {
					t.Fatal(err)
				}
			}
			of, places := map[string]int{}, map[string]string{}
			for range 60 {
				m := r.next(c)
				r.ack(c, m)
				of[m.MsgId.TopicName]++
				if key := m.GetRoutingKey(); key != "" {
					want := fmt.Sprint(topic, "-part-", p.Partition(key))
					if m.MsgId.TopicName != want {
						t.Errorf("%s is in %s, not %s", key, m.MsgId.TopicName, want)
					}
					places[key] = m.MsgId.TopicName
				}
			}
			if len(of) != 3 || len(places) != 5 {
				t.Errorf("messages came from %v", of)
			}
		}
	})
}
