package subscriptions

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

const (
	slowTopic = "slow"
	slowSize  = 1000
	// window is what a consumer that does not read holds at most, and look what is read ahead for all.
	windowBytes = 16 << 20
	lookBytes   = 2 << 20
)

// TestStoppedReader has one of ten consumers of a shared subscription stop reading: the others go on as before, and the
// broker's memory is bounded by what one may hold and what waits for the connection.
func TestStoppedReader(t *testing.T) {
	r := newRig(t, proc.Options{})
	r.watch()
	r.topic(slowTopic, 1)
	r.subscription(slowTopic, "s", client.Shared, client.SubscriptionSettings{})
	readers := make([]*reader, 9)
	for i := range readers {
		readers[i] = r.reader(fmt.Sprint("reader", i))
	}
	length := time.Duration(faults.Amount(2000, 300, 20_000)) * time.Millisecond
	r.rush(readers, length) // warm up
	before, _ := r.broker.Memory()
	var best float64
	for range 3 { // a machine that does something else for a while is no regression
		if best = max(best, r.besideStopped(readers, length)); best >= 0.6 {
			break
		}
	}
	if best < 0.6 {
		t.Errorf("the others are served at %.2f of the rate that they have without it", best)
	}
	_, after := r.broker.Memory()
	t.Logf("memory %d MiB before, %d at most", before>>20, after>>20)
	may := int64(windowBytes + lookBytes + 64<<20)
	if proc.Race { // which takes several times the memory
		may *= 2
	}
	if grown := after - before; grown > may {
		t.Errorf("the broker's memory has grown by %d MiB, more than %d", grown>>20, may>>20)
	}
	for _, c := range readers {
		if err := c.sub.Close(r.ctx); err != nil {
			t.Error(err)
		}
		<-c.done
		_ = c.client.Close()
	}
	r.finish()
}

// besideStopped has one consumer more take part that does not read, and returns what part of their rate the others have then.
func (r *rig) besideStopped(readers []*reader, length time.Duration) float64 {
	r.t.Helper()
	without := []figures{r.rush(readers, length)}
	stopped := r.stream(slowTopic, "s", "stopped")
	r.rush(readers, length) // it takes what it may hold: on a slow machine that is a good part of what there is for all in this time
	with := r.rush(readers, length)
	var held client.ConsumerState
	for _, c := range r.describe(slowTopic, "s").Parts[0].Consumers {
		if c.Name == "stopped" {
			held = c
		}
	}
	if held.Unsettled == 0 || held.Unsettled > 1000 || held.UnsettledBytes > windowBytes {
		r.t.Errorf("the stopped one holds %+v", held)
	}
	stopped.cancel()
	r.exact(slowTopic, "s") // what it held has gone to the others, and does not count below
	without = append(without, r.rush(readers, length))
	ratio := 2 * with.rate / (without[0].rate + without[1].rate)
	late := 2 * float64(with.p99) / float64(without[0].p99+without[1].p99)
	r.t.Logf("without %.0f and %.0f records/s, p99 %v and %v; with one that has stopped, holding %d records: %.0f records/s (%.2f of that), p99 %v (%.2f of that)",
		without[0].rate, without[1].rate, without[0].p99, without[1].p99, held.Unsettled, with.rate, ratio, with.p99, late)
	return ratio
}

// reader is a consumer that acknowledges at once.
type reader struct {
	client *client.Client
	sub    *client.Subscription
	done   chan struct{}

	mu    sync.Mutex
	times []time.Duration // from publish to delivery; guarded by mu
}

func (r *rig) reader(name string) *reader {
	r.t.Helper()
	c := &reader{client: r.place.Client(r.t), done: make(chan struct{})}
	var err error
	if c.sub, err = c.client.Subscribe(r.ctx, slowTopic, "s", client.SubscriptionConfig{Name: name, WindowMessages: 200}); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		for {
			batch, err := c.sub.NextBatch(r.ctx)
			if err != nil {
				return // it was closed
			}
			now := time.Now().UnixNano()
			c.mu.Lock()
			for i := range batch {
				c.times = append(c.times, time.Duration(now-int64(binary.BigEndian.Uint64(batch[i].Value))))
			}
			c.mu.Unlock()
			client.AckBatch(batch)
		}
	}()
	return c
}

type figures struct {
	rate float64
	p99  time.Duration
}

// rush publishes for a while, as fast as readers and a bound of what is not read allow, and returns what readers had of it.
func (r *rig) rush(readers []*reader, length time.Duration) figures {
	r.t.Helper()
	p, err := r.client.NewProducer(r.ctx, slowTopic, client.ProducerConfig{BatchRecords: 50, MaxInFlightBytes: 1 << 20})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range readers {
		c.mu.Lock()
		c.times = c.times[:0]
		c.mu.Unlock()
	}
	read := func() (all []time.Duration) {
		for _, c := range readers {
			c.mu.Lock()
			all = append(all, c.times...)
			c.mu.Unlock()
		}
		return all
	}
	count := func() (n int) {
		for _, c := range readers {
			c.mu.Lock()
			n += len(c.times)
			c.mu.Unlock()
		}
		return n
	}
	sent, most := 0, 2000
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for time.Since(began) < length {
		for n := count() + most; sent < n; sent++ { // what the stopped one takes is never read: at most its window
			value := binary.BigEndian.AppendUint64(make([]byte, 0, slowSize), uint64(time.Now().UnixNano()))
			p.Publish(r.ctx, record.Record{Value: value[:slowSize]}, func(_ client.Ack, err error) {
				if err != nil {
					r.t.Error(err)
				}
			})
		}
		<-tick.C
	}
	took := time.Since(began)
	all := read()
	if err := p.Close(r.ctx); err != nil {
		r.t.Fatal(err)
	}
	r.await("read", func() bool { return count() >= sent-1000 })
	if len(all) == 0 {
		r.t.Fatal("nothing was read")
	}
	slices.Sort(all)
	return figures{float64(len(all)) / took.Seconds(), all[len(all)*99/100].Round(10 * time.Microsecond)}
}
