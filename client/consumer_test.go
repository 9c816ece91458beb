package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

func consumer(t testing.TB, b *broker, config ConsumerConfig) *Consumer {
	t.Helper()
	c, err := b.dial().Consume(patience(t), "orders", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// next wants the next message to hold what fill wrote at that offset.
func next(t testing.TB, c *Consumer, partition int32, offset int64) {
	t.Helper()
	m, err := c.Next(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	if m.Partition != partition || m.Offset != offset || m.Topic != "orders" || string(m.Value) != fmt.Sprintf("%d/%d", partition, offset) {
		t.Fatalf("got %s at %d/%d, not %d/%d", m.Value, m.Partition, m.Offset, partition, offset)
	}
}

func TestConsume(t *testing.T) {
	b := newBroker(t, 1)
	b.fill(0, 10, 10)
	c := consumer(t, b, ConsumerConfig{From: Offset(25)})
	for i := 25; i < 100; i++ {
		next(t, c, 0, int64(i))
	}
	b.fill(0, 1, 5)
	batch, err := c.NextBatch(patience(t))
	if err != nil || len(batch) != 5 || batch[0].Offset != 100 {
		t.Fatalf("%v, %v", batch, err)
	}
	if p := c.Positions()[0]; p != Offset(105) {
		t.Errorf("at %v", p)
	}
	b.fill(0, 1, 2)
	n := int64(105)
	for m, err := range c.All(patience(t)) {
		if err != nil || m.Offset != n {
			t.Fatalf("%v, %v", m, err)
		}
		if n++; n == 107 {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Next(ctx); KindOf(err) != KindTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	b.fill(0, 1, 1)
	next(t, c, 0, 107)
}

func TestConsumeLatest(t *testing.T) {
	b := newBroker(t, 3)
	for p := range 3 {
		b.fill(p, 1, 3)
	}
	c := consumer(t, b, ConsumerConfig{From: Latest(), Positions: map[int32]Position{2: Offset(1)}})
	b.fill(1, 1, 1)
	seen := map[string]bool{}
	for range 3 {
		m, err := c.Next(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		seen[string(m.Value)] = true
	}
	if !seen["1/3"] || !seen["2/1"] || !seen["2/2"] {
		t.Errorf("%v", seen)
	}
}

func TestConsumeTakesTurns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBroker(t, 4)
		for p := range 4 {
			b.fill(p, 50, 10)
		}
		c := consumer(t, b, ConsumerConfig{Partitions: []int32{0, 2, 3}})
		synctest.Wait() // all that credit allows is here: everything
		ends := map[int32]int64{}
		for i := range 50 {
			for range 3 {
				batch, err := c.NextBatch(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				p := batch[0].Partition
				if batch[0].Offset != ends[p] || ends[p] != int64(10*i) {
					t.Fatalf("round %d: partition %d at %d after %d", i, p, batch[0].Offset, ends[p])
				}
				ends[p] += int64(len(batch))
			}
		}
	})
}

func TestConsumerReconnects(t *testing.T) {
	b := newBroker(t, 2)
	b.fill(0, 100, 3)
	b.fill(1, 100, 3)
	c := consumer(t, b, ConsumerConfig{CreditBytes: 2000})
	ends := map[int32]int64{}
	for i := range 600 {
		m, err := c.Next(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		if m.Offset != ends[m.Partition] {
			t.Fatalf("partition %d: offset %d after %d", m.Partition, m.Offset, ends[m.Partition])
		}
		ends[m.Partition]++
		if i%60 == 30 {
			b.cut()
		}
	}
}

func TestConsumerSkipsBelowPosition(t *testing.T) {
	b := newBroker(t, 1)
	b.fill(0, 1, 10)
	c := consumer(t, b, ConsumerConfig{From: Offset(7)})
	next(t, c, 0, 7)
	b.cut() // the rest of the batch is here already
	next(t, c, 0, 8)
	next(t, c, 0, 9)
	b.fill(0, 1, 1)
	next(t, c, 0, 10)
}

func TestConsumerEvents(t *testing.T) {
	b := newBroker(t, 1)
	b.fill(0, 1, 3)
	b.set(func() {
		p := b.partitions[0]
		p.lost[3] = 9
		p.end = 10
	})
	var events []string
	ctx, cancel := context.WithCancel(patience(t))
	c := consumer(t, b, ConsumerConfig{
		OnLost: func(p int32, from, to int64) { events = append(events, fmt.Sprintf("%d lost %d-%d", p, from, to)) },
		OnCaughtUp: func(p int32, offset int64) {
			events = append(events, fmt.Sprintf("%d at end %d", p, offset))
			cancel() // ends the wait behind it
		},
	})
	for i := range 3 {
		next(t, c, 0, int64(i))
	}
	if len(events) > 0 {
		t.Errorf("told before the messages: %v", events)
	}
	if _, err := c.Next(ctx); KindOf(err) != KindCanceled {
		t.Error(err)
	}
	b.fill(0, 1, 1)
	next(t, c, 0, 10)
	if want := []string{"0 lost 3-9", "0 at end 10"}; !slices.Equal(events, want) {
		t.Errorf("events %v", events)
	}
	if c.Lost() != 7 {
		t.Errorf("%d lost", c.Lost())
	}
}

func TestConsumerTrimmed(t *testing.T) {
	b := newBroker(t, 1)
	b.fill(0, 4, 5)
	b.set(func() { b.partitions[0].first = 10 })
	trimmed := func(err error, requested string) {
		t.Helper()
		var e *Error
		if !errors.As(err, &e) || e.Kind != KindTrimmed || e.Details["requested"] != requested || e.Details["oldest"] != "10" || e.Retriable {
			t.Errorf("%v", err)
		}
	}
	_, err := b.dial().Consume(patience(t), "orders", ConsumerConfig{From: Offset(4)})
	trimmed(err, "4")

	b.set(func() {
		b.deliver = func(_ int32, from int64) *leveev1.SubscribeResponse {
			if from == 15 {
				return &leveev1.SubscribeResponse{Trimmed: &leveev1.Trimmed{Requested: 15, Oldest: 10}}
			}
			return nil
		}
	})
	c := consumer(t, b, ConsumerConfig{})
	for i := 10; i < 15; i++ {
		next(t, c, 0, int64(i))
	}
	for range 2 {
		_, err = c.Next(patience(t))
		trimmed(err, "15")
	}
}

func TestConsumerEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(b *broker)
		kind string
	}{
		"deleted": {func(b *broker) {
			b.set(func() {
				b.deliver = func(int32, int64) *leveev1.SubscribeResponse {
					return &leveev1.SubscribeResponse{Ended: final(KindDeleted)}
				}
			})
		}, KindDeleted},
		"recreated": {func(b *broker) { b.set(func() { b.topicID = []byte("topic-2") }); b.cut() }, KindDeleted},
		"corrupt": {func(b *broker) {
			b.fill(0, 1, 3)
			b.set(func() {
				log := b.partitions[0].log
				broken := bytes.Clone(log[len(log)-1])
				broken[len(broken)-1] ^= 1
				b.deliver = func(int32, int64) *leveev1.SubscribeResponse {
					return &leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Batches: broken, Next: 9}}
				}
			})
		}, KindCorrupt},
		"cut batch": {func(b *broker) {
			b.set(func() {
				b.deliver = func(int32, int64) *leveev1.SubscribeResponse {
					return &leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Batches: []byte("no batch"), Next: 9}}
				}
			})
		}, KindCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t, 1)
			b.fill(0, 1, 2)
			consumer := consumer(t, b, ConsumerConfig{})
			next(t, consumer, 0, 0)
			next(t, consumer, 0, 1)
			c.end(b)
			for {
				m, err := consumer.Next(patience(t))
				if err == nil && name == "corrupt" && m.Offset < 5 {
					continue // what was sent before it broke
				}
				if KindOf(err) != c.kind {
					t.Errorf("%v, %v", m, err)
				}
				break
			}
		})
	}
}

