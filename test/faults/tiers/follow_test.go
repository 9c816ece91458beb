package tiers

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
)

// follower is a consumer that reads a topic along while it is published to, from offset 0 and through every fault. What it
// is handed goes into the history.
type follower struct {
	r      *rig
	load   *faults.Load
	seen   []*history.Subscriber // by partition
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	next map[int32]int64 // by partition: the offset to come; guarded by mu
}

// follow starts a follower, which the test's end stops.
func follow(r *rig, l *faults.Load) *follower {
	f := &follower{r: r, load: l, next: map[int32]int64{}}
	for p := range l.Partitions {
		f.next[p] = 0
		f.seen = append(f.seen, r.History.Subscriber(history.SubscriptionInfo{
			Subscription: "along", Topic: l.Topic, Incarnation: l.Incarnation, Partition: p,
		}))
	}
	r.T.Cleanup(func() { f.stop() })
	f.begin()
	return f
}

func (f *follower) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel, f.done = cancel, make(chan struct{})
	go f.run(ctx, f.r.Place.Client(f.r.T))
}

func (f *follower) stop() {
	f.cancel()
	<-f.done
}

// skip has it go on with what is the oldest of its topic, where it has not come to that yet.
func (f *follower) skip() {
	f.stop()
	for p, oldest := range f.load.Oldest {
		if next := f.next[p]; next < oldest {
			f.seen[p].Told("follower", history.Trimmed, next, oldest-1)
			f.advance(p, oldest)
		}
	}
	f.begin()
}

// run reads until ctx ends. Where a consumer fails, another goes on at its place.
func (f *follower) run(ctx context.Context, c *client.Client) {
	defer close(f.done)
	defer c.Close()
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for ctx.Err() == nil {
		f.read(ctx, c)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

func (f *follower) read(ctx context.Context, c *client.Client) {
	f.mu.Lock()
	next := maps.Clone(f.next)
	f.mu.Unlock()
	config := client.ConsumerConfig{Positions: map[int32]client.Position{}, OnLost: func(p int32, from, to int64) {
		f.seen[p].Told("follower", history.Lost, from, to)
		f.advance(p, to+1)
	}}
	for p, at := range next {
		config.Positions[p] = client.Offset(at)
	}
	consumer, err := c.Consume(ctx, f.load.Topic, config)
	if err != nil {
		return
	}
	defer consumer.Close()
	for {
		batch, err := consumer.NextBatch(ctx)
		for i := range batch {
			m := &batch[i]
			f.seen[m.Partition].Deliver("follower", m.Offset, faults.ValueOf(m.Value), "", 1)
			f.advance(m.Partition, m.Offset+1)
		}
		if err != nil {
			return
		}
	}
}

func (f *follower) advance(p int32, next int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next[p] = max(f.next[p], next)
}

// caughtUp waits until it has come to the present end; nobody may publish meanwhile.
func (f *follower) caughtUp() {
	f.r.T.Helper()
	f.r.Broker.Await("done with handing out "+f.load.Topic, func() bool {
		states := f.r.states(f.load)
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range states {
			if f.next[p.Partition] < p.End {
				return false
			}
		}
		return true
	})
}
