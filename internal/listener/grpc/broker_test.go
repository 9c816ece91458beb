package grpc

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
	rpc "google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"
)

// real is a listener over a real broker, on a file system in memory.
type real struct {
	broker *broker.Broker
	server *Server
	stream leveev1.StreamClient
	admin  leveev1.AdminClient
	conn   *rpc.ClientConn
}

func newReal(t *testing.T) *real {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("data"); err != nil {
		t.Fatal(err)
	}
	b := must(broker.New(broker.Config{Meta: meta.NewMemory(), FS: fs, DataDir: "data"}))(t)
	started := time.UnixMilli(1234)
	r := &real{broker: b, server: New(Config{Broker: b, ServerInfo: func() ServerInfo {
		return ServerInfo{Version: "v1", BrokerID: "b1", Started: started}
	}})}
	ln := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- b.Run(ctx) }()
	go func() { ended <- r.server.Serve(ln) }()
	r.conn = dial(t, ln)
	r.stream, r.admin = leveev1.NewStreamClient(r.conn), leveev1.NewAdminClient(r.conn)
	t.Cleanup(func() {
		_ = r.conn.Close()
		r.server.Drain(context.Background())
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	watch := must(healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{}))(t)
	for must(watch.Recv())(t).Status != healthpb.HealthCheckResponse_SERVING {
	}
	return r
}

func encoded(t *testing.T, values ...string) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	for _, v := range values {
		if err := b.Append(record.Record{Value: []byte(v), Timestamp: 1}); err != nil {
			t.Fatal(err)
		}
	}
	return must(b.Build(record.NoProducer))(t)
}

func TestAdmin(t *testing.T) {
	r, ctx := newReal(t), t.Context()
	must(r.admin.CreateNamespace(ctx, &leveev1.CreateNamespaceRequest{Name: "shop"}))(t)
	fsync, interval, age := "periodic", int64(20), int64(60_000)
	created := must(r.admin.CreateTopic(ctx, &leveev1.CreateTopicRequest{
		Name: "shop/orders", Partitions: 3,
		Settings: &leveev1.TopicSettings{Fsync: &fsync, FsyncIntervalMs: &interval},
	}))(t).Topic
	if created.Name != "shop/orders" || len(created.Id) != 16 || created.Partitions != 3 || created.Dispatch != "reliable" || created.CreatedMs == 0 {
		t.Errorf("created %v", created)
	}
	if s := created.Settings; s.GetFsync() != "periodic" || s.GetFsyncIntervalMs() != 20 || s.RetentionBytes != nil {
		t.Errorf("its settings are %v", s)
	}
	if s := created.Effective; s.GetFsync() != "periodic" || s.SegmentBytes == nil || s.RetentionAgeMs == nil {
		t.Errorf("its effective settings are %v", s)
	}
	set := must(r.admin.SetTopic(ctx, &leveev1.SetTopicRequest{
		Name: "shop/orders", Settings: &leveev1.TopicSettings{RetentionAgeMs: &age}, Unset: []string{"fsync_interval_ms"},
	}))(t).Topic
	if s := set.Settings; s.GetRetentionAgeMs() != age || s.FsyncIntervalMs != nil || s.GetFsync() != "periodic" {
		t.Errorf("its settings are %v after the change", s)
	}
	must(r.admin.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: "live", Dispatch: "non_reliable"}))(t)

	names := map[string]int32{}
	for _, n := range must(r.admin.ListNamespaces(ctx, &leveev1.ListNamespacesRequest{}))(t).Namespaces {
		names[n.Name] = n.Topics
	}
	if want := map[string]int32{"default": 1, "shop": 1}; !maps.Equal(names, want) {
		t.Errorf("namespaces are %v, want %v", names, want)
	}
	if all := must(r.admin.ListTopics(ctx, &leveev1.ListTopicsRequest{}))(t).Topics; len(all) != 2 {
		t.Errorf("topics are %v", all)
	}
	if shop := must(r.admin.ListTopics(ctx, &leveev1.ListTopicsRequest{Namespace: "shop"}))(t).Topics; len(shop) != 1 || shop[0].Name != "shop/orders" {
		t.Errorf("topics of shop are %v", shop)
	}

	must(r.stream.PublishOnce(ctx, &leveev1.PublishOnceRequest{Topic: "shop/orders", Partition: 1, Batch: encoded(t, "a", "b")}))(t)
	d := must(r.admin.DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: "shop/orders"}))(t)
	if len(d.Partitions) != 3 || len(d.Exposures) == 0 || d.Topic.Name != "shop/orders" {
		t.Fatalf("described %v", d)
	}
	if p := d.Partitions[1]; p.Partition != 1 || p.State != "serving" || p.First != 0 || p.End != 2 || p.Bytes == 0 || p.Segments != 1 || p.Generation == 0 {
		t.Errorf("partition 1 is %v", p)
	}
	must(r.admin.UnloadTopic(ctx, &leveev1.UnloadTopicRequest{Name: "shop/orders"}))(t)
	if got := must(r.stream.PublishOnce(ctx, &leveev1.PublishOnceRequest{Topic: "shop/orders", Partition: 1, Batch: encoded(t, "c")}))(t); got.Offset != 2 {
		t.Errorf("after an unload the next offset is %d", got.Offset)
	}

	info := must(r.admin.ServerInfo(ctx, &leveev1.ServerInfoRequest{}))(t)
	if info.Version != "v1" || info.BrokerId != "b1" || info.StartedMs != 1234 || info.State != "ready" || info.Topics != 2 ||
		info.Partitions != 4 || info.MaxBatchBytes != 16<<20 || info.MaxRecordBytes != 10<<20 || len(info.Problems) != 0 {
		t.Errorf("the server says %v", info)
	}

	_, err := r.admin.DeleteNamespace(ctx, &leveev1.DeleteNamespaceRequest{Name: "shop"})
	if err == nil {
		t.Error("a namespace with topics was deleted")
	}
	must(r.admin.DeleteTopic(ctx, &leveev1.DeleteTopicRequest{Name: "shop/orders"}))(t)
	must(r.admin.DeleteNamespace(ctx, &leveev1.DeleteNamespaceRequest{Name: "shop"}))(t)
}

