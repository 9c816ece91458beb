package power

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
)

// interval is the one of topics that flush periodically: short, so that what is lost of them is little.
const interval = 100 * time.Millisecond

// topic is one topic and the publishers at work on it.
type topic struct {
	load        *load
	name        string
	mode        string
	retention   bool
	partitions  int32
	incarnation uint64
	made        time.Time // acknowledged by then
	publishers  []*publisher
	acked       atomic.Int64
}

// load is publishers at work on topics of every kind, and what they saw. Its methods are for the test's goroutine.
type load struct {
	t       *testing.T
	rng     *rand.Rand
	place   *proc.Place
	history *history.History
	topics  []*topic

	// blind is set while answers count for nothing: the power is being cut under a broker that still runs, and Linux may
	// tell it that a flush has succeeded which is lost (see device.FS.Cut).
	blind atomic.Bool

	mu    sync.Mutex
	open  chan struct{} // closed while publishing is allowed; guarded by mu
	pubs  [][]publish   // by producer, in order of Seq; guarded by mu
	kinds []kind        // by producer; guarded by mu
	err   error         // what no publisher may meet; guarded by mu
}

// publish is one record as its client saw it.
type publish struct {
	topic      *topic
	partition  int32
	start, end time.Time // end: zero while there is no answer
	offset     int64     // -1: not acknowledged
	lost       bool      // acknowledged, and gone since
}

// newLoad makes the topics. The broker must be there.
func newLoad(t *testing.T, rng *rand.Rand, place *proc.Place) *load {
	t.Helper()
	l := &load{t: t, rng: rng, place: place, history: history.New(), open: make(chan struct{})}
	t.Cleanup(func() {
		for _, tp := range l.topics {
			for _, p := range tp.publishers {
				p.crash()
			}
		}
	})
	for _, tp := range []*topic{
		{name: "default/on-commit", mode: history.FsyncOnCommit},
		{name: "default/periodic", mode: history.FsyncPeriodic},
		{name: "default/none", mode: history.FsyncNone},
		{name: "default/trimmed", mode: history.FsyncOnCommit, retention: true},
		{name: "default/trimmed-periodic", mode: history.FsyncPeriodic, retention: true},
	} {
		tp.load, tp.partitions = l, 2
		tp.create()
		l.topics = append(l.topics, tp)
	}
	return l
}

func (tp *topic) create() {
	l := tp.load
	l.t.Helper()
	c := l.place.Client(l.t)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	spec := client.TopicSpec{Name: tp.name, Partitions: tp.partitions, Settings: client.Settings{Fsync: &tp.mode, SegmentBytes: new(int64(64 << 10))}}
	if tp.mode == history.FsyncPeriodic {
		spec.Settings.FsyncInterval = new(interval)
	}
	if tp.retention {
		spec.Settings.RetentionBytes = new(int64(200 << 10))
	}
	made, err := c.Admin().CreateTopic(ctx, spec)
	if err != nil {
		l.t.Fatal(err)
	}
	tp.incarnation, tp.made = made.Incarnation, time.Now()
	info := history.TopicInfo{Topic: tp.name, Incarnation: tp.incarnation, Fsync: tp.mode, Retention: tp.retention}
	if tp.mode == history.FsyncPeriodic {
		info.Interval = interval
	}
	l.history.Topic(info)
}

// resume lets publishers publish.
func (l *load) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.open)
}

// pause makes publishers begin nothing new. What they have begun goes on.
func (l *load) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

func (l *load) gate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// kind is what a publisher is like.
type kind struct {
	idempotent, ordered, mortal bool
	window                      int // records it has under way at most
	codec                       record.Codec
}

// publisher is a goroutine with a client of its own.
type publisher struct {
	topic    *topic
	kind     kind
	id       int32
	history  *history.Producer
	client   *client.Client
	producer *client.Producer
	cancel   context.CancelFunc
	done     chan struct{}
	gone     sync.Once
}

