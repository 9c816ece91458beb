package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// every returns a script that gives v to every nth batch.
func every(n int, v verdict) func(int, *leveev1.Batch) verdict {
	return func(i int, _ *leveev1.Batch) verdict {
		if i%n == 0 {
			return v
		}
		return verdict{}
	}
}

var troubles = map[string]func(int, *leveev1.Batch) verdict{
	"lost before storing": every(5, verdict{lose: true}),
	"lost after storing":  every(5, verdict{forget: true}),
	"refused":             every(4, verdict{refuse: retriable(KindNoSpace)}),
	"unknown, stored":     every(4, verdict{pretend: retriable(KindOutcomeUnknown)}),
	"unknown, not stored": every(4, verdict{refuse: retriable(KindOutcomeUnknown)}),
	"refused twice in a row": func(i int, _ *leveev1.Batch) verdict {
		return map[bool]verdict{true: {refuse: retriable(KindUnavailable)}}[i%7 < 2]
	},
	"all of it": func(i int, _ *leveev1.Batch) verdict {
		return map[int]verdict{
			3: {lose: true}, 6: {forget: true}, 9: {refuse: retriable(KindExhausted)}, 11: {pretend: retriable(KindOutcomeUnknown)},
		}[i%13]
	},
}

func TestExactlyOnce(t *testing.T) {
	for name, script := range troubles {
		bubble(t, name, func(t *testing.T) {
			b := newBroker(t, 2)
			b.script = script
			p := producer(t, b, ProducerConfig{Idempotent: true, BatchRecords: 3, Partitioner: func(r record.Record, _ int32) int32 {
				return int32(r.Value[0] & 1)
			}})
			a := newAnswers(t)
			const n = 300
			want := make([][]string, 2)
			for i := range n {
				v := strconv.Itoa(i%2) + "-" + strconv.Itoa(i)
				want[i%2] = append(want[i%2], v)
				p.Publish(patience(t), value(v), a.to(int32(i%2), i))
			}
			if err := p.Close(patience(t)); err != nil {
				t.Fatal(err)
			}
			a.check(n)
			if f := a.failures(); f > 0 {
				t.Errorf("%d records failed", f)
			}
			for part := range want {
				if got := b.values(part); !slices.Equal(got, want[part]) {
					t.Errorf("partition %d holds\n%v", part, got)
				}
				for j, i := range a.order[int32(part)] {
					if a.acks[i].Offset != int64(j) {
						t.Fatalf("record %d was acknowledged at %d", j, a.acks[i].Offset)
					}
				}
			}
		})
	}
}

func TestAtLeastOnce(t *testing.T) {
	for name, script := range troubles {
		for _, inFlight := range []int{1, 64} {
			bubble(t, fmt.Sprintf("%s, %d in flight", name, inFlight), func(t *testing.T) {
				b := newBroker(t, 1)
				b.script = script
				p := producer(t, b, ProducerConfig{BatchRecords: 3, MaxInFlight: inFlight})
				a := newAnswers(t)
				const n = 200
				for i := range n {
					p.Publish(patience(t), value(strconv.Itoa(i)), a.to(0, i))
				}
				if err := p.Close(patience(t)); err != nil {
					t.Fatal(err)
				}
				a.check(n)
				if f := a.failures(); f > 0 {
					t.Errorf("%d records failed", f)
				}
				var firsts []int
				seen := map[int]bool{}
				for _, v := range b.values(0) {
					if i, _ := strconv.Atoi(v); !seen[i] {
						seen[i] = true
						firsts = append(firsts, i)
					}
				}
				if len(firsts) != n {
					t.Errorf("%d records of %d are stored", len(firsts), n)
				}
				if inFlight == 1 && !slices.IsSorted(firsts) {
					t.Errorf("out of order: %v", firsts)
				}
			})
		}
	}
}

