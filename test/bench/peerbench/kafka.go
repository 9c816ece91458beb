package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kafkaD is any broker with the Kafka protocol, through franz-go with acks=all. Style sync: ProduceSync, one at a time for
// each client; async: buffered.
type kafkaD struct{ ctx context.Context }

func (d *kafkaD) setup(ctx context.Context) {
	d.ctx = ctx
	c, err := kgo.NewClient(kgo.SeedBrokers(*addr))
	must(err)
	defer c.Close()
	a := kadm.NewClient(c)
	if *mode == "pub" || *mode == "e2e" {
		a.DeleteTopics(ctx, *stream)
		time.Sleep(50 * time.Millisecond)
	}
	if *mode != "idle" {
		a.CreateTopics(ctx, 1, 1, nil, *stream)
	}
}
func kcl(extra ...kgo.Opt) *kgo.Client {
	o := append([]kgo.Opt{kgo.SeedBrokers(*addr), kgo.DefaultProduceTopic(*stream), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(*linger), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(max(*window, 1))}, extra...)
	c, err := kgo.NewClient(o...)
	must(err)
	return c
}
func (d *kafkaD) pub() pubFn {
	return func(w int, p []byte, end time.Time, h *hist) (int64, int64) {
		c := kcl()
		defer c.Close()
		var k, errs int64
		if *style == "sync" {
			for time.Now().Before(end) {
				t := time.Now()
				if err := c.ProduceSync(d.ctx, &kgo.Record{Value: p}).FirstErr(); err != nil {
					errs++
					continue
				}
				h.add(time.Since(t))
				k++
			}
			return k, errs
		}
		var ok, bad atomic.Int64
		var mu sync.Mutex
		for i := 0; ; i++ {
			t := time.Now()
			if t.After(end) {
				break
			}
			smp := i%16 == 0
			c.Produce(d.ctx, &kgo.Record{Value: p}, func(_ *kgo.Record, err error) {
				if err != nil {
					bad.Add(1)
					return
				}
				ok.Add(1)
				if smp {
					mu.Lock()
					h.add(time.Since(t))
					mu.Unlock()
				}
			})
		}
		c.Flush(d.ctx)
		return ok.Load(), bad.Load()
	}
}
func (d *kafkaD) consume(want int, h *hist) (int64, time.Duration) {
	c := kcl(kgo.ConsumeTopics(*stream), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(16<<20), kgo.FetchMaxPartitionBytes(8<<20))
	defer c.Close()
	var got int64
	st := time.Now()
	for int(got) < want && time.Since(st) < 60*time.Second {
		ctx, cancel := context.WithTimeout(d.ctx, 3*time.Second)
		f := c.PollFetches(ctx)
		cancel()
		k := int64(f.NumRecords())
		if k == 0 {
			break
		}
		got += k
	}
	return got, time.Since(st)
}
func (d *kafkaD) e2e(h *hist) (int64, time.Duration) {
	c := kcl(kgo.ConsumeTopics(*stream), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	var got atomic.Int64
	ctx, cancel := context.WithCancel(d.ctx)
	dn := make(chan bool)
	go func() {
		for {
			f := c.PollFetches(ctx)
			if ctx.Err() != nil {
				dn <- true
				return
			}
			f.EachRecord(func(r *kgo.Record) { h.add(since(r.Value)); got.Add(1) })
		}
	}()
	pr := kcl()
	defer pr.Close()
	time.Sleep(100 * time.Millisecond)
	st := time.Now()
	pace(*rate, time.Duration(*secs*1e9), func(t time.Time) {
		p := make([]byte, *size)
		stamp(p, t)
		pr.Produce(d.ctx, &kgo.Record{Value: p}, nil)
	})
	pr.Flush(d.ctx)
	time.Sleep(300 * time.Millisecond)
	cancel()
	<-dn
	return got.Load(), time.Since(st)
}
func (d *kafkaD) idle(n int) string {
	c, err := kgo.NewClient(kgo.SeedBrokers(*addr))
	must(err)
	defer c.Close()
	a := kadm.NewClient(c)
	for i := 0; i < n; i += 500 {
		var t []string
		for j := i; j < min(i+500, n); j++ {
			t = append(t, fmt.Sprintf("idle%d", j))
		}
		_, err := a.CreateTopics(d.ctx, 1, 1, nil, t...)
		must(err)
	}
	return "empty topics;"
}
