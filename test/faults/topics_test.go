package faults

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/proc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// named is one topic name, as the one worker that uses it knows it.
type named struct {
	name        string
	exists      bool
	id          []byte
	incarnation uint64
	values      []string // acknowledged since it was created
	open        string   // the change whose outcome is not known; "" for none
	value       string   // with open "publish"
	next        int
}

// TestKillNineTopics kills a broker while topics are made, published to, deleted and made again: what was acknowledged
// is so afterwards, a change that was under way has happened wholly or not at all, a topic that was made again has nothing
// of the one before, and no data of deleted topics stays behind.
func TestKillNineTopics(t *testing.T) {
	proc.Binary(t)
	rng := Seeded(t)
	dir := filepath.Join(proc.Dir(t), "data")
	workers := make([][]*named, 6)
	for i := range workers {
		for n := range 3 {
			workers[i] = append(workers[i], &named{name: fmt.Sprintf("w%d-%d", i, n)})
		}
	}
	cycles, changes, unknown := Amount(15, 2, 300), 0, 0
	b := proc.Start(t, dir, proc.Options{})
	for n := range cycles {
		changes += change(t, b, rng, workers)
		for rng.IntN(4) == 0 { // killed while it takes up what was left
			b = proc.Launch(t, dir, proc.Options{})
			if rng.IntN(2) == 0 {
				b.Listening()
			}
			b.Kill()
		}
		b = proc.Start(t, dir, proc.Options{})
		r := resolver{t, b.Raw(), b.Dial(), fmt.Sprintf("cycle %d", n)}
		for _, names := range workers {
			for _, w := range names {
				if w.open != "" {
					unknown++
				}
				r.resolve(w)
			}
		}
		noLeftovers(t, b, workers)
		if t.Failed() {
			t.FailNow()
		}
		_ = r.raw.Conn.Close()
		_ = r.client.Close()
	}
	b.Terminate()
	if code := b.Wait(); code != 0 {
		t.Errorf("the last stop ended with exit code %d", code)
	}
	t.Logf("%d cycles, %d changes acknowledged and all in effect, %d cut off and each done wholly or not at all", cycles, changes, unknown)
}

// change has every worker change its topics until a random number of changes is acknowledged, and kills the broker.
func change(t *testing.T, b *proc.Broker, rng *rand.Rand, workers [][]*named) int {
	t.Helper()
	raw := b.Raw()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	var acked atomic.Int64
	target := 1 + rng.Int64N(120)
	enough := make(chan struct{})
	var wg sync.WaitGroup
	failures := make(chan error, len(workers))
	for _, names := range workers {
		draw := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() {
			for {
				err := names[draw.IntN(len(names))].change(ctx, raw, draw)
				if err != nil {
					failures <- err
					return
				}
				if acked.Add(1) == target {
					close(enough)
				}
			}
		})
	}
	Await(t, enough, "changes of topics")
	b.Kill()
	wg.Wait()
	close(failures)
	for err := range failures {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("a change failed, and not because the broker was gone: %v", err)
		}
	}
	_ = raw.Conn.Close()
	return int(acked.Load())
}

// change makes one change that suits what there is. After an error its outcome is not known.
func (w *named) change(ctx context.Context, raw *proc.Raw, rng *rand.Rand) error {
	switch {
	case !w.exists:
		w.open = "create"
		fsync := Modes[rng.IntN(len(Modes))]
		r, err := raw.CreateTopic(ctx, &leveev1.CreateTopicRequest{Name: w.name, Settings: &leveev1.TopicSettings{Fsync: &fsync}})
		if err != nil {
			return err
		}
		w.exists, w.id, w.incarnation, w.values = true, r.GetTopic().GetId(), r.GetTopic().GetIncarnation(), nil
	case rng.IntN(3) == 0:
		w.open = "delete"
		if _, err := raw.DeleteTopic(ctx, &leveev1.DeleteTopicRequest{Name: w.name}); err != nil {
			return err
		}
		w.exists, w.values = false, nil
	default:
		w.open, w.value = "publish", fmt.Sprintf("%s %d", w.name, w.next)
		w.next++
		if _, err := raw.PublishOnce(ctx, &leveev1.PublishOnceRequest{Topic: w.name, Records: []*leveev1.Record{{Value: []byte(w.value)}}}); err != nil {
			return err
		}
		w.values = append(w.values, w.value)
	}
	w.open = ""
	return nil
}

// resolver finds out what became of changes.
type resolver struct {
	t      *testing.T
	raw    *proc.Raw
	client *client.Client
	when   string
}

func (r *resolver) resolve(w *named) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	d, err := r.raw.DescribeTopic(ctx, &leveev1.DescribeTopicRequest{Name: w.name})
	there := err == nil
	if err != nil && status.Code(err) != codes.NotFound {
		r.t.Errorf("%s: describe %s: %v", r.when, w.name, err)
		return
	}
	topic := d.GetTopic()
	switch {
	case w.open == "create" && there:
		if w.incarnation >= topic.GetIncarnation() {
			r.t.Errorf("%s: %s is incarnation %d, and there was a %d before", r.when, w.name, topic.GetIncarnation(), w.incarnation)
		}
		w.exists, w.id, w.incarnation, w.values = true, topic.GetId(), topic.GetIncarnation(), nil
	case w.open == "delete" && !there:
		w.exists, w.values = false, nil
	case there != w.exists:
		r.t.Errorf("%s: %s exists: %v, and was known to: %v (open: %q)", r.when, w.name, there, w.exists, w.open)
	case there && (!bytes.Equal(topic.GetId(), w.id) || topic.GetIncarnation() != w.incarnation):
		r.t.Errorf("%s: %s is incarnation %d, and was %d", r.when, w.name, topic.GetIncarnation(), w.incarnation)
	}
	if there {
		got := r.values(ctx, w.name, d.GetPartitions()[0].GetEnd())
		if w.open == "publish" && len(got) == len(w.values)+1 && got[len(w.values)] == w.value {
			w.values = append(w.values, w.value)
		}
		if !slices.Equal(got, w.values) {
			r.t.Errorf("%s: %s, incarnation %d, holds %q, want %q", r.when, w.name, topic.GetIncarnation(), got, w.values)
		}
	}
	w.open = ""
}

// values reads a topic up to end.
func (r *resolver) values(ctx context.Context, name string, end int64) (values []string) {
	r.t.Helper()
	if end == 0 {
		return nil
	}
	consumer, err := r.client.Consume(ctx, name, client.ConsumerConfig{From: client.Offset(0)})
	if err != nil {
		r.t.Errorf("%s: read %s: %v", r.when, name, err)
		return nil
	}
	defer consumer.Close()
	for int64(len(values)) < end {
		m, err := consumer.Next(ctx)
		if err != nil {
			r.t.Errorf("%s: read %s: %v", r.when, name, err)
			return values
		}
		values = append(values, string(m.Value))
	}
	return values
}

// noLeftovers waits until the disk holds nothing but the topics that exist.
func noLeftovers(t *testing.T, b *proc.Broker, workers [][]*named) {
	t.Helper()
	exist := map[string]bool{}
	for _, names := range workers {
		for _, w := range names {
			if w.exists {
				exist[fmt.Sprintf("%s@%d", w.name, w.incarnation)] = true
			}
		}
	}
	b.Await("rid of deleted topics", func() bool {
		for _, dir := range []string{"topics/default", ".deleted"} {
			entries, err := os.ReadDir(filepath.Join(b.Dir, dir))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			for _, e := range entries {
				if dir == ".deleted" || !exist[e.Name()] {
					return false
				}
			}
		}
		return true
	})
}
