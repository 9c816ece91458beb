//go:build !race && !invariants

package guard

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/server"
	"github.com/leveemq/levee/record"
)

// The whole path, client and broker, by bare grpc-go with the same messages and acknowledgements: how many times its CPU
// time. Both sides of both run in this process, and its user and system time is what counts. Each bound is about twice
// what was measured when it was set (November 2026).
const (
	syncMay    = 4.5
	batchMay   = 5
	consumeMay = 5
)

// What client, transport and broker together allocate for a record in a batch, about twice what was measured.
const (
	publishAllocations = 0.3
	consumeAllocations = 0.05
)

func checkAllocations(t *testing.T, work func(messages int), messages int, may float64) {
	t.Helper()
	perRecord := mallocs(func() { work(messages) }) / float64(messages)
	t.Logf("%.3f allocations a record", perRecord)
	if perRecord > may {
		t.Errorf("%.3f allocations a record, want %v at most", perRecord, may)
	}
}

// rounds of each comparison; the median counts.
const rounds = 3

func cpuSeconds(t *testing.T) float64 {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		t.Fatal(err)
	}
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}

// compare lets both take turns and returns the median of ours by theirs, a message each.
func compare(t *testing.T, ours, theirs func(messages int), ourMessages, theirMessages int) float64 {
	t.Helper()
	cpu := func(work func(int), n int) float64 {
		before := cpuSeconds(t)
		work(n)
		return (cpuSeconds(t) - before) / float64(n) * 1e6
	}
	cpu(ours, ourMessages/10) // connections, buffers, files
	cpu(theirs, theirMessages/10)
	var ratios []float64
	for range rounds {
		a, b := cpu(ours, ourMessages), cpu(theirs, theirMessages)
		t.Logf("%.2f CPU seconds a million messages, bare gRPC %.2f: %.2f times", a, b, a/b)
		ratios = append(ratios, a/b)
	}
	slices.Sort(ratios)
	return ratios[rounds/2]
}

// serve runs a broker as a process would, on free ports, and returns a client of it with a topic.
func serve(t *testing.T) *client.Client {
	t.Helper()
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	cfg.Listen.GRPC, cfg.Listen.HTTP = "127.0.0.1:0", "127.0.0.1:0"
	ctx, stop := context.WithCancel(context.Background())
	listening, ready, ended := make(chan server.Addresses, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- server.Run(ctx, cfg, server.Options{
			OnListening: func(a server.Addresses) { listening <- a }, OnReady: func() { close(ready) },
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		t.Fatal("the broker ended")
	}
	c, err := client.Dial((<-listening).GRPC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	periodic := "periodic" // flushes are the device's affair
	if _, err := c.Admin().CreateTopic(t.Context(), client.TopicSpec{Name: "guard", Settings: client.Settings{Fsync: &periodic}}); err != nil {
		t.Fatal(err)
	}
	return c
}

// bare answers as a broker does and does nothing else.
type bare struct {
	leveev1.UnimplementedStreamServer
	batches []byte // what a subscriber gets with each message
}

func (bare) Publish(rpc grpc.BidiStreamingServer[leveev1.PublishRequest, leveev1.PublishResponse]) error {
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
			resp.Acks = append(resp.Acks, &leveev1.Ack{Id: b.GetId()})
		}
		if err := rpc.Send(resp); err != nil {
			return err
		}
	}
}

func (s bare) Subscribe(rpc grpc.BidiStreamingServer[leveev1.SubscribeRequest, leveev1.SubscribeResponse]) error {
	for {
		if err := rpc.Send(&leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Batches: s.batches}}); err != nil {
			return err
		}
	}
}

func bareClient(t *testing.T, s bare) leveev1.StreamClient {
	t.Helper()
	const window = 4 << 20
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.ForceServerCodecV2(codec.Codec{}), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(2*window))
	leveev1.RegisterStreamServer(srv, s)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(2*window),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec.Codec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return leveev1.NewStreamClient(conn)
}

