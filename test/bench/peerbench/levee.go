package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
)

// leveeD drives a Levee broker through its public Go client.
type leveeD struct {
	ctx  context.Context
	conn *client.Client
}

func leveeConn() *client.Client {
	c, err := client.Dial(*addr)
	must(err)
	return c
}

func (d *leveeD) setup(ctx context.Context) {
	d.ctx, d.conn = ctx, leveeConn()
	switch *mode {
	case "consume", "idle", "first", "copied":
		return
	}
	// A run begins with an empty topic, as the other brokers' do.
	if err := d.conn.Admin().DeleteTopic(ctx, *stream); err != nil && client.KindOf(err) != client.KindNotFound {
		must(err)
	}
	_, err := d.conn.Admin().CreateTopic(ctx, leveeTopic(*stream))
	must(err)
}

func leveeTopic(name string) client.TopicSpec {
	spec := client.TopicSpec{Name: name, Dispatch: *dispatch, Partitions: int32(*parts)}
	if *dispatch == client.Reliable {
		spec.Settings.Fsync = fsync
	}
	return spec
}

// pub gives every publisher a producer of its own, and but for -share a connection of its own.
func (d *leveeD) pub() pubFn {
	var total atomic.Int64
	return func(_ int, p []byte, end time.Time, h *hist) (int64, int64) {
		c := d.conn
		if !*share {
			c = leveeConn()
			defer c.Close()
		}
		config := client.ProducerConfig{}
		if *style == "batch" {
			// A batch goes when it is full. The linger is longer than filling one takes, and bounds what is left at the end.
			config = client.ProducerConfig{BatchRecords: *batch, BatchBytes: 16 << 20, Linger: 5 * time.Millisecond, MaxInFlight: *window}
		}
		producer, err := c.NewProducer(d.ctx, *stream, config)
		must(err)
		w := leveePublisher{d: d, producer: producer, value: p, end: end, h: h, total: &total}
		switch *style {
		case "sync":
			w.sync()
		case "async":
			w.stream(*window, 1)
		case "batch":
			w.stream(*window, *batch)
		default:
			must(fmt.Errorf("target levee has no style %q", *style))
		}
		must(producer.Close(d.ctx))
		return w.acked.Load(), w.errs.Load()
	}
}

// leveePublisher is the state of one publisher.
type leveePublisher struct {
	d        *leveeD
	producer *client.Producer
	value    []byte
	end      time.Time
	h        *hist // of the goroutine that gets the answers
	total    *atomic.Int64
	acked    atomic.Int64
	errs     atomic.Int64
	keyed    int // number of the last key
	text     [24]byte
}

func (w *leveePublisher) over(t time.Time) bool {
	return !t.Before(w.end) || *most > 0 && w.total.Load() >= *most
}

func (w *leveePublisher) sync() {
	for {
		t := time.Now()
		if w.over(t) {
			return
		}
		if _, err := w.producer.PublishSync(w.d.ctx, record.Record{Value: w.value}); err != nil {
			w.errs.Add(1)
			continue
		}
		w.h.add(time.Since(t))
		w.acked.Add(1)
		w.total.Add(1)
	}
}

// key returns the next message's, nil without -keys.
func (w *leveePublisher) key() []byte {
	if *keys == 0 {
		return nil
	}
	w.keyed = (w.keyed + 1) % *keys
	return fmt.Appendf(w.text[:0], "key-%d", w.keyed)
}

// stream keeps window times per messages in flight, and lets in the next per when as many are answered. Answers come in
// order from one goroutine at a time, so the last of a group tells for all of it.
func (w *leveePublisher) stream(window, per int) {
	slots := make(chan struct{}, window)
	every := max(16/per, 1) // one sample for 16 messages at least
	for group := 0; ; group++ {
		slots <- struct{}{}
		t := time.Now()
		if w.over(t) {
			<-slots
			break
		}
		sample := group%every == 0
		for i := range per {
			last := i == per-1
			w.producer.Publish(w.d.ctx, record.Record{Key: w.key(), Value: w.value}, func(_ client.Ack, err error) {
				if err != nil {
					w.errs.Add(1)
				} else {
					w.acked.Add(1)
				}
				if !last {
					return
				}
				if sample && err == nil {
					w.h.add(time.Since(t))
				}
				w.total.Add(int64(per))
				<-slots
			})
		}
	}
	for range window { // every answer is in
		slots <- struct{}{}
	}
}

// held returns how many messages the partitions of -stream hold, or an error while one of them is not served.
func held(ctx context.Context, c *client.Client) (int64, error) {
	topic, err := c.Admin().DescribeTopic(ctx, *stream)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, p := range topic.PartitionStates {
		if p.State != "serving" {
			return 0, fmt.Errorf("partition %d is %s", p.Partition, p.State)
		}
		sum += p.End - p.First
	}
	return sum, nil
}