func TestConsumerSurvivesDrain(t *testing.T) {
	b := newBroker(t, 1)
	b.fill(0, 1, 2)
	c := consumer(t, b, ConsumerConfig{})
	next(t, c, 0, 0)
	told := 0
	b.set(func() {
		b.deliver = func(int32, int64) *leveev1.SubscribeResponse {
			if told++; told <= 2 {
				return &leveev1.SubscribeResponse{Ended: retriable(KindUnavailable)}
			}
			return nil
		}
	})
	next(t, c, 0, 1)
	b.fill(0, 1, 2)
	next(t, c, 0, 2)
	next(t, c, 0, 3)
}

func TestCreditBoundsMemory(t *testing.T) {
	b := newBroker(t, 2)
	for p := range 2 {
		b.fill(p, 400, 50)
	}
	batch := int64(len(b.partitions[0].log[399]))
	const credit = 40_000
	c := consumer(t, b, ConsumerConfig{CreditBytes: credit})
	share := c.share(2)
	check := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for p := range int32(2) {
			if b.sent[p] > b.granted[p]+batch {
				t.Errorf("partition %d: %d sent of %d", p, b.sent[p], b.granted[p])
			}
		}
	}
	if err := b.wait(patience(t), func() bool { return b.sent[0] >= share && b.sent[1] >= share }); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	for p, n := range b.sent {
		if n > share+batch {
			t.Errorf("partition %d was sent %d bytes while nobody read", p, n)
		}
	}
	b.mu.Unlock()
	for range 800 {
		if _, err := c.NextBatch(patience(t)); err != nil {
			t.Fatal(err)
		}
		check()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.readers {
		if r.held > batch || len(r.events) > 1 {
			t.Errorf("partition %d holds %d bytes after all was read", r.partition, r.held)
		}
	}
}

