package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// registrar is a fake Admin service: it keeps what it was asked and answers what the test has set.
type registrar struct {
	leveev1.UnimplementedAdminServer
	got     proto.Message
	answer  *leveev1.Subscription
	letters int
	err     error
}

func (r *registrar) CreateSubscription(_ context.Context, req *leveev1.CreateSubscriptionRequest) (*leveev1.CreateSubscriptionResponse, error) {
	r.got = req
	return &leveev1.CreateSubscriptionResponse{Subscription: r.answer}, r.err
}

func (r *registrar) ListSubscriptions(_ context.Context, req *leveev1.ListSubscriptionsRequest) (*leveev1.ListSubscriptionsResponse, error) {
	r.got = req
	return &leveev1.ListSubscriptionsResponse{Subscriptions: []*leveev1.Subscription{r.answer, r.answer}}, r.err
}

func (r *registrar) DescribeSubscription(_ context.Context, req *leveev1.DescribeSubscriptionRequest) (*leveev1.DescribeSubscriptionResponse, error) {
	r.got = req
	return &leveev1.DescribeSubscriptionResponse{Subscription: r.answer}, r.err
}

func (r *registrar) SetSubscription(_ context.Context, req *leveev1.SetSubscriptionRequest) (*leveev1.SetSubscriptionResponse, error) {
	r.got = req
	return &leveev1.SetSubscriptionResponse{Subscription: r.answer}, r.err
}

func (r *registrar) SeekSubscription(_ context.Context, req *leveev1.SeekSubscriptionRequest) (*leveev1.SeekSubscriptionResponse, error) {
	r.got = req
	return &leveev1.SeekSubscriptionResponse{}, r.err
}

func (r *registrar) DeleteSubscription(_ context.Context, req *leveev1.DeleteSubscriptionRequest) (*leveev1.DeleteSubscriptionResponse, error) {
	r.got = req
	return &leveev1.DeleteSubscriptionResponse{}, r.err
}

func (r *registrar) ListDeadLetters(req *leveev1.ListDeadLettersRequest, rpc grpc.ServerStreamingServer[leveev1.ListDeadLettersResponse]) error {
	r.got = req
	ends := r.err // now: who wants no more does not wait for the end of this
	for i := range r.letters {
		err := rpc.Send(&leveev1.ListDeadLettersResponse{Letters: []*leveev1.DeadLetter{{
			Topic: "d", Offset: int64(2 * i), SourcePartition: 1, SourceOffset: 2, Reason: "why", Deliveries: 3, TimeMs: 4,
			Record: &leveev1.Record{HasKey: true, Value: []byte("v"), TimestampMs: 5, Headers: []*leveev1.Header{{Key: "h", Value: []byte("x")}}},
		}, {Offset: int64(2*i + 1)}}})
		if err != nil {
			return err
		}
	}
	return ends
}

func (r *registrar) RedriveDeadLetters(req *leveev1.RedriveDeadLettersRequest, rpc grpc.ServerStreamingServer[leveev1.RedriveDeadLettersResponse]) error {
	r.got = req
	for i := range r.letters {
		if err := rpc.Send(&leveev1.RedriveDeadLettersResponse{Redriven: int64(i)}); err != nil {
			return err
		}
	}
	if r.err != nil {
		return r.err
	}
	return rpc.Send(&leveev1.RedriveDeadLettersResponse{Redriven: int64(r.letters), Done: true})
}

func (r *registrar) PurgeDeadLetters(_ context.Context, req *leveev1.PurgeDeadLettersRequest) (*leveev1.PurgeDeadLettersResponse, error) {
	r.got = req
	return &leveev1.PurgeDeadLettersResponse{Purged: int64(r.letters)}, r.err
}

func (r *registrar) serve(t *testing.T) *Admin {
	t.Helper()
	ln := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	leveev1.RegisterAdminServer(server, r)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(ln) })
	c, err := Dial("broker:1", WithDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		server.Stop()
		serving.Wait()
	})
	return c.Admin()
}

