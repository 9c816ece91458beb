package danube

import (
	"context"
	"math"
	"testing"
	"time"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

func TestCreateProducer(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		resp, err := f.producer.CreateProducer(f.ctx, &api.ProducerRequest{
			RequestId: 9, ProducerName: "p", TopicName: "/default/made", DispatchStrategy: api.DispatchStrategy_Reliable,
		})
		if err != nil || resp.RequestId != 9 || resp.ProducerName != "p" || resp.ProducerId == 0 || resp.ProducerId>>63 != 0 {
			t.Fatalf("got %v, %v", resp, err)
		}
		if info, err := f.Topic("default/made"); err != nil || info.Dispatch != broker.Reliable || info.Partitions != 1 {
			t.Errorf("the topic is %+v (%v)", info, err)
		}
		if again := f.newProducer("/default/made", "p"); again != resp.ProducerId {
			t.Errorf("the same producer has ids %d and %d", resp.ProducerId, again)
		}
		if other := f.newProducer("/default/made", "q"); other == resp.ProducerId {
			t.Error("two producers have one id")
		}
		f.restart()
		if again := f.newProducer("/default/made", "p"); again != resp.ProducerId {
			t.Errorf("after a restart the id is %d, not %d", again, resp.ProducerId)
		}
	})
}

func TestCreateProducerRefused(t *testing.T) {
	good := func() *api.ProducerRequest {
		return &api.ProducerRequest{ProducerName: "p", TopicName: "/default/t", DispatchStrategy: api.DispatchStrategy_Reliable}
	}
	for name, c := range map[string]struct {
		change func(*fixture, *api.ProducerRequest)
		want   codes.Code
	}{
		"no slash":         {func(_ *fixture, r *api.ProducerRequest) { r.TopicName = "default/t" }, codes.InvalidArgument},
		"one part":         {func(_ *fixture, r *api.ProducerRequest) { r.TopicName = "/t" }, codes.InvalidArgument},
		"three parts":      {func(_ *fixture, r *api.ProducerRequest) { r.TopicName = "/default/t/u" }, codes.InvalidArgument},
		"no name":          {func(_ *fixture, r *api.ProducerRequest) { r.ProducerName = "" }, codes.InvalidArgument},
		"no such strategy": {func(_ *fixture, r *api.ProducerRequest) { r.DispatchStrategy = 7 }, codes.InvalidArgument},
		"exclusive": {func(_ *fixture, r *api.ProducerRequest) { r.ProducerAccessMode = api.ProducerAccessMode_Exclusive },
			codes.Unimplemented},
		"other dispatch": {func(_ *fixture, r *api.ProducerRequest) { r.DispatchStrategy = api.DispatchStrategy_NonReliable },
			codes.FailedPrecondition},
		"no namespace":           {func(_ *fixture, r *api.ProducerRequest) { r.TopicName = "/nowhere/t" }, codes.NotFound},
		"partition beside whole": {func(_ *fixture, r *api.ProducerRequest) { r.TopicName = "/default/t-part-3" }, codes.FailedPrecondition},
		"stopping": {func(f *fixture, _ *api.ProducerRequest) {
			f.fail("OpenPublisher", fault.New(fault.Unavailable, "the broker is stopping"))
		}, codes.Unavailable},
		"too many topics": {func(f *fixture, r *api.ProducerRequest) {
			r.TopicName = "/default/new"
			f.fail("CreateTopic", fault.New(fault.Exhausted, "there are too many"))
		}, codes.ResourceExhausted},
		"no such subject": {func(_ *fixture, r *api.ProducerRequest) { r.SchemaRef = &api.SchemaReference{Subject: "s"} }, codes.NotFound},
		"a bug":           {func(f *fixture, _ *api.ProducerRequest) { f.fail("OpenPublisher", errPlain) }, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(f *fixture) {
				f.create("default/t", 1, broker.Reliable)
				req := good()
				c.change(f, req)
				_, err := f.producer.CreateProducer(f.ctx, req)
				wantCode(t, err, c.want)
			})
		})
	}
	t.Run("topics are not made", func(t *testing.T) {
		bubble(t, Config{RequireTopics: true}, func(f *fixture) {
			_, err := f.producer.CreateProducer(f.ctx, good())
			wantCode(t, err, codes.NotFound)
		})
	})
	t.Run("too many", func(t *testing.T) {
		bubble(t, Config{Limits: Limits{Producers: 1}}, func(f *fixture) {
			f.newProducer("/default/t", "first")
			_, err := f.producer.CreateProducer(f.ctx, good())
			wantCode(t, err, codes.ResourceExhausted)
			f.pass(producerIdle + sweepEvery)
			f.newProducer("/default/t", "p") // the first one was not heard of
			if f.publishers != 1 {
				t.Errorf("%d publishers are open", f.publishers)
			}
		})
	})
}

