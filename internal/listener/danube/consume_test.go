package danube

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

const (
	exclusive = api.ConsumerRequest_Exclusive
	shared    = api.ConsumerRequest_Shared
	failover  = api.ConsumerRequest_Failover
	keyShared = api.ConsumerRequest_KeyShared
)

func TestReceive(t *testing.T) {
	bubble(t, Config{Advertise: "levee.example:6650"}, func(f *fixture) {
		producer := f.newProducer("/default/t", "p")
		f.send(message(producer, "/default/t", "p", "before")) // a new subscription starts at the end
		id := f.newConsumer("/default/t", "c", shared)
		stream, _ := f.receive(id)
		m := message(producer, "/default/t", "p", "hello")
		m.Attributes = map[string]string{"a": "1"}
		m.SchemaId, m.SchemaVersion, m.RoutingKey = proto.Uint64(4), proto.Uint32(2), proto.String("k")
		f.send(m)
		f.send(message(producer, "/default/t", "p", "plain"))

		first, second := f.next(stream), f.next(stream)
		want := &api.StreamMessage{
			RequestId: first.RequestId, Payload: []byte("hello"), PublishTime: 1000, ProducerName: "p", SubscriptionName: "sub",
			MsgId:      &api.MsgID{ProducerId: producer, TopicName: "/default/t", BrokerAddr: "http://levee.example:6650", TopicOffset: 1},
			Attributes: map[string]string{"a": "1"}, SchemaId: m.SchemaId, SchemaVersion: m.SchemaVersion, RoutingKey: m.RoutingKey,
		}
		if !proto.Equal(first, want) {
			t.Errorf("got %v, want %v", first, want)
		}
		if second.SchemaId != nil || second.SchemaVersion != nil || second.RoutingKey != nil || len(second.Attributes) != 0 || second.MsgId.TopicOffset != 2 {
			t.Errorf("the second message has something of the first: %v", second)
		}
		if first.RequestId == second.RequestId {
			t.Error("two messages have one request id")
		}
	})
}

// What other clients published has no producer, and need not be UTF-8.
func TestReceiveWhatOthersPublished(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/t", 1, broker.Reliable)
		stream, _ := f.receive(f.newConsumer("/default/t", "c", exclusive))
		b := record.NewBuilder(record.Zstd)
		for _, r := range []record.Record{
			{Value: nil, Key: []byte{0xff}, Timestamp: 5, Headers: []record.Header{{Key: "h", Value: []byte{0xfe}}, {Key: "n"}}},
			{Value: []byte(strings.Repeat("z", 1000)), Timestamp: -1, Headers: []record.Header{{Key: headerSchemaID, Value: []byte("x")}}},
		} {
			if err := b.Append(r); err != nil {
				t.Fatal(err)
			}
		}
		batch, err := b.Build(record.NoProducer)
		if err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		f.topics["default/t"].append(0, batch, 2)
		f.mu.Unlock()
		m := f.next(stream)
		if len(m.Payload) != 0 || m.GetRoutingKey() != "\uFFFD" || m.Attributes["h"] != "\uFFFD" || m.ProducerName != "" || m.MsgId.ProducerId != 0 {
			t.Errorf("got %v", m)
		}
		if v, ok := m.Attributes["n"]; !ok || v != "" {
			t.Errorf("attributes are %v", m.Attributes)
		}
		if m = f.next(stream); m.PublishTime != 0 || m.SchemaId != nil || len(m.Payload) != 1000 {
			t.Errorf("got %v", m)
		}
	})
}

