package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// verdict is what a test's script decides about one batch.
type verdict struct {
	refuse  *leveev1.Error // answer with it instead of storing
	lose    bool           // break the stream without storing
	forget  bool           // store, and break the stream without answering
	pretend *leveev1.Error // store, and answer with it
}

// broker is a fake that stores one topic in memory and does what a test's script says.
type broker struct {
	leveev1.UnimplementedStreamServer
	t        testing.TB
	listener *bufconn.Listener
	server   *grpc.Server
	running  sync.WaitGroup

	mu   sync.Mutex
	cond *sync.Cond
	// Guarded by mu.
	topicID    []byte
	partitions []*stored
	unreliable bool
	producers  int64
	conns      []net.Conn
	seen       int                                                          // batches
	script     func(n int, b *leveev1.Batch) verdict                        // n counts from 1
	onOpen     func() error                                                 // refuses streams
	hold       bool                                                         // keep answers until released
	drain      bool                                                         // tell publishers to go
	deliver    func(partition int32, from int64) *leveev1.SubscribeResponse // instead of the log; nil: the log
	opened     int
	granted    map[int32]int64 // credit per partition, over all streams
	sent       map[int32]int64
	violations []string
	office     *office
}

// stored is one partition.
type stored struct {
	log       [][]byte
	end       int64
	first     int64
	lost      map[int64]int64 // from: to
	sequences map[int64]*sequence
}

type sequence struct {
	next    int32
	batches map[int32][]byte
	offsets map[int32]int64
}

func newBroker(t testing.TB, partitions int) *broker {
	b := &broker{t: t, listener: bufconn.Listen(1 << 20), topicID: []byte("topic-1"), granted: map[int32]int64{}, sent: map[int32]int64{}}
	b.cond = sync.NewCond(&b.mu)
	for range partitions {
		b.partitions = append(b.partitions, &stored{sequences: map[int64]*sequence{}, lost: map[int64]int64{}})
	}
	b.server = grpc.NewServer(grpc.ForceServerCodecV2(codec.Codec{}), grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(maxMessageBytes))
	leveev1.RegisterStreamServer(b.server, b)
	b.running.Go(func() { _ = b.server.Serve(b.listener) })
	t.Cleanup(func() {
		b.server.Stop()
		b.running.Wait()
		for _, v := range b.violations {
			t.Error(v)
		}
	})
	return b
}

func (b *broker) dial(opts ...Option) *Client {
	b.t.Helper()
	c, err := Dial("broker:1", append([]Option{WithDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := b.listener.DialContext(ctx)
		if err == nil {
			b.mu.Lock()
			b.conns = append(b.conns, conn)
			b.mu.Unlock()
		}
		return conn, err
	})}, opts...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return c
}

// set changes the fake under its lock and lets everything that waits look again.
func (b *broker) set(change func()) {
	b.mu.Lock()
	change()
	b.mu.Unlock()
	b.cond.Broadcast()
}

// cut breaks every connection.
func (b *broker) cut() {
	b.mu.Lock()
	conns := b.conns
	b.conns = nil
	b.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// wait waits until ok, under the lock.
func (b *broker) wait(ctx context.Context, ok func() bool) error {
	stop := context.AfterFunc(ctx, func() { b.set(func() {}) })
	defer stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for !ok() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.cond.Wait()
	}
	return nil
}

// refusal is a failed call as a broker makes it.
func refusal(code codes.Code, kind string, retriable bool) error {
	s, err := status.New(code, "scripted").WithDetails(&errdetails.ErrorInfo{
		Domain: domain, Reason: kind, Metadata: map[string]string{"retriable": fmt.Sprint(retriable), "fact": "1"},
	})
	if err != nil {
		panic(err)
	}
	return s.Err()
}

func retriable(kind string) *leveev1.Error {
	return &leveev1.Error{Kind: kind, Message: "scripted", Retriable: true}
}

func final(kind string) *leveev1.Error { return &leveev1.Error{Kind: kind, Message: "scripted"} }

func (b *broker) InitProducer(context.Context, *leveev1.InitProducerRequest) (*leveev1.InitProducerResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.producers++
	return &leveev1.InitProducerResponse{ProducerId: b.producers, Epoch: 0}, nil
}

func (b *broker) open(topicID []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened++
	b.cond.Broadcast()
	if b.onOpen != nil {
		if err := b.onOpen(); err != nil {
			return err
		}
	}
	if len(topicID) > 0 && !bytes.Equal(topicID, b.topicID) {
		return refusal(codes.NotFound, KindDeleted, false)
	}
	return nil
}