func TestAdminErrors(t *testing.T) {
	r, ctx := newReal(t), t.Context()
	must(r.admin.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: "t"}))(t)
	endless := int64(1) << 60
	for name, c := range map[string]struct {
		kind fault.Kind
		call func() error
	}{
		"namespace twice": {fault.AlreadyExists, func() error {
			_, err := r.admin.CreateNamespace(ctx, &leveev1.CreateNamespaceRequest{Name: "default"})
			return err
		}},
		"namespace unknown": {fault.NotFound, func() error {
			_, err := r.admin.DeleteNamespace(ctx, &leveev1.DeleteNamespaceRequest{Name: "x"})
			return err
		}},
		"topic twice": {fault.AlreadyExists, func() error { _, err := r.admin.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: "t"}); return err }},
		"topic name": {fault.InvalidArgument, func() error {
			_, err := r.admin.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: "\xff"})
			return err
		}},
		"dispatch": {fault.InvalidArgument, func() error {
			_, err := r.admin.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: "u", Dispatch: "x"})
			return err
		}},
		"interval": {fault.InvalidArgument, func() error {
			_, err := r.admin.SetTopic(ctx, &leveev1.SetTopicRequest{Name: "t", Settings: &leveev1.TopicSettings{FsyncIntervalMs: &endless}})
			return err
		}},
		"age": {fault.InvalidArgument, func() error {
			_, err := r.admin.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: "u", Settings: &leveev1.TopicSettings{RetentionAgeMs: &endless}})
			return err
		}},
		"set unknown":    {fault.NotFound, func() error { _, err := r.admin.SetTopic(ctx, &leveev1.SetTopicRequest{Name: "x"}); return err }},
		"delete unknown": {fault.NotFound, func() error { _, err := r.admin.DeleteTopic(ctx, &leveev1.DeleteTopicRequest{Name: "x"}); return err }},
		"unload unknown": {fault.NotFound, func() error { _, err := r.admin.UnloadTopic(ctx, &leveev1.UnloadTopicRequest{Name: "x"}); return err }},
		"describe unknown": {fault.NotFound, func() error {
			_, err := r.admin.DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: "x"})
			return err
		}},
		"list unknown": {fault.NotFound, func() error {
			_, err := r.admin.ListTopics(ctx, &leveev1.ListTopicsRequest{Namespace: "x"})
			return err
		}},
		"publish unknown": {fault.NotFound, func() error {
			_, err := r.stream.PublishOnce(ctx, &leveev1.PublishOnceRequest{Topic: "x", Batch: encoded(t, "a")})
			return err
		}},
		"publish garbage": {fault.InvalidArgument, func() error {
			_, err := r.stream.PublishOnce(ctx, &leveev1.PublishOnceRequest{Topic: "t", Batch: []byte("x")})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) { wantKind(t, c.call(), c.kind) })
	}
}

