package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

func TestSubscription(t *testing.T) {
	b := subscribing(t, 1, Shared)
	b.fill(0, 10, 10)
	s := subscribed(t, b, SubscriptionConfig{
		Type: Shared, Create: true, From: Offset(3), Name: "me", Priority: 2, KeyFilters: []string{"a*"}, WindowMessages: 7, WindowBytes: 8, MaxBytes: 9,
	})
	open := b.asked()[0].Open
	want := &leveev1.OpenConsume{
		Topic: "orders", Subscription: "mail", Type: "shared", Create: true, Start: &leveev1.OpenConsume_Offset{Offset: 3}, Name: "me",
		Priority: 2, KeyFilters: []string{"a*"}, WindowMessages: 7, WindowBytes: 8, MaxBytes: 9,
	}
	if open.String() != want.String() || s.Name() != "me" || s.Type() != Shared {
		t.Errorf("opened with %v", open)
	}
	for i := range int64(50) {
		receive(t, s, i, 1).Ack()
	}
	n := int64(50)
	batch, err := s.NextBatch(patience(t))
	if err != nil || len(batch) != 10 || batch[0].Offset != n {
		t.Fatalf("%v, %v", batch, err)
	}
	AckBatch(batch)
	AckBatch(batch) // does nothing
	batch[3].Nack(errors.New("too late"))
	n += 10
	for d, err := range s.All(patience(t)) {
		if err != nil || d.Offset != n {
			t.Fatalf("%v, %v", d, err)
		}
		d.Ack()
		if n++; n == 100 {
			break
		}
	}
	b.acked(t, 0, 100)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Next(ctx); KindOf(err) != KindTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	b.fill(0, 1, 1)
	receive(t, s, 100, 1)
	for _, r := range b.asked() {
		if len(r.Nacks) > 0 {
			t.Errorf("a nack of a settled record was sent: %v", r)
		}
	}
}

func TestSubscriptionOfAllPartitions(t *testing.T) {
	b := subscribing(t, 3, Shared)
	for p := range 3 {
		b.fill(p, 5, 10)
	}
	s := subscribed(t, b, SubscriptionConfig{CreditBytes: 1000})
	for range 150 {
		d, err := s.Next(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		d.Ack()
	}
	for p := range int32(3) {
		b.acked(t, p, 50)
	}
	if got := b.asked()[0].Open.Name; !strings.HasPrefix(got, "go-") || got != s.Name() {
		t.Errorf("named %q", got)
	}
}

// Acknowledgements are sent together: when there are enough, or the first has waited.
func TestAcksAreSentTogether(t *testing.T) {
	count := func(b *broker) (messages int) {
		synctest.Wait()
		for _, r := range b.asked() {
			if len(r.Acks) > 0 {
				messages++
			}
		}
		return messages
	}
	synctest.Test(t, func(t *testing.T) {
		b := subscribing(t, 1, Shared)
		b.fill(0, 10, 100)
		s := subscribed(t, b, SubscriptionConfig{})
		for i := range int64(255) {
			receive(t, s, i, 1).Ack()
		}
		if n := count(b); n != 0 {
			t.Errorf("%d messages before there were 256 acknowledgements", n)
		}
		receive(t, s, 255, 1).Ack()
		if n := count(b); n != 1 || len(b.asked()[1].Acks) != 1 {
			t.Errorf("%d messages for 256 acknowledgements: %v", n, b.asked())
		}
		receive(t, s, 256, 1).Ack()
		time.Sleep(9 * time.Millisecond)
		if n := count(b); n != 1 {
			t.Error("one acknowledgement did not wait for others")
		}
		time.Sleep(time.Millisecond)
		if n := count(b); n != 2 {
			t.Error("one acknowledgement waited for more than 10 ms")
		}
		receive(t, s, 257, 1).Ack()
		if err := s.Flush(t.Context()); err != nil || count(b) != 3 {
			t.Errorf("flush: %v, %d messages", err, count(b))
		}
		if err := s.Flush(t.Context()); err != nil || count(b) != 3 {
			t.Errorf("flush of nothing: %v, %d messages", err, count(b))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := subscribing(t, 1, Shared)
		b.fill(0, 1, 100)
		s := subscribed(t, b, SubscriptionConfig{AckEvery: 1})
		for i := range int64(10) {
			receive(t, s, i, 1).Ack()
			if n := count(b); n != int(i)+1 {
				t.Fatalf("%d messages for %d acknowledgements, each to be sent at once", n, i+1)
			}
		}
	})
}

// Out of order they are sorted and joined.
func TestAcksAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := subscribing(t, 1, Shared)
		b.fill(0, 1, 20)
		s := subscribed(t, b, SubscriptionConfig{})
		batch, err := s.NextBatch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{9, 7, 8, 0, 2, 1, 15} {
			batch[i].Ack()
		}
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		if got := fmt.Sprint(b.asked()[1].Acks); got != fmt.Sprint([]*leveev1.Range{{To: 2}, {From: 7, To: 9}, {From: 15, To: 15}}) {
			t.Errorf("got %s", got)
		}
	})
}

