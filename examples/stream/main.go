// Stream keeps a running total with a failover subscription: one consumer is active, another takes over where it was. It
// owns the topic "payments" and never acknowledges a payment before its total is printed: none is missed.
//
// Start a broker (levee server), then, in two terminals: go run ./examples/stream. Stop the one that prints.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"

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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err = publish(ctx, c, 20)
	if err == nil {
		err = follow(ctx, c, -1, os.Stdout)
	}
	if err := errors.Join(err, c.Close()); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// publish makes the topic and publishes n payments of 1 to n.
func publish(ctx context.Context, c *client.Client, n int) error {
	if _, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: "payments"}); err != nil && client.KindOf(err) != client.KindAlreadyExists {
		return err
	}
	p, err := c.NewProducer(ctx, "payments", client.ProducerConfig{Idempotent: true})
	if err != nil {
		return err
	}
	for i := range n {
		p.Publish(ctx, record.Record{Value: strconv.AppendInt(nil, int64(i+1), 10)}, nil)
	}
	return p.Close(ctx)
}

// follow prints the total after each payment, of most of them (-1: all there will be).
func follow(ctx context.Context, c *client.Client, most int, out io.Writer) error {
	s, err := c.Subscribe(ctx, "payments", "totals", client.SubscriptionConfig{
		Create: true, Type: client.Failover,
		OnActive: func(partition int32, active bool) { fmt.Fprintf(out, "partition %d: active: %t\n", partition, active) },
	})
	if err != nil {
		return err
	}
	total := 0
	for ; most != 0; most-- {
		d, err := s.Next(ctx)
		if err != nil {
			return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
		}
		amount, err := strconv.Atoi(string(d.Value))
		if err != nil {
			return errors.Join(err, s.Close(ctx))
		}
		total += amount
		fmt.Fprintf(out, "payment %d: total %d\n", d.Offset, total)
		if err := d.AckDurable(ctx); err != nil {
			return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
		}
	}
	return s.Close(ctx)
}
