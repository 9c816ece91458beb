package subscriptions

import (
	"fmt"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// TestMatrix has consumers of every type join and leave, on one partition and on four, and give some records back: all is
// acknowledged in the end, nothing comes twice that was not given back or held by who left, the order is what the type
// promises, and the broker counts nothing in flight.
func TestMatrix(t *testing.T) {
	r := newRig(t, proc.Options{})
	r.watch()
	for _, typ := range types {
		for _, partitions := range []int32{1, 4} {
			t.Run(fmt.Sprintf("%s on %d", typ, partitions), func(t *testing.T) {
				sub := *r
				sub.t = t
				comeAndGo(t, &sub, typ, partitions)
			})
		}
	}
	r.finish()
}

func comeAndGo(t *testing.T, r *rig, typ client.SubscriptionType, partitions int32) {
	topic := fmt.Sprintf("%s-%d", typ, partitions)
	r.topic(topic, partitions)
	r.subscription(topic, "s", typ, client.SubscriptionSettings{})
	l := newLedger()
	defer l.keep(t, r.keep)
	var who int32
	join := func() *member {
		m := manner{part: 32, nack: 37}
		m.Name = fmt.Sprintf("m%05d", who) // the oldest is active
		who++
		return r.join(l, topic, "s", who, m)
	}
	crowd := []*member{join()}
	if typ != client.Exclusive {
		crowd = append(crowd, join(), join())
	}
	publishers := r.publish(l, topic, 3, work{size: 50, pace: 100})
	for range faults.Amount(6, 2, 60) {
		faults.Await(t, l.after(200+r.rng.IntN(2000)), "acknowledgements")
		i := r.rng.IntN(len(crowd))
		if typ == client.Failover {
			i = 0
		}
		if typ != client.Exclusive && len(crowd) < 4 && r.rng.IntN(2) == 0 {
			crowd = append(crowd, join())
			continue
		}
		crowd[i].leave()
		crowd = append(crowd[:i], crowd[i+1:]...)
		if len(crowd) < 2 {
			crowd = append(crowd, join())
		}
	}
	publishers.stop()
	r.await("acknowledged as a whole", l.settled)
	r.exact(topic, "s")
	for _, m := range crowd {
		m.leave()
	}
	r.exact(topic, "s")
	v := l.judge(t, promiseOf(typ))
	if v.Lost > 0 || v.Nacked == 0 {
		t.Errorf("%d records came again after they had been acknowledged, and %d were given back", v.Lost, v.Nacked)
	}
	t.Logf("%s on %d partitions, %d consumers: %v", typ, partitions, who, v)
}
