package dispatch

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/cursor"
)

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, expected %q", got, want)
	}
}

// TestSharedHandsOutRuns is the ordinary day of a work queue.
func TestSharedHandsOutRuns(t *testing.T) {
	s := newShell(Config{Type: Shared, AckTimeout: time.Minute, Backoff: Backoff{Base: 200 * time.Millisecond, Max: time.Minute, Exponential: true}})
	s.publish(10, 10, "", 0)
	s.publish(10, 10, "", 0)
	expect(t, s.join(1, Member{Name: "a"}))
	expect(t, s.join(2, Member{Name: "b"}))
	expect(t, s.ask(1, 100), "deliver 1: 0-9")
	expect(t, s.ask(2, 55), "deliver 2: 10-14")
	expect(t, s.ack(0, 4))
	expect(t, s.step(Event{Kind: Leave, Consumer: 1}))
	expect(t, s.ask(2, 1000), "deliver 2: 5-9(x2) 15-19")
	expect(t, s.ack(0, 19))
	if p, in := s.d.Set().Position(), s.d.Stats(); p != 20 || in.InFlightMessages != 0 || in.Ignored != 5 {
		t.Errorf("position %d, %+v", p, in)
	}
	s.check(t)
}

// TestNoAllocations: a batch that is asked for, handed out and acknowledged allocates nothing.
func TestNoAllocations(t *testing.T) {
	h := newHot(Shared, 100)
	for range 1000 {
		h.round()
	}
	if n := testing.AllocsPerRun(1000, h.round); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
	if h.d.Set().Position() != h.next {
		t.Errorf("position %d, published %d", h.d.Set().Position(), h.next)
	}
}

// hot is the path that millions of records take.
type hot struct {
	d      *Dispatcher
	now    Now
	next   int64
	batch  int64
	event  Event
	items  [1]Item
	ranges [1]cursor.Range
}

func newHot(kind Type, batch int64) *hot {
	set, _ := cursor.NewSet(cursor.State{})
	h := &hot{d: New(Config{Type: kind, AckTimeout: time.Minute}, set, nil), batch: batch}
	h.d.Step(h.now, &Event{Kind: Join, Consumer: 1, Member: Member{Name: "a"}})
	return h
}

func (h *hot) round() {
	h.now.Mono += time.Millisecond
	h.items[0] = Item{From: h.next, To: h.next + h.batch - 1, Bytes: h.batch * 100}
	h.next += h.batch
	h.event = Event{Kind: Read, Items: h.items[:], Next: h.next}
	h.d.Step(h.now, &h.event)
	h.event = Event{Kind: Ask, Consumer: 1, Bytes: 1 << 20}
	for _, f := range h.d.Step(h.now, &h.event) {
		for _, s := range f.Spans {
			h.ranges[0] = cursor.Range{From: s.From, To: s.To}
		}
	}
	h.event = Event{Kind: Ack, Ranges: h.ranges[:]}
	h.d.Step(h.now, &h.event)
}

func BenchmarkBatch(b *testing.B) {
	for _, batch := range []int64{1, 100, 1000} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			h := newHot(Shared, batch)
			b.ReportAllocs()
			for b.Loop() {
				h.round()
			}
		})
	}
}

// BenchmarkManyWait is an acknowledgement while so many consumers ask and there is nothing.
func BenchmarkManyWait(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			set, _ := cursor.NewSet(cursor.State{})
			d := New(Config{Type: Shared, AckTimeout: time.Minute}, set, nil)
			for id := range n {
				d.Step(Now{}, &Event{Kind: Join, Consumer: ConsumerID(id + 1), Member: Member{Name: fmt.Sprint(id)}})
				d.Step(Now{}, &Event{Kind: Ask, Consumer: ConsumerID(id + 1), Bytes: 100})
			}
			ack := Event{Kind: Ack, Ranges: []cursor.Range{{From: 0, To: 0}}}
			b.ReportAllocs()
			for b.Loop() {
				d.Step(Now{}, &ack)
			}
		})
	}
}

// TestAcksOfEverything count, and do not run over.
func TestAcksOfEverything(t *testing.T) {
	s := newShell(Config{Type: Shared})
	s.publish(5, 10, "", 0)
	s.join(1, Member{Name: "a"})
	s.ask(1, 30)
	s.step(Event{Kind: AckBelow, Offset: math.MinInt64})
	if p := s.d.Set().Position(); p != 0 {
		t.Fatalf("position %d", p)
	}
	for range 10 {
		s.step(Event{Kind: Ack, Ranges: []cursor.Range{{From: math.MinInt64, To: math.MaxInt64}, {From: 5, To: 2}}})
		s.step(Event{Kind: AckBelow, Offset: math.MaxInt64})
		s.step(Event{Kind: Nack, Ranges: []cursor.Range{{From: math.MinInt64, To: math.MaxInt64}}, Delay: math.MaxInt64})
	}
	if st := s.d.Stats(); s.d.Set().Position() != 3 || st.Ignored < 1<<61 || st.InFlightMessages != 0 {
		t.Errorf("position %d, %+v", s.d.Set().Position(), st)
	}
	s.ask(1, 30)
	s.step(Event{Kind: Nack, Ranges: []cursor.Range{{From: 0, To: 9}}, Delay: math.MaxInt64})
	if after, ok := s.d.Wake(s.now); !ok || after < 24*time.Hour {
		t.Errorf("wakes after %v, %v", after, ok)
	}
	s.check(t)
}

// BenchmarkAckAtRandom is one acknowledgement out of so many single leases, and one lease.
func BenchmarkAckAtRandom(b *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000, 200_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			big := Window{Messages: 2 * n, Bytes: 1 << 40}
			set, _ := cursor.NewSet(cursor.State{})
			d := New(Config{Type: Shared, AckTimeout: time.Minute, Consumer: big, Total: big, LookAhead: big, MaxSpan: 1 << 40}, set, nil)
			d.Step(Now{}, &Event{Kind: Join, Consumer: 1, Member: Member{Name: "a"}})
			next := int64(0)
			ask := Event{Kind: Ask, Consumer: 1, Bytes: 100}
			items := make([]Item, 1)
			one := func() {
				items[0] = Item{From: next, To: next, Bytes: 100}
				next++
				d.Step(Now{}, &Event{Kind: Read, Items: items, Next: next})
				d.Step(Now{}, &ask)
			}
			order := rand.New(rand.NewPCG(1, 2))
			outstanding := make([]int64, n)
			for i := range outstanding {
				one()
				outstanding[i] = int64(i)
			}
			ranges := make([]cursor.Range, 1)
			ack := Event{Kind: Ack, Ranges: ranges}
			b.ReportAllocs()
			for b.Loop() {
				i := order.IntN(n)
				ranges[0] = cursor.Range{From: outstanding[i], To: outstanding[i]}
				d.Step(Now{}, &ack)
				outstanding[i] = next
				one()
			}
		})
	}
}