func TestSendMessageKeepsEverything(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		id := f.newProducer("/default/t", "p")
		m := message(id, "/default/t", "p", "hello")
		m.Attributes = map[string]string{"a": "1", "b": ""}
		m.SchemaId, m.SchemaVersion, m.RoutingKey = proto.Uint64(4), proto.Uint32(2), proto.String("k")
		f.send(m)
		f.send(message(id, "/default/t", "p", "")) // empty is not absent

		got := f.records(t, "default/t", 0)
		if len(got) != 2 {
			t.Fatalf("there are %d records", len(got))
		}
		r := got[0]
		if string(r.Value) != "hello" || string(r.Key) != "k" || r.Timestamp != 1000 {
			t.Errorf("got %+v", r)
		}
		headers := map[string]string{}
		for _, h := range r.Headers {
			headers[h.Key] = string(h.Value)
		}
		for k, v := range map[string]string{"a": "1", "b": "", headerProducer: "p", headerSchemaID: "4", headerSchemaVersion: "2"} {
			if have, ok := headers[k]; !ok || have != v {
				t.Errorf("header %s is %q (%v), not %q", k, have, ok, v)
			}
		}
		if got[1].Value == nil || got[1].Key != nil {
			t.Errorf("an empty message became %+v", got[1])
		}
	})
}

func TestSendMessageLater(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		id := f.newProducer("/default/t", "p")
		m := message(id, "/default/t", "p", "later")
		m.Attributes = map[string]string{attributeDeliverAfter: "1500"}
		m.PublishTime = 0
		now := time.Now().UnixMilli()
		f.send(m)
		r := f.records(t, "default/t", 0)[0]
		if r.Timestamp != now {
			t.Errorf("a message without a time got %d, not %d", r.Timestamp, now)
		}
		for _, h := range r.Headers {
			if h.Key == headerDeliverAt && string(h.Value) != string((&sending{}).decimal(uint64(now)+1500)) || h.Key == attributeDeliverAfter {
				t.Errorf("header %s is %s", h.Key, h.Value)
			}
		}
		if len(r.Headers) != 2 {
			t.Errorf("the headers are %v", r.Headers)
		}
	})
}

func TestSendMessageRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fixture, *api.StreamMessage)
		want   codes.Code
	}{
		"no id":        {func(_ *fixture, m *api.StreamMessage) { m.MsgId = nil }, codes.InvalidArgument},
		"producer 0":   {func(_ *fixture, m *api.StreamMessage) { m.MsgId.ProducerId = 0 }, codes.InvalidArgument},
		"no such time": {func(_ *fixture, m *api.StreamMessage) { m.PublishTime = math.MaxUint64 }, codes.InvalidArgument},
		"our header": {func(_ *fixture, m *api.StreamMessage) { m.Attributes = map[string]string{headerProducer: "x"} },
			codes.InvalidArgument},
		"no number": {func(_ *fixture, m *api.StreamMessage) {
			m.Attributes = map[string]string{attributeDeliverAfter: "soon"}
		},
			codes.InvalidArgument},
		"no time": {func(_ *fixture, m *api.StreamMessage) { m.Attributes = map[string]string{headerDeliverAt: "soon"} },
			codes.InvalidArgument},
		"unknown and nameless": {func(_ *fixture, m *api.StreamMessage) { m.MsgId.ProducerId, m.ProducerName = 5, "" }, codes.Unavailable},
		"unknown topic": {func(_ *fixture, m *api.StreamMessage) { m.MsgId.TopicName = "/default/other" },
			codes.Unavailable},
		"too large": {func(f *fixture, _ *api.StreamMessage) { f.fail("Submit", fault.New(fault.TooLarge, "it is")) }, codes.InvalidArgument},
		"stopping":  {func(f *fixture, _ *api.StreamMessage) { f.fail("Submit", fault.New(fault.Unavailable, "it is")) }, codes.Unavailable},
		"stopped":   {func(f *fixture, _ *api.StreamMessage) { f.fail("done", fault.New(fault.Stopped, "it is")) }, codes.Unavailable},
		"disk full": {func(f *fixture, _ *api.StreamMessage) { f.fail("done", fault.New(fault.NoSpace, "it is")) }, codes.ResourceExhausted},
		"nobody knows": {func(f *fixture, _ *api.StreamMessage) { f.fail("done", fault.New(fault.OutcomeUnknown, "who knows")) },
			codes.Unknown},
		"against the schema": {func(f *fixture, _ *api.StreamMessage) {
			f.fail("Submit", fault.New(fault.InvalidArgument, "it is").With("reason", "schema_mismatch"))
		}, codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(f *fixture) {
				m := message(f.newProducer("/default/t", "p"), "/default/t", "p", "x")
				c.change(f, m)
				_, err := f.producer.SendMessage(f.ctx, m)
				wantCode(t, err, c.want)
			})
		})
	}
	t.Run("gave up", func(t *testing.T) {
		bubble(t, Config{}, func(f *fixture) {
			id := f.newProducer("/default/t", "p")
			f.fail("silent", errPlain)
			ctx, cancel := context.WithTimeout(f.ctx, time.Second)
			defer cancel()
			_, err := f.producer.SendMessage(ctx, message(id, "/default/t", "p", "x"))
			wantCode(t, err, codes.DeadlineExceeded)
			f.fail("silent", nil)
			f.send(message(id, "/default/t", "p", "y"))
		})
	})
}

