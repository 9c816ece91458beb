package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

// fakeAdmin answers every call with what it was asked.
type fakeAdmin struct {
	leveev1.UnimplementedAdminServer
	token chan string
}

func (f *fakeAdmin) CreateTopic(_ context.Context, r *leveev1.CreateTopicRequest) (*leveev1.CreateTopicResponse, error) {
	if r.GetName() == "taken" {
		return nil, refusal(codes.AlreadyExists, KindAlreadyExists, false)
	}
	return &leveev1.CreateTopicResponse{Topic: &leveev1.Topic{
		Name: r.GetName(), Id: []byte{1}, Incarnation: 3, Partitions: r.GetPartitions(), Dispatch: r.GetDispatch(),
		Settings: r.GetSettings(), Effective: &leveev1.TopicSettings{Fsync: new("on_commit")}, CreatedMs: 1000,
	}}, nil
}

func (f *fakeAdmin) SetTopic(_ context.Context, r *leveev1.SetTopicRequest) (*leveev1.SetTopicResponse, error) {
	return &leveev1.SetTopicResponse{Topic: &leveev1.Topic{Name: fmt.Sprint(r.GetUnset()), Settings: r.GetSettings()}}, nil
}

func (f *fakeAdmin) DescribeTopic(context.Context, *leveev1.DescribeTopicRequest) (*leveev1.DescribeTopicResponse, error) {
	return &leveev1.DescribeTopicResponse{
		Topic: &leveev1.Topic{Name: "default/orders"},
		Partitions: []*leveev1.Partition{
			{Partition: 0, State: "serving", End: 9},
			{Partition: 1, Uncovered: new(int64(5)), TakenOver: &leveev1.TakeoverReport{AtMs: 7000, From: "b", ObjectsBelow: 1, ReplayedBelow: 2, LostFrom: new(int64(3)), LostTo: new(int64(4))}},
		},
		Exposures: []*leveev1.Exposure{{Fault: "f", Loses: "l"}},
	}, nil
}

func (f *fakeAdmin) RecoverPartitions(_ context.Context, r *leveev1.RecoverPartitionsRequest) (*leveev1.RecoverPartitionsResponse, error) {
	return &leveev1.RecoverPartitionsResponse{Partitions: []*leveev1.WaitingPartition{
		{Partition: r.GetPartition(), Broker: fmt.Sprint(r.GetTopic(), r.Partition != nil, r.GetAcceptLoss()), SinceMs: 6000},
	}}, nil
}

func (f *fakeAdmin) ListNamespaces(context.Context, *leveev1.ListNamespacesRequest) (*leveev1.ListNamespacesResponse, error) {
	return &leveev1.ListNamespacesResponse{Namespaces: []*leveev1.Namespace{{Name: "default", Topics: 2}}}, nil
}

func (f *fakeAdmin) ListTopics(_ context.Context, r *leveev1.ListTopicsRequest) (*leveev1.ListTopicsResponse, error) {
	return &leveev1.ListTopicsResponse{Topics: []*leveev1.Topic{{Name: r.GetNamespace() + "/a"}}}, nil
}

func (f *fakeAdmin) CreateNamespace(ctx context.Context, _ *leveev1.CreateNamespaceRequest) (*leveev1.CreateNamespaceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	f.token <- fmt.Sprint(md.Get("authorization"))
	return &leveev1.CreateNamespaceResponse{}, nil
}

func (f *fakeAdmin) ServerInfo(context.Context, *leveev1.ServerInfoRequest) (*leveev1.ServerInfoResponse, error) {
	return &leveev1.ServerInfoResponse{Version: "v1", BrokerId: "b", StartedMs: 5, State: "ready", Topics: 1, Partitions: 2, Problems: []string{"p"}}, nil
}

func serveAdmin(t *testing.T, opts ...grpc.ServerOption) (f *fakeAdmin, addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f = &fakeAdmin{token: make(chan string, 10)}
	server := grpc.NewServer(opts...)
	leveev1.RegisterAdminServer(server, f)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return f, listener.Addr().String()
}