func TestNack(t *testing.T) {
	b := subscribing(t, 1, Shared)
	b.fill(0, 1, 4)
	s := subscribed(t, b, SubscriptionConfig{AckEvery: 1})
	batch, err := s.NextBatch(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	batch[0].Nack(nil)
	batch[1].Nack(fmt.Errorf("no stock: %w", Retry(1500*time.Microsecond)))
	batch[2].Nack(Reject(strings.Repeat("x", 2000) + "\xff"))
	batch[3].Ack()
	seen := map[int64]bool{}
	for len(seen) < 3 {
		d, err := s.Next(patience(t))
		if err != nil || d.Deliveries != 2 || d.Offset == 3 {
			t.Fatalf("%+v, %v", d, err)
		}
		seen[d.Offset] = true
	}
	nacks := map[int64]*leveev1.Nack{}
	for _, r := range b.asked() {
		for _, n := range r.Nacks {
			nacks[n.Range.From] = n
		}
	}
	if n := nacks[0]; n.DelayMs != nil || n.Reason != "" {
		t.Errorf("%v", n)
	}
	if n := nacks[1]; n.GetDelayMs() != 2 || n.Reason != "no stock: to be tried again after 1.5ms" {
		t.Errorf("%v", n)
	}
	if n := nacks[2]; n.DelayMs != nil || n.Reason != strings.Repeat("x", 1000) {
		t.Errorf("%v", n)
	}
}

// While anything is held, and only then, the broker is told that the consumer lives.
func TestHeartbeats(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration
		every   time.Duration
		want    int // in a minute
	}{
		"a third of the timeout": {9 * time.Second, 0, 20}, "no timeout": {0, 0, 6}, "as configured": {9 * time.Second, 30 * time.Second, 2},
		"never": {9 * time.Second, -1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := subscribing(t, 1, Shared)
			b.office.ackTimeout = c.timeout
			s := subscribed(t, b, SubscriptionConfig{HeartbeatEvery: c.every})
			beats := func() (n int) {
				time.Sleep(time.Minute + time.Millisecond)
				synctest.Wait()
				for _, r := range b.asked() {
					if r.Heartbeat {
						n++
					}
				}
				b.set(func() { b.office.requests = nil })
				return n
			}
			if n := beats(); n != 0 {
				t.Errorf("%s: %d heartbeats with nothing held", name, n)
			}
			b.fill(0, 1, 2)
			first := receive(t, s, 0, 1)
			second := receive(t, s, 1, 1)
			first.Ack()
			if n := beats(); n < c.want-1 || n > c.want+1 {
				t.Errorf("%s: %d heartbeats a minute, want %d", name, n, c.want)
			}
			second.Nack(Retry(0))
			receive(t, s, 1, 2).Ack()
			if n := beats(); n != 0 {
				t.Errorf("%s: %d heartbeats with everything settled", name, n)
			}
		})
	}
}

