package faults

import (
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

	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
)

// Options say what a campaign is about. The zero value is a broker with default settings on a new directory.
type Options struct {
	Dir    string       // where the data directory is made; empty: a new directory, kept if the test fails
	Broker proc.Options // how each of its brokers is started
}

// Campaign is one data directory under fire: the broker that runs on it, and the loads that clients put on that. Its
// methods are for the test's goroutine.
type Campaign struct {
	T      *testing.T
	Rng    *rand.Rand
	Dir    string // the data directory
	Place  *proc.Place
	Broker *proc.Broker // the present one
	Loads  []*Load
	// History is all that clients saw; Counts sum it up as of the last Check.
	History *history.History
	Counts  history.Counts

	Starts   int
	ToDie    time.Duration  // the slowest end of a process that was killed: it waits for the disk
	ToReady  time.Duration  // the slowest start, until the broker was ready
	ToAck    time.Duration  // the slowest first acknowledgement, once publishers were let go
	Kinds    map[string]int // how often each fault was
	Options  Options
	started  time.Time
	keepings string // where histories go when the test fails
}

// Begin starts a broker on a new data directory.
func Begin(t *testing.T, o Options) *Campaign {
	t.Helper()
	proc.Binary(t) // not on this test's clock
	c := &Campaign{T: t, Rng: Seeded(t), Place: &proc.Place{}, History: history.New(), Kinds: map[string]int{}, Options: o, started: time.Now()}
	c.keepings = proc.Dir(t)
	if o.Dir == "" {
		o.Dir = c.keepings
	}
	c.Dir = filepath.Join(o.Dir, "data")
	t.Cleanup(c.keep)
	c.Start()
	return c
}

// keep writes the history beside the data when the test has failed.
func (c *Campaign) keep() {
	if !c.T.Failed() {
		return
	}
	f, err := os.Create(filepath.Join(c.keepings, "history.jsonl"))
	if err == nil {
		err = c.History.Write(f)
		_ = f.Close()
	}
	if err != nil {
		c.T.Errorf("keep the history: %v", err)
	}
}

// Start starts the broker and waits until it is ready.
func (c *Campaign) Start() {
	c.T.Helper()
	c.Starts++
	began := time.Now()
	c.Broker = proc.Start(c.T, c.Dir, c.Options.Broker)
	c.ToReady = max(c.ToReady, time.Since(began))
	c.Place.Set(c.Broker.GRPC)
}

// Fault notes a fault that began at a time, has had its effect by now, and may have cost something.
func (c *Campaign) Fault(kind string, began time.Time, cost history.Cost) {
	c.Kinds[kind]++
	c.History.Fault(kind, c.History.Now()-time.Since(began), cost)
}

// Kill ends the broker in one of the ways that leave no time for anything; sometimes a next one, too, while it starts.
func (c *Campaign) Kill() {
	c.T.Helper()
	how := "kill"
	began := time.Now()
	c.Place.Set("")         // before the port is free for another test's broker
	if c.Rng.IntN(8) == 0 { // the stop is under way
		how = "kill while stopping"
		c.Broker.Terminate()
		c.Within(20 * time.Millisecond)
	}
	c.strike()
	c.Fault(how, began, history.Cost{})
	for c.Rng.IntN(4) == 0 { // so soon again that it may not be ready yet, nor even up
		began := time.Now()
		c.Starts++
		c.Broker = proc.Launch(c.T, c.Dir, c.Options.Broker)
		if c.Rng.IntN(2) == 0 {
			c.Broker.Listening()
			c.Place.Set(c.Broker.GRPC)
		}
		c.Within(40 * time.Millisecond)
		c.Place.Set("")
		c.Broker.Kill()
		c.Fault("kill while starting", began, history.Cost{})
	}
}

// Crash kills the broker as it is.
func (c *Campaign) Crash() {
	c.T.Helper()
	began := time.Now()
	c.Place.Set("")
	c.strike()
	c.Fault("kill", began, history.Cost{})
}

func (c *Campaign) strike() {
	c.T.Helper()
	struck := time.Now()
	c.Broker.Kill()
	c.ToDie = max(c.ToDie, time.Since(struck))
}

