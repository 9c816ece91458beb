package client

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// patience bounds what a test waits for; nothing waits that long unless it is broken.
func patience(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func producer(t testing.TB, b *broker, config ProducerConfig) *Producer {
	t.Helper()
	p, err := b.dial().NewProducer(patience(t), "orders", config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func value(s string) record.Record { return record.Record{Value: []byte(s)} }

// answers collects callbacks and checks that they come once and in order.
type answers struct {
	mu     sync.Mutex
	t      testing.TB
	counts map[int]int
	order  map[int32][]int
	acks   map[int]Ack
	errs   map[int]error
}

func newAnswers(t testing.TB) *answers {
	return &answers{t: t, counts: map[int]int{}, order: map[int32][]int{}, acks: map[int]Ack{}, errs: map[int]error{}}
}

func (a *answers) to(partition int32, i int) func(Ack, error) {
	return func(ack Ack, err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.counts[i]++
		a.order[partition] = append(a.order[partition], i)
		a.acks[i], a.errs[i] = ack, err
	}
}

func (a *answers) check(n int) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range n {
		if a.counts[i] != 1 {
			a.t.Errorf("record %d answered %d times", i, a.counts[i])
		}
	}
	for p, order := range a.order {
		if !slices.IsSorted(order) {
			a.t.Errorf("partition %d answered out of order: %v", p, order)
		}
	}
}

func (a *answers) failures() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, err := range a.errs {
		if err != nil {
			n++
		}
	}
	return n
}

func TestPublish(t *testing.T) {
	for _, codec := range []record.Codec{record.None, record.Zstd} {
		b := newBroker(t, 4)
		p := producer(t, b, ProducerConfig{
			Compression: codec, BatchBytes: 2000,
			Partitioner: func(r record.Record, n int32) int32 { return int32(len(r.Value)) % n },
		})
		a := newAnswers(t)
		want := make([][]string, 4)
		for i := range 2000 {
			v := strings.Repeat("x", i%4+4) + strconv.Itoa(i)
			part := int32(len(v) % 4)
			want[part] = append(want[part], v)
			p.Publish(patience(t), value(v), a.to(part, i))
		}
		if err := p.Flush(patience(t)); err != nil {
			t.Fatal(err)
		}
		a.check(2000)
		for part := range 4 {
			got := b.values(part)
			if !slices.Equal(got, want[part]) {
				t.Errorf("partition %d holds %d values, not %d", part, len(got), len(want[part]))
			}
			for j, i := range a.order[int32(part)] {
				if ack := a.acks[i]; a.errs[i] != nil || ack.Offset != int64(j) || ack.Partition != int32(part) || ack.Duplicate {
					t.Fatalf("record %d of partition %d: %+v, %v", j, part, ack, a.errs[i])
				}
			}
		}
		if err := p.Close(patience(t)); err != nil {
			t.Error(err)
		}
		if err := p.Close(patience(t)); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if _, err := p.PublishSync(patience(t), value("late")); KindOf(err) != KindCanceled {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestPublishSync(t *testing.T) {
	b := newBroker(t, 1)
	p := producer(t, b, ProducerConfig{})
	for i := range 50 {
		if ack, err := p.PublishSync(patience(t), value(strconv.Itoa(i))); err != nil || ack.Offset != int64(i) {
			t.Fatalf("%d: %+v, %v", i, ack, err)
		}
	}
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			for range 20 {
				if _, err := p.PublishSync(patience(t), value("x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if n := len(b.values(0)); n != 1050 {
		t.Errorf("%d records", n)
	}
}

func TestRefusedAtOnce(t *testing.T) {
	b := newBroker(t, 2)
	p := producer(t, b, ProducerConfig{Partitioner: func(r record.Record, _ int32) int32 { return int32(len(r.Key)) - 1 }})
	var e *Error
	if _, err := p.PublishSync(patience(t), record.Record{Value: make([]byte, 1<<20)}); KindOf(err) != KindTooLarge ||
		!errors.As(err, &e) || e.Details["limit"] != "1048576" || e.Retriable {
		t.Errorf("too large: %v", err)
	}
	for _, key := range []string{"aaa", "aaaa"} {
		if _, err := p.PublishSync(patience(t), record.Record{Key: []byte(key)}); KindOf(err) != KindInvalidArgument {
			t.Errorf("partition %d: %v", len(key)-1, err)
		}
	}
	called := false
	p.Publish(patience(t), record.Record{Value: make([]byte, 1<<20)}, func(_ Ack, err error) { called = err != nil })
	if !called {
		t.Error("the callback of a refused record was not called")
	}
	p.Publish(patience(t), value("nobody waits"), nil)
	if err := p.Flush(patience(t)); err != nil || len(b.values(0))+len(b.values(1)) != 1 {
		t.Error(err)
	}
}

func TestInFlightBound(t *testing.T) { inBubble(t, testInFlightBound) }

func testInFlightBound(t *testing.T) {
	t.Helper()
	b := newBroker(t, 1)
	b.hold = true
	const bound = 10_000
	p := producer(t, b, ProducerConfig{MaxInFlightBytes: bound, BatchRecords: 1})
	ctx, cancel := context.WithCancel(patience(t))
	a := newAnswers(t)
	var blocked sync.WaitGroup
	var taken, refused int
	blocked.Go(func() {
		for i := range 100 {
			r := record.Record{Value: make([]byte, 1000)}
			if err := p.enqueue(ctx, r, a.to(0, i)); err != nil {
				if KindOf(err) != KindCanceled || !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				refused++
				continue
			}
			taken++
		}
	})
	synctest.Wait() // all that is let in was sent, and the publisher waits
	p.mu.Lock()
	if len(p.state.budget.waiters) != 1 || p.state.budget.used > bound {
		t.Errorf("%d wait, %d bytes in flight", len(p.state.budget.waiters), p.state.budget.used)
	}
	p.mu.Unlock()
	cancel()
	blocked.Wait()
	if taken != bound/1041 || refused != 100-taken {
		t.Errorf("%d taken, %d refused", taken, refused)
	}
	b.set(func() { b.hold = false })
	if err := p.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	a.check(taken)
	if _, err := p.PublishSync(patience(t), record.Record{Value: make([]byte, 20_000)}); err != nil {
		t.Errorf("larger than the bound, alone: %v", err)
	}
	if p.state.budget.used != 0 {
		t.Errorf("%d bytes still taken", p.state.budget.used)
	}
}

func TestBatchesFormWhileWaiting(t *testing.T) {
	b := newBroker(t, 1)
	b.hold = true
	p := producer(t, b, ProducerConfig{})
	for i := range eagerInFlight {
		p.Publish(patience(t), value("eager"), nil)
		if err := b.wait(patience(t), func() bool { return b.seen == i+1 }); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		p.Publish(patience(t), value("waits"), nil)
	}
	b.set(func() { b.hold = false })
	if err := p.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	if b.seen != eagerInFlight+1 {
		t.Errorf("%d batches", b.seen)
	}
}

func TestCloseGivesUp(t *testing.T) {
	for name, end := range map[string]func(p *Producer){
		"producer": func(p *Producer) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := p.Close(ctx); KindOf(err) != KindCanceled {
				t.Error(err)
			}
		},
		"client": func(p *Producer) { _ = p.client.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t, 1)
			b.hold = true
			p := producer(t, b, ProducerConfig{BatchRecords: 1, MaxInFlight: 2})
			a := newAnswers(t)
			for i := range 5 {
				p.Publish(patience(t), value(strconv.Itoa(i)), a.to(0, i))
			}
			if err := b.wait(patience(t), func() bool { return b.seen == 2 }); err != nil {
				t.Fatal(err)
			}
			end(p)
			b.set(func() { b.hold = false })
			a.check(5)
			for i := range 5 {
				want := KindCanceled
				if i < 2 {
					want = KindOutcomeUnknown
				}
				if KindOf(a.errs[i]) != want {
					t.Errorf("%d: %v", i, a.errs[i])
				}
			}
		})
	}
}

func TestPublishSyncGivesUp(t *testing.T) {
	b := newBroker(t, 1)
	b.hold = true
	p := producer(t, b, ProducerConfig{})
	ctx, cancel := context.WithCancel(patience(t))
	var group sync.WaitGroup
	group.Go(func() {
		_, err := p.PublishSync(ctx, value("1"))
		if KindOf(err) != KindOutcomeUnknown || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	if err := b.wait(patience(t), func() bool { return b.seen == 1 }); err != nil {
		t.Fatal(err)
	}
	cancel()
	group.Wait()
	if err := p.Flush(ctx); KindOf(err) != KindCanceled {
		t.Errorf("flush: %v", err)
	}
	b.set(func() { b.hold = false })
}

// inBubble runs a test with a clock that jumps.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

func TestLinger(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBroker(t, 1)
		p := producer(t, b, ProducerConfig{Linger: time.Second, BatchRecords: 5})
		start := time.Now()
		if _, err := p.PublishSync(context.Background(), value("1")); err != nil || time.Since(start) != time.Second {
			t.Errorf("after %v, %v", time.Since(start), err)
		}
		start = time.Now()
		for range 5 {
			p.Publish(context.Background(), value("full"), nil)
		}
		p.Publish(context.Background(), value("flushed"), nil)
		if err := p.Flush(context.Background()); err != nil || time.Since(start) > 100*time.Millisecond {
			t.Errorf("after %v, %v", time.Since(start), err)
		}
		if b.seen != 3 {
			t.Errorf("%d batches", b.seen)
		}
	})
}

func TestAckRanges(t *testing.T) {
	var got []int64
	note := func(a Ack, _ error) { got = append(got, a.Offset) }
	for _, c := range []struct {
		ack  *leveev1.Ack
		want []int64
	}{
		{&leveev1.Ack{Offset: 7, LastOffset: 10}, []int64{7, 8, 9, 10}},
		{&leveev1.Ack{Offset: -1, LastOffset: -1, Duplicate: true}, []int64{-1, -1, -1, -1}},
		{&leveev1.Ack{Offset: 3, LastOffset: 21, Ranges: []*leveev1.Range{{From: 3, To: 3}, {From: 9, To: 10}, {From: 21, To: 21}}}, []int64{3, 9, 10, 21}},
	} {
		got = nil
		(&batch{lane: &lane{}, ack: c.ack, callbacks: []func(Ack, error){note, note, note, note}}).answer()
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v", c.ack, got)
		}
	}
}

func TestByKey(t *testing.T) {
	if got := ByKey(record.Record{Key: []byte("abc")}, 10); got != 479470107%10 {
		t.Errorf("partition %d", got)
	}
	if got := ByKey(record.Record{}, 10); got != -1 {
		t.Errorf("without a key: %d", got)
	}
}

func TestKeylessSpread(t *testing.T) {
	b := newBroker(t, 4)
	p := producer(t, b, ProducerConfig{BatchRecords: 10})
	for range 400 {
		p.Publish(patience(t), value("x"), nil)
	}
	if err := p.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if n := len(b.values(i)); n < 50 {
			t.Errorf("partition %d has %d records", i, n)
		}
	}
}

// The memory of a batch serves again only where nothing can read it any more: not while a stream that broke may still
// be about to send it, and not where nobody knows what became of it.
func TestMemoryOfBatchesIsUsedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		batch batch
		again bool
	}{
		"first attempt acknowledged":  {batch{ack: &leveev1.Ack{}, attempts: 1}, true},
		"second attempt acknowledged": {batch{ack: &leveev1.Ack{}, attempts: 2}, false},
		"given up":                    {batch{err: &Error{Kind: KindTimeout}, attempts: 1}, false},
		"never sent":                  {batch{err: &Error{Kind: KindTimeout}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, b := &Producer{}, c.batch
			b.builder = record.NewBuilder(record.None)
			if err := b.builder.Append(record.Record{Value: []byte("v")}); err != nil {
				t.Fatal(err)
			}
			builder := b.builder
			p.recycle(&b)
			if again := builder.Count() == 0; again != c.again || again != (b.builder == nil) {
				t.Errorf("its memory is used again: %v, want %v", again, c.again)
			}
		})
	}
}
