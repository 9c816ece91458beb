package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

func nconn() *nats.Conn {
	c, err := nats.Connect("nats://"+*addr, nats.Timeout(5*time.Second), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	must(err)
	return c
}

// publisherConn returns the connection of one publisher: its own, or with -share the one they have in common.
func publisherConn(common *nats.Conn) (c *nats.Conn, done func()) {
	if *share {
		return common, func() {}
	}
	c = nconn()
	return c, c.Close
}

// natsCore is NATS without streams: nothing is stored, nothing acknowledged.
type natsCore struct{ nc *nats.Conn }

func (d *natsCore) setup(context.Context) { d.nc = nconn() }
func (d *natsCore) pub() pubFn {
	// non-reliable publish: the PING/PONG flush at the end is the only confirmation
	return func(w int, p []byte, end time.Time, h *hist) (int64, int64) {
		c, done := publisherConn(d.nc)
		defer done()
		var k int64
		for k&255 != 0 || time.Now().Before(end) {
			must(c.Publish("bench", p))
			k++
		}
		must(c.FlushTimeout(20 * time.Second))
		return k, 0
	}
}
func (d *natsCore) consume(int, *hist) (int64, time.Duration) { return 0, 0 }
func (d *natsCore) e2e(h *hist) (int64, time.Duration) {
	var got atomic.Int64
	var mu sync.Mutex
	done := make(chan bool, 1)
	want := int64(*n) * int64(*subs)
	var last atomic.Int64
	for i := 0; i < *subs; i++ {
		c := nconn()
		defer c.Close()
		s, err := c.Subscribe("bench", func(m *nats.Msg) {
			if *mode == "e2e" {
				mu.Lock()
				h.add(since(m.Data))
				mu.Unlock()
			}
			last.Store(time.Now().UnixNano())
			if got.Add(1) >= want && *mode == "fanout" {
				select {
				case done <- true:
				default:
				}
			}
		})
		must(err)
		s.SetPendingLimits(-1, -1)
		must(c.Flush())
	}
	c := nconn()
	defer c.Close()
	st := time.Now()
	p := make([]byte, *size)
	if *mode == "e2e" {
		pace(*rate, time.Duration(*secs*1e9), func(t time.Time) { stamp(p, t); c.Publish("bench", p) })
		time.Sleep(300 * time.Millisecond)
		return got.Load(), time.Since(st)
	}
	for i := 0; i < *n; i++ {
		must(c.Publish("bench", p))
	}
	must(c.FlushTimeout(60 * time.Second))
	select {
	case <-done:
	case <-time.After(30 * time.Second):
	}
	return got.Load(), time.Duration(last.Load() - st.UnixNano())
}
func (d *natsCore) idle(int) string { return "" }

// natsJS is NATS JetStream with file storage.
type natsJS struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	ctx context.Context
}

