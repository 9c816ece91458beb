package subscriptions

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// rig is a broker, and what a test does with it.
type rig struct {
	t      *testing.T
	rng    *rand.Rand
	keep   string // what stays if the test fails
	place  *proc.Place
	broker *proc.Broker
	client *client.Client
	ctx    context.Context
	o      proc.Options
	stall  *stall
	took   time.Duration // the slowest start
}

func newRig(t *testing.T, o proc.Options) *rig {
	t.Helper()
	proc.Binary(t) // not on this test's clock
	r := &rig{t: t, rng: faults.Seeded(t), keep: proc.Dir(t), place: &proc.Place{}, o: o}
	r.client = r.place.Client(t)
	t.Cleanup(func() { _ = r.client.Close() })
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(context.Background(), time.Duration(faults.Amount(3, 3, 120))*proc.Patience)
	t.Cleanup(cancel)
	r.start()
	return r
}

func (r *rig) start() {
	r.t.Helper()
	began := time.Now()
	r.broker = proc.Start(r.t, filepath.Join(r.keep, "data"), r.o)
	r.took = max(r.took, time.Since(began))
	r.place.Set(r.broker.GRPC)
}

// down ends the broker: as a crash would, or in good order.
func (r *rig) down(crash bool) {
	r.t.Helper()
	r.place.Set("") // before the port is free for another test's broker
	if crash {
		r.broker.Kill()
		return
	}
	r.broker.Terminate()
	if code := r.broker.Wait(); code != 0 {
		r.t.Errorf("a stop ended with exit code %d", code)
	}
}

// within waits for a random time.
func (r *rig) within(most time.Duration) {
	timer := time.NewTimer(time.Duration(r.rng.Int64N(int64(most))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.broker.Exited():
		r.t.Fatal("the broker ended by itself")
	}
}

// finish stops the broker for good.
func (r *rig) finish() {
	r.t.Helper()
	r.down(false)
}

// stall notes how late this machine, and its disk, is at most: what promises a time is promised to a machine that runs.
type stall struct{ worst atomic.Int64 }

// watch begins to do so until the test ends. It flushes a small file each time: acknowledgements are saved as late as the
// disk that the broker uses is.
func (r *rig) watch() {
	r.t.Helper()
	f, err := os.Create(filepath.Join(r.keep, "pulse"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.stall = &stall{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer f.Close()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case due := <-tick.C:
				if _, err := f.WriteAt([]byte{1}, 0); err != nil {
					r.t.Error(err)
				}
				if err := f.Sync(); err != nil {
					r.t.Error(err)
				}
				r.stall.worst.Store(max(r.stall.worst.Load(), int64(time.Since(due))))
			case <-stop:
				return
			}
		}
	})
	r.t.Cleanup(func() { close(stop); wg.Wait() })
}

// slack is how much later than promised something may be because the machine was busy.
func (r *rig) slack() time.Duration {
	if proc.Race {
		return 3*time.Second + 3*time.Duration(r.stall.worst.Load())
	}
	return 3 * time.Duration(r.stall.worst.Load())
}

