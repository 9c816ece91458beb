package grpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestPublishOnce(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.result = broker.PublishResult{Offset: 4, LastOffset: 5, Duplicate: true}
		resp := must(f.client.PublishOnce(t.Context(), &leveev1.PublishOnceRequest{
			Topic: "t", Partition: -1, Records: []*leveev1.Record{
				{},
				{HasKey: true, Value: []byte("v"), TimestampMs: 9, Headers: []*leveev1.Header{{Key: "h", Value: []byte("x")}, {}}},
				{Key: []byte("k")},
			},
		}))(t)
		if resp.Partition != 0 || resp.Offset != 4 || resp.LastOffset != 5 || !resp.Duplicate {
			t.Errorf("got %v", resp)
		}
		want := []record.Record{
			{Value: []byte{}},
			{Key: []byte{}, Value: []byte("v"), Timestamp: 9, Headers: []record.Header{{Key: "h", Value: []byte("x")}, {Value: []byte{}}}},
			{Key: []byte("k"), Value: []byte{}},
		}
		if !slices.EqualFunc(f.records, want, sameRecord) {
			t.Errorf("published %+v, want %+v", f.records, want)
		}

		resp = must(f.client.PublishOnce(t.Context(), &leveev1.PublishOnceRequest{Topic: "t", Partition: 3, Batch: []byte("raw")}))(t)
		if resp.Partition != 3 || string(f.batch) != "raw" {
			t.Errorf("got %v, published %q", resp, f.batch)
		}
		f.result = broker.PublishResult{Err: fault.New(fault.OutcomeUnknown, "who knows")}
		_, err := f.client.PublishOnce(t.Context(), &leveev1.PublishOnceRequest{Topic: "t", Batch: []byte("raw")})
		wantKind(t, err, fault.OutcomeUnknown)
	})
}

// sameRecord tells nil from empty.
func sameRecord(a, b record.Record) bool {
	same := func(a, b []byte) bool { return (a == nil) == (b == nil) && string(a) == string(b) }
	return same(a.Key, b.Key) && same(a.Value, b.Value) && a.Timestamp == b.Timestamp &&
		slices.EqualFunc(a.Headers, b.Headers, func(a, b record.Header) bool { return a.Key == b.Key && same(a.Value, b.Value) })
}

func TestPublishOnceRules(t *testing.T) {
	one := []*leveev1.Record{{Value: []byte("v")}}
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		for name, req := range map[string]*leveev1.PublishOnceRequest{
			"nothing":            {},
			"both":               {Records: one, Batch: []byte("b")},
			"batch to anywhere":  {Batch: []byte("b"), Partition: -1},
			"negative timestamp": {Records: []*leveev1.Record{{TimestampMs: -1}}},
			"header name":        {Records: []*leveev1.Record{{Headers: []*leveev1.Header{{Key: "\xff"}}}}},
		} {
			_, err := f.client.PublishOnce(t.Context(), req)
			if err == nil {
				t.Errorf("%s: was taken", name)
				continue
			}
			wantKind(t, err, fault.InvalidArgument)
		}
	})
}

func TestInitProducer(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		if r := must(f.client.InitProducer(t.Context(), &leveev1.InitProducerRequest{}))(t); r.ProducerId != 77 || r.Epoch != 3 {
			t.Errorf("got %v", r)
		}
	})
}

func TestOversizeNamesTheLimit(t *testing.T) {
	bubble(t, Limits{MessageBytes: 1000}, func(t *testing.T, f *fixture) {
		_, err := f.client.PublishOnce(t.Context(), &leveev1.PublishOnceRequest{Batch: make([]byte, 1500)})
		if md := wantKind(t, err, fault.TooLarge); md["limit"] != "1000" {
			t.Errorf("got metadata %v", md)
		}
		st := openPublish(t, t.Context(), f)
		send(t, st, 10, 1)
		send(t, st, 1500, 2)
		synctest.Wait()
		f.pub.all()[0].done(broker.PublishResult{})
		acks(t, st, 1) // what was taken before is answered first
		_, err = st.Recv()
		if md := wantKind(t, err, fault.TooLarge); md["limit"] != "1000" {
			t.Errorf("got metadata %v", md)
		}
		// Far beyond, the message is not even read.
		_, err = f.client.PublishOnce(t.Context(), &leveev1.PublishOnceRequest{Batch: make([]byte, 2001)})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v", err)
		}
	})
}

