package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/proc"
)

// follower is a consumer that stays while brokers come and go.
type follower struct {
	consumer *client.Consumer
	client   *client.Client
	done     chan struct{}

	mu    sync.Mutex
	next  map[int32]int64 // guarded by mu
	wrong []string        // guarded by mu
}

func follow(c *campaign) *follower {
	c.t.Helper()
	f := &follower{client: c.place.Client(c.t), next: map[int32]int64{}, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	var err error
	f.consumer, err = f.client.Consume(ctx, topic, client.ConsumerConfig{OnLost: func(p int32, from, to int64) {
		f.complain("partition %d: offsets %d to %d were declared lost", p, from, to)
	}})
	if err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer close(f.done)
		for {
			batch, err := f.consumer.NextBatch(context.Background())
			if client.KindOf(err) == client.KindCanceled {
				return
			}
			if err != nil {
				f.complain("the consumer failed: %v", err)
				return
			}
			f.took(batch)
		}
	}()
	c.t.Cleanup(f.close)
	return f
}

func (f *follower) complain(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.wrong) < maxViolations {
		f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
	}
}

func (f *follower) took(batch []client.Message) {
	for i := range batch {
		m := &batch[i]
		f.mu.Lock()
		want := f.next[m.Partition]
		f.next[m.Partition] = m.Offset + 1
		f.mu.Unlock()
		if m.Offset != want {
			f.complain("partition %d: after offset %d came %d", m.Partition, want-1, m.Offset)
		}
	}
}

func (f *follower) records() (n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, next := range f.next {
		n += next
	}
	return n
}

func (f *follower) close() {
	f.consumer.Close()
	<-f.done
	_ = f.client.Close()
}

// guests are streams that are open when the broker is asked to stop, and say what they are told.
type guests struct {
	publish   leveev1.Stream_PublishClient
	subscribe leveev1.Stream_SubscribeClient
}

func invite(c *campaign) *guests {
	c.t.Helper()
	raw := c.broker.Raw()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	c.t.Cleanup(cancel)
	g := &guests{}
	var err error
	if g.publish, err = raw.Publish(ctx); err == nil {
		if err = g.publish.Send(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: topic}}); err == nil {
			_, err = g.publish.Recv()
		}
	}
	if err != nil {
		c.t.Fatal(err)
	}
	if g.subscribe, err = raw.Subscribe(ctx); err == nil {
		open := &leveev1.OpenSubscribe{Topic: topic, Start: &leveev1.OpenSubscribe_Latest{Latest: true}}
		if err = g.subscribe.Send(&leveev1.SubscribeRequest{Open: open, Credit: &leveev1.Credit{Bytes: 1 << 30}}); err == nil {
			_, err = g.subscribe.Recv()
		}
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

// told waits until both streams were told that the broker stops, and leaves.
func (g *guests) told(t *testing.T) {
	t.Helper()
	for {
		resp, err := g.publish.Recv()
		if err != nil {
			t.Fatalf("the publish stream ended without a word: %v", err)
		}
		if d := resp.GetDraining(); d != nil {
			if d.GetKind() != client.KindUnavailable || !d.GetRetriable() {
				t.Errorf("publishers were told %v", d)
			}
			break
		}
	}
	if err := g.publish.CloseSend(); err != nil {
		t.Error(err)
	}
	for {
		resp, err := g.subscribe.Recv()
		if err != nil {
			t.Fatalf("the subscription ended without a word: %v", err)
		}
		if e := resp.GetEnded(); e != nil {
			if e.GetKind() != client.KindUnavailable || !e.GetRetriable() {
				t.Errorf("subscribers were told %v", e)
			}
			return
		}
	}
}

// TestTermDrains asks a busy broker to stop, again and again: it answers what it took, says that it stops, ends with
// exit code 0 and a clean record of it; nothing acknowledged is lost, and nothing stands twice, for no answer was cut off.
func TestTermDrains(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			c := begin(t, mode)
			reader := follow(c)
			for i := range 16 {
				c.load.add(kind{idempotent: i%2 == 0, ordered: i/2%2 == 0, window: 1 << (i % 6)})
			}
			rounds := amount(5, 1, 50)
			var longest time.Duration
			for range rounds {
				longest = max(longest, c.stopUnderLoad())
			}
			c.load.pause()
			c.load.finish()
			c.check("after the last answer")
			if c.counts.Unknown+c.counts.Failed+c.counts.Duplicates > 0 || c.pending() > 0 {
				t.Errorf("an orderly stop left %d publishes unknown, %d failed, %d open, and %d records twice", c.counts.Unknown, c.counts.Failed, c.pending(), c.counts.Duplicates)
			}
			c.broker.Await("where the consumer has everything", func() bool { return reader.records() >= int64(c.counts.Records) })
			reader.close()
			for _, w := range reader.wrong {
				t.Error(w)
			}
			t.Logf("%s: %d stops, the longest took %v, %d acknowledged and none lost, none twice (%d re-sent and recognised), %d followed without a gap; %.1f seconds",
				mode, rounds, longest.Round(time.Millisecond), c.counts.Acked, c.counts.Resent, reader.records(), time.Since(c.started).Seconds())
		})
	}
}

