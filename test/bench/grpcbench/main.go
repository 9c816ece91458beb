// Command grpcbench measures bare grpc-go on loopback, with the server in a process of its own and no storage: what a
// broker over gRPC could reach at most on this machine. One JSON line a shape. It owns its server and ends it.
//
// With -danube it measures a broker's Danube port beside it: one message a call.
//
//	grpcbench -secs 1 [-only 128B] [-danube HOST:PORT [-pid BROKER]]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/test/bench/grpcbench/pb"
)

var (
	serve = flag.Bool("serve", false, "be the server: print the address, and end when standard input does")
	secs  = flag.Float64("secs", 2, "how long to measure each shape")
	port  = flag.String("danube", "", "measure only unary calls: the broker's there that speak Danube, and bare ones of the same shape in turns")
	pid   = flag.Int("pid", 0, "with -danube: the broker's process, for its CPU time")
	only  = flag.String("only", "", "only shapes with one of these words in their name, with commas between")
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func cpuSelf() float64 {
	var ru syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &ru))
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}

// Windows that a fast stream does not wait for.
const (
	streamWindow = 4 << 20
	connWindow   = 8 << 20
	maxMessage   = 64 << 20
)

func main() {
	flag.Parse()
	if *serve {
		runServer()
		return
	}
	b, stop := startServer()
	defer stop()
	if *port != "" {
		b.danube(*port)
		return
	}
	for _, size := range []int{128, 1024} {
		for _, conc := range []int{1, 16, 64} {
			b.measure(shape{kind: "unary", size: size, batch: 1, conc: conc, window: 1}, b.unary)
		}
		for _, s := range []shape{
			{kind: "bidi", batch: 1, conc: 1, window: 1}, {kind: "bidi", batch: 1, conc: 64, window: 1},
			{kind: "bidi", batch: 1, conc: 1, window: 1024}, {kind: "bidi", batch: 16, conc: 1, window: 64},
			{kind: "bidi", batch: 64, conc: 1, window: 64}, {kind: "bidi", batch: 256, conc: 1, window: 16},
			{kind: "bidi-raw", batch: 256, conc: 1, window: 16},
			{kind: "bidi-conns", batch: 1, conc: 64, window: 1},
		} {
			s.size = size
			b.measure(s, b.bidi)
		}
		for _, s := range []shape{
			{kind: "server-stream", batch: 1}, {kind: "server-stream", batch: 64}, {kind: "server-stream", batch: 256},
			{kind: "server-stream-raw", batch: 256},
		} {
			s.size, s.conc = size, 1
			b.measure(s, b.consume)
		}
	}
}

// shape is what is measured.
type shape struct {
	kind                      string
	size, batch, conc, window int
}

func (s shape) raw() bool { return strings.HasSuffix(s.kind, "-raw") }

// conns returns how many connections the streams of a shape have: one for all, or one each.
func (s shape) conns() int {
	if strings.HasSuffix(s.kind, "-conns") {
		return s.conc
	}
	return 1
}

func (s shape) name() string {
	return fmt.Sprintf("%s %dB batch=%d conc=%d window=%d", s.kind, s.size, s.batch, s.conc, s.window)
}

func (s shape) wanted() bool {
	return *only == "" || slices.ContainsFunc(strings.Split(*only, ","), func(word string) bool { return strings.Contains(s.name(), word) })
}

// row has the names that all rows of the harness have.
type row struct {
	Label, Mode, Style        string
	Size, Conc, Window, Batch int
	Msgs                      int64
	Secs, MsgsPerS, MBPerS    float64
	P50, P99, P999            float64 // microseconds
	SrvCPUPerM, CliCPUPerM    float64 // CPU seconds a million messages
}

type bench struct {
	addr   string
	client pb.BenchClient
}

