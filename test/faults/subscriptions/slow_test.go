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
	r.rush(readers, length/2) // warm up
	without := []figures{r.rush(readers, length)}
	before, _ := r.broker.Memory()
	stopped := r.stream(slowTopic, "s", "stopped")
	with := []figures{r.rush(readers, length)}
	_, after := r.broker.Memory()
	var held client.ConsumerState
	for _, c := range r.describe(slowTopic, "s").Parts[0].Consumers {
		if c.Name == "stopped" {
			held = c
		}
	}
	if held.Unsettled == 0 || held.Unsettled > 1000 || held.UnsettledBytes > windowBytes {
		t.Errorf("the stopped one holds %+v", held)
	}
	stopped.cancel()
	without = append(without, r.rush(readers, length))
	ratio := 2 * with[0].rate / (without[0].rate + without[1].rate)
	late := 2 * float64(with[0].p99) / float64(without[0].p99+without[1].p99)
	t.Logf("without %.0f and %.0f records/s, p99 %v and %v; with one that has stopped, holding %d records: %.0f records/s (%.2f of that), p99 %v (%.2f of that); memory %d MiB before, %d at most",
		without[0].rate, without[1].rate, without[0].p99, without[1].p99, held.Unsettled, with[0].rate, ratio, with[0].p99, late, before>>20, after>>20)
	if ratio < 0.6 {
		t.Errorf("the others are served at %.2f of the rate that they have without it", ratio)
	}
	if grown := after - before; grown > windowBytes+lookBytes+64<<20 {
		t.Errorf("the broker's memory has grown by %d MiB", grown>>20)
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
