package scale

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

const (
	afterStop = 30 * time.Second // promised for 2,000 topics and 1 GiB
	afterKill = 60 * time.Second
	restarts  = 5
)

// TestManyTopics fills a broker with topics and bytes, and starts it again and again, after clean stops and after kills:
// it is ready in time, says how far it is and that it is alive meanwhile, has everything, and takes no more memory and
// descriptors than the time before.
func TestManyTopics(t *testing.T) {
	topics, bytes := faults.Amount(200, 40, 2000), faults.Amount(100<<20, 4<<20, 1<<30)
	b := proc.Start(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	fill(t, b, topics, bytes)
	var before usage
	for n := range restarts {
		within := afterStop
		if n%2 == 0 {
			b.Terminate()
			if code := b.Wait(); code != 0 {
				t.Fatalf("a stop ended with exit code %d", code)
			}
		} else {
			b.Kill()
			within = afterKill
		}
		began := time.Now()
		b = proc.Launch(t, b.Dir, proc.Options{})
		b.Listening()
		stop, asked := make(chan struct{}), make(chan [2]int)
		url := "http://" + b.HTTP
		go func() {
			n, refused := alive(url, stop)
			asked <- [2]int{n, refused}
		}()
		b.Ready()
		took := time.Since(began)
		close(stop)
		if a := <-asked; a[1] > 0 {
			t.Errorf("start %d: not alive %d of %d times while it recovered", n, a[1], a[0])
		}
		if took > within {
			t.Errorf("start %d: ready after %v, promised within %v", n, took, within)
		}
		if said := b.Printed(); !strings.Contains(said, "partitions opened") {
			t.Errorf("start %d does not say how far it is:\n%s", n, said)
		}
		verify(t, b, topics)
		now := measure(t, b)
		t.Logf("start %d (%s): ready after %v; %d MiB of memory, %d descriptors, %d goroutines, %d MiB on disk", n,
			map[bool]string{true: "stopped", false: "killed"}[n%2 == 0], took.Round(time.Millisecond), now.memory>>20, now.descriptors, now.goroutines, now.disk>>20)
		if n == 0 {
			before = now
			continue
		}
		// The connections of who has just asked go a moment later, and what a start leaves behind some time later: it may take
		// more for a while.
		b.Await(fmt.Sprintf("down to what the first start takes, which is %+v; start %d takes %+v", before, n, now), func() bool {
			now := measure(t, b)
			return now.memory <= before.memory+before.memory/4+16<<20 && now.descriptors <= before.descriptors+4 && now.goroutines <= before.goroutines+8
		})
	}
	b.Terminate()
	if code := b.Wait(); code != 0 {
		t.Errorf("the last stop ended with exit code %d", code)
	}
}

// fill makes topics, every hundredth of which gets a hundred times what the others do.
func fill(t *testing.T, b *proc.Broker, topics, bytes int) {
	t.Helper()
	c := b.Dial()
	ctx, cancel := context.WithTimeout(context.Background(), 10*proc.Patience)
	defer cancel()
	names := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range names {
				if err := fillOne(ctx, c, i, share(i, topics, bytes)); err != nil {
					t.Errorf("topic %d: %v", i, err)
				}
			}
		})
	}
	began := time.Now()
	for i := range topics {
		names <- i
	}
	close(names)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d topics with %d MiB after %v", topics, bytes>>20, time.Since(began).Round(time.Millisecond))
}

// share returns how many records of 1 KiB topic i gets.
func share(i, topics, bytes int) int {
	unit := bytes / 1024 / (2 * topics)
	if i%100 == 0 {
		return max(1, unit*100)
	}
	return max(1, unit)
}

func fillOne(ctx context.Context, c *client.Client, i, records int) error {
	name := fmt.Sprintf("t%d", i)
	mode := faults.Modes[i%len(faults.Modes)]
	if _, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: name, Settings: client.Settings{Fsync: &mode, SegmentBytes: new(int64(4 << 20))}}); err != nil {
		return err
	}
	p, err := c.NewProducer(ctx, name, client.ProducerConfig{Idempotent: i%2 == 0})
	if err != nil {
		return err
	}
	value := make([]byte, 1024)
	failed := make(chan error, 1)
	for range records {
		p.Publish(ctx, record.Record{Value: value}, func(_ client.Ack, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// verify sees every topic as full as it was made, as far as it is known.
func verify(t *testing.T, b *proc.Broker, topics int) {
	t.Helper()
	c := b.Dial()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	var first int64
	for i := range topics {
		d, err := c.Admin().DescribeTopic(ctx, fmt.Sprintf("t%d", i))
		if err != nil {
			t.Fatal(err)
		}
		p := d.PartitionStates[0]
		if p.State != "serving" || p.First != 0 || p.End == 0 {
			t.Fatalf("topic %d is %+v", i, p)
		}
		if i%100 == 0 {
			if i == 0 {
				first = p.End
			}
			if p.End != first {
				t.Fatalf("topic %d ends at %d, topic 0 at %d", i, p.End, first)
			}
		}
	}
}
