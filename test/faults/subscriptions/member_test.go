package subscriptions

import (
	"context"
	"sync"
	"time"

	"github.com/leveemq/levee/client"
)

// manner is how a consumer in this process goes about it.
type manner struct {
	client.SubscriptionConfig
	part    int // acknowledges so many at a time; 0: all of a batch
	durable int // waits for the broker's disk with every so manieth record; 0: never
	nack    int // gives back every so manieth record, the first time; 0: never
}

// member is a consumer in this process. Unlike a process of its own it outlives brokers.
type member struct {
	who    int32
	r      *rig
	l      *ledger
	m      manner
	client *client.Client
	sub    *client.Subscription
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once
	first  chan struct{} // closed when it was handed something
}

// join starts a consumer. The test's end closes it at the latest.
func (r *rig) join(l *ledger, topic, name string, who int32, m manner) *member {
	r.t.Helper()
	c := &member{who: who, r: r, l: l, m: m, client: r.place.Client(r.t), done: make(chan struct{}), first: make(chan struct{})}
	var err error
	if c.sub, err = c.client.Subscribe(r.ctx, topic, name, m.SubscriptionConfig); err != nil {
		r.t.Fatal(err)
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(r.ctx)
	go func() {
		defer close(c.done)
		c.run(ctx)
	}()
	r.t.Cleanup(func() { c.leave() })
	return c
}

func (c *member) run(ctx context.Context) {
	var saving sync.WaitGroup
	defer saving.Wait()
	for n := 0; ctx.Err() == nil; n++ {
		batch, err := c.sub.NextBatch(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.r.t.Errorf("consumer %d: %v", c.who, err)
			return
		}
		handed := make([]event, len(batch))
		for i := range batch {
			handed[i] = eventOf(&batch[i], given, c.who)
		}
		c.l.note(handed...)
		if n == 0 {
			close(c.first)
		}
		step := c.m.part
		if step == 0 {
			step = len(batch)
		}
		for len(batch) > 0 && ctx.Err() == nil {
			part := batch[:min(step, len(batch))]
			batch = batch[len(part):]
			c.settle(ctx, part, &saving)
		}
	}
}

// settle says what became of some deliveries.
func (c *member) settle(ctx context.Context, part []client.Delivery, saving *sync.WaitGroup) {
	for i := range part {
		d := &part[i]
		e := eventOf(d, acked, c.who)
		switch {
		case c.m.nack > 0 && d.Deliveries == 1 && e.value%uint64(c.m.nack) == 0:
			e.kind = nacked
			c.l.note(e)
			d.Nack(client.Retry(time.Duration(e.value%3) * time.Millisecond))
		case c.m.durable > 0 && e.value%uint64(c.m.durable) == 0:
			c.l.note(e)
			saving.Go(func() {
				if err := d.AckDurable(ctx); err == nil {
					c.l.note(eventOf(d, durable, c.who))
				}
			})
		default:
			c.l.note(e)
			d.Ack()
		}
	}
}

// leave ends the consumer in good order: what it has acknowledged arrives, what it holds goes to others.
func (c *member) leave() {
	c.once.Do(func() {
		began := time.Now().UnixNano()
		c.cancel()
		<-c.done
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = c.sub.Close(ctx) // at a test's end there may be no broker
		_ = c.client.Close()
		c.l.strike(blow{at: began, over: time.Now().UnixNano(), who: c.who})
	})
}