// atOnce is well below the time that a stop gives clients who do not leave.
const atOnce = 25 * time.Second

// stopUnderLoad stops and starts the broker once, and returns how long the stop took.
func (c *campaign) stopUnderLoad() time.Duration {
	c.t.Helper()
	hit := c.load.acks.after(100 + c.rng.Int64N(900))
	c.load.resume()
	await(c.t, hit, "acknowledgements")
	guests := invite(c)
	began := time.Now()
	c.place.Set("") // before the port is free for another test's broker
	c.broker.Terminate()
	guests.told(c.t)
	if code := c.broker.Wait(); code != 0 {
		c.t.Errorf("the stop ended with exit code %d and said:\n%s", code, c.broker.Printed())
	}
	took := time.Since(began)
	if took > atOnce {
		c.t.Errorf("the stop took %v, though every client left when it was told:\n%s", took, c.broker.Printed())
	}
	if state, text := proc.RunFile(c.t, c.dir); state != "clean" {
		c.t.Errorf("after an orderly stop the file run says %s", text)
	}
	c.load.pause()
	c.start()
	if said := c.broker.Printed(); !strings.Contains(said, "the last run stopped cleanly") {
		c.t.Errorf("the start after an orderly stop does not say so:\n%s", said)
	}
	c.check("after an orderly stop")
	return took
}

// TestSecondBrokerIsRefused starts a broker on a directory that one is running on: it ends at once and says who has it.
func TestSecondBrokerIsRefused(t *testing.T) {
	dir := filepath.Join(proc.Dir(t), "data")
	first := proc.Start(t, dir, proc.Options{})
	_, run := proc.RunFile(t, dir)
	res := proc.Run(t, nil, "server", "--data-dir", dir, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
	if res.Code == 0 {
		t.Error("a second broker on the directory ended with exit code 0")
	}
	for _, want := range []string{dir, "process " + strconv.Itoa(first.PID()), "in use"} {
		if !strings.Contains(res.Stderr, want) {
			t.Errorf("its error does not hold %q:\n%s", want, res.Stderr)
		}
	}
	if _, now := proc.RunFile(t, dir); now != run {
		t.Errorf("it changed the file run: %s is now %s", run, now)
	}
	if pid, err := os.ReadFile(filepath.Join(dir, "LOCK")); err != nil || strings.TrimSpace(string(pid)) != strconv.Itoa(first.PID()) {
		t.Errorf("LOCK holds %q, %v; the broker is process %d", pid, err, first.PID())
	}
	c := first.Dial()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	if _, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: "still-there"}); err != nil {
		t.Errorf("the first broker does not serve any more: %v", err)
	}
	first.Kill() // the lock goes with the process, however that ends
	next := proc.Start(t, dir, proc.Options{})
	if _, err := next.Dial().Admin().DescribeTopic(ctx, "still-there"); err != nil {
		t.Error(err)
	}
	next.Terminate()
	if code := next.Wait(); code != 0 {
		t.Errorf("the broker that came after ended with exit code %d", code)
	}
}
