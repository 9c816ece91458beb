package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func (r *rig) consumer(spec ConsumerSpec) *Consumer {
	r.t.Helper()
	if spec.Topic == "" {
		spec.Topic = "a"
	}
	if spec.Subscription == "" {
		spec.Subscription = "s"
	}
	spec.Create = true
	c, err := r.OpenConsumer(r.t.Context(), spec)
	if err != nil {
		r.t.Fatalf("open consumer %+v: %v", spec, err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// got is a record as a consumer was handed it.
type got struct {
	offset int64
	value  string
	count  int32
}

func (g got) String() string {
	if g.count > 1 {
		return fmt.Sprintf("%d=%s*%d", g.offset, g.value, g.count)
	}
	return fmt.Sprintf("%d=%s", g.offset, g.value)
}

// opened returns the records of an event that were handed out.
func opened(t *testing.T, e ConsumerEvent) []got {
	t.Helper()
	var list []got
	for rest := e.Batches; len(rest) > 0; {
		batch, more, err := record.Next(rest)
		if err == nil {
			_, err = record.Check(batch)
		}
		if err != nil {
			t.Fatal(err)
		}
		rest = more
		if err := record.Each(batch, func(rec record.Record) error {
			for _, o := range e.Offsets {
				if rec.Offset >= o.From && rec.Offset <= o.To {
					g := got{rec.Offset, string(rec.Value), 1}
					for _, c := range e.Counts {
						if rec.Offset >= c.From && rec.Offset <= c.To {
							g.count = c.Deliveries
						}
					}
					list = append(list, g)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(list) != e.Records {
		t.Fatalf("%d records of %d: %v", len(list), e.Records, e.Offsets)
	}
	return list
}

// take returns the next n records of a consumer.
func take(t *testing.T, c *Consumer, n int) []got {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var list []got
	for len(list) < n {
		e, err := c.Next(ctx, 0)
		if err != nil {
			t.Fatalf("after %v: %v", list, err)
		}
		if e.Kind == ConsumerData {
			list = append(list, opened(t, e)...)
		}
	}
	if len(list) > n {
		t.Fatalf("%d records instead of %d: %v", len(list), n, list)
	}
	return list
}

func text(list []got) string {
	var s []string
	for _, g := range list {
		s = append(s, g.String())
	}
	return strings.Join(s, " ")
}

// nothing fails the test if a consumer is handed something within a while.
func nothing(t *testing.T, c *Consumer, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		e, err := c.Next(ctx, 0)
		if err != nil {
			wantKind(t, err, fault.Timeout)
			return
		}
		if e.Kind == ConsumerData {
			t.Fatalf("handed out: %s", text(opened(t, e)))
		}
	}
}

func ack(t *testing.T, c *Consumer, offsets ...int64) {
	t.Helper()
	s := Settlement{Below: -1}
	for _, o := range offsets {
		s.Acks = append(s.Acks, Range{From: o, To: o})
	}
	if err := c.Settle(s); err != nil {
		t.Fatal(err)
	}
}

func nack(t *testing.T, c *Consumer, offset int64, delay time.Duration, reason string) {
	t.Helper()
	if err := c.Settle(Settlement{Below: -1, Nacks: []Nack{{Range: Range{From: offset, To: offset}, Delay: delay, Reason: reason}}}); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsAcknowledgedStaysSo(t *testing.T) {
	for _, typ := range []SubscriptionType{Exclusive, Shared, Failover, KeyShared} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.create("a")
			r.publish("a", 0, "x", "y")
			r.publish("a", 0, "z")
			c := r.consumer(ConsumerSpec{Type: typ})
			if i := c.Info(); i.Type != typ || i.Position != 0 || !i.Active || !i.Reliable || i.Topic != "default/a" || i.Partitions != 1 {
				t.Fatalf("%+v", i)
			}
			if s := text(take(t, c, 3)); s != "0=x 1=y 2=z" {
				t.Fatal(s)
			}
			ack(t, c, 0, 2)
			r.halt()
			r.start()
			c = r.consumer(ConsumerSpec{Type: typ})
			r.publish("a", 0, "new")
			if s := text(take(t, c, 2)); s != "1=y*2 3=new" && s != "1=y 3=new" {
				t.Fatalf("%s: %s", typ, s)
			}
			if err := c.Settle(Settlement{Below: 4}); err != nil {
				t.Fatal(err)
			}
			info, err := r.DescribeSubscription(t.Context(), "a", "s")
			if err != nil || info.Parts[0].Position != 4 || info.Parts[0].Backlog != 0 || info.Parts[0].InFlight != 0 || info.Parts[0].Consumers[0].Unsettled != 0 {
				t.Fatalf("%+v, %v", info.Parts, err)
			}
			r.halt()
		})
	}
}

// forgetful loses what is saved of cursors once it is told to, as a crash does.
type forgetful struct {
	meta.Store
	crashed bool
}

func (f *forgetful) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if _, ok := c.(meta.SaveCursors); ok && f.crashed {
		return meta.Result{}, fault.New(fault.Stopped, "crashed")
	}
	return f.Store.Propose(ctx, c)
}

func TestCrashRepeatsOneSecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, fs: newRig(t).fs, store: meta.NewMemory()}
		store := &forgetful{Store: meta.NewMemory()}
		r.store = store
		r.start()
		defer r.halt()
		r.create("a")
		r.publish("a", 0, "0", "1", "2", "3", "4")
		c := r.consumer(ConsumerSpec{Type: Shared})
		take(t, c, 5)
		ack(t, c, 0, 2)
		<-time.After(1100 * time.Millisecond)
		synctest.Wait()
		ack(t, c, 1)
		store.crashed = true
		r.halt()
		store.crashed = false
		r.start()
		c = r.consumer(ConsumerSpec{Type: Shared})
		if s := text(take(t, c, 3)); s != "1=1 3=3 4=4" && s != "1=1*2 3=3*2 4=4*2" {
			t.Fatal(s)
		}
		ack(t, c, 1)
		if err := c.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		store.crashed = true
		r.halt()
		store.crashed = false
		r.start()
		if info, err := r.DescribeSubscription(t.Context(), "a", "s"); err != nil || info.Parts[0].Position != 3 {
			t.Fatalf("%+v, %v", info.Parts, err)
		}
	})
}

