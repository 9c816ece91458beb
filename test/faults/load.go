package faults

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
)

// Load is publishers at work on one topic, each with a connection of its own, and the history they write. Its methods
// are for the test's goroutine.
type Load struct {
	T           *testing.T
	Place       *proc.Place
	Topic       string // with its namespace
	Incarnation uint64
	Partitions  int32
	History     *history.History
	// Oldest is by partition the first offset that has to be there still, where what is older was lost or removed on purpose.
	Oldest map[int32]int64

	acks       acks
	publishers []*publisher

	mu   sync.Mutex
	gate chan struct{} // closed while publishing is allowed; guarded by mu
	open bool          // guarded by mu
}

// Load makes a topic and puts a load on it, without a publisher yet. The broker must be there.
func (c *Campaign) Load(spec client.TopicSpec) *Load {
	c.T.Helper()
	cl := c.Place.Client(c.T)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	made, err := cl.Admin().CreateTopic(ctx, spec)
	if err != nil {
		c.T.Fatal(err)
	}
	info := history.TopicInfo{Topic: made.Name, Incarnation: made.Incarnation, Fsync: *made.Effective.Fsync}
	if info.Fsync == history.FsyncPeriodic {
		info.Interval = *made.Effective.FsyncInterval
	}
	c.History.Topic(info)
	l := &Load{
		T: c.T, Place: c.Place, Topic: made.Name, Incarnation: made.Incarnation, Partitions: max(1, spec.Partitions),
		History: c.History, gate: make(chan struct{}),
	}
	c.Loads = append(c.Loads, l)
	c.T.Cleanup(func() {
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
	fresh  int64         // guarded by mu; of n, those that were no duplicates
	target int64         // guarded by mu
	hit    chan struct{} // closed when n reaches target; guarded by mu
}

func (a *acks) add(duplicate bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	if !duplicate {
		a.fresh++
	}
	if a.hit != nil && a.n >= a.target {
		close(a.hit)
		a.hit = nil
	}
}

// Fresh returns how many publishes were acknowledged that the broker had not had before.
func (l *Load) Fresh() int64 {
	l.acks.mu.Lock()
	defer l.acks.mu.Unlock()
	return l.acks.fresh
}

// After returns a channel that is closed once n more publishes are acknowledged.
func (l *Load) After(n int64) <-chan struct{} { return l.acks.after(n) }

// after returns a channel that is closed once n more acknowledgements have come.
func (a *acks) after(n int64) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	hit := make(chan struct{})
	a.hit, a.target = hit, a.n+n
	return hit
}

// Resume lets publishers publish.
func (l *Load) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		l.open = true
		close(l.gate)
	}
}

// Pause makes publishers begin nothing new. What they have begun goes on.
func (l *Load) Pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open {
		l.open = false
		l.gate = make(chan struct{})
	}
}

func (l *Load) gateway() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gate
}

// Kind is what a publisher is like.
type Kind struct {
	Idempotent bool
	Ordered    bool // one batch in flight at a time
	Mortal     bool // its process crashes together with the broker, and another takes its place
	Window     int  // records it has under way at most
	Codec      record.Codec
	Stubborn   bool          // goes on after an error
	Timeout    time.Duration // how long it tries to deliver; 0: as long as tests wait
}

// publisher is a goroutine with a client of its own.
type publisher struct {
	load     *Load
	kind     Kind
	seen     *history.Producer
	client   *client.Client
	producer *client.Producer
	cancel   context.CancelFunc
	done     chan struct{}
}

// Start adds n publishers of mixed kinds. The broker must be there.
func (l *Load) Start(n int, rng *rand.Rand) {
	l.T.Helper()
	first := rng.IntN(8)
	for i := first; i < first+n; i++ {
		l.Add(Kind{
			Idempotent: i%2 == 0, Mortal: i/2%2 == 0, Ordered: i/4%2 == 0, Window: 1 << rng.IntN(6),
			Codec: record.Codec(rng.IntN(5)),
		})
	}
}

// Crowd draws a number of publishers from 1 to 64, small ones as often as large ones.
func Crowd(rng *rand.Rand) int { return int(math.Exp(rng.Float64() * math.Log(64.99))) }