// Within waits for a random time, or until the broker ends.
func (c *Campaign) Within(most time.Duration) {
	timer := time.NewTimer(time.Duration(c.Rng.Int64N(int64(most))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.Broker.Exited():
	}
}

// Resume lets the publishers of all loads publish.
func (c *Campaign) Resume() {
	for _, l := range c.Loads {
		l.Resume()
	}
}

// Pause makes the publishers of all loads begin nothing new.
func (c *Campaign) Pause() {
	for _, l := range c.Loads {
		l.Pause()
	}
}

// Check reads everything and judges the history; the test ends where a promise is broken.
func (c *Campaign) Check(when string) {
	c.T.Helper()
	c.check(when, false)
}

// check is Check. all says that every answer has come, so that every acknowledged record must have been read.
func (c *Campaign) check(when string, all bool) {
	c.T.Helper()
	for _, l := range c.Loads {
		l.Read()
	}
	report := c.History.Check(history.Options{AllRead: all, PublishWithin: soon()})
	c.Counts = report.Counts
	for _, v := range report.Violations {
		c.T.Errorf("%s: %v", when, v)
	}
	for _, u := range report.Undecided {
		c.T.Errorf("%s: cannot be judged: %s", when, u)
	}
	if c.T.Failed() {
		c.T.FailNow()
	}
}

// soon is how long after a fault a publish must have succeeded.
func soon() time.Duration {
	if proc.Race {
		return time.Minute
	}
	return 10 * time.Second
}

// End has every publisher finish, and checks once more: now nothing may be open, and two more crashes change nothing.
func (c *Campaign) End() {
	c.T.Helper()
	c.Pause()
	for _, l := range c.Loads {
		l.Finish()
	}
	c.check("after the last answer", true)
	if open := c.Counts.Pending - c.Counts.Orphaned; open > 0 {
		c.T.Errorf("%d publishes were never answered", open)
	}
	c.Crash()
	c.Start()
	before := logs(c.T, c.Dir)
	c.Crash()
	c.Start()
	c.check("after another crash", true)
	if after := logs(c.T, c.Dir); after != before {
		c.T.Errorf("opening the logs after a crash changed them:\n%s\nis now\n%s", before, after)
	}
	c.Broker.Terminate()
	if code := c.Broker.Wait(); code != 0 {
		c.T.Errorf("the last stop ended with exit code %d", code)
	}
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

// Strike lets publishers publish until a random number of acknowledgements to the first load, has fault do its work,
// starts the broker and checks, and waits until it acknowledges again.
func (c *Campaign) Strike(when string, fault func()) {
	c.T.Helper()
	enough := int64(math.Exp(c.Rng.Float64() * math.Log(2000)))
	hit := c.Loads[0].After(enough)
	c.Resume()
	Await(c.T, hit, fmt.Sprintf("%d acknowledgements", enough))
	fault()
	c.Pause()
	replaced := make([][]Kind, len(c.Loads))
	for i, l := range c.Loads {
		replaced[i] = l.CrashMortals()
	}
	c.Start()
	c.Check(when)
	for i, l := range c.Loads {
		for _, k := range replaced[i] {
			l.Add(k)
		}
	}
	began := time.Now()
	c.History.Heal()
	hits := make([]<-chan struct{}, len(c.Loads))
	for i, l := range c.Loads {
		hits[i] = l.After(1)
	}
	c.Resume()
	for i, l := range c.Loads {
		Await(c.T, hits[i], "the first acknowledgement of "+l.Topic+" after a start")
	}
	c.ToAck = max(c.ToAck, time.Since(began))
	c.Pause()
}

// Report logs what a campaign came to.
func (c *Campaign) Report(cycles int) {
	n := c.Counts
	c.T.Logf("%d records, %d acknowledged and %d lost, %d duplicates (each after a fault that left a publish open; none of an idempotent producer), %d re-sent and recognised, %d unknown of which %d are there, %d failed",
		n.Records, n.Acked, n.Lost, n.Duplicates, n.Resent, n.Unknown, n.UnknownKept, n.Failed)
	c.T.Logf("%d cycles (%v, %d starts); slowest death %v, slowest start %v, slowest first acknowledgement after one %v; %.1f seconds",
		cycles, c.Kinds, c.Starts, c.ToDie.Round(time.Millisecond), c.ToReady.Round(time.Millisecond),
		c.ToAck.Round(time.Millisecond), time.Since(c.started).Seconds())
}
