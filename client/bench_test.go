package client

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// sink acknowledges everything at once, and delivers one batch for ever.
type sink struct {
	leveev1.UnimplementedStreamServer
	batch []byte
}

func (s *sink) Publish(rpc grpc.BidiStreamingServer[leveev1.PublishRequest, leveev1.PublishResponse]) error {
	if _, err := rpc.Recv(); err != nil {
		return err
	}
	if err := rpc.Send(&leveev1.PublishResponse{Opened: &leveev1.Opened{Partitions: 1, Reliable: true}}); err != nil {
		return err
	}
	var end int64
	for {
		req, err := rpc.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		resp := &leveev1.PublishResponse{}
		for _, b := range req.GetBatches() {
			info, err := record.ParseHeader(b.GetData())
			if err != nil {
				return err
			}
			resp.Acks = append(resp.Acks, &leveev1.Ack{Id: b.GetId(), Offset: end, LastOffset: end + int64(info.Count) - 1})
			end += int64(info.Count)
		}
		if err := rpc.Send(resp); err != nil {
			return err
		}
	}
}

func (s *sink) Subscribe(rpc grpc.BidiStreamingServer[leveev1.SubscribeRequest, leveev1.SubscribeResponse]) error {
	first, err := rpc.Recv()
	if err != nil {
		return err
	}
	if err := rpc.Send(&leveev1.SubscribeResponse{Subscribed: &leveev1.Subscribed{Partitions: 1, Reliable: true}}); err != nil {
		return err
	}
	info, err := record.ParseHeader(s.batch)
	if err != nil {
		return err
	}
	credit := first.GetCredit().GetBytes()
	var offset int64
	for {
		for credit <= 0 {
			req, err := rpc.Recv()
			if err != nil {
				return err
			}
			credit += req.GetCredit().GetBytes()
		}
		batch := append([]byte(nil), s.batch...)
		record.SetPlacement(batch, offset, 1)
		offset += int64(info.Count)
		credit -= int64(len(batch))
		if err := rpc.Send(&leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Batches: batch, Next: offset}}); err != nil {
			return err
		}
	}
}

func (s *sink) Consume(rpc grpc.BidiStreamingServer[leveev1.ConsumeRequest, leveev1.ConsumeResponse]) error {
	first, err := rpc.Recv()
	if err != nil {
		return err
	}
	if err := rpc.Send(&leveev1.ConsumeResponse{Consuming: &leveev1.Consuming{Partitions: 1, Reliable: true, Type: "shared"}}); err != nil {
		return err
	}
	info, err := record.ParseHeader(s.batch)
	if err != nil {
		return err
	}
	credit := first.GetCredit().GetBytes()
	var offset int64
	for {
		for credit <= 0 {
			req, err := rpc.Recv()
			if err != nil {
				return err
			}
			credit += req.GetCredit().GetBytes()
		}
		batch := append([]byte(nil), s.batch...)
		record.SetPlacement(batch, offset, 1)
		offset += int64(info.Count)
		credit -= int64(len(batch))
		d := &leveev1.Delivered{Batches: batch, Offsets: []*leveev1.Range{{From: offset - int64(info.Count), To: offset - 1}}}
		if err := rpc.Send(&leveev1.ConsumeResponse{Delivered: d}); err != nil {
			return err
		}
	}
}

func benchClient(b *testing.B) *Client {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	builder := record.NewBuilder(record.None)
	for range 1000 {
		if err := builder.Append(record.Record{Value: make([]byte, 200)}); err != nil {
			b.Fatal(err)
		}
	}
	s := &sink{}
	if s.batch, err = builder.Build(record.NoProducer); err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec.Codec{}))
	leveev1.RegisterStreamServer(server, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	c, err := Dial(listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.Close()
		server.Stop()
		serving.Wait()
	})
	return c
}

func BenchmarkPublish(b *testing.B) {
	p, err := benchClient(b).NewProducer(context.Background(), "t", ProducerConfig{Idempotent: false})
	if err != nil {
		b.Fatal(err)
	}
	r := record.Record{Value: make([]byte, 200)}
	var failed atomic.Int64
	done := func(_ Ack, err error) {
		if err != nil {
			failed.Add(1)
		}
	}
	b.ReportAllocs()
	b.SetBytes(200)
	b.ResetTimer()
	for range b.N {
		p.Publish(context.Background(), r, done)
	}
	if err := p.Close(context.Background()); err != nil || failed.Load() > 0 {
		b.Fatal(err)
	}
}

func BenchmarkPublishSync(b *testing.B) {
	p, err := benchClient(b).NewProducer(context.Background(), "t", ProducerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	r := record.Record{Value: make([]byte, 200)}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := p.PublishSync(context.Background(), r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	c, err := benchClient(b).Consume(context.Background(), "t", ConsumerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(200)
	b.ResetTimer()
	for range b.N {
		if _, err := c.Next(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNextBatch(b *testing.B) {
	c, err := benchClient(b).Consume(context.Background(), "t", ConsumerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(200)
	b.ResetTimer()
	for n := 0; n < b.N; {
		batch, err := c.NextBatch(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		n += len(batch)
	}
}

// BenchmarkSubscription acknowledges each record by itself.
func BenchmarkSubscription(b *testing.B) {
	s, err := benchClient(b).Subscribe(context.Background(), "t", "s", SubscriptionConfig{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(200)
	b.ResetTimer()
	for range b.N {
		d, err := s.Next(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		d.Ack()
	}
}

func BenchmarkSubscriptionBatch(b *testing.B) {
	s, err := benchClient(b).Subscribe(context.Background(), "t", "s", SubscriptionConfig{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(200)
	b.ResetTimer()
	for n := 0; n < b.N; {
		batch, err := s.NextBatch(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		AckBatch(batch)
		n += len(batch)
	}
}