func (b *broker) Publish(rpc grpc.BidiStreamingServer[leveev1.PublishRequest, leveev1.PublishResponse]) error {
	first, err := rpc.Recv()
	if err != nil {
		return err
	}
	if err := b.open(first.GetOpen().GetTopicId()); err != nil {
		return err
	}
	var sendMu sync.Mutex
	send := func(r *leveev1.PublishResponse) {
		sendMu.Lock()
		defer sendMu.Unlock()
		_ = rpc.Send(r)
	}
	send(&leveev1.PublishResponse{Opened: &leveev1.Opened{
		TopicId: b.topicID, Partitions: int32(len(b.partitions)), Reliable: true, MaxBatchBytes: 4 << 20, MaxRecordBytes: 1 << 20,
	}})
	var answers sync.WaitGroup
	defer answers.Wait()
	ctx, cancel := context.WithCancel(rpc.Context())
	defer cancel()
	var last uint64
	answers.Go(func() {
		_ = b.wait(ctx, func() bool { return b.drain })
		if ctx.Err() == nil {
			send(&leveev1.PublishResponse{Draining: retriable(KindUnavailable)})
		}
	})
	pending := make(chan []*leveev1.Ack, 1000)
	defer close(pending)
	answers.Go(func() {
		for acks := range pending {
			if b.wait(rpc.Context(), func() bool { return !b.hold }) == nil {
				send(&leveev1.PublishResponse{Acks: acks})
			}
		}
	})
	for {
		req, err := rpc.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var acks []*leveev1.Ack
		for _, batch := range req.GetBatches() {
			if batch.GetId() <= last {
				b.violated("batch %d after %d", batch.GetId(), last)
			}
			last = batch.GetId()
			ack, breaks := b.decide(batch)
			if breaks {
				pending <- acks
				return status.Error(codes.Unavailable, "scripted: the stream broke")
			}
			acks = append(acks, ack)
		}
		pending <- acks
	}
}

func (b *broker) violated(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.violations = append(b.violations, fmt.Sprintf(format, args...))
}

func (b *broker) decide(batch *leveev1.Batch) (ack *leveev1.Ack, breaks bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.cond.Broadcast()
	b.seen++
	var v verdict
	if b.script != nil {
		v = b.script(b.seen, batch)
	}
	ack = &leveev1.Ack{Id: batch.GetId()}
	switch {
	case v.lose:
		return nil, true
	case v.refuse != nil:
		ack.Error = v.refuse
		return ack, false
	}
	b.store(ack, batch)
	if v.pretend != nil {
		return &leveev1.Ack{Id: batch.GetId(), Error: v.pretend}, false
	}
	return ack, v.forget
}

// store appends a batch as a broker does, recognising what an idempotent producer sends again. b.mu is held.
func (b *broker) store(ack *leveev1.Ack, batch *leveev1.Batch) {
	info, err := record.Verify(batch.GetData(), record.Limits{})
	if err != nil {
		b.violations = append(b.violations, err.Error())
		ack.Error = final(KindInvalidArgument)
		return
	}
	p := b.partitions[batch.GetPartition()]
	ack.Offset, ack.LastOffset = p.end, p.end+int64(info.Count)-1
	if info.ProducerID >= 0 {
		s := p.sequences[info.ProducerID]
		if s == nil {
			s = &sequence{batches: map[int32][]byte{}, offsets: map[int32]int64{}}
			p.sequences[info.ProducerID] = s
		}
		if old, ok := s.batches[info.BaseSequence]; ok {
			if !bytes.Equal(old, batch.GetData()) {
				b.violations = append(b.violations, fmt.Sprintf("sequence %d came with other bytes", info.BaseSequence))
			}
			ack.Offset, ack.Duplicate = s.offsets[info.BaseSequence], true
			ack.LastOffset = ack.Offset + int64(info.Count) - 1
			return
		}
		if info.BaseSequence != s.next {
			ack.Error = final(KindSequenceGap)
			return
		}
		s.next = record.NextSequence(s.next, info.Count)
		s.batches[info.BaseSequence], s.offsets[info.BaseSequence] = bytes.Clone(batch.GetData()), p.end
	}
	p.append(batch.GetData())
}

func (p *stored) append(batch []byte) {
	batch = bytes.Clone(batch)
	record.SetPlacement(batch, p.end, 1)
	info, err := record.ParseHeader(batch)
	if err != nil {
		panic(err)
	}
	p.log = append(p.log, batch)
	p.end += int64(info.Count)
}

