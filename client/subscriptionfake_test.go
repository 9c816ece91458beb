package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// office is the fake broker's one subscription, in every partition.
type office struct {
	kind       string
	ackTimeout time.Duration
	settled    map[int32]map[int64]bool
	handed     map[int32]map[int64]int32 // how often
	members    []*member
	requests   []*leveev1.ConsumeRequest // everything received
	holdSaves  bool
	saveFailed *leveev1.Error
	ended      *leveev1.Error // every stream ends with it
	news       []*leveev1.ConsumeResponse
	ignoreAcks bool // they do not arrive
	refuse     error
}

// member is one open stream.
type member struct {
	name      string
	partition int32
	priority  int32
	held      map[int64]bool
	gone      bool // its stream has ended
	fenced    bool
	credit    int64
	answers   []*leveev1.ConsumeResponse
	told      bool // active
	closed    bool // its client closed its side
}

func newOffice(kind string) *office {
	return &office{kind: kind, settled: map[int32]map[int64]bool{}, handed: map[int32]map[int64]int32{}}
}

// subscribing is a fake broker with a subscription of that type.
func subscribing(t testing.TB, partitions int, kind SubscriptionType) *broker {
	b := newBroker(t, partitions)
	b.office = newOffice(string(kind))
	for p := range int32(partitions) {
		b.office.settled[p], b.office.handed[p] = map[int64]bool{}, map[int64]int32{}
	}
	return b
}