func TestEachHandsOutOnlyWhatItShould(t *testing.T) {
	var batches []byte
	for i := range 4 {
		b := record.NewBuilder(record.None)
		for range 5 {
			if err := b.Append(record.Record{Value: []byte("v")}); err != nil {
				t.Fatal(err)
			}
		}
		batch, err := b.Build(record.NoProducer)
		if err != nil {
			t.Fatal(err)
		}
		record.SetPlacement(batch, int64(10+5*i), 0)
		batches = append(batches, batch...)
	}
	ev := broker.ConsumerEvent{Batches: batches, Offsets: []broker.Range{{From: 12, To: 12}, {From: 14, To: 15}, {From: 25, To: 27}}}
	var got []int64
	if err := each(&ev, func(r *record.Record) error {
		got = append(got, r.Offset)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []int64{12, 14, 15, 25, 26, 27}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	ev.Batches = batches[:len(batches)-3]
	if err := each(&ev, func(*record.Record) error { return nil }); err == nil {
		t.Error("a batch that is cut off was read")
	}
}

func TestSubscribeRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fixture, *api.ConsumerRequest)
		want   codes.Code
	}{
		"malformed":         {func(_ *fixture, r *api.ConsumerRequest) { r.TopicName = "t" }, codes.InvalidArgument},
		"no name":           {func(_ *fixture, r *api.ConsumerRequest) { r.ConsumerName = "" }, codes.InvalidArgument},
		"no subscription":   {func(_ *fixture, r *api.ConsumerRequest) { r.Subscription = "" }, codes.InvalidArgument},
		"no such type":      {func(_ *fixture, r *api.ConsumerRequest) { r.SubscriptionType = 9 }, codes.InvalidArgument},
		"no topic":          {func(_ *fixture, r *api.ConsumerRequest) { r.TopicName = "/default/other" }, codes.NotFound},
		"several":           {func(_ *fixture, r *api.ConsumerRequest) { r.TopicName = "/default/many" }, codes.FailedPrecondition},
		"held":              {func(f *fixture, _ *api.ConsumerRequest) { f.newConsumer("/default/t", "other", exclusive) }, codes.PermissionDenied},
		"of another type":   {func(f *fixture, _ *api.ConsumerRequest) { f.newConsumer("/default/t", "other", shared) }, codes.FailedPrecondition},
		"too many":          {func(f *fixture, _ *api.ConsumerRequest) { f.fail("OpenConsumer", fault.New(fault.Exhausted, "many")) }, codes.ResourceExhausted},
		"stopping":          {func(f *fixture, _ *api.ConsumerRequest) { f.fail("OpenConsumer", fault.New(fault.Unavailable, "no")) }, codes.Unavailable},
		"deleted meanwhile": {func(f *fixture, _ *api.ConsumerRequest) { f.fail("OpenConsumer", fault.New(fault.Deleted, "no")) }, codes.Unavailable},
		"a name it cannot have": {func(f *fixture, _ *api.ConsumerRequest) {
			f.fail("OpenConsumer", fault.New(fault.InvalidArgument, "no"))
		}, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(f *fixture) {
				f.create("default/t", 1, broker.Reliable)
				f.create("default/many", 2, broker.Reliable)
				req := &api.ConsumerRequest{TopicName: "/default/t", ConsumerName: "c", Subscription: "sub", SubscriptionType: exclusive}
				c.change(f, req)
				_, err := f.consumer.Subscribe(f.ctx, req)
				wantCode(t, err, c.want)
			})
		})
	}
}

func TestTypesAndFilters(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/t", 1, broker.NonReliable)
		for i, kind := range []api.ConsumerRequest_SubscriptionType{exclusive, shared, failover, keyShared} {
			f.mu.Lock()
			f.topics["default/t"].subs, f.opened = map[string]*fakeSub{}, nil
			f.mu.Unlock()
			f.newConsumer("/default/t", "c", kind, "eu-*")
			spec := f.opened[0]
			if spec.Type != typeNumbers[i] || !spec.Create || spec.Name != "c" || spec.Subscription != "sub" || spec.Start != broker.Latest() {
				t.Errorf("%v: the broker was asked for %+v", kind, spec)
			}
			if spec.MaxRecordBytes <= 0 || spec.MaxRecordBytes >= messageBytes {
				t.Errorf("%v: records of %d bytes are taken", kind, spec.MaxRecordBytes)
			}
			if (len(spec.KeyFilters) == 1) != (kind == keyShared) {
				t.Errorf("%v: the filters are %v", kind, spec.KeyFilters)
			}
		}
	})
}

// The same consumer subscribing again takes over: the stream of the first one ends, with UNAVAILABLE.
func TestTakeover(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		producer := f.newProducer("/default/t", "p")
		id := f.newConsumer("/default/t", "c", exclusive)
		old, _ := f.receive(id)
		f.send(message(producer, "/default/t", "p", "1"))
		f.next(old)
		if again := f.newConsumer("/default/t", "c", exclusive); again != id {
			t.Errorf("the id changed from %d to %d", id, again)
		}
		_, err := old.Recv()
		wantCode(t, err, codes.Unavailable)
		stream, _ := f.receive(id)
		f.next(stream)
		again, _ := f.receive(id) // without subscribing: its client has lost the stream, and the broker not noticed
		_, err = stream.Recv()
		wantCode(t, err, codes.Unavailable)
		f.next(again)
		if !f.healthy(api.HealthCheckRequest_Consumer, id) {
			t.Error("the consumer is not healthy")
		}
	})
}

