package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
)

func Example() {
	c, err := client.Dial("localhost:6650")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()

	if _, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: "orders", Partitions: 3}); err != nil &&
		client.KindOf(err) != client.KindAlreadyExists {
		log.Fatal(err)
	}
	p, err := c.NewProducer(ctx, "orders", client.ProducerConfig{Idempotent: true, Compression: record.Zstd})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)
	ack, err := p.PublishSync(ctx, record.Record{Key: []byte("customer-7"), Value: []byte("two of them")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored at", ack.Partition, ack.Offset)
}

// Many records at once: publish without waiting, and look at each answer when it comes.
func ExampleProducer_Publish() {
	var p *client.Producer // from Client.NewProducer
	ctx := context.Background()
	for i := range 1000 {
		r := record.Record{Value: fmt.Appendf(nil, "reading %d", i)}
		p.Publish(ctx, r, func(ack client.Ack, err error) {
			if err != nil {
				log.Printf("reading %d is not stored: %v", i, err)
			}
		})
	}
	if err := p.Flush(ctx); err != nil {
		log.Fatal(err)
	}
}

// Reading everything from an hour ago on.
func ExampleConsumer_All() {
	var c *client.Client // from Dial
	ctx := context.Background()
	consumer, err := c.Consume(ctx, "orders", client.ConsumerConfig{From: client.At(time.Now().Add(-time.Hour))})
	if err != nil {
		log.Fatal(err)
	}
	defer consumer.Close()
	for m, err := range consumer.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d/%d %s\n", m.Partition, m.Offset, m.Value)
	}
}

// Going on at the oldest record there is when retention was faster.
func ExampleConsumer_Next() {
	var c *client.Client // from Dial
	ctx := context.Background()
	config := client.ConsumerConfig{From: client.Offset(12345)}
	consumer, err := c.Consume(ctx, "orders", config)
	if client.KindOf(err) == client.KindTrimmed {
		config.From = client.Earliest()
		consumer, err = c.Consume(ctx, "orders", config)
	}
	if err != nil {
		log.Fatal(err)
	}
	defer consumer.Close()
	m, err := consumer.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Offset, string(m.Value))
}

// Work for several processes: each record goes to one of them, and comes back when its handler fails.
func ExampleSubscription_Run() {
	var c *client.Client // from Dial
	ctx := context.Background()
	s, err := c.Subscribe(ctx, "orders", "invoices", client.SubscriptionConfig{Create: true, Type: client.Shared})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(ctx)
	err = s.Run(ctx, 8, func(_ context.Context, d *client.Delivery) error {
		switch {
		case len(d.Value) == 0:
			return client.Reject("an order without items")
		case d.Deliveries > 1:
			log.Printf("order %s once more, for the %d. time", d.Key, d.Deliveries)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// One consumer at a time, in order: an order counts once its invoice and the acknowledgement are both stored.
func ExampleDelivery_AckDurable() {
	var s *client.Subscription // from Client.Subscribe, of type failover
	ctx := context.Background()
	for d, err := range s.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("invoice for", string(d.Value))
		if err := d.AckDurable(ctx); err != nil {
			log.Fatal(err)
		}
	}
}