// Everything that can go wrong does, at random, in many orders.
func TestExactlyOnceInChaos(t *testing.T) {
	for seed := range uint64(20) {
		bubble(t, fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			b := newBroker(t, 3)
			b.script = func(int, *leveev1.Batch) verdict {
				switch n := rng.IntN(100); {
				case n < 3:
					return verdict{lose: true}
				case n < 6:
					return verdict{forget: true}
				case n < 10:
					return verdict{refuse: retriable(KindUnavailable)}
				case n < 14:
					return verdict{pretend: retriable(KindOutcomeUnknown)}
				case n < 16:
					return verdict{refuse: retriable(KindOutcomeUnknown)}
				case n == 16:
					go b.cut()
				}
				return verdict{}
			}
			p := producer(t, b, ProducerConfig{
				Idempotent: true, BatchRecords: 1 + int(seed%5), MaxInFlight: 1 + int(seed%3)*10, MaxInFlightBytes: 5000,
				Partitioner: func(r record.Record, _ int32) int32 { return int32(r.Value[0] - '0') },
			})
			a := newAnswers(t)
			const n = 300
			want := make([][]string, 3)
			for i := range n {
				v := fmt.Sprintf("%d-%d", i%3, i)
				want[i%3] = append(want[i%3], v)
				p.Publish(patience(t), value(v), a.to(int32(i%3), i))
			}
			if err := p.Close(patience(t)); err != nil {
				t.Fatal(err)
			}
			a.check(n)
			if f := a.failures(); f > 0 {
				t.Errorf("%d records failed", f)
			}
			for part := range want {
				if got := b.values(part); !slices.Equal(got, want[part]) {
					t.Errorf("partition %d holds\n%v", part, got)
				}
			}
		})
	}
}

func TestConnectionCut(t *testing.T) {
	b := newBroker(t, 1)
	p := producer(t, b, ProducerConfig{Idempotent: true, BatchRecords: 5})
	a := newAnswers(t)
	const n = 500
	var want []string
	for i := range n {
		want = append(want, strconv.Itoa(i))
		p.Publish(patience(t), value(strconv.Itoa(i)), a.to(0, i))
		if i%100 == 50 {
			b.cut()
		}
	}
	if err := p.Close(patience(t)); err != nil {
		t.Fatal(err)
	}
	a.check(n)
	if got := b.values(0); !slices.Equal(got, want) {
		t.Errorf("holds %d values: %v", len(got), got)
	}
}

func TestRefusedForGood(t *testing.T) {
	refuseThird := func(n int, _ *leveev1.Batch) verdict {
		if n == 3 {
			return verdict{refuse: final(KindInvalidArgument)}
		}
		return verdict{}
	}
	t.Run("plain", func(t *testing.T) {
		b := newBroker(t, 1)
		b.script = refuseThird
		p := producer(t, b, ProducerConfig{BatchRecords: 1})
		a := newAnswers(t)
		for i := range 10 {
			p.Publish(patience(t), value(strconv.Itoa(i)), a.to(0, i))
		}
		if err := p.Flush(patience(t)); err != nil {
			t.Fatal(err)
		}
		a.check(10)
		if a.failures() != 1 || KindOf(a.errs[2]) != KindInvalidArgument || len(b.values(0)) != 9 {
			t.Errorf("%d failures, %v", a.failures(), a.errs[2])
		}
	})
	t.Run("idempotent", func(t *testing.T) {
		b := newBroker(t, 1)
		b.hold = true // so that all are in flight
		b.script = refuseThird
		p := producer(t, b, ProducerConfig{BatchRecords: 1, Idempotent: true})
		a := newAnswers(t)
		for i := range 10 {
			p.Publish(patience(t), value(strconv.Itoa(i)), a.to(0, i))
		}
		if err := b.wait(patience(t), func() bool { return b.seen >= 10 }); err != nil {
			t.Fatal(err)
		}
		b.set(func() { b.hold = false })
		if err := p.Flush(patience(t)); err != nil {
			t.Fatal(err)
		}
		a.check(10)
		if a.errs[1] != nil || KindOf(a.errs[2]) != KindInvalidArgument {
			t.Errorf("%v, %v", a.errs[1], a.errs[2])
		}
		for i := 3; i < 10; i++ {
			if KindOf(a.errs[i]) != KindSequenceGap {
				t.Errorf("%d: %v", i, a.errs[i])
			}
		}
		if ack, err := p.PublishSync(patience(t), value("again")); err != nil || ack.Offset != 2 {
			t.Errorf("under a new identity: %+v, %v", ack, err)
		}
		if got := b.values(0); !slices.Equal(got, []string{"0", "1", "again"}) {
			t.Errorf("holds %v", got)
		}
	})
	t.Run("forgotten by the broker", func(t *testing.T) {
		b := newBroker(t, 1)
		p := producer(t, b, ProducerConfig{Idempotent: true})
		if _, err := p.PublishSync(patience(t), value("1")); err != nil {
			t.Fatal(err)
		}
		b.set(func() { clear(b.partitions[0].sequences) })
		if _, err := p.PublishSync(patience(t), value("2")); KindOf(err) != KindSequenceGap {
			t.Errorf("%v", err)
		}
		if ack, err := p.PublishSync(patience(t), value("3")); err != nil || ack.Offset != 1 {
			t.Errorf("%+v, %v", ack, err)
		}
	})
}

