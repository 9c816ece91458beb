package subscriptions

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	api "github.com/leveemq/levee/api/danube"
	admin "github.com/leveemq/levee/api/danube/admin"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/compat/danube"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

const (
	danubeCrowd      = 3
	danubePublishers = 3
	danubeWindow     = 50 // messages of a partition that a consumer holds at most
)

var danubeTypes = map[client.SubscriptionType]api.ConsumerRequest_SubscriptionType{
	client.Exclusive: api.ConsumerRequest_Exclusive, client.Shared: api.ConsumerRequest_Shared,
	client.Failover: api.ConsumerRequest_Failover, client.KeyShared: api.ConsumerRequest_KeyShared,
}

// TestMatrixDanube has Danube's clients publish and consume with every type, on one partition and on four, kills consumer
// processes amid their work and the broker amid acknowledgements: all is acknowledged in the end, in the order that the
// type promises; what comes twice is what the dead held, or had acknowledged just before the broker's end.
func TestMatrixDanube(t *testing.T) {
	for _, typ := range types {
		for _, partitions := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s on %d", typ, partitions), func(t *testing.T) { killDanube(t, typ, partitions) })
		}
	}
}

// danubes are the Danube clients of one topic.
type danubes struct {
	*rig
	l          *ledger
	door       *danube.Door
	typ        client.SubscriptionType
	partitions int
	topic      string // as Danube has it
	children   map[int32]*child
	who        int32 // the last one's
	kills      int
	crashes    int
}

func killDanube(t *testing.T, typ client.SubscriptionType, partitions int) {
	began := time.Now()
	d := &danubes{
		rig: newRig(t, proc.Options{}), l: newLedger(), door: danube.NewDoor(t), typ: typ, partitions: partitions, topic: "/default/matrix",
		children: map[int32]*child{},
	}
	defer d.l.keep(t, d.keep)
	d.watch()
	d.door.Lead(d.broker.GRPC)
	d.create()
	for i := range danubeCrowd {
		d.join()
		d.present(i + 1) // one after another: who comes first is active
	}
	publishers := d.publish()
	for range faults.Amount(1, 1, 20) {
		for range faults.Amount(2, 0, 4) {
			d.work()
			d.killOne()
		}
		d.work()
		d.rig.within(time.Duration(faults.Amount(1200, 500, 2500)) * time.Millisecond) // some have been saved
		d.crash()
		d.work()
		d.killOne()
	}
	d.work()
	publishers.stop()
	d.await("acknowledged as a whole", d.l.settled)
	d.exact("default/matrix", "s")
	for _, c := range d.children {
		d.alive(c)
		c.end(false)
	}
	d.judge(t, time.Since(began))
	d.finish()
}

