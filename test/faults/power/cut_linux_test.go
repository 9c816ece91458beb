package power

import (
	"testing"
	"time"

	"github.com/leveemq/levee/test/device"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
)

// settings make brokers trim as often as they can.
func settings() proc.Options {
	return proc.Options{Env: map[string]string{"LEVEE_STORAGE_RETENTION_CHECK": "100ms"}}
}

// campaign is one file system whose power is cut again and again.
type campaign struct {
	*load
	fs     *device.FS
	boot   *device.Boot
	broker *proc.Broker
	names  *names

	lost     map[string]int           // by topic: acknowledged, and not there any more
	oldest   map[string]time.Duration // by topic: how long before the cut that was acknowledged, at most
	kinds    map[string]int
	last     string
	counts   history.Counts
	ready    time.Duration // the slowest start
	slack    time.Duration // the most that a periodic flush was allowed besides its interval
	mounting time.Duration // all mounts after a cut
}

func newCampaign(t *testing.T) *campaign {
	t.Helper()
	proc.Binary(t) // not on this test's clock
	c := &campaign{fs: device.Ext4(t, int64(faults.Amount(512, 256, 4096))<<20), boot: device.NewBoot(t), kinds: map[string]int{}, lost: map[string]int{}, oldest: map[string]time.Duration{}}
	place := &proc.Place{}
	c.broker = proc.Start(t, c.fs.Dir, settings())
	place.Set(c.broker.GRPC)
	c.load = newLoad(t, faults.Seeded(t), place)
	c.names = newNames(c.load)
	return c
}

// cut lets publishers publish for a random time, cuts the power, and starts a broker on what is left.
func (c *campaign) cut() {
	c.t.Helper()
	before := c.answers()
	flushes := startPulse(c.t, c.fs.Dir)
	c.names.start(c.broker)
	c.resume()
	await(c.t, "an acknowledgement", func() bool { return c.answers() > before })
	c.work(1500 * time.Millisecond)
	began, moment := c.history.Now(), time.Now()
	kind := c.strike()
	c.pause()
	c.names.wait()
	slack := flushes.end()
	c.remount()
	c.crashMortals()
	c.history.Fault(kind, began, history.Cost{MayLose: history.CostUnsynced, Slack: slack})
	c.kinds[kind]++
	c.last = kind
	c.slack = max(c.slack, slack)
	for c.rng.IntN(4) == 0 { // and again, before the broker is done with the first
		began := c.history.Now()
		c.broker = proc.Launch(c.t, c.fs.Dir, settings())
		within(c.rng, 80*time.Millisecond, c.broker.Exited())
		freeze(c.t, c.broker)
		c.fs.Cut()
		c.broker.Kill()
		c.remount()
		c.history.Fault("power cut while starting", began, history.Cost{MayLose: history.CostUnsynced})
		c.kinds["power cut while starting"]++
	}
	started := time.Now()
	c.broker = proc.Start(c.t, c.fs.Dir, settings())
	c.ready = max(c.ready, time.Since(started))
	c.blind.Store(false) // clients have long taken what the one before had sent
	c.place.Set(c.broker.GRPC)
	c.check(moment)
	c.names.check(c.broker)
	c.replace()
}

// strike cuts the power in one of several ways, and leaves no broker behind.
func (c *campaign) strike() (kind string) {
	c.t.Helper()
	switch c.rng.IntN(8) {
	case 0, 1: // as of the disk: the broker lives on for a while, and sees that nothing works
		kind = "disk gone"
		c.blind.Store(true)
		c.fs.Cut()
		within(c.rng, 20*time.Millisecond, c.broker.Exited())
		c.place.Set("")
	case 2: // as of the machine, while a broker starts after another's crash: the crash has cost nothing, the cut may
		kind = "power cut after a kill"
		c.place.Set("")
		c.broker.Kill()
		c.broker = proc.Launch(c.t, c.fs.Dir, settings())
		within(c.rng, 80*time.Millisecond, c.broker.Exited())
		freeze(c.t, c.broker)
		c.fs.Cut()
	default: // as of the machine: nobody sees anything
		kind = "power cut"
		freeze(c.t, c.broker)
		c.fs.Cut()
		c.place.Set("")
	}
	c.broker.Kill()
	return kind
}

