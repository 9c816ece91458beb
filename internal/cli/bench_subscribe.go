package cli

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/client"
)

type benchSubscribeCmd struct {
	Topic     string   `arg:"" placeholder:"TOPIC" help:"The topic."`
	Consumers int      `default:"1" placeholder:"N" help:"How many consume the subscription side by side."`
	Type      string   `placeholder:"exclusive|shared|failover|key_shared" enum:"exclusive,shared,failover,key_shared" default:"shared" help:"Type of the subscription."`
	AckEach   bool     `help:"Acknowledge each record by itself instead of a batch at a time."`
	Duration  duration `default:"5s" placeholder:"D" help:"How long to measure at most."`
}

// Help describes the command.
func (benchSubscribeCmd) Help() string {
	return manual{
		text: "It makes a subscription of its own at the oldest record, and removes it at the end. The consumers share what there was at " +
			"the beginning and acknowledge it; the benchmark ends when all of it has come or the time is up. Every record is decoded. " +
			"Latency is the wait for a batch. CPU and memory are this process's, not the broker's.",
		example: "levee bench publish bench --batch 256 --in-flight 8\nlevee bench subscribe bench --consumers 4 --ack-each",
		rows:    "one object", row: benchJSON{},
	}.String()
}

// Run measures.
func (c *benchSubscribeCmd) Run(a *app) (err error) {
	switch {
	case c.Consumers < 1 || c.Consumers > 10_000:
		return usagef("--consumers is %d: it is 1 to 10000", c.Consumers)
	case c.Duration <= 0:
		return usagef("--duration is %s: it is more than nothing", c.Duration)
	case c.Consumers > 1 && c.Type == string(client.Exclusive):
		return usagef("--consumers is %d: an exclusive subscription has one", c.Consumers)
	}
	conns, err := a.connections(c.Consumers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(conns)) }()
	name := fmt.Sprintf("bench-%d", time.Now().UnixNano())
	ctx, cancel := context.WithTimeout(a.ctx, callTimeout)
	info, err := conns[0].Admin().CreateSubscription(ctx, client.SubscriptionSpec{Topic: c.Topic, Name: name, Type: client.SubscriptionType(c.Type)})
	cancel()
	if err != nil {
		return onTopic(c.Topic, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), callTimeout)
		defer cancel()
		err = errors.Join(err, conns[0].Admin().DeleteSubscription(ctx, c.Topic, name))
	}()
	var left atomic.Int64 // that all consumers together have still to get
	for _, p := range info.Parts {
		left.Add(p.Backlog)
	}
	over, end := context.WithCancel(a.ctx)
	defer end()
	if left.Load() <= 0 {
		end()
	}
	settings := settingsJSON{Topic: c.Topic, Consumers: c.Consumers, Duration: c.Duration.String(), Type: c.Type, AckEach: c.AckEach}
	run := load{a: a, name: "subscribe", duration: time.Duration(c.Duration), settings: settings, workers: c.Consumers}
	run.work = func(stop context.Context, i int, t *tally) error {
		stop, cancel := context.WithCancel(stop)
		defer cancel()
		defer context.AfterFunc(over, cancel)()
		return onTopic(c.Topic, c.consume(stop, conns[i%len(conns)], name, t, func(n int) {
			if left.Add(-int64(n)) <= 0 {
				end()
			}
		}))
	}
	return a.reportBench(run.run())
}

// consume consumes until stop is done, telling got how many records came.
func (c *benchSubscribeCmd) consume(stop context.Context, conn *client.Client, name string, t *tally, got func(int)) error {
	s, err := conn.Subscribe(stop, c.Topic, name, client.SubscriptionConfig{CreditBytes: 16 << 20})
	if err != nil {
		return ignoreEnd(stop, err)
	}
	for {
		start := time.Now()
		batch, err := s.NextBatch(stop)
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(stop), callTimeout)
			defer cancel()
			return errors.Join(ignoreEnd(stop, err), s.Close(ctx))
		}
		took, bytes := time.Since(start), 0
		for i := range batch {
			bytes += len(batch[i].Value)
			if c.AckEach {
				batch[i].Ack()
			}
		}
		if !c.AckEach {
			client.AckBatch(batch)
		}
		t.done(int64(len(batch)), int64(bytes), took)
		got(len(batch))
	}
}
