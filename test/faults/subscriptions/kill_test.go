package subscriptions

import (
	"fmt"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

var types = []client.SubscriptionType{client.Exclusive, client.Shared, client.Failover, client.KeyShared}

// TestConsumersKilled kills consumer processes that acknowledge in batches, again and again, while publishers go on: all
// that was published is acknowledged by a consumer, in the order that the type promises, and what comes twice is what the
// dead one had in flight, and what it had not told the broker yet.
func TestConsumersKilled(t *testing.T) {
	for _, typ := range types {
		t.Run(string(typ), func(t *testing.T) { killConsumers(t, typ) })
	}
}

func killConsumers(t *testing.T, typ client.SubscriptionType) {
	r := newRig(t, proc.Options{})
	r.watch()
	const topic, ackDelay = "killed", 10 * time.Millisecond
	r.topic(topic, 2)
	r.subscription(topic, "s", typ, client.SubscriptionSettings{})
	l := newLedger()
	defer l.keep(t, r.keep)
	spec := childSpec{Addr: r.broker.GRPC, Topic: topic, Subscription: "s", Ack: 16, AckEvery: 64, AckDelay: ackDelay}
	crowd := 3
	if typ == client.Exclusive {
		crowd = 1 // and whoever comes next has its name
	}
	next := func(i int) *child {
		spec.Who++
		spec.Name = fmt.Sprint("consumer", i)
		if typ == client.Failover {
			spec.Name = fmt.Sprintf("consumer%05d", spec.Who) // the oldest is active
		}
		return r.spawn(l, spec)
	}
	children := make([]*child, crowd)
	for i := range children {
		children[i] = next(i)
		r.present(topic, "s", i+1) // one after another: who comes first is active
	}
	publishers := r.publish(l, topic, 4, work{size: 100})
	kills := faults.Amount(12, 3, 250)
	for range kills {
		faults.Await(t, l.after(1+r.rng.IntN(1500)), "acknowledgements")
		i := r.rng.IntN(crowd)
		if typ == client.Failover {
			i = oldest(children)
		}
		began := time.Now()
		children[i].end(true)
		l.strike(blow{at: began.UnixNano(), over: time.Now().UnixNano(), who: children[i].spec.Who, costs: ackDelay + 500*time.Millisecond + r.slack()})
		children[i] = next(i)
	}
	publishers.stop()
	r.await("acknowledged as a whole", l.settled)
	r.exact(topic, "s")
	for _, c := range children {
		c.end(false)
	}
	v := l.judge(t, promiseOf(typ))
	// At a kill the dead one held at most its window in each partition, and had acknowledged and not said at most what
	// fits into a few messages.
	if most := kills * 2 * 200; v.InFlight+v.Lost > most {
		t.Errorf("%d records came again after %d kills: more than consumers may hold", v.InFlight+v.Lost, kills)
	}
	if v.InFlight+v.Lost == 0 {
		t.Error("no kill has cut anything off")
	}
	t.Logf("%s: %v; the machine was at most %v late", typ, v, time.Duration(r.stall.worst.Load()).Round(time.Millisecond))
	r.finish()
}

// oldest returns which child came first: the active one of a failover subscription.
func oldest(children []*child) (at int) {
	for i, c := range children {
		if c.spec.Who < children[at].spec.Who {
			at = i
		}
	}
	return at
}
