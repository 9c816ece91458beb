package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/record"
)

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := subscribing(t, 2, Shared)
		b.fill(0, 5, 10)
		b.fill(1, 5, 10)
		s := subscribed(t, b, SubscriptionConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		running, most, handled, failures := 0, 0, map[string]int{}, 0
		err := s.Run(ctx, 4, func(_ context.Context, d *Delivery) error {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			running--
			if d.Offset%10 == 3 && d.Deliveries == 1 {
				failures++
				return errors.New("not now")
			}
			handled[string(d.Value)]++
			if len(handled) == 100 {
				cancel()
			}
			return nil
		})
		if err != nil || most != 4 || running != 0 || failures != 10 {
			t.Errorf("%v, %d at a time, %d still run, %d failures", err, most, running, failures)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(b.office.settled[0]) + len(b.office.settled[1]); n != 100 {
			t.Errorf("%d of 100 are settled", n)
		}
	})
}

func TestRunEndsWithTheSubscription(t *testing.T) {
	b := subscribing(t, 1, Shared)
	b.fill(0, 1, 3)
	s := subscribed(t, b, SubscriptionConfig{})
	err := s.Run(patience(t), 3, func(_ context.Context, d *Delivery) error {
		b.set(func() { b.office.ended = final(KindDeleted) })
		return nil
	})
	if KindOf(err) != KindDeleted {
		t.Errorf("%v", err)
	}
}

// Records of one key are handled in order, one at a time, and others meanwhile.
func TestRunKeepsTheOrderOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := subscribing(t, 1, KeyShared)
		const keys, each = 5, 40
		b.set(func() {
			builder := record.NewBuilder(record.None)
			for i := range keys * each {
				r := record.Record{Key: fmt.Appendf(nil, "k%d", i%keys), Value: fmt.Appendf(nil, "0/%d", i), Timestamp: 1}
				if i%keys == 0 {
					r.Key = nil
				}
				_ = builder.Append(r)
			}
			batch, err := builder.Build(record.NoProducer)
			if err != nil {
				panic(err)
			}
			b.partitions[0].append(batch)
		})
		s := subscribed(t, b, SubscriptionConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		order, busy, total := map[string][]int64{}, map[string]bool{}, 0
		start := time.Now()
		err := s.Run(ctx, keys, func(_ context.Context, d *Delivery) error {
			key := string(d.Key)
			mu.Lock()
			if key != "" && busy[key] {
				t.Errorf("two records of %s at a time", key)
			}
			busy[key] = true
			order[key] = append(order[key], d.Offset)
			mu.Unlock()
			wait := time.Second
			if key == "k1" {
				wait = 3 * time.Second
			}
			time.Sleep(wait)
			mu.Lock()
			defer mu.Unlock()
			busy[key] = false
			if total++; total == keys*each {
				cancel()
			}
			return nil
		})
		if err != nil || total != keys*each {
			t.Fatalf("%v, %d handled", err, total)
		}
		for key, offsets := range order {
			if key != "" && !slices.IsSorted(offsets) {
				t.Errorf("%s: handled in the order %v", key, offsets)
			}
		}
		if took := time.Since(start); took > (3*each+keys*each/2)*time.Second {
			t.Errorf("took %v: the slow key held up the others", took)
		}
	})
}

// What waits for its key when Run ends stays held, and Run does not hang.
func TestRunEndsWhileKeysWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := subscribing(t, 1, KeyShared)
		b.set(func() {
			builder := record.NewBuilder(record.None)
			for range 1000 {
				_ = builder.Append(record.Record{Key: []byte("one"), Timestamp: 1})
			}
			batch, _ := builder.Build(record.NoProducer)
			b.partitions[0].append(batch)
		})
		s := subscribed(t, b, SubscriptionConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		done := make(chan error)
		go func() {
			done <- s.Run(ctx, 3, func(ctx context.Context, _ *Delivery) error {
				calls++
				<-ctx.Done()
				return nil
			})
		}()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
}

func TestRunHandlerSettles(t *testing.T) {
	b := subscribing(t, 1, Shared)
	b.fill(0, 1, 1)
	s := subscribed(t, b, SubscriptionConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Run(ctx, 0, func(_ context.Context, d *Delivery) error {
		d.Ack()
		cancel()
		return errors.New("does not matter any more")
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Save(patience(t)); err != nil {
		t.Fatal(err)
	}
	b.acked(t, 0, 1)
	for _, r := range b.asked() {
		if len(r.Nacks) > 0 {
			t.Errorf("sent %v", r)
		}
	}
}