// A client that outlives the broker's process does not ask for another id; nor does one that another broker gave one.
func TestStaleProducer(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		id := f.newProducer("/default/t", "p")
		f.send(message(id, "/default/t", "p", "1"))
		f.restart()
		if f.healthy(api.HealthCheckRequest_Producer, id) {
			t.Error("a producer that this process does not know is healthy")
		}
		f.send(message(id, "/default/t", "p", "2"))
		if !f.healthy(api.HealthCheckRequest_Producer, id) {
			t.Error("a producer that went on is not healthy")
		}
		f.send(message(12345, "/default/t", "from elsewhere", "3"))
		if n := len(f.records(t, "default/t", 0)); n != 3 {
			t.Errorf("there are %d records", n)
		}
	})
}

func TestProducerOfDeletedTopic(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		id := f.newProducer("/default/t", "p")
		idle := f.newProducer("/default/t", "q")
		if err := f.DeleteTopic(f.ctx, "default/t"); err != nil {
			t.Fatal(err)
		}
		_, err := f.producer.SendMessage(f.ctx, message(id, "/default/t", "p", "1"))
		wantCode(t, err, codes.Unavailable) // look it up again, and so on
		if f.healthy(api.HealthCheckRequest_Producer, id) || f.healthy(api.HealthCheckRequest_Producer, idle) {
			t.Error("producers of a deleted topic are healthy")
		}
		if again := f.newProducer("/default/t", "p"); again != id { // which makes the topic
			t.Errorf("the id changed from %d to %d", id, again)
		}
		f.send(message(id, "/default/t", "p", "2"))
		if n := len(f.records(t, "default/t", 0)); n != 1 {
			t.Errorf("the new topic has %d records", n)
		}
		if f.publishers != 1 {
			t.Errorf("%d publishers are open", f.publishers)
		}
	})
}

func TestPartitions(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/many", 3, broker.Reliable)
		id := f.newProducer("/default/many-part-2", "p-2")
		f.send(message(id, "/default/many-part-2", "p-2", "x"))
		if n := len(f.records(t, "default/many", 2)); n != 1 {
			t.Errorf("partition 2 has %d records", n)
		}
		_, err := f.producer.CreateProducer(f.ctx, &api.ProducerRequest{
			ProducerName: "p-3", TopicName: "/default/many-part-3", DispatchStrategy: api.DispatchStrategy_Reliable,
		})
		wantCode(t, err, codes.FailedPrecondition)

		// By the topic's own name, the broker chooses: one key always goes to one partition.
		whole := f.newProducer("/default/many", "p")
		for range 6 {
			m := message(whole, "/default/many", "p", "y")
			f.send(m)
			m.RoutingKey = proto.String("k")
			f.send(m)
		}
		keyed := 0
		for p := range 3 {
			n, unkeyed := 0, 0
			for _, r := range f.records(t, "default/many", p) {
				if r.Key != nil {
					n++
				} else if string(r.Value) == "y" {
					unkeyed++
				}
			}
			if n > 0 {
				keyed++
			}
			if unkeyed != 2 {
				t.Errorf("partition %d has %d records without a key", p, unkeyed)
			}
		}
		if keyed != 1 {
			t.Errorf("one key is in %d partitions", keyed)
		}
	})
}