func TestStreamEndsUnavailable(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*fixture)
		slow bool
		well bool // the consumer is, afterwards
	}{
		"topic deleted": {func(f *fixture) {
			if err := f.DeleteTopic(f.ctx, "default/t"); err != nil {
				f.t.Fatal(err)
			}
		}, true, false},
		"subscription deleted": {func(f *fixture) {
			if err := f.DeleteSubscription(f.ctx, "default/t", "sub"); err != nil {
				f.t.Fatal(err)
			}
		}, true, false},
		"stopping": {func(f *fixture) { f.failNext(fault.New(fault.Unavailable, "the broker is stopping")) }, false, true},
		"trimmed":  {func(f *fixture) { f.failNext(fault.New(fault.Trimmed, "it is gone")) }, true, true},
		"corrupt":  {func(f *fixture) { f.failNext(fault.New(fault.Corrupt, "it is damaged")) }, true, true},
		"a bug":    {func(f *fixture) { f.failNext(errPlain) }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(f *fixture) {
				f.create("default/t", 1, broker.Reliable)
				id := f.newConsumer("/default/t", "c", shared)
				stream, _ := f.receive(id)
				began := time.Now()
				c.end(f)
				_, err := stream.Recv()
				wantCode(t, err, codes.Unavailable)
				if slow := time.Since(began) >= brake; slow != c.slow {
					t.Errorf("it took %s", time.Since(began))
				}
				if well := f.healthy(api.HealthCheckRequest_Consumer, id); well != c.well {
					t.Errorf("healthy: %v", well)
				}
			})
		})
	}
}

// failNext makes waiting consumers fail.
func (f *fixture) failNext(err error) {
	f.fail("Next", err)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.topics {
		close(t.grown)
		t.grown = make(chan struct{})
	}
}

func TestStreamEndedByItsClient(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/t", 1, broker.Reliable)
		id := f.newConsumer("/default/t", "c", exclusive)
		stream, cancel := f.receive(id)
		f.pass(time.Second)
		cancel()
		_, err := stream.Recv()
		wantCode(t, err, codes.Canceled)
		f.pass(time.Second)
		f.newConsumer("/default/t", "another", exclusive) // the place is free
	})
}

// A consumer that subscribed and was not heard of again does not keep its place.
func TestPlaceIsGivenUp(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/t", 1, broker.Reliable)
		id := f.newConsumer("/default/t", "c", exclusive)
		for range 10 {
			f.pass(5 * time.Second)
			f.healthy(api.HealthCheckRequest_Consumer, id)
		}
		_, err := f.consumer.Subscribe(f.ctx, &api.ConsumerRequest{TopicName: "/default/t", ConsumerName: "d", Subscription: "sub"})
		wantCode(t, err, codes.PermissionDenied)
		f.pass(waitingFor + time.Second)
		d := f.newConsumer("/default/t", "d", exclusive)
		stream, _ := f.receive(d)
		late, _ := f.receive(id) // it was forgotten by the subscription, not by its id
		_, err = late.Recv()
		wantCode(t, err, codes.Unavailable)
		f.pass(consumerIdle + time.Minute)
		f.newConsumer("/default/t", "d", exclusive)
		if _, err := stream.Recv(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
		if f.service.consumers.get(id, time.Now()) != nil {
			t.Error("a consumer that was not heard of for long is remembered")
		}
	})
}

func TestUnknownConsumer(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		began := time.Now()
		stream, _ := f.receive(42)
		_, err := stream.Recv()
		wantCode(t, err, codes.Unavailable)
		if time.Since(began) < brake {
			t.Error("a client that calls again without end is answered without delay")
		}
		if f.healthy(api.HealthCheckRequest_Consumer, 42) {
			t.Error("an unknown consumer is healthy")
		}
		_, err = f.health.HealthCheck(f.ctx, &api.HealthCheckRequest{Client: 5})
		wantCode(t, err, codes.InvalidArgument)
	})
}