// What was acknowledged counts after the stream broke, whether it had been sent or not; what had not been handed out is
// dropped; and nothing acknowledged comes again.
func TestSubscriptionReconnects(t *testing.T) {
	b := subscribing(t, 1, Shared)
	b.fill(0, 4, 10)
	b.office.ignoreAcks = true // the connection swallows them
	s := subscribed(t, b, SubscriptionConfig{Name: "me", AckDelay: time.Hour})
	var held []*Delivery
	for i := range int64(15) {
		held = append(held, receive(t, s, i, 1))
	}
	for _, d := range held[:10] {
		d.Ack()
	}
	if err := s.Flush(patience(t)); err != nil { // sent and lost
		t.Fatal(err)
	}
	for _, d := range held[10:13] { // not sent
		d.Ack()
	}
	b.set(func() { b.office.ignoreAcks = false })
	b.cutAndReopen(t)
	d := receive(t, s, 13, 2) // not settled, and so the broker's to hand out again; 15 to 19 were here, too
	b.acked(t, 0, 13)
	held[13].Ack() // of the earlier time, and counts
	if err := s.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	b.acked(t, 0, 14)
	d.Ack()
	for i := range int64(26) {
		d := receiveAny(t, s)
		n := 2
		if i+14 >= 20 { // may have been here, or not have come; once it has come it is known
			n = int(b.times(i + 14))
		}
		if d.Offset != i+14 || d.Deliveries != n {
			t.Fatalf("got offset %d, handed out %d times; want %d, %d times", d.Offset, d.Deliveries, i+14, n)
		}
		d.Ack()
	}
	if err := s.Save(patience(t)); err != nil {
		t.Fatal(err)
	}
	b.acked(t, 0, 40)
	for i := range int64(13) {
		if n := b.times(i); n != 1 {
			t.Errorf("offset %d was handed out %d times though it was acknowledged", i, n)
		}
	}
}

// cutAndReopen breaks every connection and waits until a stream was opened anew.
func (b *broker) cutAndReopen(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	before := b.opened
	b.mu.Unlock()
	b.cut()
	if err := b.wait(patience(t), func() bool { return b.opened > before }); err != nil {
		t.Fatal(err)
	}
}

func (b *broker) times(offset int64) int32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.office.handed[0][offset]
}

// Acknowledgements that are known to be durable are not sent again.
func TestSavedAcksAreForgotten(t *testing.T) {
	b := subscribing(t, 1, Exclusive)
	b.fill(0, 1, 20)
	s := subscribed(t, b, SubscriptionConfig{})
	for i := range int64(5) {
		receive(t, s, i, 1).Ack()
	}
	if err := s.Save(patience(t)); err != nil {
		t.Fatal(err)
	}
	receive(t, s, 5, 1).Ack()
	if err := s.AckBelow(0, 8); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(patience(t)); err != nil {
		t.Fatal(err)
	}
	b.cutAndReopen(t)
	receive(t, s, 8, 2)
	var last *leveev1.ConsumeRequest
	for _, r := range b.asked() {
		if r.Open != nil {
			last = r
		}
	}
	if fmt.Sprint(last.Acks) != fmt.Sprint([]*leveev1.Range{{From: 5, To: 5}}) || last.AckBelow != 8 {
		t.Errorf("the new stream began with %v", last)
	}
	if last.Open.TopicId == nil || last.Open.Name != s.Name() {
		t.Errorf("the new stream was opened with %v", last.Open)
	}
}