// create makes the topic.
func (d *danubes) create() {
	d.t.Helper()
	cl := &danube.Client{Seed: d.door.Addr}
	d.t.Cleanup(cl.Close)
	conn, err := cl.Conn(cl.Seed)
	if err == nil {
		_, err = admin.NewTopicAdminClient(conn).CreatePartitionedTopic(d.ctx, &admin.PartitionedTopicRequest{
			BaseName: d.topic, Partitions: uint32(d.partitions), DispatchStrategy: admin.DispatchStrategy_Reliable,
		})
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// check is a time between health checks: a client that makes them often finds out that the broker is gone, and makes none
// any more; the others are told, as a rule, to subscribe again.
func check(i int32) time.Duration {
	if i%2 == 0 {
		return 50 * time.Millisecond
	}
	return 2 * time.Second
}

// join starts a consumer process.
func (d *danubes) join() {
	d.t.Helper()
	d.who++
	name := fmt.Sprintf("consumer%05d", d.who) // of a failover subscription the oldest is active
	d.children[d.who] = d.spawn(d.l, childSpec{
		Addr: d.door.Addr, Topic: d.topic, Subscription: "s", Name: name, Who: d.who, Ack: 16,
		Danube: &danubeSpec{Type: danubeTypes[d.typ], Check: check(d.who), Nack: 37},
	})
}

// present waits until there are n consumers in every partition, or the one that there may be. Whoever makes the
// subscription finds it unlimited at first.
func (d *danubes) present(n int) {
	d.t.Helper()
	if d.typ == client.Exclusive {
		n = 1
	}
	d.await(fmt.Sprintf("consumed by %d", n), func() bool {
		info, err := d.client.Admin().DescribeSubscription(d.ctx, "default/matrix", "s")
		if err != nil || len(info.Parts) != d.partitions {
			return false
		}
		for _, p := range info.Parts {
			if len(p.Consumers) > 1 && d.typ == client.Exclusive {
				d.t.Fatalf("partition %d has %d consumers: %+v", p.Partition, len(p.Consumers), p.Consumers)
			}
			if len(p.Consumers) != n {
				return false
			}
		}
		return true
	})
}

// publish limits what consumers may hold, and has publishers publish.
func (d *danubes) publish() *flock {
	d.t.Helper()
	f := d.newFlock(d.l, work{size: 100, pace: 8})
	for pub := range int32(danubePublishers) {
		cl := &danube.Client{Seed: d.door.Addr, HealthEvery: check(pub)}
		d.t.Cleanup(cl.Close)
		conn, err := cl.Conn(cl.Seed)
		if err != nil {
			d.t.Fatal(err)
		}
		if _, err := admin.NewTopicAdminClient(conn).SetSubscriptionDispatchConfig(d.ctx, &admin.SetSubscriptionDispatchConfigRequest{
			Topic: d.topic, Subscription: "s", DispatchConfig: &admin.SubscriptionDispatchConfig{MaxUnackedMessages: danubeWindow},
		}); err != nil {
			d.t.Fatal(err)
		}
		cfg := danube.ProducerConfig{Topic: d.topic, Name: fmt.Sprint("publisher", pub), Reliable: true}
		if d.partitions > 1 {
			cfg.Partitions = d.partitions
		}
		p, err := cl.Producer(d.ctx, cfg)
		if err != nil {
			d.t.Fatal(err)
		}
		f.wg.Go(func() {
			defer p.Close()
			f.run(pub, func(key int32, value uint64, payload []byte) {
				m := danube.Message{Payload: payload}
				if d.typ == client.KeyShared && value%10 != 0 {
					m.Key = new(strconv.Itoa(int(key)))
				}
				if err := p.Send(d.ctx, m); err != nil {
					d.t.Errorf("publish: %v", err)
					return
				}
				d.l.note(event{at: time.Now().UnixNano(), kind: accepted, who: pub, value: value})
			})
		})
	}
	return f
}

// work waits until all consumers are there and some more is acknowledged. One that is killed between its Subscribe and its
// ReceiveMessages would keep an exclusive subscription for 20 s.
func (d *danubes) work() {
	d.t.Helper()
	d.present(danubeCrowd)
	faults.Await(d.t, d.l.after(100+d.rng.IntN(faults.Amount(600, 200, 1500))), "acknowledgements")
}

// killOne kills the consumer process that was handed something last, amid its work therefore, and starts another one.
func (d *danubes) killOne() {
	d.t.Helper()
	c := d.children[d.l.busiest()]
	if c == nil {
		d.t.Fatal("whoever was handed something last is not there")
	}
	d.alive(c)
	began := time.Now()
	c.end(true)
	d.l.strike(blow{at: began.UnixNano(), over: time.Now().Add(over + d.slack()).UnixNano(), who: c.spec.Who, costs: onTheWay + d.slack()})
	delete(d.children, c.spec.Who)
	d.kills++
	d.join()
}

// alive checks that a consumer process has not ended by itself.
func (d *danubes) alive(c *child) {
	d.t.Helper()
	select {
	case <-c.read:
		d.t.Errorf("consumer %d has ended by itself", c.spec.Who)
	default:
	}
}

// crash kills the broker and starts it again.
func (d *danubes) crash() {
	d.t.Helper()
	began := time.Now()
	d.door.Lead("")
	d.down(true)
	d.start()
	d.door.Lead(d.broker.GRPC)
	d.present(danubeCrowd)
	d.l.strike(blow{at: began.UnixNano(), over: time.Now().Add(over + d.slack()).UnixNano(), who: everybody, costs: saved + d.slack()})
	d.crashes++
	d.l.mu.Lock()
	d.l.repeats += danubePublishers // each may have been about to be told that one is stored
	d.l.mu.Unlock()
}

func (d *danubes) judge(t *testing.T, took time.Duration) {
	t.Helper()
	order := promiseOf(d.typ)
	switch d.typ {
	case client.Exclusive:
		order = oneAtATime
	case client.Failover:
		order = byTurns
	}
	v := d.l.judge(t, order)
	// At its end a consumer holds its window at most in each partition, and waits for the answer to one acknowledgement. At
	// the broker's end all do; while they come back, what they hold may change hands once more.
	holds := danubeWindow * d.partitions
	if most := (d.kills+2*d.crashes*danubeCrowd)*holds + d.l.moves*danubeWindow; v.Held > most {
		t.Errorf("%d messages came again that had been neither acknowledged nor given back; there may be %d", v.Held, most)
	}
	if v.Cut > d.kills {
		t.Errorf("%d messages came again though they had been acknowledged, without the broker's end; %d consumers were killed", v.Cut, d.kills)
	}
	if v.Held == 0 {
		t.Error("no kill has cut anything off")
	}
	if v.Nacked == 0 {
		t.Error("nothing was given back")
	}
	t.Logf("%s on %d, %d consumers killed, %d brokers; subscribed or told to %d times; %v; %d not given back, %d whose acknowledgement was on its way, %d published twice; the machine was at most %v late; took %v", d.typ, d.partitions,
		d.kills, d.crashes, d.l.moves, v, v.Held, v.Cut, v.Repeated, time.Duration(d.stall.worst.Load()).Round(time.Millisecond), took.Round(time.Millisecond))
}

// busiest returns which consumer was handed something last.
func (l *ledger) busiest() (who int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var at int64
	for i := range l.events {
		if e := &l.events[i]; e.kind == given && e.at > at {
			who, at = e.who, e.at
		}
	}
	return who
}