// startServer starts this program once more, as the server.
func startServer() (*bench, func()) {
	cmd := exec.Command(os.Args[0], "-serve")
	in, err := cmd.StdinPipe()
	must(err)
	out, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	var addr string
	_, err = fmt.Fscanln(out, &addr)
	must(err)
	client, hangUp := dial(addr)
	return &bench{addr: addr, client: client}, func() {
		hangUp()
		must(in.Close())
		must(cmd.Wait())
	}
}

func dial(addr string) (client pb.BenchClient, hangUp func()) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	must(err)
	return pb.NewBenchClient(conn), func() { must(conn.Close()) }
}

func (b *bench) serverCPU() float64 {
	u, err := b.client.GetUsage(context.Background(), &pb.Req{})
	must(err)
	return u.CpuS
}

func (b *bench) measure(s shape, work func(s shape, end time.Time) (int64, []time.Duration)) {
	if !s.wanted() {
		return
	}
	b.timed(row{Label: "grpc", Mode: s.kind, Style: "bare"}, s, b.serverCPU, work)
}

// timed runs work and prints its row, which says already what it is called.
func (b *bench) timed(r row, s shape, serverCPU func() float64, work func(s shape, end time.Time) (int64, []time.Duration)) {
	srv, cli, start := serverCPU(), cpuSelf(), time.Now()
	n, latencies := work(s, start.Add(time.Duration(*secs*float64(time.Second))))
	took := time.Since(start).Seconds()
	cli, srv = cpuSelf()-cli, serverCPU()-srv
	slices.Sort(latencies)
	quantile := func(p float64) float64 {
		if len(latencies) == 0 {
			return 0
		}
		return float64(latencies[int(p*float64(len(latencies)-1))].Nanoseconds()) / 1e3
	}
	m := float64(max(n, 1))
	r.Size, r.Conc, r.Window, r.Batch, r.Msgs, r.Secs = s.size, s.conc, s.window, s.batch, n, took
	r.MsgsPerS, r.MBPerS, r.SrvCPUPerM, r.CliCPUPerM = m/took, m*float64(s.size)/1e6/took, srv/m*1e6, cli/m*1e6
	r.P50, r.P99, r.P999 = quantile(.5), quantile(.99), quantile(.999)
	must(json.NewEncoder(os.Stdout).Encode(r))
}

// each runs one caller's work conc times side by side and adds up.
func each(s shape, caller func() (int64, []time.Duration)) (int64, []time.Duration) {
	var wg sync.WaitGroup
	var n atomic.Int64
	all := make([][]time.Duration, s.conc)
	for i := range s.conc {
		wg.Go(func() {
			var k int64
			k, all[i] = caller()
			n.Add(k)
		})
	}
	wg.Wait()
	return n.Load(), slices.Concat(all...)
}

func (b *bench) unary(s shape, end time.Time) (int64, []time.Duration) {
	return each(s, func() (int64, []time.Duration) {
		request := newBatch(1, s.size)
		var latencies []time.Duration
		for t := time.Now(); t.Before(end); t = time.Now() {
			_, err := b.client.Unary(context.Background(), request)
			must(err)
			latencies = append(latencies, time.Since(t))
		}
		return int64(len(latencies)), latencies
	})
}

// bidi keeps window batches in flight on a stream, each with an acknowledgement of its own.
func (b *bench) bidi(s shape, end time.Time) (int64, []time.Duration) {
	return each(s, func() (int64, []time.Duration) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		client := b.client
		if s.conns() > 1 {
			var hangUp func()
			client, hangUp = dial(b.addr)
			defer hangUp()
		}
		send, recv, closeSend := open(ctx, client, s)
		slots := make(chan time.Time, s.window)
		done := make(chan struct{})
		var latencies []time.Duration
		go func() {
			defer close(done)
			for {
				_, err := recv()
				if errors.Is(err, io.EOF) {
					return
				}
				must(err)
				latencies = append(latencies, time.Since(<-slots))
			}
		}()
		for time.Now().Before(end) {
			slots <- time.Now()
			must(send())
		}
		must(closeSend())
		<-done
		return int64(len(latencies) * s.batch), latencies
	})
}

