package scale

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

const (
	idleBytes  = 4 << 10 // promised for a subscription that nobody consumes
	readyAgain = 15 * time.Second
)

// TestManySubscriptions makes very many subscriptions that nobody consumes: each takes little memory, and the broker is
// ready soon after a stop and after a kill, with all of them.
func TestManySubscriptions(t *testing.T) {
	topics, each := faults.Amount(100, 100, 1000), 100 // of fewer, what the process takes by chance would be a share of each
	all := topics * each
	ctx, cancel := context.WithTimeout(context.Background(), 10*proc.Patience)
	defer cancel()
	b := proc.Start(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	begin := func(what string, of int, one func(c *client.Client, i int) error) {
		t.Helper()
		began := time.Now()
		next := numbersBelow(of)
		var wg sync.WaitGroup
		for range 32 {
			c := b.Dial()
			wg.Go(func() {
				for i := range next {
					if err := one(c, i); err != nil {
						t.Errorf("%s %d: %v", what, i, err)
					}
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
		took := time.Since(began)
		t.Logf("%d %s made in %v: %.0f/s", of, what, took.Round(time.Millisecond), float64(of)/took.Seconds())
	}
	begin("topics", topics, func(c *client.Client, i int) error {
		_, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: fmt.Sprint("t", i)})
		return err
	})
	empty, _ := b.Memory()
	begin("subscriptions", all, func(c *client.Client, i int) error {
		_, err := c.Admin().CreateSubscription(ctx, client.SubscriptionSpec{Topic: fmt.Sprint("t", i/each), Name: fmt.Sprintf("subscription-%d", i%each), Type: client.Shared})
		return err
	})
	for _, how := range []string{"made", "stopped", "killed"} {
		began := time.Now()
		switch how {
		case "stopped":
			b.Terminate()
			if code := b.Wait(); code != 0 {
				t.Fatalf("a stop ended with exit code %d", code)
			}
		case "killed":
			b.Kill()
		}
		if how != "made" {
			began = time.Now()
			b = proc.Start(t, b.Dir, proc.Options{})
			if took := time.Since(began); took > readyAgain {
				t.Errorf("%s: ready after %v, promised within %v", how, took, readyAgain)
			}
		}
		took := time.Since(began)
		now, _ := b.Memory()
		if per := (now - empty) / int64(all); how != "made" && !proc.Race && per > idleBytes { // before, what making them took is not all given back
			t.Errorf("%s: an idle subscription takes %d bytes, promised at most %d", how, per, idleBytes)
		}
		c := b.Dial()
		for i := range topics {
			list, err := c.Admin().Subscriptions(ctx, fmt.Sprint("t", i))
			if err != nil || len(list) != each {
				t.Fatalf("%s: topic %d has %d subscriptions: %v", how, i, len(list), err)
			}
		}
		t.Logf("%s: ready after %v; %d MiB with %d subscriptions, %d MiB without: %d bytes for each", how, took.Round(time.Millisecond), now>>20, all, empty>>20, (now-empty)/int64(all))
	}
	b.Terminate()
	if code := b.Wait(); code != 0 {
		t.Errorf("the last stop ended with exit code %d", code)
	}
}

// numbersBelow returns a channel of the numbers below n.
func numbersBelow(n int) <-chan int {
	c := make(chan int, n)
	for i := range n {
		c <- i
	}
	close(c)
	return c
}
