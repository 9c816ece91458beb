package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nsqio/go-nsq"
)

// nsqD is nsqd.
type nsqD struct{}

func ncfg() *nsq.Config               { c := nsq.NewConfig(); c.MaxInFlight = 2500; return c }
func (d *nsqD) setup(context.Context) {}
func (d *nsqD) producer() *nsq.Producer {
	p, err := nsq.NewProducer(*addr, ncfg())
	must(err)
	p.SetLogger(log.New(io.Discard, "", 0), nsq.LogLevelError)
	must(p.Ping())
	return p
}
func (d *nsqD) pub() pubFn {
	return func(w int, p []byte, end time.Time, h *hist) (int64, int64) {
		pr := d.producer()
		defer pr.Stop()
		var k, errs int64
		switch *style {
		case "sync":
			for time.Now().Before(end) {
				t := time.Now()
				if err := pr.Publish(*stream, p); err != nil {
					errs++
					continue
				}
				h.add(time.Since(t))
				k++
			}
		case "batch":
			b := make([][]byte, *batch)
			for i := range b {
				b[i] = p
			}
			for time.Now().Before(end) {
				t := time.Now()
				if err := pr.MultiPublish(*stream, b); err != nil {
					errs++
					continue
				}
				h.add(time.Since(t))
				k += int64(*batch)
			}
		case "async":
			done := make(chan *nsq.ProducerTransaction, *window)
			sem := make(chan struct{}, *window)
			fin := make(chan bool)
			go func() {
				for t := range done {
					if t.Error != nil {
						errs++
					} else {
						k++
						if k%16 == 0 {
							h.add(time.Since(t.Args[0].(time.Time)))
						}
					}
					<-sem
				}
				fin <- true
			}()
			for time.Now().Before(end) {
				sem <- struct{}{}
				must(pr.PublishAsync(*stream, p, done, time.Now()))
			}
			for i := 0; i < *window; i++ {
				sem <- struct{}{}
			}
			close(done)
			<-fin
		}
		return k, errs
	}
}
func (d *nsqD) consume(want int, h *hist) (int64, time.Duration) {
	c, err := nsq.NewConsumer(*stream, "ch", ncfg())
	must(err)
	c.SetLogger(log.New(io.Discard, "", 0), nsq.LogLevelError)
	var got, last atomic.Int64
	done := make(chan bool, 1)
	c.AddConcurrentHandlers(nsq.HandlerFunc(func(m *nsq.Message) error {
		k := got.Add(1)
		if k%64 == 0 {
			last.Store(time.Now().UnixNano())
		}
		if k == int64(want) {
			done <- true
		}
		return nil
	}), 2)
	st := time.Now()
	must(c.ConnectToNSQD(*addr))
	var el time.Duration
	for el == 0 { // stop at want, or when nothing arrives for a second
		select {
		case <-done:
			el = time.Since(st)
		case <-time.After(time.Second):
			if time.Now().UnixNano()-last.Load() > 1e9 {
				el = time.Duration(max(last.Load()-st.UnixNano(), 1))
			}
		}
	}
	c.Stop()
	return got.Load(), el
}
func (d *nsqD) e2e(h *hist) (int64, time.Duration) {
	c, err := nsq.NewConsumer(*stream, "ch", ncfg())
	must(err)
	c.SetLogger(log.New(io.Discard, "", 0), nsq.LogLevelError)
	var got atomic.Int64
	var mu sync.Mutex
	c.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		mu.Lock()
		h.add(since(m.Body))
		mu.Unlock()
		got.Add(1)
		return nil
	}))
	must(c.ConnectToNSQD(*addr))
	pr := d.producer()
	time.Sleep(100 * time.Millisecond)
	done := make(chan *nsq.ProducerTransaction, 10000)
	go func() {
		for range done {
		}
	}()
	st := time.Now()
	pace(*rate, time.Duration(*secs*1e9), func(t time.Time) {
		p := make([]byte, *size)
		stamp(p, t)
		pr.PublishAsync(*stream, p, done)
	})
	time.Sleep(300 * time.Millisecond)
	return got.Load(), time.Since(st)
}
func (d *nsqD) idle(n int) string {
	pr := d.producer()
	for i := 0; i < n; i++ {
		must(pr.Publish(fmt.Sprintf("idle%d", i), make([]byte, *size)))
	}
	return "topics with 1 msg each;"
}