func dialTest(t *testing.T, addr string, opts ...Option) *Client {
	t.Helper()
	c, err := Dial(addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAdmin(t *testing.T) {
	_, addr := serveAdmin(t)
	a := dialTest(t, addr).Admin()
	ctx := patience(t)
	settings := Settings{FsyncInterval: new(250 * time.Millisecond), RetentionBytes: new(int64(0)), RetentionAge: new(time.Hour)}
	topic, err := a.CreateTopic(ctx, TopicSpec{Name: "orders", Partitions: 3, Dispatch: Reliable, Settings: settings})
	want := Topic{
		Name: "orders", ID: []byte{1}, Incarnation: 3, Partitions: 3, Dispatch: Reliable, Settings: settings,
		Effective: Settings{Fsync: new("on_commit")}, Created: time.Unix(1, 0),
	}
	if err != nil || !reflect.DeepEqual(topic, want) {
		t.Errorf("%+v, %v", topic, err)
	}
	var e *Error
	if _, err := a.CreateTopic(ctx, TopicSpec{Name: "taken"}); !errors.As(err, &e) || e.Kind != KindAlreadyExists || e.Retriable {
		t.Errorf("%v", err)
	}
	if topic, err = a.SetTopic(ctx, "orders", Settings{SegmentBytes: new(int64(7))}, "fsync"); err != nil || topic.Name != "[fsync]" || *topic.Settings.SegmentBytes != 7 {
		t.Errorf("%+v, %v", topic, err)
	}
	if d, err := a.DescribeTopic(ctx, "orders"); err != nil || d.PartitionStates[0].End != 9 || d.Exposures[0] != (Exposure{"f", "l"}) || d.Name != "default/orders" {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := a.DescribeTopic(ctx, "orders"); err != nil || d.PartitionStates[0].TakenOver != nil || *d.PartitionStates[1].Uncovered != 5 ||
		!reflect.DeepEqual(d.PartitionStates[1].TakenOver, &TakenOver{At: time.UnixMilli(7000), From: "b", Objects: 1, Replayed: 2, Lost: &[2]int64{3, 4}}) {
		t.Errorf("%+v, %v", d, err)
	}
	for partition, want := range map[int32]Waiting{-1: {0, "tfalse true", time.UnixMilli(6000), nil}, 3: {3, "ttrue true", time.UnixMilli(6000), nil}} {
		if w, err := a.RecoverPartitions(ctx, "t", partition, true); err != nil || !reflect.DeepEqual(w, []Waiting{want}) {
			t.Errorf("%d: %+v, %v", partition, w, err)
		}
	}
	if n, err := a.Namespaces(ctx); err != nil || !reflect.DeepEqual(n, []Namespace{{"default", 2}}) {
		t.Errorf("%v, %v", n, err)
	}
	if topics, err := a.Topics(ctx, "ns"); err != nil || len(topics) != 1 || topics[0].Name != "ns/a" {
		t.Errorf("%v, %v", topics, err)
	}
	if info, err := a.ServerInfo(ctx); err != nil || info.State != "ready" || !info.Started.Equal(time.UnixMilli(5)) || info.Problems[0] != "p" {
		t.Errorf("%+v, %v", info, err)
	}
	for name, err := range map[string]error{
		"DeleteTopic": a.DeleteTopic(ctx, "x"), "UnloadTopic": a.UnloadTopic(ctx, "x"), "DeleteNamespace": a.DeleteNamespace(ctx, "x"),
	} {
		if KindOf(err) != KindUnsupported { // the fake has none
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(" secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial("broker.example:6650", WithTokenFile(path)); KindOf(err) != KindInvalidArgument {
		t.Errorf("a token in the clear: %v", err)
	}
	if _, err := Dial(""); KindOf(err) != KindInvalidArgument {
		t.Errorf("no address: %v", err)
	}
	f, addr := serveAdmin(t)
	a := dialTest(t, addr, WithTokenFile(path)).Admin()
	if err := a.CreateNamespace(patience(t), "x"); err != nil {
		t.Fatal(err)
	}
	if got := <-f.token; got != "[Bearer secret]" {
		t.Errorf("sent %s", got)
	}
	if err := os.WriteFile(path, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.CreateNamespace(patience(t), "x"); err != nil || <-f.token != "[Bearer other]" {
		t.Errorf("after exchange: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := a.CreateNamespace(patience(t), "x"); KindOf(err) != KindUnauthenticated {
		t.Errorf("without a token: %v", err)
	}
}

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	_, addr := serveAdmin(t, grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})))
	if _, err := dialTest(t, addr, WithTLS(&tls.Config{RootCAs: pool})).Admin().ServerInfo(patience(t)); err != nil {
		t.Error(err)
	}
	if _, err := dialTest(t, addr).Admin().ServerInfo(patience(t)); KindOf(err) != KindUnavailable {
		t.Errorf("without TLS: %v", err)
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"localhost:1": true, "127.0.0.1:1": true, "[::1]:1": true, "unix:/x": true, "127.9.9.9:1": true,
		"10.0.0.1:1": false, "localhost.example:1": false, "broker": false, ":6650": false,
	} {
		if loopback(addr) != want {
			t.Errorf("%s: %v", addr, !want)
		}
	}
}

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		err       error
		kind      string
		retriable bool
	}{
		{refusal(codes.ResourceExhausted, KindNoSpace, true), KindNoSpace, true},
		{refusal(codes.OutOfRange, KindTrimmed, false), KindTrimmed, false},
		{status.Error(codes.Unavailable, "x"), KindUnavailable, true},
		{status.Error(codes.Internal, "stream terminated by RST_STREAM"), KindUnavailable, true},
		{status.Error(codes.Internal, "x"), KindInternal, false},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 4)"), KindTooLarge, false},
		{status.Error(codes.Canceled, "x"), KindCanceled, false},
		{status.Error(codes.DeadlineExceeded, "x"), KindTimeout, true},
		{status.Error(codes.PermissionDenied, "x"), KindForbidden, false},
		{io.EOF, KindUnavailable, true},
		{errors.New("x"), KindInternal, false},
		{context.Canceled, KindCanceled, false},
		{fmt.Errorf("wrapped: %w", newError(KindDeleted, "x")), KindDeleted, false},
	} {
		e := asError(c.err)
		if e.Kind != c.kind || e.Retriable != c.retriable || KindOf(e) != c.kind || KindOf(fmt.Errorf("wrapped: %w", e)) != c.kind {
			t.Errorf("%v: %v, retriable %v", c.err, e, e.Retriable)
		}
	}
	if KindOf(nil) != "" || KindOf(context.DeadlineExceeded) != KindTimeout || KindOf(errors.New("x")) != KindInternal {
		t.Error("errors that are not ours")
	}
	if !errors.Is(asError(status.Error(codes.Canceled, "x")), context.Canceled) {
		t.Error("a canceled call is not context.Canceled")
	}
}