func TestSubscriptionAdmin(t *testing.T) {
	ms := func(n int64) *time.Duration { return new(time.Duration(n) * time.Millisecond) }
	settings := SubscriptionSettings{
		AckTimeout: ms(1), MaxDeliveries: new(int32(2)), RedeliveryDelay: ms(3), MaxRedeliveryDelay: ms(4), Backoff: new("e"), Poison: new("f"),
		DeadLetterTopic: new("g"), WindowMessages: new(int32(8)), WindowBytes: new(int64(9)), TotalMessages: new(int32(10)),
		TotalBytes: new(int64(11)), KeyInFlight: new(int32(12)), OnTrimmed: new("m"), ExpireAfter: ms(14),
	}
	wire := &leveev1.SubscriptionSettings{
		AckTimeoutMs: new(int64(1)), MaxDeliveries: new(int32(2)), RedeliveryDelayMs: new(int64(3)), MaxRedeliveryDelayMs: new(int64(4)),
		Backoff: new("e"), Poison: new("f"), DeadLetterTopic: new("g"), WindowMessages: new(int32(8)), WindowBytes: new(int64(9)),
		TotalMessages: new(int32(10)), TotalBytes: new(int64(11)), KeyInFlight: new(int32(12)), OnTrimmed: new("m"), ExpireAfterMs: new(int64(14)),
	}
	r := &registrar{answer: &leveev1.Subscription{
		Topic: "ns/t", TopicId: []byte("id"), Name: "s", Type: "shared", Settings: wire, CreatedMs: 5,
		Parts: []*leveev1.SubscriptionPart{{
			Partition: 1, Position: 2, End: 3, First: 4, Backlog: 5, Settled: 6, InFlight: 7, Redelivering: 8, Delayed: 9, State: "active",
			Consumers: []*leveev1.SubscriptionConsumer{{Name: "c", Active: true, Unsettled: 10, UnsettledBytes: 11}},
		}},
	}}
	want := SubscriptionInfo{
		Topic: "ns/t", TopicID: []byte("id"), Name: "s", Type: Shared, Settings: settings, Created: time.UnixMilli(5),
		Parts: []SubscriptionPart{{
			Partition: 1, Position: 2, End: 3, First: 4, Backlog: 5, Settled: 6, InFlight: 7, Redelivering: 8, Delayed: 9, State: "active",
			Consumers: []ConsumerState{{Name: "c", Active: true, Unsettled: 10, UnsettledBytes: 11}},
		}},
	}
	admin, ctx := r.serve(t), patience(t)
	check := func(call string, got SubscriptionInfo, err error, req proto.Message) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) || !proto.Equal(r.got, req) {
			t.Errorf("%s: %+v, %v; it asked %v", call, got, err, r.got)
		}
	}
	info, err := admin.CreateSubscription(ctx, SubscriptionSpec{Topic: "t", Name: "s", Type: KeyShared, From: Offset(7), Settings: settings})
	check("create", info, err, &leveev1.CreateSubscriptionRequest{
		Topic: "t", Name: "s", Type: "key_shared", Settings: wire, Start: &leveev1.Position{At: &leveev1.Position_Offset{Offset: 7}},
	})
	all, err := admin.Subscriptions(ctx, "t")
	check("list", all[1], err, &leveev1.ListSubscriptionsRequest{Topic: "t"})
	info, err = admin.DescribeSubscription(ctx, "t", "s")
	check("describe", info, err, &leveev1.DescribeSubscriptionRequest{Topic: "t", Name: "s"})
	info, err = admin.SetSubscription(ctx, "t", "s", settings, "backoff")
	check("set", info, err, &leveev1.SetSubscriptionRequest{Topic: "t", Name: "s", Settings: wire, Unset: []string{"backoff"}})
	for _, c := range []struct {
		to   Position
		want *leveev1.Position
	}{
		{Earliest(), &leveev1.Position{At: &leveev1.Position_Earliest{Earliest: true}}}, {Latest(), &leveev1.Position{At: &leveev1.Position_Latest{Latest: true}}},
		{At(time.UnixMilli(9)), &leveev1.Position{At: &leveev1.Position_TimeMs{TimeMs: 9}}},
	} {
		err := admin.SeekSubscription(ctx, "t", "s", c.to)
		check("seek", want, err, &leveev1.SeekSubscriptionRequest{Topic: "t", Name: "s", Partition: -1, To: c.want})
	}
	err = admin.SeekSubscription(ctx, "t", "s", Earliest(), 3, 4)
	check("seek", want, err, &leveev1.SeekSubscriptionRequest{Topic: "t", Name: "s", Partition: 4, To: Earliest().message()})
	err = admin.DeleteSubscription(ctx, "t", "s")
	check("delete", want, err, &leveev1.DeleteSubscriptionRequest{Topic: "t", Name: "s"})
	r.err = refusal(codes.NotFound, KindNotFound, false)
	if _, err := admin.DescribeSubscription(ctx, "t", "s"); KindOf(err) != KindNotFound {
		t.Error(err)
	}
}

func TestDeadLetterAdmin(t *testing.T) {
	r := &registrar{letters: 5}
	admin, ctx := r.serve(t), patience(t)
	n := int64(0)
	for d, err := range admin.DeadLetters(ctx, "t", "s", 7) {
		if err != nil || d.Offset != n {
			t.Fatalf("%+v, %v", d, err)
		}
		if n == 0 {
			want := DeadLetter{
				Topic: "d", SourcePartition: 1, SourceOffset: 2, Reason: "why", Deliveries: 3, Time: time.UnixMilli(4),
				Record: record.Record{Key: []byte{}, Value: []byte("v"), Timestamp: 5, Offset: 2, Headers: []record.Header{{Key: "h", Value: []byte("x")}}},
			}
			if !reflect.DeepEqual(d, want) {
				t.Errorf("%+v", d)
			}
		}
		n++
	}
	if n != 10 || !proto.Equal(r.got, &leveev1.ListDeadLettersRequest{Topic: "t", Name: "s", Most: 7}) {
		t.Errorf("%d letters; it asked %v", n, r.got)
	}
	for range admin.DeadLetters(ctx, "t", "s", 0) {
		break // the stream ends with it
	}
	var told []int64
	if n, err := admin.RedriveDeadLetters(ctx, "t", "s", func(n int64) { told = append(told, n) }); n != 5 || err != nil || fmt.Sprint(told) != "[0 1 2 3 4]" {
		t.Errorf("%d, %v, told %v", n, err, told)
	}
	if n, err := admin.PurgeDeadLetters(ctx, "t", "s"); n != 5 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	r.err = refusal(codes.NotFound, KindNotFound, false)
	var last error
	for _, err := range admin.DeadLetters(ctx, "t", "s", 0) {
		last = err
	}
	if KindOf(last) != KindNotFound {
		t.Error(last)
	}
	if n, err := admin.RedriveDeadLetters(ctx, "t", "s", nil); n != 4 || KindOf(err) != KindNotFound || errors.Is(err, io.EOF) {
		t.Errorf("%d, %v", n, err)
	}
}
