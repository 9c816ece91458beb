package danube

import (
	"fmt"
	"slices"
	"testing"
	"time"

	admin "github.com/leveemq/levee/api/danube/admin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A broker that crashed, and was away for longer than a client makes health checks, is the worst there is for a Danube
// client: nobody asks any more whether it has to subscribe again, and it never does. Its messages come all the same.
func TestCrashUnderClientsThatNeverAskAgain(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	parts := r.producer(ProducerConfig{Topic: "/default/parts", Name: "p", Reliable: true, Partitions: 3})
	fast := r.producer(ProducerConfig{Topic: "/default/fast", Name: "p"})
	one := r.consumer("/default/t", "c", exclusive)
	many := r.consumer("/default/parts", "c", shared)
	keyed := r.consumerOf(ConsumerConfig{Topic: "/default/t", Name: "k", Subscription: "keyed", Type: keyShared})
	passing := r.consumer("/default/fast", "c", shared)
	r.send(p, "m", 10)
	r.send(parts, "m", 9)
	r.send(fast, "m", 1)
	r.take(one, 5)
	r.take(many, 9)
	r.take(keyed, 10)
	r.take(passing, 1)
	id, ids := p.ID(0), []uint64{one.ID("/default/t"), keyed.ID("/default/t"), passing.ID("/default/fast")}

	r.door.Lead("")
	r.Kill()
	r.outage()
	r.start()

	r.send(p, "n", 10)
	r.send(parts, "n", 9)
	// Acknowledged but not saved when it crashed, or delivered and not acknowledged: those come again.
	for want := numbers("n", 10); len(want) > 0; {
		got := r.take(one, 1)[0]
		want = slices.DeleteFunc(want, func(s string) bool { return s == got })
	}
	for want := numbers("n", 9); len(want) > 0; {
		got := r.take(many, 1)[0]
		want = slices.DeleteFunc(want, func(s string) bool { return s == got })
	}
	for want := numbers("n", 10); len(want) > 0; {
		got := r.take(keyed, 1)[0]
		want = slices.DeleteFunc(want, func(s string) bool { return s == got })
	}
	r.untilDelivered(fast, passing)
	if p.ID(0) != id || !slices.Equal(ids, []uint64{one.ID("/default/t"), keyed.ID("/default/t"), passing.ID("/default/fast")}) {
		t.Error("a client announced itself again, so that this test shows nothing")
	}
}

// outage waits until the clients' health checks have failed, which ends them.
func (r *rig) outage() {
	r.t.Helper()
	ended := make(chan struct{})
	go func() {
		r.client.checks.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-r.ctx.Done():
		r.t.Fatal("the health checks do not end")
	}
}

// Clients whose health checks go on are told to announce themselves again.
func TestCrashUnderClientsThatAsk(t *testing.T) {
	r := newRig(t, nil)
	r.client.HealthEvery = time.Second
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	c := r.consumer("/default/t", "c", exclusive)
	r.send(p, "m", 1)
	r.take(c, 1)
	r.crash()
	for i := range 20 {
		r.send(p, fmt.Sprint("n", i, "-"), 1)
	}
	want := map[string]bool{}
	for i := range 20 {
		want[fmt.Sprint("n", i, "-0")] = true
	}
	for len(want) > 0 {
		delete(want, r.take(c, 1)[0])
	}
}

// A stop in good order ends streams with UNAVAILABLE, which the client would notice if it were a clean end.
func TestStopAndStart(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	c := r.consumer("/default/t", "c", exclusive)
	r.send(p, "m", 10)
	r.take(c, 10)
	r.Terminate()
	r.door.Lead("")
	if code := r.Wait(); code != 0 {
		t.Fatalf("the broker stopped with %d", code)
	}
	r.start()
	r.send(p, "n", 10)
	if got := r.take(c, 10); !slices.Equal(sorted(got), numbers("n", 10)) { // what was acknowledged was saved
		t.Errorf("got %v", got)
	}
}

func TestTopicDeletedUnderConsumer(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	c := r.consumer("/default/t", "c", exclusive)
	r.send(p, "m", 1)
	r.take(c, 1)
	if _, err := r.topics().DeleteTopic(r.ctx, &admin.TopicRequest{Name: "/default/t"}); err != nil {
		t.Fatal(err)
	}
	if err := r.ended(c); status.Code(err) != codes.NotFound {
		t.Errorf("the consumer ended with %v", err)
	}
	r.send(p, "n", 1) // makes the topic again
	again := r.consumer("/default/t", "c", exclusive)
	r.send(p, "o", 1)
	if m := r.next(again); string(m.Payload) != "o0" || m.MsgId.TopicOffset != 1 {
		t.Errorf("got %v", m)
	}
}

func TestUnsubscribedAndUnloaded(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	c := r.consumer("/default/t", "c", exclusive)
	r.send(p, "m", 1)
	r.take(c, 1)
	if _, err := r.topics().UnloadTopic(r.ctx, &admin.TopicRequest{Name: "/default/t"}); err != nil {
		t.Fatal(err)
	}
	r.send(p, "n", 1)
	for r.take(c, 1)[0] != "n0" { // what was acknowledged just before may come again
	}
	id := c.ID("/default/t")
	if _, err := r.topics().Unsubscribe(r.ctx, &admin.SubscriptionRequest{Topic: "/default/t", Subscription: "sub"}); err != nil {
		t.Fatal(err)
	}
	r.untilDelivered(p, c) // told to look again, it subscribes anew
	if again := c.ID("/default/t"); again != id {
		t.Errorf("its id changed from %d to %d", id, again)
	}
}

// Two clients with one name do not both get messages, and the one that lost does not spoil it for the other.
func TestTakeover(t *testing.T) {
	r := newRig(t, nil)
	p := r.producer(ProducerConfig{Topic: "/default/t", Name: "p", Reliable: true})
	first := r.consumer("/default/t", "c", exclusive)
	r.send(p, "m", 1)
	r.take(first, 1)
	first.Close()
	for n := range 5 {
		c := r.consumer("/default/t", "c", exclusive)
		r.send(p, fmt.Sprint("n", n, "-"), 1)
		if got := r.take(c, 1); got[0] != fmt.Sprint("n", n, "-0") {
			t.Errorf("got %v", got)
		}
		c.Close()
	}
}
