package subscriptions

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// TestStorm has fifty members join and leave one shared subscription all the time: all is acknowledged, and in the end
// the broker counts nothing in flight.
func TestStorm(t *testing.T) {
	r := newRig(t, proc.Options{})
	r.watch()
	const topic = "storm"
	r.topic(topic, 1)
	r.subscription(topic, "s", client.Shared, client.SubscriptionSettings{})
	l := newLedger()
	defer l.keep(t, r.keep)
	members := faults.Amount(50, 10, 50)
	lives := faults.Amount(10, 3, 200) // of each
	publishers := r.publish(l, topic, 4, work{size: 50, pace: 50})
	var wg sync.WaitGroup
	for i := range members {
		wg.Go(func() {
			for life := range lives {
				m := manner{part: 8, nack: 101}
				m.Name, m.WindowMessages = fmt.Sprint("m", i), 20
				c := r.join(l, topic, "s", int32(i*lives+life), m)
				faults.Await(t, c.first, "a delivery")
				c.leave()
			}
		})
	}
	moves := make(chan struct{})
	go func() { wg.Wait(); close(moves) }()
	r.watchCursor(topic, "s", moves)
	publishers.stop()
	last := r.join(l, topic, "s", int32(members*lives), manner{})
	r.await("acknowledged as a whole", l.settled)
	r.exact(topic, "s")
	last.leave()
	r.exact(topic, "s")
	v := l.judge(t, noOrder)
	if v.Lost > 0 {
		t.Errorf("%d records came again after they had been acknowledged", v.Lost)
	}
	t.Logf("%d members, %d lives each: %v", members, lives, v)
	r.finish()
}

// watchCursor looks at where a subscription stands until stop is closed: it never goes back, never lies beyond the end, and
// what is in flight is what its consumers hold.
func (r *rig) watchCursor(topic, name string, stop <-chan struct{}) {
	r.t.Helper()
	last := map[int32]int64{}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		case <-r.ctx.Done():
			r.t.Fatal("it does not end")
		}
		for _, p := range r.describe(topic, name).Parts {
			var held int32
			for _, c := range p.Consumers {
				held += c.Unsettled
			}
			if p.Position < last[p.Partition] || p.Position > p.End || held != p.InFlight {
				r.t.Fatalf("partition %d: position %d after %d, end %d, %d in flight and %d held by consumers", p.Partition, p.Position, last[p.Partition], p.End, p.InFlight, held)
			}
			last[p.Partition] = p.Position
		}
	}
}

// fill publishes n records of about size bytes to partition 0 of a topic.
func (r *rig) fill(topic string, n, size int) {
	r.t.Helper()
	p, err := r.client.NewProducer(r.ctx, topic, client.ProducerConfig{BatchRecords: 50})
	if err != nil {
		r.t.Fatal(err)
	}
	for range n {
		p.Publish(r.ctx, record.Record{Value: make([]byte, size)}, func(_ client.Ack, err error) {
			if err != nil {
				r.t.Error(err)
			}
		})
	}
	if err := p.Close(r.ctx); err != nil {
		r.t.Fatal(err)
	}
}

// proxy forwards connections until it is told not to: then it takes all that comes, forwards nothing, and closes nothing.
type proxy struct {
	ln     net.Listener
	to     string
	silent chan struct{}
	wg     sync.WaitGroup
}

func (r *rig) proxy() *proxy {
	r.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	p := &proxy{ln: ln, to: r.broker.GRPC, silent: make(chan struct{})}
	over, end := context.WithCancel(context.Background())
	p.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", p.to)
			if err != nil {
				_ = c.Close()
				continue
			}
			context.AfterFunc(over, func() { _, _ = c.Close(), s.Close() })
			p.wg.Go(func() { p.pass(c, s) })
			p.wg.Go(func() { p.pass(s, c) })
		}
	})
	r.t.Cleanup(func() { _ = ln.Close(); end(); p.wg.Wait() })
	return p
}

