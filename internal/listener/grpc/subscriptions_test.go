package grpc

import (
	"errors"
	"io"
	"reflect"
	"testing"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
	"google.golang.org/protobuf/proto"
)

// everySetting has every field set, each to another value.
func everySetting() (*leveev1.SubscriptionSettings, broker.SubscriptionSettings) {
	n, s := [14]int64{}, [14]string{}
	w := [14]int32{}
	for i := range n {
		n[i], w[i], s[i] = int64(i+1), int32(i+1), string(rune('a'+i))
	}
	outside := &leveev1.SubscriptionSettings{
		AckTimeoutMs: &n[0], MaxDeliveries: &w[1], RedeliveryDelayMs: &n[2], MaxRedeliveryDelayMs: &n[3], Backoff: &s[4], Poison: &s[5],
		DeadLetterTopic: &s[6], WindowMessages: &w[7], WindowBytes: &n[8], TotalMessages: &w[9], TotalBytes: &n[10], KeyInFlight: &w[11],
		OnTrimmed: &s[12], ExpireAfterMs: &n[13],
	}
	inside := broker.SubscriptionSettings{
		AckTimeoutMs: &n[0], MaxDeliveries: &w[1], RedeliveryDelayMs: &n[2], MaxRedeliveryDelayMs: &n[3], Backoff: &s[4], Poison: &s[5],
		DeadLetterTopic: &s[6], WindowMessages: &w[7], WindowBytes: &n[8], TotalMessages: &w[9], TotalBytes: &n[10], KeyInFlight: &w[11],
		OnTrimmed: &s[12], ExpireAfterMs: &n[13],
	}
	return outside, inside
}

func TestSubscriptionAdmin(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		admin, ctx, got := leveev1.NewAdminClient(f.conn), t.Context(), &f.fakeBroker.admin
		settings, inside := everySetting()
		got.info = broker.SubscriptionInfo{
			Topic: "ns/t", TopicID: [16]byte{7}, Name: "s", Type: broker.Shared, Settings: inside, Effective: inside, CreatedMs: 5,
			Parts: []broker.SubscriptionPart{{
				Partition: 1, Position: 2, End: 3, First: 4, Backlog: 5, Settled: 6, InFlight: 7, Redelivering: 8, Delayed: 9, State: "active",
				Consumers: []broker.ConsumerState{{Name: "c", Active: true, Unsettled: 10, UnsettledBytes: 11}},
			}},
		}
		id := [16]byte{7}
		want := &leveev1.Subscription{
			Topic: "ns/t", TopicId: id[:], Name: "s", Type: "shared", Settings: settings, Effective: settings, CreatedMs: 5,
			Parts: []*leveev1.SubscriptionPart{{
				Partition: 1, Position: 2, End: 3, First: 4, Backlog: 5, Settled: 6, InFlight: 7, Redelivering: 8, Delayed: 9, State: "active",
				Consumers: []*leveev1.SubscriptionConsumer{{Name: "c", Active: true, Unsettled: 10, UnsettledBytes: 11}},
			}},
		}
		check := func(call string, s *leveev1.Subscription, args bool) {
			t.Helper()
			if !proto.Equal(s, want) || !args {
				t.Errorf("%s: got %v; the broker got %+v", call, s, got)
			}
		}
		at := &leveev1.Position{At: &leveev1.Position_Offset{Offset: 9}}
		c := must(admin.CreateSubscription(ctx, &leveev1.CreateSubscriptionRequest{Topic: "t", Name: "s", Type: "failover", Start: at, Settings: settings}))(t)
		sp := got.spec
		check("create", c.Subscription, sp.Topic == "t" && sp.Name == "s" && sp.Type == broker.Failover && sp.Start == broker.Offset(9) && reflect.DeepEqual(sp.Settings, inside))
		l := must(admin.ListSubscriptions(ctx, &leveev1.ListSubscriptionsRequest{Topic: "t"}))(t)
		check("list", l.Subscriptions[1], len(l.Subscriptions) == 2 && got.topic == "t")
		d := must(admin.DescribeSubscription(ctx, &leveev1.DescribeSubscriptionRequest{Topic: "t1", Name: "s1"}))(t)
		check("describe", d.Subscription, got.topic == "t1" && got.name == "s1")
		s := must(admin.SetSubscription(ctx, &leveev1.SetSubscriptionRequest{Topic: "t2", Name: "s2", Settings: settings, Unset: []string{"x"}}))(t)
		check("set", s.Subscription, got.topic == "t2" && got.name == "s2" && reflect.DeepEqual(got.set, inside) && got.unset[0] == "x")
		for want, p := range map[broker.Position]*leveev1.Position{
			broker.Earliest(): nil, broker.Latest(): {At: &leveev1.Position_Latest{Latest: true}}, broker.Time(3): {At: &leveev1.Position_TimeMs{TimeMs: 3}},
		} {
			must(admin.SeekSubscription(ctx, &leveev1.SeekSubscriptionRequest{Topic: "t3", Name: "s3", Partition: -1, To: p}))(t)
			if got.topic != "t3" || got.name != "s3" || got.partition != -1 || got.to != want {
				t.Errorf("seek: %+v", got)
			}
		}
		must(admin.DeleteSubscription(ctx, &leveev1.DeleteSubscriptionRequest{Topic: "t4", Name: "s4"}))(t)
		if got.topic != "t4" || got.name != "s4" {
			t.Errorf("delete: %+v", got)
		}
		got.err = fault.New(fault.NotFound, "no such subscription")
		_, err := admin.DeleteSubscription(ctx, &leveev1.DeleteSubscriptionRequest{})
		wantKind(t, err, fault.NotFound)
		_, err = admin.SetSubscription(ctx, &leveev1.SetSubscriptionRequest{})
		wantKind(t, err, fault.NotFound)
	})
}

