package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// load is publishers at work on one topic, each with a connection of its own, and the history they write.
type load struct {
	t          *testing.T
	place      *proc.Place
	topic      string
	partitions int32
	history    *History
	acks       acks
	publishers []*publisher

	mu   sync.Mutex
	gate chan struct{} // closed while publishing is allowed; guarded by mu
	open bool          // guarded by mu
}

func newLoad(t *testing.T, place *proc.Place, topic string, partitions int32) *load {
	l := &load{t: t, place: place, topic: topic, partitions: partitions, history: NewHistory(), gate: make(chan struct{})}
	t.Cleanup(func() {
		for _, p := range l.publishers {
			p.crash()
		}
	})
	return l
}

// acks counts acknowledgements, and says when there were enough.
type acks struct {
	mu     sync.Mutex
	n      int64         // guarded by mu
	target int64         // guarded by mu
	hit    chan struct{} // closed when n reaches target; guarded by mu
}

func (a *acks) add() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	if a.hit != nil && a.n >= a.target {
		close(a.hit)
		a.hit = nil
	}
}

// after returns a channel that is closed once n more acknowledgements have come.
func (a *acks) after(n int64) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	hit := make(chan struct{})
	a.hit, a.target = hit, a.n+n
	return hit
}

// resume lets publishers publish.
func (l *load) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		l.open = true
		close(l.gate)
	}
}

// pause makes publishers begin nothing new. What they have begun goes on.
func (l *load) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open {
		l.open = false
		l.gate = make(chan struct{})
	}
}

func (l *load) gateway() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gate
}

// kind is what a publisher is like.
type kind struct {
	idempotent bool
	ordered    bool // one batch in flight at a time
	mortal     bool // its process crashes together with the broker, and another takes its place
	window     int  // records it has under way at most
	codec      record.Codec
}

// publisher is a goroutine with a client of its own.
type publisher struct {
	load     *load
	kind     kind
	id       int32
	client   *client.Client
	producer *client.Producer
	cancel   context.CancelFunc
	done     chan struct{}
}

// start adds n publishers of mixed kinds. The broker must be there.
func (l *load) start(n int, rng *rand.Rand) {
	l.t.Helper()
	first := rng.IntN(8)
	for i := first; i < first+n; i++ {
		l.add(kind{
			idempotent: i%2 == 0, mortal: i/2%2 == 0, ordered: i/4%2 == 0, window: 1 << rng.IntN(6),
			codec: record.Codec(rng.IntN(5)),
		})
	}
}