// Add adds one publisher. The broker must be there.
func (l *Load) Add(k Kind) {
	l.T.Helper()
	p := &publisher{load: l, kind: k, done: make(chan struct{})}
	p.seen = l.History.Producer(history.ProducerInfo{Topic: l.Topic, Incarnation: l.Incarnation, Idempotent: k.Idempotent, Ordered: k.Ordered, Mortal: k.Mortal})
	p.client = l.Place.Client(l.T)
	if k.Timeout == 0 {
		k.Timeout = proc.Patience
	}
	config := client.ProducerConfig{
		Idempotent: k.Idempotent, Compression: k.Codec, BatchRecords: 64, DeliveryTimeout: k.Timeout,
		Partitioner: func(r record.Record, _ int32) int32 { return l.partitionOf(ValueOf(r.Value)) },
	}
	if k.Ordered {
		config.MaxInFlight = 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	var err error
	if p.producer, err = p.client.NewProducer(ctx, l.Topic, config); err != nil {
		l.T.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	p.cancel = stop
	l.publishers = append(l.publishers, p)
	go p.run(running)
}

func (p *publisher) run(ctx context.Context) {
	defer close(p.done)
	slots := make(chan struct{}, p.kind.Window)
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
		v := p.seen.BeginFunc(p.load.partitionOf)
		payload = AppendPayload(payload[:0], v)
		p.producer.Publish(ctx, record.Record{Value: payload}, func(a client.Ack, err error) {
			p.load.ended(v, a, err)
			if err != nil && !p.kind.Stubborn {
				p.cancel() // either it crashes, or something is wrong that more of the same will not heal
			}
			<-slots
		})
	}
}

// ended notes what became of a publish.
func (l *Load) ended(v history.Value, a client.Ack, err error) {
	switch kind := client.KindOf(err); kind {
	case "":
		l.History.End(v, history.OK, a.Offset, a.Duplicate, nil)
		l.acks.add(a.Duplicate)
	case client.KindOutcomeUnknown:
		l.History.End(v, history.Unknown, 0, false, err)
	default:
		l.History.End(v, history.Fail, 0, false, err)
	}
}

// crash ends a publisher as if its process had died: what it had under way stays unanswered.
func (p *publisher) crash() {
	p.cancel()
	_ = p.client.Close()
	<-p.done
	p.seen.Gone()
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

// CrashMortals ends the publishers that die with the broker, and returns their kinds.
func (l *Load) CrashMortals() (kinds []Kind) {
	var living []*publisher
	for _, p := range l.publishers {
		if !p.kind.Mortal {
			living = append(living, p)
			continue
		}
		p.crash()
		kinds = append(kinds, p.kind)
	}
	l.publishers = living
	return kinds
}

// Finish stops all publishers in good order.
func (l *Load) Finish() {
	l.T.Helper()
	errs := make(chan error, len(l.publishers))
	for _, p := range l.publishers {
		go func() { errs <- p.finish() }()
	}
	for range l.publishers {
		if err := <-errs; err != nil {
			l.T.Errorf("a publisher could not finish: %v", err)
		}
	}
	l.publishers = nil
}

// Await waits for a channel to close.
func Await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	timer := time.NewTimer(proc.Patience)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		t.Fatalf("waited %v for %s", proc.Patience, what)
	}
}

func (l *Load) partitionOf(v history.Value) int32 { return PartitionOf(v, l.Partitions) }

// Read reads the topic into the history, from its beginning, or what is the oldest, to its present end, in every partition.
func (l *Load) Read() {
	l.T.Helper()
	c := l.Place.Client(l.T)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	left, from := map[int32]*history.Reading{}, map[int32]client.Position{}
	for p := range l.Partitions {
		left[p] = l.History.Reading(l.Topic, l.Incarnation, p, "broker", 0)
		if at := l.Oldest[p]; at > 0 {
			left[p].Told(history.Trimmed, 0, at-1)
		}
		from[p] = client.Offset(l.Oldest[p])
	}
	consumer, err := c.Consume(ctx, l.Topic, client.ConsumerConfig{
		Positions: from,
		OnLost: func(p int32, from, to int64) {
			if r := left[p]; r != nil {
				r.Told(history.Lost, from, to)
			}
		},
		OnCaughtUp: func(p int32, next int64) {
			if r := left[p]; r != nil {
				r.End(next)
			}
			if delete(left, p); len(left) == 0 {
				cancel()
			}
		},
	})
	if err != nil {
		l.T.Fatal(err)
	}
	defer consumer.Close()
	var want []byte
	for {
		batch, err := consumer.NextBatch(ctx)
		if err != nil && len(left) == 0 {
			return
		}
		if err != nil {
			l.T.Fatalf("read %s: %v", l.Topic, err)
		}
		for i := range batch {
			m := &batch[i]
			v := ValueOf(m.Value)
			if want = AppendPayload(want[:0], v); !bytes.Equal(m.Value, want) {
				l.T.Fatalf("partition %d: offset %d has %d bytes that nobody wrote: %.40x", m.Partition, m.Offset, len(m.Value), m.Value)
			}
			if r := left[m.Partition]; r != nil {
				r.Record(m.Offset, v)
			}
		}
	}
}
