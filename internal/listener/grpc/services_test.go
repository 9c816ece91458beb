package grpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/api/danube"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// other is a service of another API.
type other struct {
	danube.UnimplementedDiscoveryServer
}

func (other) TopicLookup(_ context.Context, req *danube.TopicLookupRequest) (*danube.TopicLookupResponse, error) {
	switch req.Topic {
	case "fault":
		return nil, fault.New(fault.NotFound, "there is none")
	case "status":
		return nil, status.Error(codes.DataLoss, "as it is")
	}
	return &danube.TopicLookupResponse{RequestId: req.RequestId}, nil
}

// Other APIs on the port have the codec, the limits and the errors of the native one.
func TestServicesOfOtherAPIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeBroker()
		s := newServer(Config{
			Limits:   Limits{MessageBytes: 1000},
			Services: []Registering{func(to rpc.ServiceRegistrar) { danube.RegisterDiscoveryServer(to, other{}) }},
		}, f, leveev1.UnimplementedAdminServer{}, f, broker.Limits{})
		ln := bufconn.Listen(1 << 20)
		served := make(chan error, 1)
		go func() { served <- s.Serve(ln) }()
		conn := dial(t, ln)
		defer func() {
			_ = conn.Close()
			s.Drain(context.Background())
			if err := <-served; err != nil {
				t.Error(err)
			}
		}()
		c := danube.NewDiscoveryClient(conn)
		if resp, err := c.TopicLookup(t.Context(), &danube.TopicLookupRequest{RequestId: 3}); err != nil || resp.RequestId != 3 {
			t.Errorf("got %v, %v", resp, err)
		}
		_, err := c.TopicLookup(t.Context(), &danube.TopicLookupRequest{Topic: "fault"})
		wantKind(t, err, fault.NotFound)
		_, err = c.TopicLookup(t.Context(), &danube.TopicLookupRequest{Topic: string(make([]byte, 1500))})
		wantKind(t, err, fault.TooLarge)
		if _, err = c.TopicLookup(t.Context(), &danube.TopicLookupRequest{Topic: "status"}); status.Code(err) != codes.DataLoss {
			t.Errorf("got %v", err)
		}
	})
}

// waiting is a service of another API whose stream has nothing to say.
type waiting struct {
	danube.UnimplementedConsumerServiceServer
	began chan struct{}
}

func (w waiting) ReceiveMessages(_ *danube.ReceiveRequest, stream rpc.ServerStreamingServer[danube.StreamMessage]) error {
	close(w.began)
	<-stream.Context().Done()
	return stream.Context().Err()
}

// A stream of another API does not hold up a stop, and its client is told to come back.
func TestStreamsOfOtherAPIsEndWithTheListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeBroker()
		w := waiting{began: make(chan struct{})}
		s := newServer(Config{
			Services: []Registering{func(to rpc.ServiceRegistrar) { danube.RegisterConsumerServiceServer(to, w) }},
		}, f, leveev1.UnimplementedAdminServer{}, f, broker.Limits{})
		ln := bufconn.Listen(1 << 20)
		served := make(chan error, 1)
		go func() { served <- s.Serve(ln) }()
		conn := dial(t, ln)
		defer func() { _ = conn.Close() }()
		stream, err := danube.NewConsumerServiceClient(conn).ReceiveMessages(t.Context(), &danube.ReceiveRequest{})
		if err != nil {
			t.Fatal(err)
		}
		<-w.began
		began := time.Now()
		s.Drain(t.Context())
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
		_, err = stream.Recv()
		wantKind(t, err, fault.Unavailable)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