func (l *load) add(k kind) {
	l.t.Helper()
	p := &publisher{load: l, kind: k, id: l.history.AddProducer(k.idempotent, k.ordered), done: make(chan struct{})}
	p.client = l.place.Client(l.t)
	config := client.ProducerConfig{
		Idempotent: k.idempotent, Compression: k.codec, BatchRecords: 64, DeliveryTimeout: proc.Patience,
		Partitioner: func(r record.Record, _ int32) int32 { return l.partitionOf(valueOf(r.Value)) },
	}
	if k.ordered {
		config.MaxInFlight = 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	var err error
	if p.producer, err = p.client.NewProducer(ctx, l.topic, config); err != nil {
		l.t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	p.cancel = stop
	l.publishers = append(l.publishers, p)
	go p.run(running)
}

func (p *publisher) run(ctx context.Context) {
	defer close(p.done)
	slots := make(chan struct{}, p.kind.window)
	var payload []byte
	for {
		select {
		case <-p.load.gateway():
		case <-ctx.Done():
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		v := p.load.history.Begin(p.id, p.load.partitionOf)
		payload = appendPayload(payload[:0], v)
		p.producer.Publish(ctx, record.Record{Value: payload}, func(a client.Ack, err error) {
			p.load.ended(v, a, err)
			if err != nil {
				p.cancel() // either it crashes, or something is wrong that more of the same will not heal
			}
			<-slots
		})
	}
}

// ended notes what became of a publish.
func (l *load) ended(v Value, a client.Ack, err error) {
	switch kind := client.KindOf(err); kind {
	case "":
		l.history.End(v, OK, a.Offset, a.Duplicate, nil)
		l.acks.add()
	case client.KindOutcomeUnknown:
		l.history.End(v, Unknown, 0, false, err)
	default:
		l.history.End(v, Failed, 0, false, err)
	}
}

// crash ends a publisher as if its process had died: what it had under way stays unanswered.
func (p *publisher) crash() {
	p.cancel()
	_ = p.client.Close()
	<-p.done
}

// finish stops a publisher in good order: all it has under way is answered.
func (p *publisher) finish() error {
	p.cancel()
	<-p.done
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	if err := p.producer.Close(ctx); err != nil {
		return err
	}
	return p.client.Close()
}

// crashMortals ends the publishers that die with the broker, and returns their kinds.
func (l *load) crashMortals() (kinds []kind) {
	var living []*publisher
	for _, p := range l.publishers {
		if !p.kind.mortal {
			living = append(living, p)
			continue
		}
		p.crash()
		kinds = append(kinds, p.kind)
	}
	l.publishers = living
	return kinds
}

// finish stops all publishers in good order.
func (l *load) finish() {
	l.t.Helper()
	errs := make(chan error, len(l.publishers))
	for _, p := range l.publishers {
		go func() { errs <- p.finish() }()
	}
	for range l.publishers {
		if err := <-errs; err != nil {
			l.t.Errorf("a publisher could not finish: %v", err)
		}
	}
	l.publishers = nil
}

// await waits for a channel to close.
func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	timer := time.NewTimer(proc.Patience)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		t.Fatalf("waited %v for %s", proc.Patience, what)
	}
}

// A payload is its value, and bytes that follow from it, so that a wrong one cannot pass for another.
const payloadHeader = 8

func (l *load) partitionOf(v Value) int32 { return int32(mix(v) % uint64(l.partitions)) }

func mix(v Value) uint64 {
	x := uint64(uint32(v.Producer))<<32 | uint64(uint32(v.Seq))
	x ^= x >> 31
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

// payloadSize is mostly some hundred bytes, sometimes some thousand, and once in a while more than a segment.
func payloadSize(v Value) int {
	x := mix(v) >> 8
	switch {
	case x%1000 == 0:
		return 70_000
	case x%50 == 0:
		return 1000 + int(x>>10%8000)
	}
	return payloadHeader + int(x>>10%400)
}

func appendPayload(to []byte, v Value) []byte {
	start, size := len(to), payloadSize(v)
	to = binary.BigEndian.AppendUint32(to, uint32(v.Producer))
	to = binary.BigEndian.AppendUint32(to, uint32(v.Seq))
	for x := mix(v); len(to) < start+size; x = x*6364136223846793005 + 1442695040888963407 {
		to = binary.BigEndian.AppendUint64(to, x)
	}
	return to[:start+size]
}

func valueOf(payload []byte) Value {
	if len(payload) < payloadHeader {
		return Value{-1, -1}
	}
	return Value{int32(binary.BigEndian.Uint32(payload)), int32(binary.BigEndian.Uint32(payload[4:]))}
}

// read reads a topic from its beginning to its present end, in every partition.
func read(t *testing.T, place *proc.Place, topic string, partitions int32, began time.Duration) Reading {
	t.Helper()
	c := place.Client(t)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	r := Reading{Start: began, Partitions: make([][]Entry, partitions)}
	left := map[int32]bool{}
	for p := range partitions {
		left[p] = true
	}
	consumer, err := c.Consume(ctx, topic, client.ConsumerConfig{
		From: client.Offset(0),
		OnLost: func(p int32, from, to int64) {
			r.Lost = append(r.Lost, fmt.Sprintf("partition %d: offsets %d to %d", p, from, to))
		},
		OnCaughtUp: func(p int32, _ int64) { delete(left, p); stopIfNone(left, cancel) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	var want []byte
	for {
		batch, err := consumer.NextBatch(ctx)
		if err != nil && len(left) == 0 {
			return r
		}
		if err != nil {
			t.Fatalf("read %s: %v", topic, err)
		}
		for i := range batch {
			m := &batch[i]
			v := valueOf(m.Value)
			if want = appendPayload(want[:0], v); !bytes.Equal(m.Value, want) {
				t.Fatalf("partition %d: offset %d has %d bytes that nobody wrote: %.40x", m.Partition, m.Offset, len(m.Value), m.Value)
			}
			r.Partitions[m.Partition] = append(r.Partitions[m.Partition], Entry{m.Offset, v})
		}
	}
}

func stopIfNone(left map[int32]bool, stop func()) {
	if len(left) == 0 {
		stop()
	}
}