// A client that outlives the broker's process, and never subscribes again, goes on with the id it has.
func TestStaleConsumer(t *testing.T) {
	for _, dispatch := range []broker.Dispatch{broker.Reliable, broker.NonReliable} {
		t.Run(string(dispatch), func(t *testing.T) {
			bubble(t, Config{}, func(f *fixture) {
				f.create("default/t", 1, dispatch)
				f.create("default/many", 3, dispatch)
				producer := uint64(77)
				one := f.newConsumer("/default/t", "c", shared)
				part := f.newConsumer("/default/many-part-1", "c", shared)
				f.create("default/keyed", 1, dispatch)
				filtered := f.newConsumer("/default/keyed", "c", keyShared, "x*")
				f.restart()
				stream, _ := f.receive(one)
				of, _ := f.receive(part)
				f.pass(time.Second)
				f.send(message(producer, "/default/t", "p", "1"))
				f.send(message(producer+1, "/default/many-part-1", "p", "2"))
				if m := f.next(stream); string(m.Payload) != "1" || m.MsgId.TopicName != "/default/t" {
					t.Errorf("got %v", m)
				}
				if m := f.next(of); string(m.Payload) != "2" || m.MsgId.TopicName != "/default/many-part-1" {
					t.Errorf("got %v", m)
				}
				// What cannot be told from the id is not made up.
				gone, _ := f.receive(filtered)
				_, err := gone.Recv()
				wantCode(t, err, codes.Unavailable)

				// A client that still asks is told to subscribe again, and its stream ends when it knows.
				if f.healthy(api.HealthCheckRequest_Consumer, one) {
					t.Error("a consumer without its name is healthy")
				}
				began := time.Now()
				_, err = stream.Recv()
				wantCode(t, err, codes.Unavailable)
				if time.Since(began) < brake {
					t.Error("the stream ended before its client could know why")
				}
				if again := f.newConsumer("/default/t", "c", shared); again != one {
					t.Errorf("the id changed from %d to %d", one, again)
				}
				stream, _ = f.receive(one)
				f.pass(time.Second)
				f.send(message(producer, "/default/t", "p", "3"))
				f.next(stream) // the first one again: nobody has acknowledged it
				if m := f.next(stream); string(m.Payload) != "3" {
					t.Errorf("got %v", m)
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				if n := len(f.topics["default/t"].subs); dispatch == broker.NonReliable && n != 2 || dispatch == broker.Reliable && n != 1 {
					t.Errorf("there are %d subscriptions", n) // a non-reliable one of a name that nobody knows goes by another
				}
			})
		})
	}
}

// An exclusive consumer that went on by its id makes way for itself under its own name, and for nobody else.
func TestStaleExclusiveConsumer(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/t", 1, broker.Reliable)
		id := f.newConsumer("/default/t", "c", exclusive)
		f.restart()
		stream, _ := f.receive(id)
		f.pass(time.Second)
		_, err := f.consumer.Subscribe(f.ctx, &api.ConsumerRequest{TopicName: "/default/t", ConsumerName: "d", Subscription: "sub"})
		wantCode(t, err, codes.PermissionDenied)
		f.newConsumer("/default/t", "c", exclusive)
		_, err = stream.Recv()
		wantCode(t, err, codes.Unavailable)
	})
}

func TestAck(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		producer := f.newProducer("/default/t", "p")
		f.create("default/fast", 1, broker.NonReliable)
		stream, _ := f.receive(f.newConsumer("/default/t", "c", shared))
		f.send(message(producer, "/default/t", "p", "1"))
		m := f.next(stream)
		ack := &api.AckRequest{RequestId: m.RequestId, MsgId: m.MsgId, SubscriptionName: "sub"}
		if resp, err := f.consumer.Ack(f.ctx, ack); err != nil || resp.RequestId != m.RequestId {
			t.Fatalf("got %v, %v", resp, err)
		}
		nack := &api.NackRequest{RequestId: 5, MsgId: m.MsgId, SubscriptionName: "sub", DelayMs: proto.Uint64(250), Reason: proto.String("why")}
		if resp, err := f.consumer.Nack(f.ctx, nack); err != nil || resp.RequestId != 5 {
			t.Fatalf("got %v, %v", resp, err)
		}
		nack.DelayMs, nack.Reason = nil, nil
		if _, err := f.consumer.Nack(f.ctx, nack); err != nil {
			t.Fatal(err)
		}
		nack.DelayMs = proto.Uint64(math.MaxUint64)
		if _, err := f.consumer.Nack(f.ctx, nack); err != nil {
			t.Fatal(err)
		}
		got := f.settled("default/t", "sub")
		if len(got) != 4 || got[0].Below != -1 || got[0].Acks[0] != (broker.Range{}) ||
			got[1].Nacks[0] != (broker.Nack{Delay: 250 * time.Millisecond, Reason: "why"}) ||
			got[2].Nacks[0] != (broker.Nack{Delay: -1}) || got[3].Nacks[0].Delay != longestNack {
			t.Errorf("the broker was told %+v", got)
		}

		ack.SubscriptionName = "other"
		_, err := f.consumer.Ack(f.ctx, ack)
		wantCode(t, err, codes.Internal)
		_, err = f.consumer.Ack(f.ctx, &api.AckRequest{SubscriptionName: "sub"})
		wantCode(t, err, codes.InvalidArgument)
		_, err = f.consumer.Ack(f.ctx, &api.AckRequest{SubscriptionName: "sub", MsgId: &api.MsgID{TopicName: "/default/none"}})
		wantCode(t, err, codes.Internal)
		f.fail("SettleFor", fault.New(fault.Unavailable, "the broker is stopping"))
		_, err = f.consumer.Nack(f.ctx, nack)
		wantCode(t, err, codes.Unavailable)
		f.fail("SettleFor", nil)

		// At most once: there is nothing to settle, and clients acknowledge all the same.
		for _, id := range []*api.MsgID{{TopicName: "/default/fast"}, {TopicName: "/default/t", TopicOffset: math.MaxUint64}} {
			if _, err := f.consumer.Ack(f.ctx, &api.AckRequest{SubscriptionName: "any", MsgId: id}); err != nil {
				t.Error(err)
			}
		}
	})
}

