// Workqueue hands jobs out to workers through a shared subscription: each job goes to one worker, comes back when it
// fails, and becomes a dead letter when it fails too often. It owns the topic "jobs" and never keeps anything itself.
// Its invariant: each job is done at least once, or is a dead letter.
//
// Start a broker (levee server), then: go run ./examples/workqueue
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
)

func main() {
	addr := flag.String("addr", "localhost:6650", "the broker")
	flag.Parse()
	c, err := client.Dial(*addr)
	if err != nil {
		log.Fatal(err)
	}
	err = errors.Join(run(context.Background(), c, os.Stdout), c.Close())
	if err != nil {
		log.Fatal(err)
	}
}

const jobs = 100

// run publishes jobs, works them off, and says what became of them.
func run(ctx context.Context, c *client.Client, out io.Writer) error {
	if err := prepare(ctx, c); err != nil {
		return err
	}
	s, err := c.Subscribe(ctx, "jobs", "workers", client.SubscriptionConfig{})
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	var done, tries atomic.Int64
	err = s.Run(working, 4, func(_ context.Context, d *client.Delivery) error {
		tries.Add(1)
		switch job := string(d.Value); {
		case job == "job 13":
			return client.Reject("thirteen is never done")
		case d.Offset%10 == 0 && d.Deliveries == 1:
			return fmt.Errorf("%s: the machine was busy: %w", job, client.Retry(10*time.Millisecond))
		}
		if done.Add(1) == jobs-1 {
			stop()
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d jobs done in %d tries\n", done.Load(), tries.Load())
	if err := s.Close(ctx); err != nil {
		return err
	}
	return deadLetters(ctx, c, out)
}

// prepare makes the topic and its subscription, and publishes jobs.
func prepare(ctx context.Context, c *client.Client) error {
	admin := c.Admin()
	if _, err := admin.CreateTopic(ctx, client.TopicSpec{Name: "jobs"}); err != nil && client.KindOf(err) != client.KindAlreadyExists {
		return err
	}
	_, err := admin.CreateSubscription(ctx, client.SubscriptionSpec{
		Topic: "jobs", Name: "workers", Type: client.Shared,
		Settings: client.SubscriptionSettings{MaxDeliveries: new(int32(3)), RedeliveryDelay: new(20 * time.Millisecond)},
	})
	if err != nil && client.KindOf(err) != client.KindAlreadyExists {
		return err
	}
	p, err := c.NewProducer(ctx, "jobs", client.ProducerConfig{Idempotent: true})
	if err != nil {
		return err
	}
	for i := range jobs {
		p.Publish(ctx, record.Record{Value: fmt.Appendf(nil, "job %d", i)}, nil)
	}
	return p.Close(ctx)
}

// deadLetters prints what was given up, and gives it up for good. A job that failed last may still wait for its next try:
// another consumer sees to it.
func deadLetters(ctx context.Context, c *client.Client, out io.Writer) error {
	s, err := c.Subscribe(ctx, "jobs", "workers", client.SubscriptionConfig{})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = s.Run(waiting, 1, func(context.Context, *client.Delivery) error { return client.Reject("thirteen is never done") })
	if err := errors.Join(err, s.Close(ctx)); err != nil {
		return err
	}
	for d, err := range c.Admin().DeadLetters(ctx, "jobs", "workers", 0) {
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s was given up after %d tries\n", d.Record.Value, d.Deliveries)
	}
	_, err = c.Admin().PurgeDeadLetters(ctx, "jobs", "workers")
	return err
}