func TestMalformedMessage(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		call := rpc.ForceCodec(garbage{})
		err := f.conn.Invoke(t.Context(), leveev1.Stream_PublishOnce_FullMethodName, "", new(string), call)
		wantKind(t, err, fault.InvalidArgument)
		st := must(f.conn.NewStream(t.Context(), &leveev1.Stream_ServiceDesc.Streams[0], leveev1.Stream_Publish_FullMethodName, call))(t)
		if err := st.SendMsg(""); err != nil {
			t.Fatal(err)
		}
		wantKind(t, st.RecvMsg(new(string)), fault.InvalidArgument)
	})
}

// garbage encodes everything as bytes that are no message.
type garbage struct{}

func (garbage) Marshal(any) ([]byte, error)     { return []byte{0xff, 0xff}, nil }
func (garbage) Unmarshal(_ []byte, _ any) error { return nil }
func (garbage) Name() string                    { return "proto" }

func TestHealth(t *testing.T) {
	bubbleFrom(t, Limits{}, errors.New("starting"), func(t *testing.T, f *fixture) {
		health := healthpb.NewHealthClient(f.conn)
		check := func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			for _, service := range []string{"", "levee.v1.Stream", "levee.v1.Admin"} {
				if got := must(health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}))(t).Status; got != want {
					t.Errorf("service %q is %s, want %s", service, got, want)
				}
			}
		}
		if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "x"}); status.Code(err) != codes.NotFound {
			t.Errorf("an unknown service: got %v", err)
		}
		check(healthpb.HealthCheckResponse_NOT_SERVING)
		watch := must(health.Watch(t.Context(), &healthpb.HealthCheckRequest{}))(t)
		if got := must(watch.Recv())(t).Status; got != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("the watch begins with %s", got)
		}
		f.setDown(nil)
		if got := must(watch.Recv())(t).Status; got != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("the watch goes on with %s", got)
		}
		check(healthpb.HealthCheckResponse_SERVING)
		if l := must(health.List(t.Context(), &healthpb.HealthListRequest{}))(t); len(l.Statuses) != 3 {
			t.Errorf("got %v", l)
		}
		unknown := must(health.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "x"}))(t)
		if got := must(unknown.Recv())(t).Status; got != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
			t.Errorf("an unknown service is %s", got)
		}
		close(f.draining)
		if got := must(watch.Recv())(t).Status; got != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("the watch ends with %s", got)
		}
		check(healthpb.HealthCheckResponse_NOT_SERVING)
		for _, w := range []rpc.ServerStreamingClient[healthpb.HealthCheckResponse]{watch, unknown} {
			if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
				t.Errorf("the watch's end is %v", err) // it must not hold up the drain
			}
		}
	})
}

func TestReflection(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := must(reflectionpb.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context()))(t)
		if err := st.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range must(st.Recv())(t).GetListServicesResponse().GetService() {
			names = append(names, s.Name)
		}
		for _, want := range []string{"levee.v1.Stream", "levee.v1.Admin", "grpc.health.v1.Health"} {
			if !slices.Contains(names, want) {
				t.Errorf("%v lacks %s", names, want)
			}
		}
		_ = st.CloseSend()
		if _, err := st.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