// A topic may be deleted and made again as another kind of topic while its clients stay.
func TestAckOfTopicMadeAgain(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		ack := &api.AckRequest{MsgId: &api.MsgID{TopicName: "/default/t-part-1"}, SubscriptionName: "sub"}
		f.create("default/t", 2, broker.Reliable)
		f.newConsumer("/default/t-part-1", "c", shared)
		if _, err := f.consumer.Ack(f.ctx, ack); err != nil {
			t.Fatal(err)
		}
		if err := f.DeleteTopic(f.ctx, "default/t"); err != nil {
			t.Fatal(err)
		}
		f.create("default/t-part-1", 1, broker.NonReliable)
		if _, err := f.consumer.Ack(f.ctx, ack); err != nil {
			t.Errorf("an ack of a topic that is non-reliable now: %v", err)
		}
		if err := f.DeleteTopic(f.ctx, "default/t-part-1"); err != nil {
			t.Fatal(err)
		}
		f.create("default/t-part-1", 1, broker.Reliable)
		f.newConsumer("/default/t-part-1", "c", shared)
		if _, err := f.consumer.Ack(f.ctx, ack); err != nil {
			t.Error(err)
		}
		if n := len(f.settled("default/t-part-1", "sub")); n != 1 {
			t.Errorf("the new subscription was told %d times", n)
		}
	})
}

// A record may be small enough by itself and too large with names of headers written out.
func TestTooManyHeaders(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/t", 1, broker.Reliable)
		stream, _ := f.receive(f.newConsumer("/default/t", "c", shared))
		b := record.NewBuilder(record.None)
		odd := record.Record{}
		for i := range 700_000 {
			odd.Headers = append(odd.Headers, record.Header{Key: string([]byte{' ' + byte(i%90), ' ' + byte(i/90%90), ' ' + byte(i/8100)})})
		}
		for _, r := range []record.Record{odd, {Value: []byte("next")}} {
			if err := b.Append(r); err != nil {
				t.Fatal(err)
			}
		}
		batch, err := b.Build(record.NoProducer)
		if err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		f.topics["default/t"].append(0, batch, 2)
		f.mu.Unlock()
		if m := f.next(stream); string(m.Payload) != "next" {
			t.Errorf("got a message of %d bytes", proto.Size(m))
		}
		got := f.settled("default/t", "sub")
		if len(got) != 1 || len(got[0].Nacks) != 1 || got[0].Nacks[0].Range != (broker.Range{}) || got[0].Nacks[0].Reason != "too_large" {
			t.Errorf("the broker was told %+v", got)
		}
	})
}

func TestTwoNamesWithOneHash(t *testing.T) {
	cs := newConsumers(10, newMetrics(nil))
	id := consumerID{kind: 1, topic: 2, group: 3}
	first := cs.idFor("/default/t", "a", id, "sub")
	if _, err := cs.add(&session{id: first, wire: "/default/t", spec: broker.ConsumerSpec{Name: "other", Subscription: "sub"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	second := cs.idFor("/default/t", "a", id, "sub")
	if first == second {
		t.Error("two consumers have one id")
	}
	if got := splitID(second); got.kind != 1 || got.topic != 2 || got.group != 3 || got.number() != second {
		t.Errorf("%x is taken apart as %+v", second, got)
	}
}

func TestTooManyConsumers(t *testing.T) {
	bubble(t, Config{Limits: Limits{Consumers: 1}}, func(f *fixture) {
		f.create("default/t", 1, broker.Reliable)
		f.newConsumer("/default/t", "c", shared)
		f.newConsumer("/default/t", "c", shared)
		_, err := f.consumer.Subscribe(context.Background(), &api.ConsumerRequest{
			TopicName: "/default/t", ConsumerName: "d", Subscription: "sub", SubscriptionType: shared,
		})
		wantCode(t, err, codes.ResourceExhausted)
	})
}