func (d *natsJS) setup(ctx context.Context) {
	d.ctx = ctx
	d.nc = nconn()
	js, err := jetstream.New(d.nc)
	must(err)
	d.js = js
	if *mode == "idle" {
		return
	}
	cfg := jetstream.StreamConfig{Name: *stream, Subjects: []string{*stream}, Storage: jetstream.FileStorage, MaxBytes: 8 << 30, AllowAtomicPublish: true, AllowBatchPublish: *style == "fast"}
	if *mode == "pub" || *mode == "e2e" {
		js.DeleteStream(ctx, *stream)
	}
	_, err = js.CreateOrUpdateStream(ctx, cfg)
	must(err)
}
func (d *natsJS) pub() pubFn {
	return func(w int, p []byte, end time.Time, h *hist) (int64, int64) {
		c, done := publisherConn(d.nc)
		defer done()
		var k, errs int64
		switch *style {
		case "sync":
			js, _ := jetstream.New(c)
			for time.Now().Before(end) {
				t := time.Now()
				if _, err := js.Publish(d.ctx, *stream, p); err != nil {
					errs++
					continue
				}
				h.add(time.Since(t))
				k++
			}
		case "async":
			var bad atomic.Int64
			js, err := jetstream.New(c, jetstream.WithPublishAsyncMaxPending(*window), jetstream.WithPublishAsyncErrHandler(func(jetstream.JetStream, *nats.Msg, error) { bad.Add(1) }))
			must(err)
			type smp struct {
				f jetstream.PubAckFuture
				t time.Time
			}
			q := make(chan smp, *window)
			dn := make(chan bool)
			go func() {
				for s := range q {
					select {
					case <-s.f.Ok():
						h.add(time.Since(s.t))
					case <-s.f.Err():
					}
				}
				dn <- true
			}()
			for {
				t := time.Now()
				if t.After(end) {
					break
				}
				f, err := js.PublishAsync(*stream, p)
				if err != nil {
					errs++
					continue
				}
				if k%16 == 0 {
					q <- smp{f, t}
				}
				k++
			}
			select {
			case <-js.PublishAsyncComplete():
			case <-time.After(20 * time.Second):
				errs += int64(js.PublishAsyncPending())
			}
			close(q)
			<-dn
			errs += bad.Load()
			k -= bad.Load()
		case "batch":
			js, _ := jetstream.New(c)
			for time.Now().Before(end) {
				t := time.Now()
				msgs := make([]*nats.Msg, *batch)
				for i := range msgs {
					msgs[i] = &nats.Msg{Subject: *stream, Data: p, Header: nats.Header{}}
				}
				if _, err := jetstreamext.PublishMsgBatch(d.ctx, js, msgs); err != nil {
					errs++
					if errs == 1 {
						fmt.Fprintln(os.Stderr, "peerbench: batch:", err)
					}
					if errs > 100 {
						break
					}
					continue
				}
				h.add(time.Since(t))
				k += int64(*batch)
			}
		case "fast":
			js, _ := jetstream.New(c)
			// one fast batch per -batch messages: Add ... Commit waits for the durable ack of the whole batch
			for time.Now().Before(end) {
				t := time.Now()
				fp, err := jetstreamext.NewFastPublisher(js, jetstreamext.FastPublishFlowControl{Flow: 100, MaxOutstandingAcks: 10, AckTimeout: 10 * time.Second})
				must(err)
				ok := true
				for i := 0; i < *batch-1; i++ {
					if _, err := fp.Add(*stream, p); err != nil {
						ok = false
						errs++
						if errs == 1 {
							fmt.Fprintln(os.Stderr, "peerbench: fast batch:", err)
						}
						break
					}
				}
				if !ok {
					if errs > 100 {
						break
					}
					continue
				}
				if _, err := fp.Commit(d.ctx, *stream, p); err != nil {
					errs++
					if errs == 1 {
						fmt.Fprintln(os.Stderr, "peerbench: commit of a fast batch:", err)
					}
					if errs > 100 {
						break
					}
					continue
				}
				h.add(time.Since(t))
				k += int64(*batch)
			}
		}
		return k, errs
	}
}
func (d *natsJS) consume(want int, h *hist) (int64, time.Duration) {
	s, err := d.js.Stream(d.ctx, *stream)
	must(err)
	info, err := s.Info(d.ctx)
	must(err)
	if int(info.State.Msgs) < want {
		want = int(info.State.Msgs)
	}
	var got atomic.Int64
	switch *style {
	case "ordered": // ordered ephemeral consumer, no acks: the fastest replay path
		st := time.Now()
		cons, err := s.OrderedConsumer(d.ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
		must(err)
		done := make(chan bool)
		cc, err := cons.Consume(func(m jetstream.Msg) {
			if got.Add(1) == int64(want) {
				close(done)
			}
		}, jetstream.PullMaxMessages(*batch))
		must(err)
		select {
		case <-done:
		case <-time.After(60 * time.Second):
		}
		el := time.Since(st)
		cc.Stop()
		return got.Load(), el
	case "fetch": // durable pull consumer, explicit ack of every message, fetches of -batch
		st := time.Now()
		cons, err := s.CreateOrUpdateConsumer(d.ctx, jetstream.ConsumerConfig{Durable: fmt.Sprintf("d%d", time.Now().UnixNano()), AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 10 * *batch, DeliverPolicy: jetstream.DeliverAllPolicy})
		must(err)
		for int(got.Load()) < want && time.Since(st) < 60*time.Second {
			mb, err := cons.Fetch(*batch, jetstream.FetchMaxWait(2*time.Second))
			must(err)
			for m := range mb.Messages() {
				m.Ack()
				got.Add(1)
			}
		}
		d.nc.Flush()
		return got.Load(), time.Since(st)
	}
	return 0, 0
}
func (d *natsJS) e2e(h *hist) (int64, time.Duration) {
	s, err := d.js.Stream(d.ctx, *stream)
	must(err)
	cons, err := s.OrderedConsumer(d.ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	must(err)
	var got atomic.Int64
	var mu sync.Mutex
	cc, err := cons.Consume(func(m jetstream.Msg) {
		mu.Lock()
		h.add(since(m.Data()))
		mu.Unlock()
		got.Add(1)
	})
	must(err)
	defer cc.Stop()
	time.Sleep(100 * time.Millisecond)
	c := nconn()
	defer c.Close()
	js, err := jetstream.New(c, jetstream.WithPublishAsyncMaxPending(*window))
	must(err)
	st := time.Now()
	pace(*rate, time.Duration(*secs*1e9), func(t time.Time) {
		p := make([]byte, *size)
		stamp(p, t)
		js.PublishAsync(*stream, p)
	})
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(5 * time.Second):
	}
	time.Sleep(300 * time.Millisecond)
	return got.Load(), time.Since(st)
}
func (d *natsJS) idle(n int) string {
	var wg sync.WaitGroup
	for i := range *conc {
		wg.Go(func() {
			for k := i; k < n; k += *conc {
				nm := fmt.Sprintf("idle%d", k)
				_, err := d.js.CreateStream(d.ctx, jetstream.StreamConfig{Name: nm, Subjects: []string{nm}, Storage: jetstream.FileStorage})
				must(err)
				_, err = d.js.Publish(d.ctx, nm, make([]byte, *size)) // one record each, so that files exist
				must(err)
			}
		})
	}
	wg.Wait()
	return "streams with 1 msg each;"
}
