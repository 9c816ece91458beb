package subscriptions

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// TestHoles acknowledges every second one of very many records: after a kill the others come again, and of those what was
// acknowledged so shortly before that it was not saved; after a clean stop only the others.
func TestHoles(t *testing.T) {
	n := faults.Amount(200_000, 20_000, 200_000)
	r := newRig(t, proc.Options{})
	r.watch()
	const topic = "holes"
	r.topic(topic, 1)
	much := int32(n + 50_000)
	r.subscription(topic, "s", client.Exclusive, client.SubscriptionSettings{WindowMessages: &much, TotalMessages: &much, WindowBytes: new(int64(1 << 30)), TotalBytes: new(int64(1 << 30))})
	r.fill(topic, n, 10)
	before, _ := r.broker.Memory()
	h := &holes{r: r, ackedAt: make([]time.Time, n)}
	first := h.open()
	deliveries := h.take(first, n)
	// Nine tenths now, and the rest when that has been saved.
	for i := 0; i < n*9/10; i += 2 {
		h.ack(&deliveries[i])
	}
	if err := first.Flush(r.ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.await("longer ago than may be lost", func() bool { return time.Since(began) > saved+r.slack() })
	for i := n * 9 / 10; i < n; i++ {
		if i%2 == 0 {
			h.ack(&deliveries[i])
		}
	}
	r.await("told", func() bool { return r.describe(topic, "s").Parts[0].Backlog == int64(n/2) })
	after, _ := r.broker.Memory()
	killed := time.Now()
	r.down(true)
	h.drop(first)
	r.start()
	second := h.open()
	again, oldest := 0, time.Duration(0)
	var got []client.Delivery
	for left := n / 2; left > 0; {
		batch, err := second.NextBatch(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch {
			d := &batch[i]
			if d.Offset%2 == 1 {
				left--
			} else if age := killed.Sub(h.ackedAt[d.Offset]); age > saved+r.slack() {
				t.Fatalf("offset %d came again, acknowledged %v before the kill", d.Offset, age)
			} else {
				again++
				oldest = max(oldest, age)
			}
		}
		got = append(got, batch...)
	}
	if !slices.IsSortedFunc(got, func(a, b client.Delivery) int { return int(a.Offset - b.Offset) }) {
		t.Error("not in order")
	}
	for i := range got {
		if got[i].Offset%2 == 0 {
			got[i].Ack()
		}
	}
	if err := second.Flush(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.await("told again", func() bool { // the last of all is not acknowledged, so that nothing comes behind it
		p := r.describe(topic, "s").Parts[0]
		return p.Backlog == int64(n/2) && p.InFlight == int32(n/2)
	})
	r.down(false)
	h.drop(second)
	r.start()
	third := h.open()
	rest := h.take(third, n/2)
	for i := range rest {
		if rest[i].Offset != int64(2*i+1) {
			t.Fatalf("after a clean stop offset %d came, and not %d", rest[i].Offset, 2*i+1)
		}
	}
	client.AckBatch(rest)
	if err := third.Save(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.exact(topic, "s")
	if err := third.Close(r.ctx); err != nil {
		t.Error(err)
	}
	t.Logf("%d holes: after a kill %d of %d acknowledged came again, acknowledged at most %v before it; after a clean stop none; the broker's memory was %d MiB, then %d MiB; the slowest start took %v",
		n/2, again, n/2, oldest.Round(time.Millisecond), before>>20, after>>20, r.took.Round(time.Millisecond))
	r.finish()
}

type holes struct {
	r       *rig
	ackedAt []time.Time
}

func (h *holes) open() *client.Subscription {
	h.r.t.Helper()
	s, err := h.r.client.Subscribe(h.r.ctx, "holes", "s", client.SubscriptionConfig{Name: "one"})
	if err != nil {
		h.r.t.Fatal(err)
	}
	return s
}

// drop ends a consumer whose broker is gone, as the end of its process would.
func (h *holes) drop(s *client.Subscription) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Close(gone)
}

func (h *holes) ack(d *client.Delivery) {
	h.ackedAt[d.Offset] = time.Now()
	d.Ack()
}

func (h *holes) take(s *client.Subscription, n int) (all []client.Delivery) {
	h.r.t.Helper()
	for len(all) < n {
		batch, err := s.NextBatch(h.r.ctx)
		if err != nil {
			h.r.t.Fatalf("after %d of %d: %v", len(all), n, err)
		}
		all = append(all, batch...)
	}
	return all
}