func TestTopicDeleted(t *testing.T) {
	for name, end := range map[string]func(b *broker){
		"recreated": func(b *broker) { b.set(func() { b.topicID = []byte("topic-2") }); b.cut() },
		"answered": func(b *broker) {
			b.set(func() {
				b.script = func(int, *leveev1.Batch) verdict { return verdict{refuse: final(KindDeleted)} }
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t, 1)
			p := producer(t, b, ProducerConfig{})
			if _, err := p.PublishSync(patience(t), value("1")); err != nil {
				t.Fatal(err)
			}
			end(b)
			if _, err := p.PublishSync(patience(t), value("2")); KindOf(err) != KindDeleted {
				t.Errorf("%v", err)
			}
			if _, err := p.PublishSync(patience(t), value("3")); KindOf(err) != KindDeleted {
				t.Errorf("%v", err)
			}
			if err := p.Close(patience(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRefusedAfterAnUnknownAttempt answers the first attempt with outcome unknown and refuses the second for good: the
// first may have stored the record, so it is not failed as if nothing had.
func TestRefusedAfterAnUnknownAttempt(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		b := newBroker(t, 1)
		p := producer(t, b, ProducerConfig{Idempotent: idempotent})
		b.set(func() {
			attempts := 0
			b.script = func(int, *leveev1.Batch) verdict {
				if attempts++; attempts == 1 {
					return verdict{refuse: retriable(KindOutcomeUnknown)}
				}
				return verdict{refuse: final("stopped")}
			}
		})
		if _, err := p.PublishSync(patience(t), value("1")); KindOf(err) != KindOutcomeUnknown {
			t.Errorf("idempotent %v: %v", idempotent, err)
		}
		if _, err := p.PublishSync(patience(t), value("2")); KindOf(err) != "stopped" {
			t.Errorf("idempotent %v, a later record: %v", idempotent, err)
		}
		_ = p.Close(patience(t)) // it says what failed, again
	}
}

func TestDraining(t *testing.T) {
	b := newBroker(t, 1)
	b.hold = true
	p := producer(t, b, ProducerConfig{BatchRecords: 1})
	a := newAnswers(t)
	for i := range 3 {
		p.Publish(patience(t), value(strconv.Itoa(i)), a.to(0, i))
	}
	if err := b.wait(patience(t), func() bool { return b.seen == 3 }); err != nil {
		t.Fatal(err)
	}
	b.set(func() { b.drain = true })
	b.set(func() { b.hold = false })
	if err := p.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	if err := b.wait(patience(t), func() bool { return b.opened >= 2 }); err != nil {
		t.Fatal(err)
	}
	b.set(func() { b.drain = false })
	p.Publish(patience(t), value("3"), a.to(0, 3))
	if err := p.Close(patience(t)); err != nil {
		t.Fatal(err)
	}
	a.check(4)
	if got := b.values(0); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("holds %v", got)
	}
}

func TestNewProducerFails(t *testing.T) {
	b := newBroker(t, 1)
	b.onOpen = func() error { return refusal(codes.NotFound, KindNotFound, false) }
	c := b.dial()
	var e *Error
	if _, err := c.NewProducer(patience(t), "orders", ProducerConfig{}); !errors.As(err, &e) || e.Kind != KindNotFound || e.Details["fact"] != "1" {
		t.Errorf("%v", err)
	}
	inBubble(t, func(t *testing.T) {
		b := newBroker(t, 1)
		b.onOpen = func() error { return refusal(codes.Unavailable, KindUnavailable, true) }
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := b.dial().NewProducer(ctx, "orders", ProducerConfig{}); KindOf(err) != KindTimeout || !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "scripted") {
			t.Errorf("%v", err)
		}
	})
	failures := 0
	b.set(func() {
		b.onOpen = func() error {
			if failures++; failures < 3 {
				return refusal(codes.Unavailable, KindUnavailable, true)
			}
			return nil
		}
	})
	p, err := c.NewProducer(patience(t), "orders", ProducerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.PublishSync(patience(t), value("1")); err != nil {
		t.Error(err)
	}
	if _, err := c.NewProducer(patience(t), "orders", ProducerConfig{BatchBytes: -1, Linger: -1}); KindOf(err) != KindInvalidArgument ||
		!strings.Contains(err.Error(), "BatchBytes") || !strings.Contains(err.Error(), "Linger") {
		t.Errorf("%v", err)
	}
	_ = c.Close()
	if _, err := c.NewProducer(patience(t), "orders", ProducerConfig{}); KindOf(err) != KindCanceled {
		t.Errorf("after Close: %v", err)
	}
}

func TestNobodyThere(t *testing.T) { inBubble(t, testNobodyThere) }

func testNobodyThere(t *testing.T) {
	t.Helper()
	c, err := Dial("broker:1", WithDialer(func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody there") }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.NewProducer(ctx, "orders", ProducerConfig{}); KindOf(err) != KindTimeout || !strings.Contains(err.Error(), "nobody there") {
		t.Errorf("%v", err)
	}
}

func TestDeliveryTimeout(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		for name, c := range map[string]struct {
			trouble func(b *broker)
			kinds   []string
		}{
			"refused":      {func(b *broker) { b.script = every(1, verdict{refuse: retriable(KindNoSpace)}) }, []string{KindTimeout}},
			"not answered": {func(b *broker) { b.hold = true }, []string{KindOutcomeUnknown}},
			"not taken": {func(b *broker) {
				b.onOpen = func() error { return refusal(codes.Unavailable, KindUnavailable, true) }
				go b.cut()
			}, []string{KindTimeout, KindOutcomeUnknown}},
		} {
			t.Run(fmt.Sprintf("%s, idempotent %v", name, idempotent), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					b := newBroker(t, 1)
					p := producer(t, b, ProducerConfig{DeliveryTimeout: 10 * time.Second, Idempotent: idempotent, BatchRecords: 1})
					b.set(func() { c.trouble(b) })
					synctest.Wait()
					start := time.Now()
					a := newAnswers(t)
					for i := range 5 {
						p.Publish(context.Background(), value(strconv.Itoa(i)), a.to(0, i))
					}
					if err := p.Flush(context.Background()); err != nil {
						t.Fatal(err)
					}
					if d := time.Since(start); d < 10*time.Second || d > 12*time.Second {
						t.Errorf("gave up after %v", d)
					}
					a.check(5)
					for i := range 5 {
						if !slices.Contains(append(c.kinds, KindSequenceGap), KindOf(a.errs[i])) {
							t.Errorf("%d: %v", i, a.errs[i])
						}
					}
					b.set(func() { b.script, b.hold, b.onOpen = nil, false, nil })
					if _, err := p.PublishSync(context.Background(), value("later")); err != nil {
						t.Errorf("afterwards: %v", err)
					}
				})
			})
		}
	}
}
