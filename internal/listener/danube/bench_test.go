package danube_test

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/listener/danube"
	"github.com/leveemq/levee/internal/listener/grpc"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/vfs"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const callers = 64

// echo is a server that does nothing with a message.
type echo struct {
	api.UnimplementedProducerServiceServer
}

func (echo) SendMessage(_ context.Context, m *api.StreamMessage) (*api.MessageResponse, error) {
	return &api.MessageResponse{RequestId: m.RequestId}, nil
}

// benchBroker serves a broker with its data in a directory of the benchmark.
func benchBroker(b *testing.B) string {
	b.Helper()
	br, err := broker.New(broker.Config{Meta: meta.NewMemory(), FS: vfs.OS{}, DataDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- br.Run(ctx) }()
	periodic := "periodic"
	for name, spec := range map[string]broker.TopicSpec{
		"non_reliable": {Dispatch: broker.NonReliable},
		"periodic":     {Dispatch: broker.Reliable, Settings: broker.Settings{Fsync: &periodic}},
		"on_commit":    {Dispatch: broker.Reliable},
	} {
		spec.Name = name
		if _, err := br.CreateTopic(ctx, spec); err != nil {
			b.Fatal(err)
		}
	}
	s := grpc.New(grpc.Config{Broker: br, Services: []grpc.Registering{danube.New(danube.Config{Broker: br}).Register}})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	b.Cleanup(func() {
		s.Drain(context.Background())
		br.Drain(context.Background())
		stop()
		if err := <-served; err != nil {
			b.Error(err)
		}
		if err := <-ran; err != nil {
			b.Error(err)
		}
	})
	return ln.Addr().String()
}

func benchEcho(b *testing.B) string {
	b.Helper()
	s := rpc.NewServer()
	api.RegisterProducerServiceServer(s, echo{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	b.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			b.Error(err)
		}
	})
	return ln.Addr().String()
}

// BenchmarkSendMessage is one message of 128 bytes a call, 64 callers on one connection as Danube's clients have it, beside
// the same call that nothing is done for.
func BenchmarkSendMessage(b *testing.B) {
	for _, topic := range []string{"bare", "non_reliable", "periodic", "on_commit"} {
		b.Run(topic, func(b *testing.B) {
			var addr string
			if topic == "bare" {
				addr = benchEcho(b)
			} else {
				addr = benchBroker(b)
			}
			conn, err := rpc.NewClient(addr, rpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			client := api.NewProducerServiceClient(conn)
			id := uint64(1)
			wire := "/default/" + topic
			if topic != "bare" {
				req := &api.ProducerRequest{TopicName: wire, ProducerName: "p"}
				if topic != "non_reliable" {
					req.DispatchStrategy = api.DispatchStrategy_Reliable
				}
				resp, err := client.CreateProducer(b.Context(), req)
				if err != nil {
					b.Fatal(err)
				}
				id = resp.ProducerId
			}
			payload := make([]byte, 128)
			var n atomic.Uint64
			b.SetParallelism((callers + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					m := &api.StreamMessage{
						RequestId: n.Add(1), MsgId: &api.MsgID{ProducerId: id, TopicName: wire, BrokerAddr: addr}, Payload: payload,
						PublishTime: 1_700_000_000_000, ProducerName: "p",
					}
					if _, err := client.SendMessage(b.Context(), m); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