func (r *rig) topic(name string, partitions int32) {
	r.t.Helper()
	mode := "none" // a process's end does not cost it
	if _, err := r.client.Admin().CreateTopic(r.ctx, client.TopicSpec{Name: name, Partitions: partitions, Settings: client.Settings{Fsync: &mode}}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) subscription(topic, name string, typ client.SubscriptionType, settings client.SubscriptionSettings) {
	r.t.Helper()
	_, err := r.client.Admin().CreateSubscription(r.ctx, client.SubscriptionSpec{Topic: topic, Name: name, Type: typ, From: client.Earliest(), Settings: settings})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) describe(topic, name string) client.SubscriptionInfo {
	r.t.Helper()
	info, err := r.client.Admin().DescribeSubscription(r.ctx, topic, name)
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// await polls a condition until it holds.
func (r *rig) await(what string, holds func() bool) {
	r.t.Helper()
	r.broker.Await(what, holds)
}

// present waits until a subscription has so many consumers in every partition.
func (r *rig) present(topic, name string, n int) {
	r.t.Helper()
	r.await(fmt.Sprintf("consumed by %d", n), func() bool {
		for _, p := range r.describe(topic, name).Parts {
			if len(p.Consumers) != n {
				return false
			}
		}
		return true
	})
}

// exact waits until the broker says of a subscription that everything is settled and nobody holds anything, and that it
// stands at the end of every partition.
func (r *rig) exact(topic, name string) {
	r.t.Helper()
	var last client.SubscriptionInfo
	defer func() {
		if r.t.Failed() {
			r.t.Logf("the subscription: %+v", last)
		}
	}()
	r.await("done with "+topic, func() bool {
		last = r.describe(topic, name)
		for _, p := range last.Parts {
			if p.Position > p.End {
				r.t.Fatalf("partition %d: the position %d lies beyond the end %d", p.Partition, p.Position, p.End)
			}
			if p.InFlight != 0 || p.Redelivering != 0 || p.Backlog != 0 || p.Position != p.End || p.Settled != 0 {
				return false
			}
		}
		return true
	})
}

// work is what a publisher does.
type work struct {
	most int // records; 0: until it is stopped
	size int // bytes of a record, about
	pace int // records in 10 ms at most; 0: as fast as it can
}

// flock is publishers at work on a topic until they are told to stop, or have published enough.
type flock struct {
	r      *rig
	l      *ledger
	w      work
	ctx    context.Context // ends when it is to stop
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// publish has n publishers publish to a topic: each values of its own, each with keys of its own, no further ahead of
// consumers than the ledger has room.
func (r *rig) publish(l *ledger, topic string, n int, w work) *flock {
	r.t.Helper()
	f := r.newFlock(l, w)
	for pub := range int32(n) {
		c := r.place.Client(r.t)
		p, err := c.NewProducer(r.ctx, topic, client.ProducerConfig{Idempotent: true, BatchRecords: 200})
		if err != nil {
			r.t.Fatal(err)
		}
		f.wg.Go(func() {
			defer c.Close()
			f.run(pub, func(key int32, value uint64, payload []byte) {
				p.Publish(r.ctx, record.Record{Key: strconv.AppendInt(nil, int64(key), 10), Value: payload}, func(a client.Ack, err error) {
					if err != nil {
						r.t.Errorf("publish: %v", err)
						return
					}
					l.note(event{at: time.Now().UnixNano(), place: place{a.Partition, a.Offset}, kind: published, who: pub, key: key, value: value})
				})
			})
			if err := p.Close(r.ctx); err != nil {
				r.t.Errorf("a publisher could not finish: %v", err)
			}
		})
	}
	return f
}

func (r *rig) newFlock(l *ledger, w work) *flock {
	f := &flock{r: r, l: l, w: w}
	f.ctx, f.cancel = context.WithCancel(r.ctx)
	r.t.Cleanup(f.cancel)
	return f
}

const keysEach = 8

// run is one publisher's life: send publishes a record.
func (f *flock) run(pub int32, send func(key int32, value uint64, payload []byte)) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for seq := 0; (f.w.most == 0 || seq < f.w.most) && f.next(tick.C, seq); seq++ {
		f.l.mu.Lock()
		f.l.begun[pub] = uint64(seq) + 1
		f.l.mu.Unlock()
		value := uint64(pub)<<32 | uint64(seq)
		payload := binary.BigEndian.AppendUint64(make([]byte, 0, f.w.size+8), value)
		payload = append(payload, make([]byte, f.w.size)...)
		key := pub*keysEach + int32(seq*7%keysEach)
		send(key, value, payload)
	}
}

// next waits until a publisher may go on, and reports whether it is to.
func (f *flock) next(tick <-chan time.Time, seq int) bool {
	if f.w.pace > 0 && seq%f.w.pace == 0 {
		select {
		case <-tick:
		case <-f.ctx.Done():
			return false
		}
	}
	select {
	case f.l.room <- struct{}{}:
		return f.ctx.Err() == nil
	case <-f.ctx.Done():
		return false
	}
}

// stop ends the publishers in good order.
func (f *flock) stop() {
	f.cancel()
	f.wg.Wait()
}

// eventOf is what a consumer notes of a delivery.
func eventOf(d *client.Delivery, k kind, who int32) event {
	e := event{at: time.Now().UnixNano(), place: place{d.Partition, d.Offset}, kind: k, who: who, count: int32(d.Deliveries), key: -1}
	if len(d.Value) >= 8 {
		e.value = binary.BigEndian.Uint64(d.Value)
	}
	if d.Key != nil {
		if n, err := strconv.ParseInt(string(d.Key), 10, 32); err == nil {
			e.key = int32(n)
		}
	}
	return e
}