// remount shows what the cut has left, on a machine that was started again.
func (c *campaign) remount() {
	c.t.Helper()
	began := time.Now()
	c.fs.Unmount()
	c.fs.Mount()
	c.boot.Again()
	c.mounting += time.Since(began)
}

func (c *campaign) answers() (n int64) {
	for _, tp := range c.topics {
		n += tp.acked.Load()
	}
	return n
}

// check reads every topic after a cut, and judges all that is known by now.
func (c *campaign) check(moment time.Time) {
	c.t.Helper()
	for _, tp := range c.topics {
		readings := make([]*history.Reading, tp.partitions) // begun before the first is read: publishers go on meanwhile
		for p := range readings {
			from := int64(0)
			if tp.retention {
				from = -1
			}
			readings[p] = c.history.Reading(tp.name, tp.incarnation, int32(p), "broker", from)
		}
		began := time.Now()
		entries, ends := tp.read()
		for p, r := range readings {
			at := map[int64]bool{}
			for _, e := range entries[p] {
				if e.to >= 0 {
					r.Told(history.Lost, e.offset, e.to)
				} else {
					r.Record(e.offset, e.value)
					at[e.offset] = true
				}
			}
			r.End(ends[p])
			c.tally(tp, int32(p), moment, began, entries[p], at)
		}
	}
	report := c.history.Check(history.Options{})
	for _, v := range report.Violations {
		c.t.Error(v)
	}
	c.counts = report.Counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		c.t.Errorf("a publish failed, and not because of the cut: %v", c.err)
	}
}

// tally counts what this cut has cost a partition that was read from began on.
func (c *campaign) tally(tp *topic, p int32, moment, began time.Time, entries []entry, at map[int64]bool) {
	if len(entries) == 0 {
		return
	}
	c.each(tp, p, func(_ history.Value, pub *publish) {
		if pub.offset < entries[0].offset || pub.lost || at[pub.offset] || !pub.end.Before(began) {
			return
		}
		pub.lost = true
		c.lost[tp.name]++
		c.oldest[tp.name] = max(c.oldest[tp.name], moment.Sub(pub.end))
	})
}

// TestPowerCuts cuts the power of the machine under a broker that is publishing, rolling, trimming, making and deleting
// topics, again and again on one file system.
func TestPowerCuts(t *testing.T) {
	c := newCampaign(t)
	began := time.Now()
	cuts := faults.Amount(30, 3, 300)
	for n := range cuts {
		if n%4 == 0 {
			c.finish()
			c.crowd()
		}
		c.cut()
		if t.Failed() {
			t.Fatalf("this was cut %d, a %s", n, c.last)
		}
	}
	c.finish()
	t.Logf("%d cuts %v, %.2f s each, %.0f ms of it to mount; %d acknowledged, %d duplicates, %d unknown of which %d are there; slowest start %v; periodic flushes were allowed %v at most besides their interval",
		cuts, c.kinds, time.Since(began).Seconds()/float64(cuts), float64(c.mounting.Milliseconds())/float64(cuts), c.counts.Acked, c.counts.Duplicates,
		c.counts.Unknown, c.counts.UnknownKept, c.ready.Round(time.Millisecond), c.slack.Round(time.Millisecond))
	for _, tp := range c.topics {
		t.Logf("%s (%s): %d acknowledged, %d lost and declared so, the oldest of them acknowledged %v before the cut",
			tp.name, tp.mode, tp.acked.Load(), c.lost[tp.name], c.oldest[tp.name].Round(time.Millisecond))
	}
	t.Logf("%d changes of topics acknowledged, %d cut off; %d records of theirs lost", c.names.changes, c.names.cutOff, c.names.lost)
}