func (d *leveeD) consume(want int, _ *hist) (int64, time.Duration) {
	there, err := held(d.ctx, d.conn)
	must(err)
	left := min(int64(want), there)
	switch kind, acks, _ := strings.Cut(*style, "-"); kind {
	case "shared":
		return d.subscribed(client.Shared, acks, left)
	case "keyshared":
		return d.subscribed(client.KeyShared, acks, left)
	}
	ctx, cancel := context.WithTimeout(d.ctx, 60*time.Second)
	defer cancel()
	start := time.Now()
	consumer, err := d.conn.Consume(ctx, *stream, client.ConsumerConfig{})
	must(err)
	defer consumer.Close()
	var got int64
	for got < left {
		messages, err := consumer.NextBatch(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		must(err)
		got += int64(len(messages))
	}
	return got, time.Since(start)
}

// leveeReceivers are subscribers at the end of the topic.
type leveeReceivers struct {
	consumers []*client.Consumer
	got, last atomic.Int64
	wg        sync.WaitGroup
	cancel    context.CancelFunc
}

func (d *leveeD) receive(n int, each func(client.Message)) *leveeReceivers {
	ctx, cancel := context.WithCancel(d.ctx)
	r := &leveeReceivers{cancel: cancel}
	for range n {
		c := leveeConn()
		context.AfterFunc(ctx, func() { _ = c.Close() })
		consumer, err := c.Consume(d.ctx, *stream, client.ConsumerConfig{From: client.Latest()})
		must(err)
		r.consumers = append(r.consumers, consumer)
		r.wg.Go(func() {
			for {
				messages, err := consumer.NextBatch(ctx)
				if err != nil {
					if ctx.Err() == nil {
						must(err)
					}
					return
				}
				if each != nil {
					for _, m := range messages {
						each(m)
					}
				}
				r.got.Add(int64(len(messages)))
				r.last.Store(time.Now().UnixNano())
			}
		})
	}
	return r
}

// await waits until want messages are received or known to be dropped, or none came for a while.
func (r *leveeReceivers) await(want int64, quiet time.Duration) {
	start := time.Now()
	for time.Since(start) < 30*time.Second {
		if r.got.Load()+r.lost() >= want {
			return
		}
		if idle := time.Since(time.Unix(0, max(r.last.Load(), start.UnixNano()))); idle > quiet {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (r *leveeReceivers) lost() int64 {
	var sum int64
	for _, c := range r.consumers {
		sum += c.Dropped()
	}
	return sum
}

func (r *leveeReceivers) stop() {
	dropped.Store(r.lost())
	r.cancel()
	r.wg.Wait()
}

func (d *leveeD) e2e(h *hist) (int64, time.Duration) {
	if *mode == "fanout" {
		return d.fanout()
	}
	producer, err := d.conn.NewProducer(d.ctx, *stream, client.ProducerConfig{})
	must(err)
	// The first message makes a topic's files, as creating a stream does elsewhere. It comes before anybody listens.
	_, err = producer.PublishSync(d.ctx, record.Record{Value: payload(0)})
	must(err)
	r := d.receive(1, func(m client.Message) { h.add(since(m.Value)) }) // one receiver, so h is its own
	start := time.Now()
	value := make([]byte, max(*size, 8))
	sent := pace(*rate, time.Duration(*secs*1e9), func(t time.Time) {
		stamp(value, t)
		producer.Publish(d.ctx, record.Record{Value: value}, countRefused) // copies it
	})
	must(producer.Close(d.ctx))
	r.await(sent, 2*time.Second)
	took := time.Since(start)
	r.stop()
	return r.got.Load(), took
}

func countRefused(_ client.Ack, err error) {
	if err != nil {
		refused.Add(1)
	}
}

// fanout publishes as fast as the client takes it. Its time ends with the last message received.
func (d *leveeD) fanout() (int64, time.Duration) {
	r := d.receive(*subs, nil)
	producer, err := d.conn.NewProducer(d.ctx, *stream, client.ProducerConfig{})
	must(err)
	start := time.Now()
	value := payload(0)
	for range *n {
		producer.Publish(d.ctx, record.Record{Value: value}, countRefused)
	}
	must(producer.Close(d.ctx))
	r.await(int64(*n)*int64(*subs), 2*time.Second)
	took := time.Duration(max(r.last.Load()-start.UnixNano(), 1))
	r.stop()
	return r.got.Load(), took
}

// idle makes n topics with one message each, by -conc creators on up to four connections.
func (d *leveeD) idle(n int) string {
	conns := make([]*client.Client, min(4, *conc))
	for i := range conns {
		conns[i] = leveeConn()
		defer conns[i].Close()
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range *conc {
		wg.Go(func() {
			c := conns[w%len(conns)]
			for {
				k := next.Add(1) - 1
				if k >= int64(n) {
					return
				}
				name := fmt.Sprintf("idle%d", k)
				_, err := c.Admin().CreateTopic(d.ctx, leveeTopic(name))
				must(err)
				producer, err := c.NewProducer(d.ctx, name, client.ProducerConfig{})
				must(err)
				_, err = producer.PublishSync(d.ctx, record.Record{Value: make([]byte, *size)})
				must(err)
				must(producer.Close(d.ctx))
			}
		})
	}
	wg.Wait()
	return "topics with one message each;"
}