// What is published is delivered, from a position on and at the tail; then the topic goes.
func TestPublishAndSubscribe(t *testing.T) {
	r, ctx := newReal(t), t.Context()
	topic := must(r.admin.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: "t"}))(t).Topic
	next := publishMany(t, r, topic.Id, 500, "a", "b", strings.Repeat("c", 1000))

	sub := must(r.stream.Subscribe(ctx))(t)
	err := sub.Send(&leveev1.SubscribeRequest{
		Open:   &leveev1.OpenSubscribe{Topic: "t", Start: &leveev1.OpenSubscribe_Offset{Offset: 4}, MaxBytes: 5000},
		Credit: &leveev1.Credit{Bytes: 1 << 30},
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := must(sub.Recv())(t).Subscribed; s.GetStart() != 4 || s.End != next {
		t.Errorf("got %v", s)
	}
	tail := &follower{sub, 4}
	for end := false; !end; {
		_, end = tail.take(t)
	}
	if tail.next != next {
		t.Fatalf("the end was reached at %d, want %d", tail.next, next)
	}
	got := must(r.stream.PublishOnce(ctx, &leveev1.PublishOnceRequest{Topic: "t", Partition: -1, Records: []*leveev1.Record{{Value: []byte("tail")}}}))(t)
	if got.Offset != next {
		t.Errorf("got %v", got)
	}
	if values, _ := tail.take(t); !slices.Equal(values, []string{"tail"}) {
		t.Errorf("got %q at the tail", values)
	}
	if _, end := tail.take(t); !end {
		t.Error("the end was not announced again")
	}
	must(r.admin.DeleteTopic(ctx, &leveev1.DeleteTopicRequest{Name: "t"}))(t)
	if e := must(sub.Recv())(t).Ended; e.GetKind() != "deleted" {
		t.Errorf("got %v, want to be told that the topic is gone", e)
	}
	wantEnd(t, sub)
}

// publishMany sends equal batches down one pipeline into an empty topic t, checks where they went, and returns the end.
func publishMany(t *testing.T, r *real, id []byte, batches int, values ...string) (end int64) {
	t.Helper()
	pub := must(r.stream.Publish(t.Context()))(t)
	if err := pub.Send(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: "t", TopicId: id}}); err != nil {
		t.Fatal(err)
	}
	must(pub.Recv())(t)
	data := encoded(t, values...)
	go func() {
		for id := range batches {
			if pub.Send(&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: uint64(id), Data: data}}}) != nil {
				return
			}
		}
		_ = pub.CloseSend()
	}()
	each := int64(len(values))
	for {
		resp, err := pub.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range resp.Acks {
			if a.Error != nil || a.Offset != int64(a.Id)*each || a.LastOffset != a.Offset+each-1 || a.Offset != end {
				t.Fatalf("got %v, want the batch at %d", a, end)
			}
			end += each
		}
	}
	if end != int64(batches)*each {
		t.Fatalf("%d records were acknowledged, want %d", end, int64(batches)*each)
	}
	return end
}

