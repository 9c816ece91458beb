package subscriptions

import (
	"fmt"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

const (
	// saved is how old an acknowledgement may be at a crash and not be durable: cursors that change are saved every
	// second, which itself takes a moment.
	saved = 1500 * time.Millisecond
	// onTheWay is how old an acknowledgement may be and not have reached the broker: clients collect them for a moment.
	onTheWay = 250 * time.Millisecond
	// over is how long who was active goes on with what it had been handed before another one came back.
	over = 300 * time.Millisecond
)

// TestBrokerKilled kills the broker while consumers acknowledge, again and again: all is acknowledged once at least, what
// was acknowledged durably never comes again, and of the rest what was acknowledged within the last second or so.
func TestBrokerKilled(t *testing.T) {
	for _, typ := range types {
		t.Run(string(typ), func(t *testing.T) { endBrokers(t, typ, true, 0, faults.Amount(3, 1, 40)) })
		t.Run(string(typ)+" and durable", func(t *testing.T) { endBrokers(t, typ, true, 50, faults.Amount(4, 1, 100)) })
	}
}

// TestBrokerStopped is the contrast: what the broker has been told before it is asked to stop never comes again.
func TestBrokerStopped(t *testing.T) {
	for _, typ := range types {
		t.Run(string(typ), func(t *testing.T) { endBrokers(t, typ, false, 50, faults.Amount(3, 1, 50)) })
	}
}

func endBrokers(t *testing.T, typ client.SubscriptionType, crash bool, durably, times int) {
	r := newRig(t, proc.Options{})
	r.watch()
	const topic = "acks"
	r.topic(topic, 2)
	r.subscription(topic, "s", typ, client.SubscriptionSettings{})
	l := newLedger()
	defer l.keep(t, r.keep)
	crowd := 3
	if typ == client.Exclusive {
		crowd = 1
	}
	members := make([]*member, crowd)
	for i := range members {
		m := manner{part: 16, durable: durably}
		m.Name, m.Priority = fmt.Sprint("member", i), int32(i)
		members[i] = r.join(l, topic, "s", int32(i), m)
	}
	publishers := r.publish(l, topic, 4, work{size: 100, pace: 30})
	costs := saved
	if !crash {
		costs = onTheWay
	}
	for range times {
		faults.Await(t, l.after(500+r.rng.IntN(5000)), "acknowledgements")
		if durably == 0 { // so that some have been saved without a word from anybody
			r.within(2500 * time.Millisecond)
		}
		began := time.Now()
		r.down(crash)
		r.start()
		r.present(topic, "s", crowd) // until all are back, the active one of a failover subscription changes
		l.strike(blow{at: began.UnixNano(), over: time.Now().Add(over + r.slack()).UnixNano(), who: everybody, costs: costs + r.slack()})
	}
	publishers.stop()
	r.await("acknowledged as a whole", l.settled)
	r.exact(topic, "s")
	for _, m := range members {
		m.leave()
	}
	r.exact(topic, "s")
	v := l.judge(t, promiseOf(typ))
	if durably > 0 && v.Durable == 0 {
		t.Error("nothing was acknowledged durably")
	}
	t.Logf("%s: %v; the slowest start took %v, the machine was at most %v late", typ, v, r.took.Round(time.Millisecond),
		time.Duration(r.stall.worst.Load()).Round(time.Millisecond))
	r.finish()
}
