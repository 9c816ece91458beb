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

func follow(c *Campaign) *follower {
	c.T.Helper()
	f := &follower{client: c.Place.Client(c.T), next: map[int32]int64{}, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	var err error
	f.consumer, err = f.client.Consume(ctx, topic, client.ConsumerConfig{OnLost: func(p int32, from, to int64) {
		f.complain("partition %d: offsets %d to %d were declared lost", p, from, to)
	}})
	if err != nil {
		c.T.Fatal(err)
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
	c.T.Cleanup(f.close)
	return f
}

func (f *follower) complain(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.wrong) < 20 {
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

func invite(c *Campaign) *guests {
	c.T.Helper()
	raw := c.Broker.Raw()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	c.T.Cleanup(cancel)
	g := &guests{}
	var err error
	if g.publish, err = raw.Publish(ctx); err == nil {
		if err = g.publish.Send(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: topic}}); err == nil {
			_, err = g.publish.Recv()
		}
	}
	if err != nil {
		c.T.Fatal(err)
	}
	if g.subscribe, err = raw.Subscribe(ctx); err == nil {
		open := &leveev1.OpenSubscribe{Topic: topic, Start: &leveev1.OpenSubscribe_Latest{Latest: true}}
		if err = g.subscribe.Send(&leveev1.SubscribeRequest{Open: open, Credit: &leveev1.Credit{Bytes: 1 << 30}}); err == nil {
			_, err = g.subscribe.Recv()
		}
	}
	if err != nil {
		c.T.Fatal(err)
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
	for _, mode := range Modes {
		t.Run(mode, func(t *testing.T) {
			c := begin(t, mode)
			reader := follow(c)
			for i := range 16 {
				c.Loads[0].Add(Kind{Idempotent: i%2 == 0, Ordered: i/2%2 == 0, Window: 1 << (i % 6)})
			}
			rounds := Amount(5, 1, 50)
			var longest time.Duration
			for range rounds {
				longest = max(longest, stopUnderLoad(c))
			}
			c.Pause()
			c.Loads[0].Finish()
			c.Check("after the last answer")
			counts := c.Counts
			if counts.Unknown+counts.Failed+counts.Duplicates > 0 || counts.Pending > 0 {
				t.Errorf("an orderly stop left %d publishes unknown, %d failed, %d open, and %d records twice", counts.Unknown, counts.Failed, counts.Pending, counts.Duplicates)
			}
			c.Broker.Await("where the consumer has everything", func() bool { return reader.records() >= int64(counts.Records) })
			reader.close()
			for _, w := range reader.wrong {
				t.Error(w)
			}
			t.Logf("%s: %d stops, the longest took %v, %d acknowledged and none lost, none twice (%d re-sent and recognised), %d followed without a gap; %.1f seconds",
				mode, rounds, longest.Round(time.Millisecond), counts.Acked, counts.Resent, reader.records(), time.Since(c.started).Seconds())
		})
	}
}

// atOnce is well below the time that a stop gives clients who do not leave.
const atOnce = 25 * time.Second

// stopUnderLoad stops and starts the broker once, and returns how long the stop took.
func stopUnderLoad(c *Campaign) time.Duration {
	c.T.Helper()
	hit := c.Loads[0].After(100 + c.Rng.Int64N(900))
	c.Resume()
	Await(c.T, hit, "acknowledgements")
	guests := invite(c)
	began := time.Now()
	c.Place.Set("") // before the port is free for another test's broker
	c.Broker.Terminate()
	guests.told(c.T)
	if code := c.Broker.Wait(); code != 0 {
		c.T.Errorf("the stop ended with exit code %d and said:\n%s", code, c.Broker.Printed())
	}
	took := time.Since(began)
	if took > atOnce {
		c.T.Errorf("the stop took %v, though every client left when it was told:\n%s", took, c.Broker.Printed())
	}
	if state, text := proc.RunFile(c.T, c.Dir); state != "clean" {
		c.T.Errorf("after an orderly stop the file run says %s", text)
	}
	c.Pause()
	c.Start()
	if said := c.Broker.Printed(); !strings.Contains(said, "the last run stopped cleanly") {
		c.T.Errorf("the start after an orderly stop does not say so:\n%s", said)
	}
	c.Check("after an orderly stop")
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