func TestConnectionLimit(t *testing.T) {
	bubble(t, Limits{Connections: 2}, func(t *testing.T, f *fixture) {
		_ = f.conn.Close() // never used
		ln := bufconn.Listen(1 << 20)
		served := make(chan error, 1)
		go func() { served <- f.server.Serve(ln) }()
		open := func() net.Conn {
			t.Helper()
			c := must(ln.DialContext(t.Context()))(t)
			synctest.Wait()
			return c
		}
		// A server says its settings at once, so what can be read tells whether it took the connection.
		taken := func(c net.Conn) bool {
			_, err := c.Read(make([]byte, 1))
			return err == nil
		}
		a, b := open(), open()
		if !taken(a) || !taken(b) {
			t.Fatal("a connection below the limit was refused")
		}
		for range 3 {
			if c := open(); taken(c) {
				t.Error("a connection above the limit was taken")
			}
		}
		_ = a.Close()
		synctest.Wait()
		c := open()
		if !taken(c) {
			t.Error("a connection was refused although one had been closed")
		}
		if got := value(t, f.server.conns.metrics.refused); got != 3 {
			t.Errorf("%v refusals were counted, want 3", got)
		}
		_ = b.Close()
		_ = c.Close()
		synctest.Wait()
		if got := f.server.conns.open.Load(); got != 0 {
			t.Errorf("%d connections are counted after all were closed", got)
		}
		f.server.Drain(t.Context())
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func TestServeAfterDrain(t *testing.T) {
	b := newFakeBroker()
	s := newServer(Config{}, b, leveev1.UnimplementedAdminServer{}, b, broker.Limits{})
	s.Drain(t.Context())
	s.Drain(t.Context())
	ln := bufconn.Listen(1)
	if err := s.Serve(ln); !errors.Is(err, rpc.ErrServerStopped) {
		t.Errorf("got %v", err)
	}
	if _, err := ln.DialContext(t.Context()); err == nil {
		t.Error("the listener is still open")
	}
}

func TestTLS(t *testing.T) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"broker"}, NotAfter: time.Now().Add(time.Hour)}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	roots := x509.NewCertPool()
	roots.AddCert(must(x509.ParseCertificate(der))(t))

	b := newFakeBroker()
	s := newServer(Config{TLS: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}},
		b, leveev1.UnimplementedAdminServer{}, b, broker.Limits{BatchBytes: 1 << 20})
	ln := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	conn := must(rpc.NewClient(ln.Addr().String(),
		rpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "broker"}))))(t)
	if r := must(leveev1.NewStreamClient(conn).InitProducer(t.Context(), &leveev1.InitProducerRequest{}))(t); r.ProducerId != 77 {
		t.Errorf("got %v", r)
	}
	_ = conn.Close()
	s.Drain(t.Context())
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestEveryKindHasItsStatus(t *testing.T) {
	for _, k := range fault.All() {
		md := wantKind(t, statusOf(fault.New(k, "text").With("a", 1)).Err(), k)
		if md["a"] != "1" || md["retriable"] == "" {
			t.Errorf("%s: got metadata %v", k, md)
		}
	}
	if st := statusOf(context.DeadlineExceeded); st.Code() != codes.DeadlineExceeded {
		t.Errorf("got %v", st)
	}
	if st := statusOf(errors.New("a bug")); st.Code() != codes.Internal || st.Message() != "a bug" {
		t.Errorf("got %v", st)
	}
}

func TestErrorsAreFitToBeSent(t *testing.T) {
	details := map[string]string{"bad": "\xff", "long": strings.Repeat("ä", 10_000)}
	err := &fault.Error{Kind: fault.InvalidArgument, Msg: "topic \"\xff\" " + strings.Repeat("ü", 10_000), Details: details}
	md := wantKind(t, statusOf(err).Err(), fault.InvalidArgument)
	if md["bad"] != "\uFFFD" || len(md["long"]) > detailChars+10 || len(statusOf(err).Message()) > messageChars+10 {
		t.Errorf("got %d bytes and metadata %v", len(statusOf(err).Message()), md)
	}
	if len(details["long"]) != 20_000 || len(details) != 2 {
		t.Error("the error itself was changed")
	}
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.openErr = err
		_, got := f.client.PublishOnce(t.Context(), &leveev1.PublishOnceRequest{Topic: "\xff", Records: []*leveev1.Record{{}}})
		wantKind(t, got, fault.InvalidArgument)
		if n := value(t, f.server.conns.metrics.errors.WithLabelValues("invalid_argument")); n != 1 {
			t.Errorf("%v errors were counted", n)
		}
	})
}
