package grpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"testing"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// quickPublisher answers at once.
type quickPublisher struct{ fakePublisher }

func (*quickPublisher) Submit(_ context.Context, _ int32, _ []byte, done func(broker.PublishResult)) error {
	done(broker.PublishResult{Offset: 1, LastOffset: 1})
	return nil
}

// endlessSubscriber always has the same to deliver.
type endlessSubscriber struct {
	fakeSubscriber
	data []byte
}

func (s *endlessSubscriber) Next(context.Context, int) (broker.Event, error) {
	return broker.Event{Kind: broker.EventData, Batches: s.data, Next: 1}, nil
}

// quickBroker costs nothing, so that what is measured is the listener and the connection.
type quickBroker struct {
	*fakeBroker
	data []byte
}

func (quickBroker) OpenPublisher(context.Context, string, []byte) (publisher, error) {
	return &quickPublisher{}, nil
}

func (q quickBroker) Subscribe(context.Context, broker.SubscribeSpec) (subscriber, error) {
	return &endlessSubscriber{data: q.data}, nil
}

// endlessConsumer always has the same to deliver.
type endlessConsumer struct {
	*fakeConsumer
	data []byte
}

func (c *endlessConsumer) Next(ctx context.Context, _ int) (broker.ConsumerEvent, error) {
	if c.data == nil {
		<-ctx.Done()
		return broker.ConsumerEvent{}, ctx.Err()
	}
	return broker.ConsumerEvent{Kind: broker.ConsumerData, Batches: c.data, Offsets: []broker.Range{{From: 1, To: 9}}, Records: 9}, nil
}

func (c *endlessConsumer) Settle(broker.Settlement) error { return nil }

func (q quickBroker) OpenConsumer(context.Context, broker.ConsumerSpec) (consumer, error) {
	return &endlessConsumer{fakeConsumer: newFakeConsumer(), data: q.data}, nil
}

func benchServer(b *testing.B, size int) leveev1.StreamClient {
	b.Helper()
	f := newFakeBroker()
	s := newServer(Config{}, quickBroker{f, payload(size)}, leveev1.UnimplementedAdminServer{}, f, broker.Limits{BatchBytes: 16 << 20})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	conn, err := rpc.NewClient(ln.Addr().String(), rpc.WithTransportCredentials(insecure.NewCredentials()),
		rpc.WithInitialWindowSize(streamWindow), rpc.WithInitialConnWindowSize(connWindow),
		rpc.WithDefaultCallOptions(rpc.ForceCodecV2(codec.Codec{}), rpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = conn.Close()
		s.Drain(context.Background())
		if err := <-served; err != nil {
			b.Error(err)
		}
	})
	return leveev1.NewStreamClient(conn)
}

// One batch per message, as many on their way as the stream takes. Client and server share the processors.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{100, 10 << 10, 100 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			st, err := benchServer(b, 0).Publish(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if err := st.Send(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{}}); err != nil {
				b.Fatal(err)
			}
			answers := make(chan int)
			go func() {
				n := 0
				for {
					resp, err := st.Recv()
					if errors.Is(err, io.EOF) {
						answers <- n
						return
					}
					if err != nil {
						b.Error(err)
						answers <- n
						return
					}
					n += len(resp.Acks)
				}
			}()
			data := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			id := uint64(0)
			for b.Loop() {
				id++
				if err := st.Send(&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: id, Data: data}}}); err != nil {
					b.Fatal(err)
				}
			}
			_ = st.CloseSend()
			if n := <-answers; n != int(id) {
				b.Errorf("%d of %d batches were answered", n, id)
			}
		})
	}
}

func BenchmarkSubscribe(b *testing.B) {
	for _, size := range []int{100, 10 << 10, 100 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			st, err := benchServer(b, size).Subscribe(ctx)
			if err != nil {
				b.Fatal(err)
			}
			if err := st.Send(&leveev1.SubscribeRequest{Open: &leveev1.OpenSubscribe{}, Credit: &leveev1.Credit{Bytes: math.MaxInt64}}); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := st.Recv(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func payload(size int) []byte {
	if size == 0 {
		return nil
	}
	return make([]byte, size)
}

// One acknowledgement a message, as a client sends them that acknowledges each record at once.
func BenchmarkConsumeAcks(b *testing.B) {
	for _, ranges := range []int{1, 100} {
		b.Run(fmt.Sprint(ranges), func(b *testing.B) {
			st, err := benchServer(b, 0).Consume(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if err := st.Send(&leveev1.ConsumeRequest{Open: &leveev1.OpenConsume{}}); err != nil {
				b.Fatal(err)
			}
			if _, err := st.Recv(); err != nil {
				b.Fatal(err)
			}
			req := &leveev1.ConsumeRequest{}
			for i := range ranges {
				req.Acks = append(req.Acks, &leveev1.Range{From: int64(1000 * i), To: int64(1000 * i)})
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := st.Send(req); err != nil {
					b.Fatal(err)
				}
			}
			_ = st.CloseSend()
			if _, err := st.Recv(); !errors.Is(err, io.EOF) {
				b.Error(err)
			}
		})
	}
}

// What a message of acknowledgements costs to decode, without the connection.
func BenchmarkDecodeAcks(b *testing.B) {
	raw, err := (&leveev1.ConsumeRequest{Acks: []*leveev1.Range{{From: 1 << 40, To: 1 << 40}}}).MarshalVT()
	if err != nil {
		b.Fatal(err)
	}
	in := mem.BufferSlice{mem.SliceBuffer(raw)}
	m := &consumeMessage{}
	b.ReportAllocs()
	for b.Loop() {
		if err := m.decode(in); err != nil || len(m.acks) != 1 {
			b.Fatal(err)
		}
	}
}