// barePublish keeps window batches in flight on each of some streams of one connection until all messages are answered.
func barePublish(t *testing.T, c leveev1.StreamClient, streams, window int, batch []byte, perBatch int) func(int) {
	return func(messages int) {
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				st, err := c.Publish(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				slots := make(chan struct{}, window)
				var answers sync.WaitGroup
				answers.Go(func() {
					for {
						if _, err := st.Recv(); err != nil {
							if !errors.Is(err, io.EOF) {
								t.Error(err)
							}
							return
						}
						<-slots
					}
				})
				for range messages / streams / perBatch {
					slots <- struct{}{}
					if err := st.Send(&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: 1, Data: batch}}}); err != nil {
						t.Error(err)
						break
					}
				}
				if err := st.CloseSend(); err != nil {
					t.Error(err)
				}
				answers.Wait()
			})
		}
		wg.Wait()
	}
}

// 64 publishers of one client that wait for each answer.
func TestCPUOfPublishingOneByOne(t *testing.T) {
	const publishers, messages = 64, 64 * 120
	c := serve(t)
	value := make([]byte, 128)
	ours := func(n int) {
		var wg sync.WaitGroup
		for range publishers {
			wg.Go(func() {
				p, err := c.NewProducer(t.Context(), "guard", client.ProducerConfig{})
				if err != nil {
					t.Error(err)
					return
				}
				for range n / publishers {
					if _, err := p.PublishSync(t.Context(), record.Record{Value: value}); err != nil {
						t.Error(err)
						break
					}
				}
				if err := p.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	theirs := barePublish(t, bareClient(t, bare{}), publishers, 1, encode(t, 1), 1)
	if ratio := compare(t, ours, theirs, messages, messages); ratio > syncMay {
		t.Errorf("%.2f times the CPU of bare gRPC, want %v at most", ratio, syncMay)
	}
}

// One publisher with batches of 256, 16 of them in flight.
func TestCPUOfPublishingInBatches(t *testing.T) {
	const perBatch, window, messages = 256, 16, 256 * 1200
	c := serve(t)
	value := make([]byte, 128)
	ours := func(n int) {
		p, err := c.NewProducer(t.Context(), "guard", client.ProducerConfig{BatchRecords: perBatch, BatchBytes: 1 << 20, MaxInFlight: window})
		if err != nil {
			t.Fatal(err)
		}
		var failed atomic.Int64
		answered := func(_ client.Ack, err error) {
			if err != nil {
				failed.Add(1)
			}
		}
		for range n {
			p.Publish(t.Context(), record.Record{Value: value}, answered)
		}
		if err := p.Close(t.Context()); err != nil || failed.Load() > 0 {
			t.Errorf("%d records failed: %v", failed.Load(), err)
		}
	}
	theirs := barePublish(t, bareClient(t, bare{}), 1, window, encode(t, perBatch), perBatch)
	checkAllocations(t, ours, messages, publishAllocations)
	if ratio := compare(t, ours, theirs, messages, messages); ratio > batchMay {
		t.Errorf("%.2f times the CPU of bare gRPC, want %v at most", ratio, batchMay)
	}
}

// One consumer from the beginning, by a stream of the same bytes that nobody looks at.
func TestCPUOfConsuming(t *testing.T) {
	const perBatch, messages = 256, 256 * 1200
	c := serve(t)
	p, err := c.NewProducer(t.Context(), "guard", client.ProducerConfig{BatchRecords: perBatch, BatchBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for range messages {
		p.Publish(t.Context(), record.Record{Value: make([]byte, 128)}, nil)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ours := func(n int) {
		consumer, err := c.Consume(t.Context(), "guard", client.ConsumerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		for got := 0; got < n; {
			batch, err := consumer.NextBatch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got += len(batch)
		}
		consumer.Close()
	}
	bareStream := bareClient(t, bare{batches: encode(t, perBatch)})
	theirs := func(n int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		st, err := bareStream.Subscribe(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range n / perBatch {
			if _, err := st.Recv(); err != nil {
				t.Fatal(err)
			}
		}
	}
	checkAllocations(t, ours, messages, consumeAllocations)
	if ratio := compare(t, ours, theirs, messages, 2*messages); ratio > consumeMay {
		t.Errorf("%.2f times the CPU of bare gRPC, want %v at most", ratio, consumeMay)
	}
}