func open(ctx context.Context, client pb.BenchClient, s shape) (send func() error, recv func() (*pb.Ack, error), closeSend func() error) {
	if s.raw() {
		stream, err := client.PublishRaw(ctx)
		must(err)
		block := &pb.Raw{Topic: "t", Block: make([]byte, s.batch*s.size)}
		return func() error { return stream.Send(block) }, stream.Recv, stream.CloseSend
	}
	stream, err := client.Publish(ctx)
	must(err)
	batch := newBatch(s.batch, s.size)
	return func() error { return stream.Send(batch) }, stream.Recv, stream.CloseSend
}

func (b *bench) consume(s shape, end time.Time) (int64, []time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	request := &pb.Req{Batch: uint32(s.batch), Size: uint32(s.size)}
	var n int64
	if s.raw() {
		stream, err := b.client.ConsumeRaw(ctx, request)
		must(err)
		for time.Now().Before(end) {
			_, err := stream.Recv()
			must(err)
			n += int64(s.batch)
		}
		return n, nil
	}
	stream, err := b.client.Consume(ctx, request)
	must(err)
	for time.Now().Before(end) {
		batch, err := stream.Recv()
		must(err)
		n += int64(len(batch.Records))
	}
	return n, nil
}

func newBatch(n, size int) *pb.Batch {
	b := &pb.Batch{Topic: "t"}
	p := make([]byte, size)
	for range n {
		b.Records = append(b.Records, &pb.Record{Payload: p, Ts: time.Now().UnixNano()})
	}
	return b
}

func runServer() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	s := grpc.NewServer(grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow), grpc.MaxRecvMsgSize(maxMessage))
	pb.RegisterBenchServer(s, &server{})
	api.RegisterProducerServiceServer(s, &echo{})
	go func() { // it ends with its parent, however that ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println(l.Addr())
	must(s.Serve(l))
}

// server counts records and acknowledges them.
type server struct {
	pb.UnimplementedBenchServer
	offset atomic.Uint64
}

// Unary acknowledges one batch.
func (s *server) Unary(_ context.Context, b *pb.Batch) (*pb.Ack, error) { return s.ack(b), nil }

func (s *server) ack(b *pb.Batch) *pb.Ack {
	n := uint64(len(b.Records))
	return &pb.Ack{BaseOffset: s.offset.Add(n) - n, Count: uint32(n), Seq: b.Seq}
}

// Publish acknowledges every batch of a stream.
func (s *server) Publish(stream pb.Bench_PublishServer) error {
	for {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(s.ack(b)); err != nil {
			return err
		}
	}
}

// PublishRaw acknowledges every block of a stream.
func (s *server) PublishRaw(stream pb.Bench_PublishRawServer) error {
	for {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.Ack{BaseOffset: s.offset.Add(1), Seq: b.Seq}); err != nil {
			return err
		}
	}
}

// Consume sends the same batch until the client leaves.
func (s *server) Consume(r *pb.Req, stream pb.Bench_ConsumeServer) error {
	b := newBatch(int(r.Batch), int(r.Size))
	for {
		if err := stream.Send(b); err != nil {
			return err
		}
	}
}

// ConsumeRaw sends the same block until the client leaves.
func (s *server) ConsumeRaw(r *pb.Req, stream pb.Bench_ConsumeRawServer) error {
	b := &pb.Raw{Topic: "t", Block: make([]byte, int(r.Size)*int(r.Batch))}
	for {
		if err := stream.Send(b); err != nil {
			return err
		}
	}
}

// GetUsage tells the server's CPU time.
func (s *server) GetUsage(context.Context, *pb.Req) (*pb.Usage, error) {
	return &pb.Usage{CpuS: cpuSelf()}, nil
}