func TestSubscriptionSurvivesCuts(t *testing.T) {
	b := subscribing(t, 2, Shared)
	b.fill(0, 50, 7)
	b.fill(1, 50, 7)
	s := subscribed(t, b, SubscriptionConfig{CreditBytes: 3000, AckEvery: 5})
	seen := map[string]int{}
	for i := 0; len(seen) < 700; i++ {
		d, err := s.Next(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		seen[string(d.Value)]++
		d.Ack()
		if i%97 == 50 {
			b.cut()
		}
	}
	if err := s.Save(patience(t)); err != nil {
		t.Fatal(err)
	}
	b.acked(t, 0, 350)
	b.acked(t, 1, 350)
}

func TestAckDurable(t *testing.T) {
	b := subscribing(t, 1, Shared)
	b.fill(0, 1, 100)
	b.office.holdSaves = true
	s := subscribed(t, b, SubscriptionConfig{AckDelay: time.Hour})
	var wg sync.WaitGroup
	var done atomic.Int32
	for i := range int64(50) {
		d := receive(t, s, i, 1)
		wg.Go(func() {
			if err := d.AckDurable(patience(t)); err != nil {
				t.Error(err)
			}
			done.Add(1)
		})
	}
	b.acked(t, 0, 1)
	if n := done.Load(); n != 0 {
		t.Errorf("%d are durable before the broker said so", n)
	}
	b.cut() // asked again on the next stream
	b.set(func() { b.office.holdSaves = false })
	wg.Wait()
	b.acked(t, 0, 50)
	saves := 0
	for _, r := range b.asked() {
		if r.Save != 0 {
			saves++
		}
	}
	if saves > 40 {
		t.Errorf("%d requests to save for 50 that wait at the same time", saves)
	}
	b.set(func() { b.office.saveFailed = final(KindNoSpace) })
	if err := receiveAny(t, s).AckDurable(patience(t)); KindOf(err) != KindNoSpace {
		t.Errorf("%v", err)
	}
	b.set(func() { b.office.holdSaves = true })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := s.Save(ctx); KindOf(err) != KindTimeout {
		t.Errorf("%v", err)
	}
}

func receiveAny(t testing.TB, s *Subscription) *Delivery {
	t.Helper()
	d, err := s.Next(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAckBelow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := subscribing(t, 1, Failover)
		b.fill(0, 1, 20)
		s := subscribed(t, b, SubscriptionConfig{HeartbeatEvery: time.Second})
		first := receive(t, s, 0, 1)
		for i := range int64(9) {
			receive(t, s, i+1, 1)
		}
		if err := s.AckBelow(0, 5); err != nil {
			t.Fatal(err)
		}
		if err := s.AckBelow(0, 10); err != nil {
			t.Fatal(err)
		}
		first.Ack()
		time.Sleep(20 * time.Millisecond)
		b.acked(t, 0, 10)
		for i := range int64(10) {
			receive(t, s, i+10, 1)
		}
		if err := s.AckBelow(0, 20); err != nil {
			t.Fatal(err)
		}
		b.acked(t, 0, 20)
		b.set(func() { b.office.requests = nil })
		time.Sleep(10 * time.Second)
		if got := b.asked(); len(got) != 0 {
			t.Errorf("with everything acknowledged it still says %v", got)
		}
		if err := s.AckBelow(1, 5); KindOf(err) != KindInvalidArgument {
			t.Errorf("%v", err)
		}
		if err := s.AckBelow(0, -5); KindOf(err) != KindInvalidArgument {
			t.Errorf("%v", err)
		}
	})
	b := subscribing(t, 1, Shared)
	if err := subscribed(t, b, SubscriptionConfig{}).AckBelow(0, 5); KindOf(err) != KindInvalidArgument {
		t.Errorf("%v", err)
	}
}

// Whoever is taken over from does not come back.
func TestTakeOverIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := subscribing(t, 1, Exclusive)
		b.fill(0, 1, 10)
		old := subscribed(t, b, SubscriptionConfig{Name: "me"})
		d := receive(t, old, 0, 1)
		young := subscribed(t, b, SubscriptionConfig{Name: "me"})
		synctest.Wait()
		if _, err := old.Next(t.Context()); KindOf(err) != KindFenced {
			t.Errorf("the old one: %v", err)
		}
		if err := d.AckDurable(t.Context()); KindOf(err) != KindFenced {
			t.Errorf("the old one's acknowledgement: %v", err)
		}
		d.Ack()
		if err := old.AckBelow(0, 1); KindOf(err) != KindFenced {
			t.Errorf("the old one's acknowledgement: %v", err)
		}
		if err := old.Close(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		receive(t, young, 0, 2)
		if opened := b.opened; opened != 2 {
			t.Errorf("%d streams", opened)
		}
	})
}