func TestTinyCreditStillFlows(t *testing.T) {
	b := newBroker(t, 1)
	b.fill(0, 50, 10)
	c := consumer(t, b, ConsumerConfig{CreditBytes: 1})
	for i := range 500 {
		next(t, c, 0, int64(i))
	}
}

func TestConsumerCloses(t *testing.T) {
	for name, end := range map[string]func(c *Consumer){
		"consumer": func(c *Consumer) { c.Close() },
		"client":   func(c *Consumer) { _ = c.client.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBroker(t, 2)
				c := consumer(t, b, ConsumerConfig{})
				var waiting sync.WaitGroup
				waiting.Go(func() {
					if _, err := c.Next(context.Background()); KindOf(err) != KindCanceled {
						t.Error(err)
					}
				})
				synctest.Wait()
				end(c)
				waiting.Wait()
				c.Close()
			})
		})
	}
}

func TestConsumeUnreliable(t *testing.T) {
	b := newBroker(t, 1)
	b.unreliable = true
	c := consumer(t, b, ConsumerConfig{From: Latest()})
	b.fill(0, 1, 2)
	next(t, c, 0, 0)
	next(t, c, 0, 1)
	var before int64
	b.set(func() { // a new broker counts from the start
		b.partitions[0].log, b.partitions[0].end = nil, 0
		before = b.granted[0]
	})
	b.cut()
	// Its place is found, and with it what is the latest, when its credit counts.
	if err := b.wait(patience(t), func() bool { return b.granted[0] > before }); err != nil {
		t.Fatal(err)
	}
	told := false
	b.set(func() {
		b.deliver = func(_ int32, from int64) *leveev1.SubscribeResponse {
			if told || from != 0 { // the stream that was cut may not know it yet
				return nil
			}
			told = true
			return &leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Dropped: 7}}
		}
	})
	b.fill(0, 1, 1)
	next(t, c, 0, 0)
	if c.Dropped() != 7 {
		t.Errorf("%d dropped", c.Dropped())
	}
}

func TestControlBatchesAreSkipped(t *testing.T) {
	b := newBroker(t, 1)
	b.fill(0, 3, 1)
	b.set(func() {
		marker := b.partitions[0].log[1]
		marker[22] |= 0x20 // attributes: control
		reseal(marker)
	})
	c := consumer(t, b, ConsumerConfig{})
	next(t, c, 0, 0)
	next(t, c, 0, 2)
}

func TestConsumeFails(t *testing.T) {
	b := newBroker(t, 1)
	c := b.dial()
	if _, err := c.Consume(patience(t), "orders", ConsumerConfig{Partitions: []int32{1, 1, -1}, CreditBytes: -1}); KindOf(err) != KindInvalidArgument {
		t.Error(err)
	}
	_ = c.Close()
	if _, err := c.Consume(patience(t), "orders", ConsumerConfig{}); KindOf(err) != KindCanceled {
		t.Error(err)
	}
}

func TestPublishAndConsume(t *testing.T) {
	b := newBroker(t, 3)
	c := b.dial()
	p, err := c.NewProducer(patience(t), "orders", ProducerConfig{Compression: record.LZ4, BatchBytes: 4000})
	if err != nil {
		t.Fatal(err)
	}
	const n = 3000
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := range n {
			r := record.Record{Key: fmt.Appendf(nil, "key-%d", i%50), Value: fmt.Appendf(nil, "%d", i), Headers: []record.Header{{Key: "h"}}}
			p.Publish(patience(t), r, nil)
		}
		if err := p.Close(patience(t)); err != nil {
			t.Error(err)
		}
	})
	defer publishing.Wait()
	reader, err := c.Consume(patience(t), "orders", ConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	last := map[string]int{}
	for range n {
		m, err := reader.Next(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		var i int
		if _, err := fmt.Sscan(string(m.Value), &i); err != nil {
			t.Fatal(err)
		}
		if before, ok := last[string(m.Key)]; ok && i != before+50 {
			t.Fatalf("key %s: %d after %d", m.Key, i, before)
		}
		last[string(m.Key)] = i
		if len(m.Headers) != 1 || m.Headers[0].Key != "h" || m.Timestamp == 0 {
			t.Fatalf("%+v", m)
		}
	}
}