// follower checks what a subscription delivers.
type follower struct {
	sub  subscribeClient
	next int64
}

// take receives one message: values, or the news that the end was reached.
func (f *follower) take(t *testing.T) (values []string, end bool) {
	t.Helper()
	resp := must(f.sub.Recv())(t)
	if resp.Delivery == nil {
		if !resp.AtEnd || resp.CaughtUp != f.next {
			t.Fatalf("got %v after offset %d", resp, f.next)
		}
		return nil, true
	}
	for rest := resp.Delivery.Batches; len(rest) > 0; {
		batch, after, err := record.Next(rest)
		if err != nil {
			t.Fatal(err)
		}
		rest = after
		for _, rec := range must(record.Records(batch))(t) {
			if rec.Offset < f.next {
				continue // the first batch begins before the position
			}
			if rec.Offset != f.next {
				t.Fatalf("got offset %d, want %d", rec.Offset, f.next)
			}
			values = append(values, string(rec.Value))
			f.next++
		}
	}
	if resp.Delivery.Next != f.next {
		t.Fatalf("the delivery says to go on at %d, want %d", resp.Delivery.Next, f.next)
	}
	return values, false
}

// A consumer that has no room for records learns at once that it stands by, and that another one has taken over.
func TestTakeoverIsToldWithoutCredit(t *testing.T) {
	r := newReal(t)
	must(r.admin.CreateTopic(t.Context(), &leveev1.CreateTopicRequest{Name: "a"}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	open := func(name string) consumeClient {
		st := must(r.stream.Consume(ctx))(t)
		tell(t, st, &leveev1.ConsumeRequest{Open: &leveev1.OpenConsume{Topic: "a", Subscription: "s", Create: true, Type: "failover", Name: name}})
		if c := must(st.Recv())(t); c.Consuming == nil {
			t.Fatalf("got %v", c)
		}
		return st
	}
	b := open("b")
	if m := must(b.Recv())(t); !m.Active {
		t.Fatalf("got %v", m)
	}
	open("a")
	if m := must(b.Recv())(t); !m.Standby {
		t.Fatalf("got %v", m)
	}
	open("b")
	if m := must(b.Recv())(t); m.Ended.GetKind() != "fenced" {
		t.Fatalf("got %v", m)
	}
	wantEnd(t, b)
}

func TestBrokerDrainReachesEveryStream(t *testing.T) {
	r, ctx := newReal(t), t.Context()
	must(r.admin.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: "t"}))(t)
	pub := must(r.stream.Publish(ctx))(t)
	if err := pub.Send(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: "t"}}); err != nil {
		t.Fatal(err)
	}
	must(pub.Recv())(t)
	sub := must(r.stream.Subscribe(ctx))(t)
	if err := sub.Send(&leveev1.SubscribeRequest{Open: &leveev1.OpenSubscribe{Topic: "t"}}); err != nil {
		t.Fatal(err)
	}
	must(sub.Recv())(t)
	if report := r.broker.Drain(ctx); !report.Clean {
		t.Errorf("the drain's report is %+v", report)
	}
	if d := must(pub.Recv())(t).Draining; d.GetKind() != "unavailable" {
		t.Errorf("the publisher got %v", d)
	}
	if e := must(sub.Recv())(t).Ended; e.GetKind() != "unavailable" {
		t.Errorf("the subscriber got %v", e)
	}
	// The broker takes nothing any more, and says so for each batch.
	if err := pub.Send(&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: 1, Data: encoded(t, "late")}}}); err != nil {
		t.Fatal(err)
	}
	if a := acks(t, pub, 1)[0]; a.Error.GetKind() != "unavailable" || !a.Error.Retriable {
		t.Errorf("got %v", a)
	}
	_ = pub.CloseSend()
	wantEnd(t, pub)
	if s := must(r.admin.ServerInfo(ctx, &leveev1.ServerInfoRequest{}))(t).State; s != "draining" {
		t.Errorf("the server is %s", s)
	}
}