// fill appends n batches of size records each to a partition.
func (b *broker) fill(partition, n, size int) {
	b.set(func() {
		p := b.partitions[partition]
		for range n {
			builder := record.NewBuilder(record.None)
			for i := range size {
				_ = builder.Append(record.Record{Value: fmt.Appendf(nil, "%d/%d", partition, p.end+int64(i)), Timestamp: 1})
			}
			batch, err := builder.Build(record.NoProducer)
			if err != nil {
				panic(err)
			}
			p.append(batch)
		}
	})
}

// values returns the values a partition holds, in order.
func (b *broker) values(partition int) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var values []string
	for _, batch := range b.partitions[partition].log {
		records, err := record.Records(batch)
		if err != nil {
			b.violations = append(b.violations, err.Error())
		}
		for _, r := range records {
			if int64(len(values)) != r.Offset {
				b.violations = append(b.violations, fmt.Sprintf("offset %d at %d", r.Offset, len(values)))
			}
			values = append(values, string(r.Value))
		}
	}
	return values
}

func (b *broker) Subscribe(rpc grpc.BidiStreamingServer[leveev1.SubscribeRequest, leveev1.SubscribeResponse]) error {
	first, err := rpc.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if err := b.open(open.GetTopicId()); err != nil {
		return err
	}
	partition := open.GetPartition()
	p := b.partitions[partition]
	credit := first.GetCredit().GetBytes()
	b.mu.Lock()
	next := p.first
	switch start := open.GetStart().(type) {
	case *leveev1.OpenSubscribe_Latest:
		next = p.end
	case *leveev1.OpenSubscribe_Offset:
		next = start.Offset
	case *leveev1.OpenSubscribe_TimeMs:
		next = p.end
	}
	if next < p.first {
		defer b.mu.Unlock()
		return rpc.Send(&leveev1.SubscribeResponse{Trimmed: &leveev1.Trimmed{Requested: next, Oldest: p.first}})
	}
	b.granted[partition] += credit
	sub := &leveev1.Subscribed{TopicId: b.topicID, Start: next, End: p.end, Partitions: int32(len(b.partitions)), Reliable: !b.unreliable}
	b.mu.Unlock()
	if err := rpc.Send(&leveev1.SubscribeResponse{Subscribed: sub}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(rpc.Context())
	defer cancel()
	b.running.Go(func() { // ends when the handler has returned, or the stream is gone
		for {
			req, err := rpc.Recv()
			if err != nil {
				cancel()
				return
			}
			b.set(func() {
				credit += req.GetCredit().GetBytes()
				b.granted[partition] += req.GetCredit().GetBytes()
			})
		}
	})
	return b.deliverAll(ctx, rpc, partition, next, &credit)
}

func (b *broker) deliverAll(ctx context.Context, rpc grpc.BidiStreamingServer[leveev1.SubscribeRequest, leveev1.SubscribeResponse], partition int32, next int64, credit *int64) error {
	p := b.partitions[partition]
	atEnd := false
	for {
		var resp *leveev1.SubscribeResponse
		var failed error
		if err := b.wait(ctx, func() bool {
			if b.deliver != nil {
				if resp = b.deliver(partition, next); resp != nil {
					return true
				}
			}
			if to, ok := p.lost[next]; ok {
				resp = &leveev1.SubscribeResponse{Lost: &leveev1.Range{From: next, To: to}}
				next = to + 1
				return true
			}
			if next >= p.end {
				if !atEnd {
					atEnd = true
					resp = &leveev1.SubscribeResponse{CaughtUp: p.end, AtEnd: true}
					return true
				}
				return false
			}
			if *credit <= 0 {
				return false
			}
			for _, batch := range p.log {
				info, _ := record.ParseHeader(batch)
				if info.LastOffset() >= next {
					next = info.LastOffset() + 1
					resp = &leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Batches: batch, Next: next}}
					*credit -= int64(len(batch))
					b.sent[partition] += int64(len(batch))
					b.cond.Broadcast()
					atEnd = false
					return true
				}
			}
			failed = status.Error(codes.Internal, "the fake lost a batch")
			return true
		}); err != nil {
			return status.FromContextError(err).Err()
		}
		if failed != nil {
			return failed
		}
		if err := rpc.Send(resp); err != nil {
			return err
		}
		if resp.GetEnded() != nil || resp.GetTrimmed() != nil {
			return nil
		}
	}
}

// reseal makes a batch's checksum right after a test changed it.
func reseal(batch []byte) {
	binary.BigEndian.PutUint32(batch[17:], crc32.Checksum(batch[21:], crc32.MakeTable(crc32.Castagnoli)))
}
