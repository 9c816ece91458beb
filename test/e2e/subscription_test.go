package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// TestSubscriptionAcrossKills works a topic off with two consumers while the broker is killed again and again: every record
// is handled, and none that was acknowledged durably comes again. What is acknowledged across a kill does not count for
// that: the broker that came back may have handed it out before the acknowledgement arrived.
func TestSubscriptionAcrossKills(t *testing.T) {
	const records = 2000
	dir := filepath.Join(proc.Dir(t), "data")
	b := proc.Start(t, dir, proc.Options{})
	var place proc.Place
	place.Set(b.GRPC)
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	c := place.Client(t)
	defer c.Close()
	if _, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: "t", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Admin().CreateSubscription(ctx, client.SubscriptionSpec{Topic: "t", Name: "s", Type: client.Shared})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer(ctx, "t", client.ProducerConfig{BatchRecords: 50})
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		p.Publish(ctx, record.Record{Value: fmt.Append(nil, i)}, nil)
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	handled, durable := map[string]int{}, map[string]bool{}
	working, done := context.WithCancel(ctx)
	killed := make(chan struct{}, records)
	var life atomic.Int32 // of the broker: odd while there is none
	handle := func(ctx context.Context, d *client.Delivery) error {
		value, now := string(d.Value), life.Load()
		mu.Lock()
		if durable[value] {
			t.Errorf("%s came again, though its acknowledgement was durable", value)
		}
		handled[value]++
		all := len(handled)
		mu.Unlock()
		if d.Offset%7 == 0 && d.AckDurable(ctx) == nil && now%2 == 0 && now == life.Load() {
			mu.Lock()
			durable[value] = true
			mu.Unlock()
		}
		switch {
		case all == records:
			done()
		case all%500 == 0:
			killed <- struct{}{}
		}
		return nil
	}
	var consumers sync.WaitGroup
	for i := range 2 {
		conn := place.Client(t)
		defer conn.Close()
		s, err := conn.Subscribe(ctx, "t", "s", client.SubscriptionConfig{Name: fmt.Sprint("c", i), WindowMessages: 100})
		if err != nil {
			t.Fatal(err)
		}
		consumers.Go(func() {
			if err := s.Run(working, 3, handle); err != nil {
				t.Error(err)
			}
			_ = s.Close(ctx)
		})
	}
	kills := 0
	for working.Err() == nil {
		select {
		case <-killed:
			if kills++; kills <= 3 {
				life.Add(1)
				b.Kill()
				b = proc.Start(t, dir, proc.Options{})
				place.Set(b.GRPC)
				life.Add(1)
			}
		case <-working.Done():
		}
	}
	consumers.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(handled) != records || kills == 0 {
		t.Errorf("%d of %d records were handled, across %d kills", len(handled), records, kills)
	}
	again := 0
	for _, n := range handled {
		again += n - 1
	}
	t.Logf("%d kills, %d records came again, %d acknowledgements were durable", kills, again, len(durable))
}