func TestDeadLetterAdmin(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		admin, ctx, got := leveev1.NewAdminClient(f.conn), t.Context(), &f.fakeBroker.admin
		for i := range 1500 {
			got.letters = append(got.letters, broker.DeadLetter{
				Topic: "ns/t-s-dlq", Offset: int64(i), SourcePartition: 3, SourceOffset: 4, Reason: "why\xff", Deliveries: 5, TimeMs: 6,
				Record: record.Record{Key: []byte("k"), Value: make([]byte, 1000), Timestamp: 7, Headers: []record.Header{{Key: "h", Value: []byte("v")}}},
			})
		}
		st := must(admin.ListDeadLetters(ctx, &leveev1.ListDeadLettersRequest{Topic: "t", Name: "s", Most: 9}))(t)
		n, messages := int64(0), 0
		for {
			r, err := st.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			messages++
			for _, d := range r.Letters {
				rec := d.Record
				if d.Offset != n || d.Reason != "why\uFFFD" || d.SourcePartition != 3 || d.SourceOffset != 4 || d.Deliveries != 5 || d.TimeMs != 6 ||
					!rec.HasKey || string(rec.Key) != "k" || len(rec.Value) != 1000 || rec.TimestampMs != 7 || rec.Headers[0].Key != "h" {
					t.Fatalf("letter %d: got %v", n, d)
				}
				n++
			}
		}
		if n != 1500 || messages < 3 || got.most != 9 {
			t.Errorf("%d letters in %d messages; the broker was asked for %d", n, messages, got.most)
		}
		re := must(admin.RedriveDeadLetters(ctx, &leveev1.RedriveDeadLettersRequest{Topic: "t", Name: "s"}))(t)
		var last *leveev1.RedriveDeadLettersResponse
		for {
			r, err := re.Recv()
			if err != nil {
				break
			}
			last = r
		}
		if last.GetRedriven() != 1500 || !last.GetDone() {
			t.Errorf("redrive: %v", last)
		}
		if p := must(admin.PurgeDeadLetters(ctx, &leveev1.PurgeDeadLettersRequest{Topic: "t", Name: "s"}))(t); p.Purged != 1500 {
			t.Errorf("purge: %v", p)
		}
		got.err = fault.New(fault.NotFound, "no such subscription")
		re = must(admin.RedriveDeadLetters(ctx, &leveev1.RedriveDeadLettersRequest{}))(t)
		for {
			if _, err := re.Recv(); err != nil {
				wantKind(t, err, fault.NotFound)
				break
			}
		}
		st = must(admin.ListDeadLetters(ctx, &leveev1.ListDeadLettersRequest{Most: -1}))(t)
		_, err := st.Recv()
		wantKind(t, err, fault.InvalidArgument)
	})
}