// pass forwards what comes while it may. Nobody is told that the other side has gone.
func (p *proxy) pass(to io.Writer, from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-p.silent:
			continue
		default:
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestHalfOpen has a consumer go silent behind a connection that stays open: what it holds is handed to another one within
// the ack timeout and a second, and who comes back under its name takes its place at once.
func TestHalfOpen(t *testing.T) {
	const timeout, n = 2 * time.Second, 60
	for _, typ := range []client.SubscriptionType{client.Shared, client.KeyShared, client.Exclusive, client.Failover} {
		t.Run(string(typ), func(t *testing.T) {
			r := newRig(t, proc.Options{})
			r.watch()
			r.topic("half", 1)
			r.subscription("half", "s", typ, client.SubscriptionSettings{AckTimeout: new(timeout)})
			p := r.proxy()
			behind, err := client.Dial(p.ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer behind.Close()
			// It takes no more than this, so that what is due again goes to somebody else.
			config := client.SubscriptionConfig{Name: "same", CreditBytes: 64 << 10, WindowMessages: n}
			held, err := behind.Subscribe(r.ctx, "half", "s", config)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				gone, cancel := context.WithCancel(context.Background())
				cancel()
				_ = held.Close(gone) // it cannot tell anybody
			}()
			r.fill("half", n, 2000)
			holds := int32(0)
			r.await("held", func() bool {
				now := r.describe("half", "s").Parts[0].InFlight
				same := now > 0 && now == holds
				holds = now
				return same
			})
			close(p.silent)
			began := time.Now()
			switch typ {
			case client.Exclusive: // nobody else may have it, but who has its name
				if _, err := r.client.Subscribe(r.ctx, "half", "s", client.SubscriptionConfig{Name: "other"}); client.KindOf(err) != client.KindConflict {
					t.Fatalf("another consumer got %v", err)
				}
			case client.Shared, client.KeyShared:
				config.Name = "other"
			}
			config.CreditBytes = 0
			again, err := r.client.Subscribe(r.ctx, "half", "s", config)
			if err != nil {
				t.Fatal(err)
			}
			got, latest := 0, time.Duration(0)
			for got < n {
				batch, err := again.NextBatch(r.ctx)
				if err != nil {
					t.Fatal(err)
				}
				got += len(batch)
				latest = time.Since(began)
				client.AckBatch(batch)
			}
			if limit := timeout + time.Second + r.slack(); latest > limit {
				t.Errorf("all was handed to the other one after %v, more than %v", latest, limit)
			}
			if err := again.Save(r.ctx); err != nil {
				t.Error(err)
			}
			r.exact("half", "s")
			t.Logf("%d held by who went silent; all %d handed to another one after %v", holds, n, latest.Round(time.Millisecond))
			if err := again.Close(r.ctx); err != nil {
				t.Error(err)
			}
			if faults.Amount(0, 0, 1) == 1 { // it takes a minute and twenty seconds
				r.present("half", "s", 0)
				t.Logf("its connection was given up after %v", time.Since(began).Round(time.Second))
			}
		})
	}
}

// stream is a consumer without the client's good manners.
type stream struct {
	t      *testing.T
	rpc    leveev1.Stream_ConsumeClient
	cancel context.CancelFunc // as the end of its process would
}

func (r *rig) stream(topic, name, consumer string) *stream {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	r.t.Cleanup(cancel)
	rpc, err := r.broker.Raw().Consume(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	s := &stream{r.t, rpc, cancel}
	s.send(&leveev1.ConsumeRequest{Open: &leveev1.OpenConsume{Topic: topic, Subscription: name, Name: consumer}, Credit: &leveev1.Credit{Bytes: 1 << 30}})
	if s.recv().GetConsuming() == nil {
		r.t.Fatal("the stream did not open")
	}
	return s
}

func (s *stream) send(m *leveev1.ConsumeRequest) {
	s.t.Helper()
	if err := s.rpc.Send(m); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stream) recv() *leveev1.ConsumeResponse {
	s.t.Helper()
	m, err := s.rpc.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// take receives until n records were handed out, and returns which.
func (s *stream) take(n int) (offsets []int64) {
	s.t.Helper()
	for len(offsets) < n {
		for _, r := range s.recv().GetDelivered().GetOffsets() {
			for o := r.GetFrom(); o <= r.GetTo(); o++ {
				offsets = append(offsets, o)
			}
		}
	}
	return offsets
}

func acks(ranges ...int64) *leveev1.ConsumeRequest {
	m := &leveev1.ConsumeRequest{}
	for i := 0; i < len(ranges); i += 2 {
		m.Acks = append(m.Acks, &leveev1.Range{From: ranges[i], To: ranges[i+1]})
	}
	return m
}

// TestStrangeAcks acknowledges out of order, twice, what others hold, what nobody was handed and what is not there: the
// position moves over what was handed out and acknowledged, and nowhere else, and the count in flight is exact each time.
func TestStrangeAcks(t *testing.T) {
	r := newRig(t, proc.Options{})
	r.topic("strange", 1)
	r.subscription("strange", "s", client.Shared, client.SubscriptionSettings{WindowMessages: new(int32(100))})
	r.fill("strange", 1000, 10)
	a := r.stream("strange", "s", "a")
	if got := a.take(100); got[0] != 0 || got[99] != 99 {
		t.Fatalf("handed out %v", got)
	}
	b := r.stream("strange", "s", "b")
	if got := b.take(100); got[0] != 100 || got[99] != 199 {
		t.Fatalf("handed out %v", got)
	}
	stands := func(when string, position, settled int64, inFlight int32) {
		t.Helper()
		var p client.SubscriptionPart
		defer func() {
			if t.Failed() {
				t.Logf("%s: %+v", when, p)
			}
		}()
		r.await(when, func() bool {
			p = r.describe("strange", "s").Parts[0]
			if p.Position > position {
				t.Fatalf("%s: the position is %d, beyond %d", when, p.Position, position)
			}
			return p.Position == position && p.Settled == settled && p.InFlight == inFlight
		})
	}
	next := int64(200) // whoever has room is handed the next ones
	hold := func(s *stream, n int) {
		t.Helper()
		if got := s.take(n); len(got) != n || got[0] != next {
			t.Fatalf("handed out %v, and not %d from %d on", got, n, next)
		}
		next += int64(n)
	}
	stands("before", 0, 0, 200)
	a.send(acks(90, 99, 70, 79, 95, 96, 50, 59)) // out of order, and some twice
	hold(a, 30)
	stands("out of order", 0, 30, 200)
	a.send(acks(50, 59, 90, 99, 70, 79, 70, 79))    // all again
	a.send(acks(240, 400, 900, 5000, 1<<60, 1<<61)) // never handed out, not there, nonsense
	a.send(acks(0, 0))
	hold(a, 1)
	stands("again, and what is not there", 1, 30, 200)
	a.send(acks(100, 149)) // what the other one holds
	hold(b, 50)
	stands("another's", 1, 80, 200)
	a.send(acks(1, 99))
	hold(a, 69)
	stands("the rest", 150, 0, 200)
	a.send(&leveev1.ConsumeRequest{Nacks: []*leveev1.Nack{{Range: &leveev1.Range{From: 0, To: 120}}, {Range: &leveev1.Range{From: 150, To: 160}}, {Range: &leveev1.Range{From: 700, To: 800}}}})
	a.send(acks(200, 200))
	hold(a, 1)
	stands("given back what is settled, another's, nobody's", 150, 1, 200)
	a.send(acks(0, 1<<40))
	b.send(acks(0, 1<<40))
	for p := r.describe("strange", "s").Parts[0]; p.Position < 1000; p = r.describe("strange", "s").Parts[0] {
		a.send(acks(0, 999))
		if p.Position > p.End {
			t.Fatalf("%+v", p)
		}
	}
	a.cancel()
	b.cancel()
	r.exact("strange", "s")
	r.finish()
}

// TestNeverAcks has a consumer hold what it was handed and say nothing: it is handed out again within the ack timeout and
// a second, each time counted, and after the last time it is a dead letter.
func TestNeverAcks(t *testing.T) {
	const timeout, n = time.Second, 20
	r := newRig(t, proc.Options{})
	r.watch()
	r.topic("silent", 1)
	r.subscription("silent", "s", client.Shared, client.SubscriptionSettings{
		AckTimeout: new(timeout), MaxDeliveries: new(int32(3)), RedeliveryDelay: new(10 * time.Millisecond),
	})
	r.fill("silent", n, 10)
	opened := time.Now() // nothing is handed out before
	s := r.stream("silent", "s", "a")
	began := time.Now()
	for time := range 3 {
		seen := map[int64]int{}
		for _, o := range s.take(n) {
			seen[o]++
		}
		if len(seen) != n {
			t.Fatalf("delivery %d: %v", time+1, seen)
		}
	}
	// Twice the timeout has passed.
	if took := time.Since(opened); took < 2*timeout {
		t.Errorf("handed out three times within %v", took)
	}
	if took, limit := time.Since(began), 2*(timeout+time.Second)+r.slack(); took > limit {
		t.Errorf("handed out three times in %v, more than %v", took, limit)
	}
	r.exact("silent", "s")
	letters := 0
	for l, err := range r.client.Admin().DeadLetters(r.ctx, "silent", "s", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if l.Deliveries != 3 {
			t.Errorf("%+v", l)
		}
		letters++
	}
	if letters != n {
		t.Errorf("%d dead letters of %d", letters, n)
	}
	r.finish()
}
