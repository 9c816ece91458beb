package main

import (
	"context"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// amqpD is a RabbitMQ quorum queue, with publisher confirms.
type amqpD struct{ ctx context.Context }

func aconn() (*amqp.Connection, *amqp.Channel) {
	c, err := amqp.Dial("amqp://guest:guest@" + *addr + "/")
	must(err)
	ch, err := c.Channel()
	must(err)
	return c, ch
}
func (d *amqpD) declare(ch *amqp.Channel) {
	_, err := ch.QueueDeclare(*stream, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	must(err)
}
func (d *amqpD) setup(ctx context.Context) {
	d.ctx = ctx
	c, ch := aconn()
	if *mode == "pub" {
		ch.QueueDelete(*stream, false, false, false)
	}
	d.declare(ch)
	c.Close()
}
func (d *amqpD) pub() pubFn {
	return func(w int, p []byte, end time.Time, h *hist) (int64, int64) {
		c, ch := aconn()
		defer c.Close()
		must(ch.Confirm(false))
		win := 1
		if *style == "async" {
			win = *window
		}
		conf := ch.NotifyPublish(make(chan amqp.Confirmation, win))
		sem := make(chan time.Time, win)
		var ok, bad atomic.Int64
		go func() {
			for x := range conf {
				t := <-sem
				if x.Ack {
					h.add(time.Since(t))
					ok.Add(1)
				} else {
					bad.Add(1)
				}
			}
		}()
		sent := int64(0)
		for time.Now().Before(end) {
			sem <- time.Now()
			must(ch.PublishWithContext(d.ctx, "", *stream, false, false, amqp.Publishing{DeliveryMode: 2, Body: p}))
			sent++
		}
		for i := 0; i < 10000 && ok.Load()+bad.Load() < sent; i++ {
			time.Sleep(time.Millisecond)
		}
		k, errs := ok.Load(), bad.Load()+(sent-ok.Load()-bad.Load())
		return k, errs
	}
}
func (d *amqpD) consume(want int, h *hist) (int64, time.Duration) {
	c, ch := aconn()
	defer c.Close()
	must(ch.Qos(2000, 0, false))
	m, err := ch.Consume(*stream, "", false, false, false, false, nil)
	must(err)
	var got atomic.Int64
	st := time.Now()
	for x := range m {
		k := got.Add(1)
		if k%200 == 0 || int(k) >= want {
			x.Ack(true)
		}
		if int(k) >= want || time.Since(st) > 60*time.Second {
			break
		}
	}
	return got.Load(), time.Since(st)
}
func (d *amqpD) e2e(h *hist) (int64, time.Duration) { return 0, 0 }
func (d *amqpD) idle(n int) string                  { return "" }