// crowd adds 1 to 64 publishers of mixed kinds, to every topic one at least.
func (l *load) crowd() {
	l.t.Helper()
	n := max(len(l.topics), int(math.Exp(l.rng.Float64()*math.Log(64.99))))
	for i := range n {
		k := l.rng.IntN(8)
		l.topics[i%len(l.topics)].add(kind{
			idempotent: k&1 > 0, mortal: k&2 > 0, ordered: k&4 > 0, window: 1 << l.rng.IntN(6), codec: record.Codec(l.rng.IntN(5)),
		})
	}
}

// add adds one publisher.
func (tp *topic) add(k kind) {
	l := tp.load
	l.t.Helper()
	p := &publisher{topic: tp, kind: k, client: l.place.Client(l.t), done: make(chan struct{})}
	p.history = l.history.Producer(history.ProducerInfo{
		Client: "publisher", Topic: tp.name, Incarnation: tp.incarnation, Idempotent: k.idempotent, Ordered: k.ordered, Mortal: k.mortal,
	})
	p.id = p.history.ID()
	l.mu.Lock()
	l.pubs, l.kinds = append(l.pubs, nil), append(l.kinds, k)
	l.mu.Unlock()
	config := client.ProducerConfig{
		Idempotent: k.idempotent, Compression: k.codec, BatchRecords: 64, DeliveryTimeout: proc.Patience,
		Partitioner: func(r record.Record, _ int32) int32 { return tp.partitionOf(faults.ValueOf(r.Value)) },
	}
	if k.ordered {
		config.MaxInFlight = 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	var err error
	if p.producer, err = p.client.NewProducer(ctx, tp.name, config); err != nil {
		l.t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	p.cancel = stop
	tp.publishers = append(tp.publishers, p)
	go p.run(running)
}

func (p *publisher) run(ctx context.Context) {
	defer close(p.done)
	l := p.topic.load
	slots := make(chan struct{}, p.kind.window)
	var payload []byte
	for {
		select {
		case <-l.gate():
		case <-ctx.Done():
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		v := p.begin()
		payload = faults.AppendPayload(payload[:0], v)
		p.producer.Publish(ctx, record.Record{Value: payload}, func(a client.Ack, err error) {
			p.ended(v, a, err)
			<-slots
		})
	}
}

func (p *publisher) begin() history.Value {
	l := p.topic.load
	v := p.history.BeginFunc(p.topic.partitionOf)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pubs[p.id] = append(l.pubs[p.id], publish{topic: p.topic, partition: p.topic.partitionOf(v), start: time.Now(), offset: -1})
	return v
}

// ended notes what became of a publish.
func (p *publisher) ended(v history.Value, a client.Ack, err error) {
	l := p.topic.load
	outcome := history.OK
	switch kind := client.KindOf(err); kind {
	case "":
		if l.blind.Load() {
			outcome = history.Unknown
			break
		}
		p.topic.acked.Add(1)
	case client.KindOutcomeUnknown:
		outcome = history.Unknown
	default:
		outcome = history.Fail
		p.cancel() // more of the same will not heal
	}
	l.history.End(v, outcome, a.Offset, a.Duplicate, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	pub := &l.pubs[p.id][v.Seq]
	pub.end = time.Now()
	switch {
	case outcome == history.OK:
		pub.offset = a.Offset
	case outcome == history.Fail && l.err == nil && !p.mayFail(err):
		l.err = fmt.Errorf("%s: publisher %d: %w", p.topic.name, p.id, err)
	}
}

// mayFail reports whether a publish that a power cut fell into may fail like that.
func (p *publisher) mayFail(err error) bool {
	switch client.KindOf(err) {
	case client.KindCanceled, "stopped": // it has died; its log has
		return true
	case client.KindSequenceGap: // what it had been acknowledged is lost, or one before it fell to the end of its log
		return p.kind.idempotent && (p.topic.mode != history.FsyncOnCommit || strings.Contains(err.Error(), "stopped: "))
	}
	return false
}

// crash ends a publisher as if its process had died: what it had under way stays unanswered.
func (p *publisher) crash() {
	p.cancel()
	_ = p.client.Close()
	<-p.done
	p.gone.Do(p.history.Gone)
}

// finish stops a publisher in good order: all it has under way is answered.
func (p *publisher) finish() error {
	p.cancel()
	<-p.done
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	err := p.producer.Close(ctx)
	p.gone.Do(p.history.Gone)
	return errors.Join(err, p.client.Close())
}

// crashMortals ends the publishers that die with the broker.
func (l *load) crashMortals() {
	for _, tp := range l.topics {
		for _, p := range tp.publishers {
			if p.kind.mortal {
				p.crash()
			}
		}
	}
}

// replace puts another publisher in the place of each that has died, or was answered with an error.
func (l *load) replace() {
	l.t.Helper()
	for _, tp := range l.topics {
		publishers := tp.publishers
		tp.publishers = nil
		for _, p := range publishers {
			select {
			case <-p.done:
				p.crash()
				tp.add(p.kind)
			default:
				tp.publishers = append(tp.publishers, p)
			}
		}
	}
}

// finish stops all publishers in good order.
func (l *load) finish() {
	l.t.Helper()
	var wg sync.WaitGroup
	for _, tp := range l.topics {
		for _, p := range tp.publishers {
			wg.Go(func() {
				if err := p.finish(); err != nil {
					l.t.Errorf("%s: publisher %d could not finish: %v", tp.name, p.id, err)
				}
			})
		}
		tp.publishers = nil
	}
	wg.Wait()
}

func (tp *topic) partitionOf(v history.Value) int32 { return faults.PartitionOf(v, tp.partitions) }

// entry is one record as it was read, or a range that was declared lost.
type entry struct {
	offset int64
	to     int64 // of a lost range; -1: a record
	value  history.Value
}

// read reads a topic from its earliest record to its present end, in every partition; ends are those.
func (tp *topic) read() (entries [][]entry, ends []int64) {
	t := tp.load.t
	t.Helper()
	for range 20 {
		var err error
		switch entries, ends, err = tp.readOnce(); {
		case err == nil:
			return entries, ends
		case client.KindOf(err) != client.KindTrimmed || !tp.retention: // trimmed while it was being read
			t.Fatalf("read %s: %v", tp.name, err)
		}
	}
	t.Fatalf("%s is trimmed faster than it can be read", tp.name)
	return nil, nil
}

func (tp *topic) readOnce() (entries [][]entry, ends []int64, err error) {
	t := tp.load.t
	t.Helper()
	c := tp.load.place.Client(t)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	entries, ends = make([][]entry, tp.partitions), make([]int64, tp.partitions)
	left := map[int32]bool{}
	for p := range tp.partitions {
		left[p] = true
	}
	consumer, err := c.Consume(ctx, tp.name, client.ConsumerConfig{
		OnLost: func(p int32, from, to int64) { entries[p] = append(entries[p], entry{offset: from, to: to}) },
		OnCaughtUp: func(p int32, end int64) {
			if !left[p] {
				return
			}
			ends[p] = end
			if delete(left, p); len(left) == 0 {
				cancel()
			}
		},
	})
	if err != nil {
		return nil, nil, err
	}
	defer consumer.Close()
	var want []byte
	for {
		batch, err := consumer.NextBatch(ctx)
		if err != nil && len(left) == 0 {
			return entries, ends, nil
		}
		if err != nil {
			return nil, nil, err
		}
		for i := range batch {
			m := &batch[i]
			if !left[m.Partition] { // behind the end that this reading has come to: what publishers send again meanwhile
				continue
			}
			v := faults.ValueOf(m.Value)
			if want = faults.AppendPayload(want[:0], v); !bytes.Equal(m.Value, want) {
				t.Fatalf("%s partition %d: offset %d has %d bytes that nobody wrote: %.40x", tp.name, m.Partition, m.Offset, len(m.Value), m.Value)
			}
			entries[m.Partition] = append(entries[m.Partition], entry{offset: m.Offset, to: -1, value: v})
		}
	}
}