func TestSubscribeFails(t *testing.T) {
	for kind, err := range map[string]error{
		KindNotFound: notFound(KindNotFound), KindConflict: refusal(codes.Aborted, KindConflict, true), KindTrimmed: refusal(codes.OutOfRange, KindTrimmed, false),
	} {
		b := subscribing(t, 1, Exclusive)
		b.office.refuse = err
		if _, err := b.dial().Subscribe(patience(t), "orders", "mail", SubscriptionConfig{}); KindOf(err) != kind {
			t.Errorf("%v, want kind %s", err, kind)
		}
	}
	inBubble(t, func(t *testing.T) {
		b := subscribing(t, 1, Exclusive)
		b.office.refuse = refusal(codes.Unavailable, KindUnavailable, true)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if _, err := b.dial().Subscribe(ctx, "orders", "mail", SubscriptionConfig{}); KindOf(err) != KindTimeout || !strings.Contains(err.Error(), "scripted") {
			t.Errorf("%v", err)
		}
	})
	b := subscribing(t, 1, Exclusive)
	for name, c := range map[string]SubscriptionConfig{
		"partition": {Partitions: []int32{-1}}, "twice": {Partitions: []int32{1, 1}}, "filter": {KeyFilters: []string{"["}}, "window": {WindowMessages: -1},
		"credit": {CreditBytes: -1}, "every": {AckEvery: -1}, "delay": {AckDelay: -1},
	} {
		if _, err := b.dial().Subscribe(patience(t), "orders", "mail", c); KindOf(err) != KindInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := b.dial()
	_ = c.Close()
	if _, err := c.Subscribe(patience(t), "orders", "mail", SubscriptionConfig{}); KindOf(err) != KindCanceled {
		t.Errorf("%v", err)
	}
}

func TestSubscriptionEnds(t *testing.T) {
	for kind, resp := range map[string]*leveev1.ConsumeResponse{
		KindTrimmed: {Trimmed: &leveev1.Trimmed{Requested: 3, Oldest: 7}}, KindDeleted: {Ended: final(KindDeleted)},
	} {
		b := subscribing(t, 1, Shared)
		b.office.news = []*leveev1.ConsumeResponse{resp}
		s := subscribed(t, b, SubscriptionConfig{})
		_, err := s.Next(patience(t))
		var e *Error
		if KindOf(err) != kind || kind == KindTrimmed && (!errors.As(err, &e) || e.Details["requested"] != "3" || e.Details["oldest"] != "7") {
			t.Errorf("%s: %v", kind, err)
		}
		if err := s.Save(patience(t)); KindOf(err) != kind {
			t.Errorf("%s: save: %v", kind, err)
		}
		if err := s.Flush(patience(t)); KindOf(err) != kind {
			t.Errorf("%s: flush: %v", kind, err)
		}
	}
	b := subscribing(t, 1, Shared)
	b.office.news = []*leveev1.ConsumeResponse{{Ended: retriable(KindUnavailable)}}
	b.fill(0, 1, 1)
	receive(t, subscribed(t, b, SubscriptionConfig{}), 0, 1) // draining: it came back
}

func TestSubscriptionNews(t *testing.T) {
	b := subscribing(t, 1, Failover)
	var got []string
	note := func(what string) func(int32, int64, int64) {
		return func(p int32, from, to int64) { got = append(got, fmt.Sprintf("%s %d %d %d", what, p, from, to)) }
	}
	config := SubscriptionConfig{Name: "b", OnLost: note("lost"), OnSkipped: note("skipped"), OnActive: func(p int32, active bool) {
		got = append(got, fmt.Sprintf("active %d %t", p, active))
	}}
	b.office.news = []*leveev1.ConsumeResponse{{Lost: &leveev1.Range{From: 1, To: 2}}, {Skipped: &leveev1.Range{From: 3, To: 4}}}
	s := subscribed(t, b, config)
	b.fill(0, 1, 1)
	receive(t, s, 0, 1)
	other := subscribed(t, b, SubscriptionConfig{Name: "a"}) // goes first by name
	if err := b.wait(patience(t), func() bool { return !b.office.members[0].told }); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(patience(t)); err != nil {
		t.Fatal(err)
	}
	b.fill(0, 1, 1)
	receive(t, s, 1, 1)
	want := []string{"active 0 true", "lost 0 1 2", "skipped 0 3 4", "active 0 false", "active 0 true"}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestSubscriptionClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := subscribing(t, 2, Shared)
		b.fill(0, 1, 10)
		s := subscribed(t, b, SubscriptionConfig{AckDelay: time.Hour})
		for i := range int64(5) {
			receive(t, s, i, 1).Ack()
		}
		saved := make(chan error, 1)
		late := receive(t, s, 5, 1)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(b.office.settled[0]); n != 5 {
			t.Errorf("%d of 5 acknowledgements arrived", n)
		}
		if n := len(b.office.members); n != 0 {
			t.Errorf("%d streams are open", n)
		}
		if _, err := s.Next(t.Context()); KindOf(err) != KindCanceled {
			t.Errorf("%v", err)
		}
		late.Ack()
		go func() { saved <- late.AckDurable(t.Context()) }()
		if err := <-saved; KindOf(err) != KindCanceled {
			t.Errorf("%v", err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("closed again: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // the broker is away
		b := subscribing(t, 1, Shared)
		b.fill(0, 1, 10)
		s := subscribed(t, b, SubscriptionConfig{AckDelay: time.Hour})
		receive(t, s, 0, 1)
		d := receive(t, s, 1, 1)
		b.set(func() { b.office.refuse = refusal(codes.Unavailable, KindUnavailable, true) })
		b.cut()
		synctest.Wait()
		d.Ack()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := s.Close(ctx); KindOf(err) != KindTimeout || !strings.Contains(err.Error(), "not sent") || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

func TestSubscriptionOfNonReliableTopic(t *testing.T) {
	b := subscribing(t, 1, Shared)
	b.unreliable = true
	b.fill(0, 1, 10)
	s := subscribed(t, b, SubscriptionConfig{})
	for i := range int64(5) {
		receive(t, s, i, 1).Ack()
	}
	b.cut() // the other five are here, and nobody has them
	for i := range int64(5) {
		d := receive(t, s, i+5, 1)
		d.Nack(nil)
		if err := d.AckDurable(patience(t)); err != nil {
			t.Error(err)
		}
	}
	for _, r := range b.asked() {
		if len(r.Acks)+len(r.Nacks) > 0 || r.Save != 0 || r.Heartbeat {
			t.Errorf("sent %v", r)
		}
	}
}

func TestSubscriptionOfWrongBatches(t *testing.T) {
	builder := record.NewBuilder(record.None)
	_ = builder.Append(record.Record{Value: []byte("v"), Timestamp: 1})
	batch, _ := builder.Build(record.NoProducer)
	record.SetPlacement(batch, 5, 1)
	broken := slices.Clone(batch)
	broken[len(broken)-1]++
	for name, c := range map[string]struct {
		d    *leveev1.Delivered
		kind string
	}{
		"corrupt":      {&leveev1.Delivered{Batches: broken, Offsets: []*leveev1.Range{{From: 5, To: 5}}}, KindCorrupt},
		"cut":          {&leveev1.Delivered{Batches: batch[:30], Offsets: []*leveev1.Range{{From: 5, To: 5}}}, KindCorrupt},
		"not sent":     {&leveev1.Delivered{Batches: batch, Offsets: []*leveev1.Range{{From: 5, To: 6}}}, KindInternal},
		"sent too few": {&leveev1.Delivered{Offsets: []*leveev1.Range{{From: 5, To: 6}}}, KindInternal},
	} {
		b := subscribing(t, 1, Shared)
		b.office.news = []*leveev1.ConsumeResponse{{Delivered: c.d}}
		if _, err := subscribed(t, b, SubscriptionConfig{}).Next(patience(t)); KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeliverAt(t *testing.T) {
	h := DeliverAt(time.UnixMilli(1234567890123))
	if h.Key != "levee-deliver-at" || string(h.Value) != "1234567890123" {
		t.Errorf("%s: %s", h.Key, h.Value)
	}
	synctest.Test(t, func(t *testing.T) {
		if h := DeliverAfter(time.Minute); string(h.Value) != fmt.Sprint(time.Now().UnixMilli()+60_000) {
			t.Errorf("%s", h.Value)
		}
	})
}