// TestDescribedWhileItOpens: a description asked for while a broker starts waits for the partition, and says so where that
// takes too long, instead of telling of an empty log.
func TestDescribedWhileItOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "0", "1", "2")
		c := r.consumer(ConsumerSpec{Type: Shared})
		take(t, c, 3)
		ack(t, c, 0)
		c.Close()
		r.halt()
		release, entered := r.hold(func(op vfs.Op) bool { return strings.Contains(op.Path, "/topics/") })
		r.launch()
		<-entered
		info, err := r.DescribeSubscription(t.Context(), "a", "s")
		if err != nil || !strings.HasPrefix(info.Parts[0].State, "opening: ") {
			t.Fatalf("%+v, %v", info.Parts, err)
		}
		time.AfterFunc(time.Second, func() { close(release) })
		info, err = r.DescribeSubscription(t.Context(), "a", "s")
		if p := info.Parts[0]; err != nil || p.State != "idle" || p.End != 3 || p.Backlog != 2 {
			t.Fatalf("%+v, %v", info.Parts, err)
		}
	})
}

// TestWhoComesBackIsBelieved: what a consumer was handed by a broker that crashed counts as acknowledged where it says so to
// the next one, which has not handed it out; unless a seek came between.
func TestWhoComesBackIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, fs: newRig(t).fs}
		store := &forgetful{Store: meta.NewMemory()}
		r.store = store
		r.start()
		defer r.halt()
		r.create("a")
		r.publish("a", 0, "0", "1", "2", "3", "4")
		c := r.consumer(ConsumerSpec{Type: Shared})
		epoch := c.Info().Epoch
		take(t, c, 5)
		crash := func() {
			store.crashed = true
			r.halt()
			store.crashed = false
			r.start()
		}
		crash()
		stranger := r.consumer(ConsumerSpec{Type: Shared, Name: "stranger"})
		ack(t, stranger, 4) // of what it was not handed
		c = r.consumer(ConsumerSpec{Type: Shared, Epoch: epoch})
		if err := c.Settle(Settlement{Below: 1, Acks: []Range{{From: 3, To: 3}, {From: 4, To: 1 << 40}}}); err != nil { // no further than there is
			t.Fatal(err)
		}
		if err := c.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		crash()
		c = r.consumer(ConsumerSpec{Type: Shared})
		if s := text(take(t, c, 2)); s != "1=1 2=2" {
			t.Fatal(s)
		}
		r.publish("a", 0, "5")
		if s := text(take(t, c, 1)); s != "5=5" {
			t.Fatal(s)
		}
		if err := r.SeekSubscription(t.Context(), "a", "s", 0, Earliest()); err != nil {
			t.Fatal(err)
		}
		c.Close()
		c = r.consumer(ConsumerSpec{Type: Shared, Epoch: epoch, WindowMessages: 1})
		ack(t, c, 4, 5) // of before the seek
		if s := text(take(t, c, 1)); s != "0=0" {
			t.Fatal(s)
		}
		if info, err := r.DescribeSubscription(t.Context(), "a", "s"); err != nil || info.Parts[0].Backlog != 6 {
			t.Fatalf("%+v, %v", info.Parts, err)
		}
	})
}

func TestExclusiveIsRefusedAndTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "x")
		one := r.consumer(ConsumerSpec{Name: "one"})
		take(t, one, 1)
		_, err := r.OpenConsumer(t.Context(), ConsumerSpec{Topic: "a", Subscription: "s", Name: "two"})
		wantKind(t, err, fault.Conflict, "one")
		_, err = r.OpenConsumer(t.Context(), ConsumerSpec{Topic: "a", Subscription: "s", Name: "two", Type: Shared})
		wantKind(t, err, fault.Conflict, "exclusive")
		again := r.consumer(ConsumerSpec{Name: "one"})
		_, err = one.Next(t.Context(), 0)
		wantKind(t, err, fault.Fenced, "one")
		if s := text(take(t, again, 1)); s != "0=x*2" {
			t.Fatal(s)
		}
		again.Close()
		two := r.consumer(ConsumerSpec{Name: "two"})
		if s := text(take(t, two, 1)); s != "0=x*3" {
			t.Fatal(s)
		}
		if got := r.metric("levee_broker_subscribers"); got != 2 { // one is fenced and not closed yet
			t.Errorf("%v open", got)
		}
		r.halt()
	})
}

func TestFailoverTellsWhoIsActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		b := r.consumer(ConsumerSpec{Type: Failover, Name: "b"})
		if e, err := b.Next(t.Context(), 0); err != nil || e.Kind != ConsumerActive {
			t.Fatalf("%+v, %v", e, err)
		}
		a := r.consumer(ConsumerSpec{Type: Failover, Name: "a", Priority: 1})
		if e, err := a.Next(t.Context(), 0); err != nil || e.Kind != ConsumerStandby || a.Info().Active {
			t.Fatalf("%+v, %v", e, err)
		}
		r.publish("a", 0, "x")
		take(t, b, 1)
		b.Close()
		if e, err := a.Next(t.Context(), 0); err != nil || e.Kind != ConsumerActive {
			t.Fatalf("%+v, %v", e, err)
		}
		if s := text(take(t, a, 1)); s != "0=x*2" {
			t.Fatal(s)
		}
		r.halt()
	})
}

// Who has no room for records is told news at once, keeps none from others, and is told its end.
func TestNewsWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		room := make(chan struct{}, 1)
		b := r.consumer(ConsumerSpec{Type: Failover, Name: "b"})
		if e, ok, err := b.News(t.Context(), room); err != nil || !ok || e.Kind != ConsumerActive {
			t.Fatalf("%+v, %v, %v", e, ok, err)
		}
		r.publish("a", 0, "x")
		go func() { <-time.After(time.Second); room <- struct{}{} }()
		if e, ok, err := b.News(t.Context(), room); err != nil || ok {
			t.Fatalf("%+v, %v, %v", e, ok, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if e, ok, err := b.News(ctx, room); !errors.Is(err, context.DeadlineExceeded) || ok {
			t.Fatalf("%+v, %v, %v", e, ok, err)
		}
		a := r.consumer(ConsumerSpec{Type: Failover, Name: "a"})
		if e, ok, err := b.News(t.Context(), room); err != nil || !ok || e.Kind != ConsumerStandby {
			t.Fatalf("%+v, %v, %v", e, ok, err)
		}
		if s := text(take(t, a, 1)); s != "0=x" {
			t.Fatalf("%s: b was handed it, and had asked for nothing", s)
		}
		r.consumer(ConsumerSpec{Type: Failover, Name: "b"})
		_, _, err := b.News(t.Context(), room)
		wantKind(t, err, fault.Fenced, "b")
		go func() { <-time.After(time.Second); _ = r.DeleteTopic(t.Context(), "a") }()
		for err = nil; err == nil; {
			_, _, err = a.News(t.Context(), room) // that it is active, first
		}
		wantKind(t, err, fault.Deleted)
		r.halt()
	})
}

func TestNackedUntilItIsADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		if _, err := r.CreateSubscription(t.Context(), SubscriptionSpec{
			Topic: "a", Name: "s", Type: Shared, Settings: SubscriptionSettings{MaxDeliveries: ptr[int32](3), RedeliveryDelayMs: ptr[int64](1000)},
		}); err != nil {
			t.Fatal(err)
		}
		c := r.consumer(ConsumerSpec{})
		if _, _, err := r.Publish(t.Context(), "a", 0, []record.Record{
			{Key: []byte("k"), Value: []byte("bad"), Headers: []record.Header{{Key: "h", Value: []byte("v")}}, Timestamp: 77},
		}); err != nil {
			t.Fatal(err)
		}
		for i, wait := range []time.Duration{0, time.Second, 2 * time.Second} {
			began := time.Now()
			if g := take(t, c, 1)[0]; g.count != int32(i)+1 { //nolint:gosec // three
				t.Fatalf("%+v", g)
			}
			if took := time.Since(began); took < wait || took > wait+100*time.Millisecond {
				t.Fatalf("delivery %d after %v", i+1, took)
			}
			nack(t, c, 0, -1, "will not do")
		}
		nothing(t, c, time.Minute)
		if got := r.metric("levee_subscription_dead_letters_total"); got != 1 {
			t.Fatalf("%v dead letters", got)
		}
		letters := func() (list []DeadLetter) {
			if err := r.DeadLetters(t.Context(), "a", "s", 0, func(l DeadLetter) error {
				list = append(list, l)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return list
		}
		l := letters()
		if len(l) != 1 || l[0].Topic != "default/a-s-dlq" || l[0].SourceOffset != 0 || l[0].SourcePartition != 0 || l[0].Deliveries != 3 || l[0].Reason != "will not do" ||
			string(l[0].Record.Key) != "k" || string(l[0].Record.Value) != "bad" || l[0].Record.Timestamp != 77 || len(l[0].Record.Headers) != 1 {
			t.Fatalf("%+v", l)
		}
		r.halt() // what is settled outlives it, and so does what is buried
		r.start()
		if n, err := r.RedriveDeadLetters(t.Context(), "a", "s", nil); err != nil || n != 1 {
			t.Fatalf("%d, %v", n, err)
		}
		if l := letters(); len(l) != 0 {
			t.Fatalf("%+v", l)
		}
		c = r.consumer(ConsumerSpec{})
		if s := text(take(t, c, 1)); s != "1=bad" {
			t.Fatal(s)
		}
		for range 2 {
			nack(t, c, 1, 0, "")
			take(t, c, 1)
		}
		nack(t, c, 1, 0, "once more")
		nothing(t, c, time.Second)
		if n, err := r.PurgeDeadLetters(t.Context(), "a", "s"); err != nil || n != 1 || len(letters()) != 0 {
			t.Fatalf("%d, %v", n, err)
		}
		// A topic that is made again has none, though they lie in the same place.
		if err := r.DeleteTopic(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		r.create("a")
		r.consumer(ConsumerSpec{})
		if l := letters(); len(l) != 0 {
			t.Fatalf("%+v", l)
		}
		r.halt()
	})
}

func TestPoisonPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "bad", "good")
		for name, policy := range map[string]string{"d": "drop", "b": "block"} {
			if _, err := r.CreateSubscription(t.Context(), SubscriptionSpec{
				Topic: "a", Name: name, Type: Exclusive, Settings: SubscriptionSettings{MaxDeliveries: ptr[int32](1), Poison: &policy},
			}); err != nil {
				t.Fatal(err)
			}
		}
		d := r.consumer(ConsumerSpec{Subscription: "d", WindowMessages: 1})
		take(t, d, 1)
		nack(t, d, 0, 0, "bad")
		if s := text(take(t, d, 1)); s != "1=good" {
			t.Fatal(s)
		}
		b := r.consumer(ConsumerSpec{Subscription: "b", WindowMessages: 1})
		take(t, b, 1)
		nack(t, b, 0, 0, "bad")
		nothing(t, b, time.Minute)
		info, err := r.DescribeSubscription(t.Context(), "a", "b")
		if err != nil || !strings.HasPrefix(info.Parts[0].State, "blocked") {
			t.Fatalf("%+v, %v", info.Parts, err)
		}
		if err := r.SeekSubscription(t.Context(), "a", "b", 0, Offset(1)); err != nil {
			t.Fatal(err)
		}
		if s := text(take(t, b, 1)); s != "1=good" {
			t.Fatal(s)
		}
		r.halt()
	})
}

func TestAckTimeoutAndHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "x")
		c := r.consumer(ConsumerSpec{Type: Shared, Name: "slow"})
		take(t, c, 1)
		other := r.consumer(ConsumerSpec{Type: Shared, Name: "other"})
		for range 3 {
			nothing(t, other, 50*time.Second)
			c.Heartbeat()
		}
		began := time.Now()
		if s := text(take(t, other, 1)); s != "0=x*2" {
			t.Fatal(s)
		}
		if took := time.Since(began); took < 60*time.Second || took > 62*time.Second {
			t.Fatalf("after %v", took)
		}
		ack(t, c, 0) // late, and it counts
		nothing(t, other, 5*time.Minute)
		r.halt()
	})
}

func TestDelayedUntilItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		at := func(d time.Duration) []record.Header {
			return []record.Header{{Key: record.HeaderDeliverAt, Value: strconv.AppendInt(nil, time.Now().Add(d).UnixMilli(), 10)}}
		}
		if _, _, err := r.Publish(t.Context(), "a", 0, []record.Record{
			{Value: []byte("late"), Headers: at(time.Hour)}, {Value: []byte("now")}, {Value: []byte("soon"), Headers: at(time.Minute)},
		}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		plain := r.consumer(ConsumerSpec{Type: Exclusive, Subscription: "plain"})
		if s := text(take(t, plain, 3)); s != "0=late 1=now 2=soon" {
			t.Fatal(s)
		}
		for _, typ := range []SubscriptionType{Shared, KeyShared} {
			c := r.consumer(ConsumerSpec{Type: typ, Subscription: string(typ)})
			if s := text(take(t, c, 1)); s != "1=now" {
				t.Fatal(s)
			}
			ack(t, c, 1)
		}
		r.halt()
		r.start()
		for _, w := range []struct {
			value string
			after time.Duration
		}{{"2=soon", time.Minute}, {"0=late", time.Hour}} {
			for _, typ := range []SubscriptionType{Shared, KeyShared} {
				c := r.consumer(ConsumerSpec{Type: typ, Subscription: string(typ)})
				g := take(t, c, 1)
				if s := text(g); s != w.value {
					t.Fatalf("%s: %s", typ, s)
				}
				if took := time.Since(began); took < w.after || took > w.after+2*time.Second {
					t.Fatalf("%s after %v", w.value, took)
				}
				ack(t, c, g[0].offset)
			}
		}
		r.halt()
	})
}

func TestSeekBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		for i := range 6 {
			r.publish("a", 0, fmt.Sprint(i))
			<-time.After(time.Second)
		}
		c := r.consumer(ConsumerSpec{Type: Shared})
		take(t, c, 6)
		ack(t, c, 0, 1, 2, 3)
		for _, s := range []struct {
			to   Position
			want string
		}{
			{Offset(4), "4=4 5=5"}, {Earliest(), "0=0 1=1 2=2 3=3 4=4 5=5"}, {Time(time.Now().UnixMilli() - 2500), "4=4 5=5"},
		} {
			if err := r.SeekSubscription(t.Context(), "a", "s", -1, s.to); err != nil {
				t.Fatal(err)
			}
			if got := text(take(t, c, strings.Count(s.want, "="))); got != s.want {
				t.Fatalf("%+v: %s", s.to, got)
			}
		}
		if err := r.SeekSubscription(t.Context(), "a", "s", 0, Latest()); err != nil {
			t.Fatal(err)
		}
		nothing(t, c, 5*time.Minute) // what was held before is nobody's any more
		ack(t, c, 5)
		err := r.SeekSubscription(t.Context(), "a", "s", 0, Offset(7))
		wantKind(t, err, fault.OutOfRange)
		err = r.SeekSubscription(t.Context(), "a", "s", 1, Offset(0))
		wantKind(t, err, fault.NotFound)
		err = r.SeekSubscription(t.Context(), "a", "none", 0, Offset(0))
		wantKind(t, err, fault.NotFound, "none")
		r.halt()
		r.start()
		if info, err := r.DescribeSubscription(t.Context(), "a", "s"); err != nil || info.Parts[0].Position != 6 {
			t.Fatalf("%+v, %v", info, err)
		}
		r.halt()
	})
}

