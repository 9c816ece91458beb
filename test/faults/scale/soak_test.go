package scale

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// soak is a broker under a mixed load, which goes on until ctx ends.
type soak struct {
	t      *testing.T
	b      *proc.Broker
	ctx    context.Context
	wg     sync.WaitGroup
	counts [5]atomic.Int64 // published, consumed, topics, subscriptions, requests
}

// TestSoak has clients of every sort come, work and go, with retention at work, and looks at what the broker takes: memory,
// goroutines, descriptors and disk are flat.
func TestSoak(t *testing.T) {
	b := proc.Start(t, filepath.Join(proc.Dir(t), "data"), proc.Options{Env: map[string]string{"LEVEE_STORAGE_RETENTION_CHECK": "200ms"}})
	ctx, cancel := context.WithCancel(context.Background())
	s := &soak{t: t, b: b, ctx: ctx}
	defer s.wg.Wait()
	defer cancel()
	for i, mode := range faults.Modes {
		s.steady(fmt.Sprint("steady", i), mode)
	}
	s.worker(s.churnTopics)
	s.worker(s.churnSubscriptions)
	s.worker(s.churnRequests)
	s.full()
	length := time.Duration(faults.Amount(20, 5, 300)) * time.Second
	samples := s.sample(length)
	cancel()
	s.wg.Wait()
	warm := samples[len(samples)/4 : len(samples)/2]
	last := samples[3*len(samples)/4:]
	before, after := most(warm), most(last)
	t.Logf("%v: %d published, %d consumed, %d topics made and deleted, %d subscriptions, %d requests; at most %d, then %d MiB of memory, %d, then %d goroutines, %d, then %d descriptors, %d, then %d MiB on disk",
		length, s.counts[0].Load(), s.counts[1].Load(), s.counts[2].Load(), s.counts[3].Load(), s.counts[4].Load(),
		before.memory>>20, after.memory>>20, before.goroutines, after.goroutines, before.descriptors, after.descriptors, before.disk>>20, after.disk>>20)
	if after.memory > before.memory+before.memory/4+16<<20 || after.goroutines > before.goroutines+before.goroutines/4+8 ||
		after.descriptors > before.descriptors+before.descriptors/4+8 || after.disk > before.disk+before.disk/4+16<<20 {
		t.Errorf("it grows: in the second quarter at most %+v, in the last %+v", before, after)
	}
	for i, what := range []string{"published", "consumed", "topics", "subscriptions", "requests"} {
		if s.counts[i].Load() == 0 {
			t.Errorf("nothing was %s", what)
		}
	}
	b.Terminate()
	if code := b.Wait(); code != 0 {
		t.Errorf("the stop ended with exit code %d", code)
	}
}

// full waits until retention removes from all topics that are published to steadily: before, they grow, as they may.
func (s *soak) full() {
	s.t.Helper()
	admin := s.b.Dial().Admin()
	s.b.Await("removing what is old", func() bool {
		for i := range faults.Modes {
			d, err := admin.DescribeTopic(s.ctx, fmt.Sprint("steady", i))
			if err != nil {
				s.t.Fatal(err)
			}
			if slices.ContainsFunc(d.PartitionStates, func(p client.Partition) bool { return p.First == 0 }) {
				return false
			}
		}
		return true
	})
}

// most returns the largest of each.
func most(list []usage) (u usage) {
	for _, v := range list {
		u.memory, u.disk = max(u.memory, v.memory), max(u.disk, v.disk)
		u.descriptors, u.goroutines = max(u.descriptors, v.descriptors), max(u.goroutines, v.goroutines)
	}
	return u
}

// sample looks at the broker a hundred times.
func (s *soak) sample(length time.Duration) (list []usage) {
	s.t.Helper()
	tick := time.NewTicker(length / 100)
	defer tick.Stop()
	for range 100 {
		<-tick.C
		list = append(list, measure(s.t, s.b))
	}
	return list
}

// worker runs a step again and again until the soak is over.
func (s *soak) worker(step func(c *client.Client, n int) error) {
	c := s.b.Dial()
	s.wg.Go(func() {
		for n := 0; s.ctx.Err() == nil; n++ {
			if err := step(c, n); err != nil && s.ctx.Err() == nil {
				s.t.Error(err)
				return
			}
		}
	})
}

// steady publishes to a topic that keeps 2 MiB, and reads it all the time.
func (s *soak) steady(name, mode string) {
	s.t.Helper()
	c := s.b.Dial()
	if _, err := c.Admin().CreateTopic(s.ctx, client.TopicSpec{Name: name, Partitions: 2, Settings: client.Settings{
		Fsync: &mode, SegmentBytes: new(int64(1 << 20)), RetentionBytes: new(int64(2 << 20)),
	}}); err != nil {
		s.t.Fatal(err)
	}
	p, err := c.NewProducer(s.ctx, name, client.ProducerConfig{Idempotent: true})
	if err != nil {
		s.t.Fatal(err)
	}
	value := make([]byte, 500)
	s.worker(func(*client.Client, int) error {
		_, err := p.PublishSync(s.ctx, record.Record{Value: value})
		s.counts[0].Add(1)
		return err
	})
	s.worker(func(*client.Client, int) error { // many at a time
		for range 100 {
			p.Publish(s.ctx, record.Record{Value: value}, func(_ client.Ack, err error) {
				if err != nil && s.ctx.Err() == nil {
					s.t.Error(err)
				}
				s.counts[0].Add(1)
			})
		}
		return p.Flush(s.ctx)
	})
	reader, err := c.Consume(s.ctx, name, client.ConsumerConfig{From: client.Latest()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.worker(func(*client.Client, int) error {
		batch, err := reader.NextBatch(s.ctx)
		if client.KindOf(err) == client.KindTrimmed { // it may fall behind
			reader.Close()
			reader, err = c.Consume(s.ctx, name, client.ConsumerConfig{From: client.Latest()})
		}
		s.counts[1].Add(int64(len(batch)))
		return err
	})
}

func (s *soak) churnTopics(c *client.Client, n int) error {
	name := fmt.Sprint("passing", n%10)
	if _, err := c.Admin().CreateTopic(s.ctx, client.TopicSpec{Name: name}); err != nil {
		return err
	}
	p, err := c.NewProducer(s.ctx, name, client.ProducerConfig{Idempotent: n%2 == 0})
	if err != nil {
		return err
	}
	if _, err := p.PublishSync(s.ctx, record.Record{Value: []byte("x")}); err != nil {
		return err
	}
	if err := p.Close(s.ctx); err != nil {
		return err
	}
	s.counts[2].Add(1)
	return c.Admin().DeleteTopic(s.ctx, name)
}

func (s *soak) churnSubscriptions(c *client.Client, n int) error {
	reader, err := c.Consume(s.ctx, fmt.Sprint("steady", n%3), client.ConsumerConfig{From: client.Earliest()})
	if err != nil {
		return err
	}
	defer reader.Close()
	_, err = reader.NextBatch(s.ctx)
	if client.KindOf(err) == client.KindTrimmed {
		return nil // retention was faster
	}
	s.counts[3].Add(1)
	return err
}

func (s *soak) churnRequests(*client.Client, int) error {
	for _, path := range []string{"/metrics", "/readyz", "/v1/topics"} {
		req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://"+s.b.HTTP+path, nil)
		if err != nil {
			return err
		}
		res, err := proc.HTTP.Do(req)
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		s.counts[4].Add(1)
	}
	return nil
}