func (b *broker) Consume(rpc grpc.BidiStreamingServer[leveev1.ConsumeRequest, leveev1.ConsumeResponse]) error {
	first, err := rpc.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if err := b.open(open.GetTopicId()); err != nil {
		return err
	}
	b.mu.Lock()
	f := b.office
	if f.refuse != nil {
		defer b.mu.Unlock()
		return f.refuse
	}
	m := &member{name: open.GetName(), partition: open.GetPartition(), priority: open.GetPriority(), held: map[int64]bool{}}
	for _, o := range f.members {
		if o.name == m.name && o.partition == m.partition {
			o.fenced = true
			clear(o.held)
		}
	}
	f.members = append(f.members, m)
	b.request(m, first)
	m.told = b.isActive(m)
	hello := &leveev1.Consuming{
		TopicId: b.topicID, Partitions: int32(len(b.partitions)), Type: f.kind, Name: m.name, Reliable: !b.unreliable,
		Active: m.told, AckTimeoutMs: f.ackTimeout.Milliseconds(),
	}
	b.mu.Unlock()
	b.cond.Broadcast()
	if err := rpc.Send(&leveev1.ConsumeResponse{Consuming: hello}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(rpc.Context())
	defer cancel()
	b.running.Go(func() {
		for {
			req, err := rpc.Recv()
			if errors.Is(err, io.EOF) {
				b.set(func() { m.closed = true })
				return
			}
			if err != nil {
				cancel()
				return
			}
			b.set(func() { b.request(m, req) })
		}
	})
	defer b.set(func() {
		m.gone = true
		clear(m.held)
		f.members = slices.DeleteFunc(f.members, func(o *member) bool { return o == m })
	})
	for {
		var resp *leveev1.ConsumeResponse
		if err := b.wait(ctx, func() bool { resp = b.forMember(m); return resp != nil || m.closed }); err != nil {
			return status.FromContextError(err).Err()
		}
		if resp == nil {
			return nil
		}
		if err := rpc.Send(resp); err != nil {
			return err
		}
		if resp.GetEnded() != nil || resp.GetTrimmed() != nil {
			return nil
		}
	}
}

// request does what a client says. b.mu is held.
func (b *broker) request(m *member, req *leveev1.ConsumeRequest) {
	f := b.office
	keep := &leveev1.ConsumeRequest{
		Open: req.GetOpen(), HasAckBelow: req.GetHasAckBelow(), AckBelow: req.GetAckBelow(), Heartbeat: req.GetHeartbeat(), Save: req.GetSave(),
		Credit: req.GetCredit(),
	}
	for _, r := range req.GetAcks() {
		keep.Acks = append(keep.Acks, &leveev1.Range{From: r.GetFrom(), To: r.GetTo()})
		for o := r.GetFrom(); o <= r.GetTo() && !f.ignoreAcks; o++ {
			b.settle(m.partition, o)
		}
	}
	if req.GetHasAckBelow() && !f.ignoreAcks {
		for o := range f.handed[m.partition] {
			if o < req.GetAckBelow() {
				b.settle(m.partition, o)
			}
		}
	}
	for _, n := range req.GetNacks() {
		keep.Nacks = append(keep.Nacks, n)
		delete(m.held, n.GetRange().GetFrom())
	}
	f.requests = append(f.requests, keep)
	m.credit += req.GetCredit().GetBytes()
	if req.GetSave() != 0 {
		m.answers = append(m.answers, &leveev1.ConsumeResponse{Saved: req.GetSave(), SaveFailed: f.saveFailed})
	}
}

func (b *broker) settle(partition int32, offset int64) {
	if b.office.handed[partition][offset] == 0 {
		b.violations = append(b.violations, fmt.Sprintf("offset %d was acknowledged, and never handed out", offset))
	}
	b.office.settled[partition][offset] = true
	for _, o := range b.office.members {
		if o.partition == partition {
			delete(o.held, offset)
		}
	}
}

// isActive reports whether m is the first of its partition. b.mu is held.
func (b *broker) isActive(m *member) bool {
	for _, o := range b.office.members {
		if o != m && o.partition == m.partition && !o.fenced && (o.priority < m.priority || o.priority == m.priority && o.name < m.name) {
			return false
		}
	}
	return true
}

// forMember returns what is to be sent to m next, or nil. b.mu is held.
func (b *broker) forMember(m *member) *leveev1.ConsumeResponse {
	f := b.office
	active := b.isActive(m)
	switch {
	case m.fenced:
		return &leveev1.ConsumeResponse{Ended: &leveev1.Error{Kind: KindFenced, Message: "taken over", Retriable: true}}
	case f.ended != nil:
		return &leveev1.ConsumeResponse{Ended: f.ended}
	case len(m.answers) > 0 && !f.holdSaves:
		answer := m.answers[0]
		m.answers = m.answers[1:]
		return answer
	case m.closed:
		return nil
	case f.kind == string(Failover) && active != m.told:
		m.told = active
		return &leveev1.ConsumeResponse{Active: active, Standby: !active}
	case len(f.news) > 0:
		n := f.news[0]
		f.news = f.news[1:]
		return n
	case m.credit <= 0 || f.kind == string(Failover) && !active:
		return nil
	}
	return b.handOut(m)
}

// handOut gives m what it may have of the first batch that has anything for it.
func (b *broker) handOut(m *member) *leveev1.ConsumeResponse {
	f := b.office
	for _, batch := range b.partitions[m.partition].log {
		info, err := record.ParseHeader(batch)
		if err != nil {
			panic(err)
		}
		d := &leveev1.Delivered{Batches: batch}
		for o := info.BaseOffset; o <= info.LastOffset(); o++ {
			if f.settled[m.partition][o] || slices.ContainsFunc(f.members, func(m *member) bool { return m.held[o] }) {
				continue
			}
			if !b.unreliable {
				m.held[o] = true
			} else {
				f.settled[m.partition][o] = true
			}
			f.handed[m.partition][o]++
			if n := len(d.Offsets); n > 0 && d.Offsets[n-1].To+1 == o {
				d.Offsets[n-1].To = o
			} else {
				d.Offsets = append(d.Offsets, &leveev1.Range{From: o, To: o})
			}
			if n := f.handed[m.partition][o]; n > 1 {
				d.Counts = append(d.Counts, &leveev1.Deliveries{From: o, To: o, Count: n})
			}
		}
		if len(d.Offsets) > 0 {
			m.credit -= int64(len(batch))
			return &leveev1.ConsumeResponse{Delivered: d}
		}
	}
	return nil
}

// acked waits until n offsets of a partition are settled.
func (b *broker) acked(t testing.TB, partition int32, n int) {
	t.Helper()
	if err := b.wait(patience(t), func() bool { return len(b.office.settled[partition]) >= n }); err != nil {
		t.Fatalf("%d of %d are settled", len(b.office.settled[partition]), n)
	}
}

// asked returns what was received, leaving out messages that only give credit.
func (b *broker) asked() []*leveev1.ConsumeRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*leveev1.ConsumeRequest
	for _, r := range b.office.requests {
		if r.Open != nil || len(r.Acks) > 0 || len(r.Nacks) > 0 || r.HasAckBelow || r.Heartbeat || r.Save != 0 {
			all = append(all, r)
		}
	}
	return all
}

func subscribed(t testing.TB, b *broker, config SubscriptionConfig) *Subscription {
	t.Helper()
	s, err := b.dial().Subscribe(patience(t), "orders", "mail", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(ctx)
	})
	return s
}

// receive wants the next delivery to be of that offset, handed out that often.
func receive(t testing.TB, s *Subscription, offset int64, deliveries int) *Delivery {
	t.Helper()
	d, err := s.Next(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	if d.Offset != offset || d.Deliveries != deliveries || d.Topic != "orders" || string(d.Value) != fmt.Sprintf("%d/%d", d.Partition, offset) {
		t.Fatalf("got %s at %d, handed out %d times; want %d, %d times", d.Value, d.Offset, d.Deliveries, offset, deliveries)
	}
	return d
}

func notFound(kind string) error { return refusal(codes.NotFound, kind, false) }
