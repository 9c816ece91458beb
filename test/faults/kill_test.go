package faults

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/proc"
)

const (
	topic      = "default/load"
	partitions = 2
)

// campaign is one broker directory under fire.
type campaign struct {
	t       *testing.T
	rng     *rand.Rand
	dir     string
	place   *proc.Place
	broker  *proc.Broker
	load    *load
	counts  Counts
	started time.Time

	starts  int
	toDie   time.Duration // the slowest end of a process that was killed: it waits for the disk
	toReady time.Duration // the slowest start, until the broker was ready
	toAck   time.Duration // the slowest first acknowledgement, once publishers were let go
	kinds   map[string]int
}

// begin starts a broker on a new directory and makes the topic.
func begin(t *testing.T, fsync string) *campaign {
	t.Helper()
	proc.Binary(t) // not on this test's clock
	c := &campaign{
		t: t, rng: seeded(t), dir: filepath.Join(proc.Dir(t), "data"), place: &proc.Place{}, started: time.Now(), kinds: map[string]int{},
	}
	c.load = newLoad(t, c.place, topic, partitions)
	t.Cleanup(c.keep)
	c.start()
	cl := c.place.Client(t)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	if _, err := cl.Admin().CreateTopic(ctx, client.TopicSpec{
		Name: topic, Partitions: partitions,
		Settings: client.Settings{Fsync: &fsync, SegmentBytes: new(int64(64 << 10))},
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

// keep writes the history beside the data when the test has failed.
func (c *campaign) keep() {
	if !c.t.Failed() {
		return
	}
	f, err := os.Create(filepath.Join(filepath.Dir(c.dir), "history.jsonl"))
	if err == nil {
		err = c.load.history.Write(f)
		_ = f.Close()
	}
	if err != nil {
		c.t.Errorf("keep the history: %v", err)
	}
}

// start starts the broker and waits until it is ready.
func (c *campaign) start() {
	c.t.Helper()
	c.starts++
	began := time.Now()
	c.broker = proc.Start(c.t, c.dir, proc.Options{})
	c.toReady = max(c.toReady, time.Since(began))
	c.place.Set(c.broker.GRPC)
}

// kill ends the broker in one of the ways that leave no time for anything.
func (c *campaign) kill() {
	c.t.Helper()
	how := "kill"
	began := c.load.history.Now()
	c.place.Set("")         // before the port is free for another test's broker
	if c.rng.IntN(8) == 0 { // the stop is under way
		how = "kill while stopping"
		c.broker.Terminate()
		c.within(20 * time.Millisecond)
	}
	struck := time.Now()
	c.broker.Kill()
	c.toDie = max(c.toDie, time.Since(struck))
	c.load.history.AddFault(how, began)
	c.kinds[how]++
	for c.rng.IntN(4) == 0 { // so soon again that it may not be ready yet, nor even up
		began := c.load.history.Now()
		c.starts++
		b := proc.Launch(c.t, c.dir, proc.Options{})
		if c.rng.IntN(2) == 0 {
			b.Listening()
			c.place.Set(b.GRPC)
		}
		c.broker = b
		c.within(40 * time.Millisecond)
		c.place.Set("")
		b.Kill()
		c.load.history.AddFault("kill while starting", began)
		c.kinds["kill while starting"]++
	}
}

// crash kills an idle broker.
func (c *campaign) crash() {
	c.t.Helper()
	c.place.Set("")
	c.broker.Kill()
}

// within waits for a random time, or until the broker ends.
func (c *campaign) within(most time.Duration) {
	timer := time.NewTimer(time.Duration(c.rng.Int64N(int64(most))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.broker.Exited():
	}
}

// check reads everything and compares it with the history.
func (c *campaign) check(when string) {
	c.t.Helper()
	broken, counts := c.load.history.Check(read(c.t, c.place, topic, partitions, c.load.history.Now()))
	c.counts = counts
	for _, b := range broken {
		c.t.Errorf("%s: %s", when, b)
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// end has every publisher finish, and checks once more: now nothing may be open, and two more crashes change nothing.
func (c *campaign) end() {
	c.t.Helper()
	c.load.pause()
	c.load.finish()
	c.check("after the last answer")
	if open := c.pending(); open > 0 {
		c.t.Errorf("%d publishes were never answered", open)
	}
	c.crash()
	c.start()
	before := logs(c.t, c.dir)
	c.crash()
	c.start()
	c.check("after another crash")
	if after := logs(c.t, c.dir); after != before {
		c.t.Errorf("opening the logs after a crash changed them:\n%s\nis now\n%s", before, after)
	}
	c.broker.Terminate()
	if code := c.broker.Wait(); code != 0 {
		c.t.Errorf("the last stop ended with exit code %d", code)
	}
}

func (c *campaign) pending() (n int) {
	c.load.history.mu.Lock()
	defer c.load.history.mu.Unlock()
	for _, list := range c.load.history.publishes {
		for i := range list {
			if list[i].Outcome == Pending {
				n++
			}
		}
	}
	return n
}

// logs returns a line for every segment: its name, and what it holds without the space reserved behind it.
func logs(t *testing.T, dir string) string {
	t.Helper()
	var list strings.Builder
	err := filepath.WalkDir(filepath.Join(dir, "topics"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".log") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text = []byte(strings.TrimRight(string(text), "\x00"))
		fmt.Fprintf(&list, "%s %d %x\n", path[len(dir):], len(text), sha256.Sum256(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.String()
}

// cycle lets publishers publish until a random number of acknowledgements, kills the broker, starts it and checks.
func (c *campaign) cycle(n int) {
	c.t.Helper()
	enough := int64(math.Exp(c.rng.Float64() * math.Log(2000)))
	hit := c.load.acks.after(enough)
	c.load.resume()
	await(c.t, hit, fmt.Sprintf("%d acknowledgements", enough))
	c.kill()
	c.load.pause()
	replaced := c.load.crashMortals()
	c.start()
	c.check(fmt.Sprintf("cycle %d", n))
	for _, k := range replaced {
		c.load.add(k)
	}
	hit = c.load.acks.after(1)
	began := time.Now()
	c.load.resume()
	await(c.t, hit, "the first acknowledgement after a start")
	c.toAck = max(c.toAck, time.Since(began))
	c.load.pause()
}

func (c *campaign) report(mode string, cycles int) {
	n := c.counts
	c.t.Logf("%s: %d cycles (%v, %d starts), %d records, %d acknowledged and none lost, %d duplicates (each after a kill that left a publish open; none of an idempotent producer), %d re-sent and recognised, %d unknown of which %d are there, %d failed; slowest death %v, slowest start %v, slowest first acknowledgement after one %v; %.1f seconds",
		mode, cycles, c.kinds, c.starts, n.Records, n.Acked, n.Duplicates, n.Resent, n.Unknown, n.UnknownKept, n.Failed,
		c.toDie.Round(time.Millisecond), c.toReady.Round(time.Millisecond), c.toAck.Round(time.Millisecond), time.Since(c.started).Seconds())
}

// TestKillNine kills a broker that publishers are busy with, at any moment, and starts it on what is left: in every
// fsync mode all that was acknowledged is there, at its offset, for what a process has written outlives it.
func TestKillNine(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			c := begin(t, mode)
			cycles := amount(20, 2, 500)
			for n := range cycles {
				if n%4 == 0 { // another number of publishers
					c.load.finish()
					c.load.start(crowd(c.rng), c.rng)
				}
				c.cycle(n)
			}
			c.end()
			c.report(mode, cycles)
		})
	}
}

// crowd draws a number of publishers from 1 to 64, small ones as often as large ones.
func crowd(rng *rand.Rand) int { return int(math.Exp(rng.Float64() * math.Log(64.99))) }