// lateSeek answers the first seek only once it is let go, long after it is in the metadata.
type lateSeek struct {
	meta.Store
	once sync.Once
	hold chan struct{}
}

func (s *lateSeek) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	r, err := s.Store.Propose(ctx, c)
	if _, is := c.(meta.SeekCursor); is {
		first := false
		s.once.Do(func() { first = true })
		if first {
			<-s.hold
		}
	}
	return r, err
}

// TestSeeksSideBySide: the seek that the metadata has last is the one that counts, also where the other one's answer comes
// after it, and what is acknowledged then is saved.
func TestSeeksSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &lateSeek{Store: meta.NewMemory(), hold: make(chan struct{})}
		r := &rig{t: t, fs: newRig(t).fs, store: store}
		r.start()
		defer r.halt()
		r.create("a")
		r.publish("a", 0, "0", "1", "2", "3", "4", "5")
		c := r.consumer(ConsumerSpec{Type: Shared})
		take(t, c, 6)
		done := make(chan error)
		go func() { done <- r.SeekSubscription(t.Context(), "a", "s", 0, Offset(1)) }()
		synctest.Wait()
		if err := r.SeekSubscription(t.Context(), "a", "s", 0, Offset(4)); err != nil {
			t.Fatal(err)
		}
		close(store.hold)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if s := text(take(t, c, 2)); s != "4=4 5=5" {
			t.Fatal(s)
		}
		ack(t, c, 4, 5)
		if err := c.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		if saved, ok := store.View().Cursor(mustTopic(t, store, "a").ID, "s", 0); !ok || saved.Position != 6 {
			t.Fatalf("%+v", saved)
		}
	})
}

func TestTrimmedUnderASubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a", TopicSpec{Settings: Settings{SegmentBytes: ptr[int64](64 << 10)}})
		skip := "skip_to_oldest"
		for name, s := range map[string]SubscriptionSettings{"fail": {}, "skip": {OnTrimmed: &skip}} {
			if _, err := r.CreateSubscription(t.Context(), SubscriptionSpec{Topic: "a", Name: name, Settings: s}); err != nil {
				t.Fatal(err)
			}
		}
		for range 8 {
			r.publish("a", 0, strings.Repeat("x", 30<<10))
		}
		if _, err := r.SetTopic(t.Context(), "a", Settings{RetentionBytes: ptr[int64](64 << 10)}, nil); err != nil {
			t.Fatal(err)
		}
		<-time.After(31 * time.Second)
		synctest.Wait()
		d, err := r.DescribeTopic(t.Context(), "a")
		if err != nil || d.Parts[0].First < 4 {
			t.Fatalf("%+v, %v", d.Parts, err)
		}
		first := d.Parts[0].First
		c := r.consumer(ConsumerSpec{Subscription: "skip"})
		if e, err := c.Next(t.Context(), 0); err != nil || e.Kind != ConsumerSkipped || e.Range != (Range{From: 0, To: first - 1}) {
			t.Fatalf("%+v, %v", e, err)
		}
		if g := take(t, c, int(8-first)); g[0].offset != first {
			t.Fatalf("%v", g[0].offset)
		}
		if got := r.metric("levee_subscription_trimmed_records_total"); got != float64(first) {
			t.Errorf("%v counted", got)
		}
		c = r.consumer(ConsumerSpec{Subscription: "fail"})
		_, err = c.Next(t.Context(), 0)
		wantKind(t, err, fault.Trimmed)
		if got := fault.DetailsOf(err); got["requested"] != "0" || got["oldest"] != fmt.Sprint(first) {
			t.Fatalf("%v", got)
		}
		for range 2 { // and so does whoever comes later
			_, err = r.OpenConsumer(t.Context(), ConsumerSpec{Topic: "a", Subscription: "fail"})
			wantKind(t, err, fault.Trimmed)
		}
		if info, err := r.DescribeSubscription(t.Context(), "a", "fail"); err != nil || !strings.HasPrefix(info.Parts[0].State, "failed") || len(info.Parts[0].Consumers) != 0 {
			t.Fatalf("%+v, %v", info.Parts, err)
		}
		if err := r.SeekSubscription(t.Context(), "a", "fail", 0, Earliest()); err != nil {
			t.Fatal(err)
		}
		c = r.consumer(ConsumerSpec{Subscription: "fail"})
		if g := take(t, c, int(8-first)); g[0].offset != first {
			t.Fatalf("%v", g[0].offset)
		}
		r.halt()
	})
}

func TestDeletedUnderAConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "x")
		one, two := r.consumer(ConsumerSpec{}), r.consumer(ConsumerSpec{Subscription: "other"})
		take(t, one, 1)
		take(t, two, 1)
		ack(t, two, 0)
		if err := r.DeleteSubscription(t.Context(), "a", "s"); err != nil {
			t.Fatal(err)
		}
		_, err := one.Next(t.Context(), 0)
		wantKind(t, err, fault.Deleted, "subscription s")
		wantKind(t, r.DeleteSubscription(t.Context(), "a", "s"), fault.NotFound)
		if err := r.DeleteTopic(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		_, err = two.Next(t.Context(), 0)
		wantKind(t, err, fault.Deleted, "default/a")
		r.create("a")
		if list, err := r.Subscriptions(t.Context(), "a"); err != nil || len(list) != 0 {
			t.Fatalf("%+v, %v", list, err)
		}
		r.publish("a", 0, "new")
		if s := text(take(t, r.consumer(ConsumerSpec{Subscription: "other"}), 1)); s != "0=new" {
			t.Fatal(s)
		}
		wantKind(t, two.Settle(Settlement{Below: 1}), fault.Deleted)
		r.halt()
	})
}

func TestNonReliableSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a", TopicSpec{Dispatch: NonReliable})
		_, err := r.CreateSubscription(t.Context(), SubscriptionSpec{Topic: "a", Name: "s"})
		wantKind(t, err, fault.InvalidArgument, "non_reliable")
		r.publish("a", 0, "nobody hears this")
		one, two := r.consumer(ConsumerSpec{Type: Shared, Name: "one"}), r.consumer(ConsumerSpec{Type: Shared, Name: "two"})
		third := r.consumer(ConsumerSpec{Type: Exclusive, Subscription: "other"})
		_, err = r.OpenConsumer(t.Context(), ConsumerSpec{Topic: "a", Subscription: "s", Type: Exclusive})
		wantKind(t, err, fault.Conflict, "shared")
		for i := range 4 {
			r.publish("a", 0, fmt.Sprint(i))
		}
		var all []string
		for _, c := range []*Consumer{one, two} {
			for range 2 {
				e, err := c.Next(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range opened(t, e) {
					all = append(all, g.value)
				}
			}
		}
		slices.Sort(all)
		if s := strings.Join(all, " "); s != "0 1 2 3" {
			t.Fatal(s)
		}
		if s := text(take(t, third, 4)); s != "1=0 2=1 3=2 4=3" {
			t.Fatal(s)
		}
		if list, err := r.Subscriptions(t.Context(), "a"); err != nil || len(list) != 2 || list[0].Name != "other" || len(list[1].Parts[0].Consumers) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		one.Close()
		nothing(t, two, time.Hour) // at most once: what one was handed is not handed out again
		r.halt()
	})
}

func TestKeysStayWithTheirConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		var cs []*Consumer
		for i := range 3 {
			cs = append(cs, r.consumer(ConsumerSpec{Type: KeyShared, Name: fmt.Sprint("c", i)}))
		}
		const n = 300
		for from := 0; from < n; from += 50 {
			var recs []record.Record
			for i := from; i < from+50; i++ {
				recs = append(recs, record.Record{Key: fmt.Append(nil, "key", i%17), Value: fmt.Append(nil, i)})
			}
			batch, err := packRecords(recs, 1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.PublishBatch(t.Context(), "a", 0, batch); err != nil {
				t.Fatal(err)
			}
		}
		of, last, seen := map[int]int{}, map[int]int{}, 0
		for i, c := range cs {
			for {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				e, err := c.Next(ctx, 2000)
				cancel()
				if err != nil {
					break
				}
				if e.Kind != ConsumerData {
					continue
				}
				for _, g := range opened(t, e) {
					v, _ := strconv.Atoi(g.value)
					if o, ok := of[v%17]; ok && (o != i || last[v%17] >= v) {
						t.Fatalf("key %d: %d by %d after %d by %d", v%17, v, i, last[v%17], o)
					}
					of[v%17], last[v%17] = i, v
					seen++
				}
			}
		}
		if seen != n {
			t.Fatalf("%d of %d", seen, n)
		}
		r.halt()
	})
}

func TestWindowCutsABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "0", "1", "2", "3", "4", "5", "6")
		one := r.consumer(ConsumerSpec{Type: Shared, Name: "one", WindowMessages: 3})
		two := r.consumer(ConsumerSpec{Type: Shared, Name: "two", WindowMessages: 2})
		if s := text(take(t, one, 3)) + " | " + text(take(t, two, 2)); s != "0=0 1=1 2=2 | 3=3 4=4" {
			t.Fatal(s)
		}
		nothing(t, one, time.Second)
		ack(t, one, 1)
		if s := text(take(t, one, 1)); s != "5=5" {
			t.Fatal(s)
		}
		two.Close()
		ack(t, one, 0, 2)
		if s := text(take(t, one, 2)); s != "3=3*2 4=4*2" {
			t.Fatal(s)
		}
		r.halt()
	})
}

func TestDrainEndsConsumersAndSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "x", "y")
		c := r.consumer(ConsumerSpec{Type: Shared})
		take(t, c, 2)
		ack(t, c, 0)
		if d := r.Drain(t.Context()); !d.Clean {
			t.Fatalf("%+v", d)
		}
		_, err := c.Next(t.Context(), 0)
		wantKind(t, err, fault.Unavailable)
		saved, ok := r.store.View().Cursor(mustTopic(t, r.store, "a").ID, "s", 0)
		if !ok || saved.Position != 1 {
			t.Fatalf("%+v", saved)
		}
		r.halt()
	})
}

func TestUnloadingSavesWhatWasAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "x", "y", "z")
		c := r.consumer(ConsumerSpec{Type: Shared})
		take(t, c, 3)
		ack(t, c, 0, 2)
		if err := r.UnloadTopic(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		_, err := c.Next(t.Context(), 0)
		wantKind(t, err, fault.Unavailable, "unloaded")
		c = r.consumer(ConsumerSpec{Type: Shared})
		if s := text(take(t, c, 1)); s != "1=y*2" {
			t.Fatal(s)
		}
		nothing(t, c, time.Second)
		r.halt()
	})
}

func mustTopic(t *testing.T, s meta.Store, name string) *meta.Topic {
	t.Helper()
	n, err := meta.ParseTopic(name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.View().Topic(n)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestUnusedSubscriptionsExpireWhereSetTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		for _, name := range []string{"stays", "goes", "used"} {
			s := SubscriptionSettings{}
			if name != "stays" {
				s.ExpireAfterMs = ptr[int64](3_600_000)
			}
			if _, err := r.CreateSubscription(t.Context(), SubscriptionSpec{Topic: "a", Name: name, Settings: s}); err != nil {
				t.Fatal(err)
			}
		}
		r.consumer(ConsumerSpec{Subscription: "used"})
		<-time.After(90 * time.Minute)
		synctest.Wait()
		list, err := r.Subscriptions(t.Context(), "a")
		if err != nil || len(list) != 2 || list[0].Name != "stays" || list[1].Name != "used" {
			t.Fatalf("%+v, %v", list, err)
		}
		r.halt()
	})
}

func TestSettledWithoutAConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "x", "y")
		c := r.consumer(ConsumerSpec{Type: Shared})
		take(t, c, 2)
		settle := func(sub string, s Settlement) error { return r.SettleFor("a", 0, sub, s) }
		if err := settle("s", Settlement{Below: -1, Acks: []Range{{From: 0, To: 0}, {From: 5, To: 9}}}); err != nil {
			t.Fatal(err)
		}
		wantKind(t, settle("none", Settlement{Below: -1}), fault.NotFound)
		if err := settle("s", Settlement{Below: -1, Nacks: []Nack{{Range: Range{From: 1, To: 1}}}}); err != nil {
			t.Fatal(err)
		}
		if s := text(take(t, c, 1)); s != "1=y*2" {
			t.Fatal(s)
		}
		c.Close()
		if err := settle("s", Settlement{Below: -1, Acks: []Range{{From: 1, To: 1}}}); err != nil { // late
			t.Fatal(err)
		}
		nothing(t, r.consumer(ConsumerSpec{}), time.Minute)
		r.halt()
	})
}
