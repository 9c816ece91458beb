package power

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/device"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
)

// barriers is one recorded run of a broker, and what became of it at its barriers.
type barriers struct {
	*load
	names *names
	disk  *device.Recorder
	boot  *device.Boot

	slack       time.Duration  // how much longer than its interval a periodic flush may have taken
	acked, lost map[string]int // by topic, over all points
	ready       time.Duration  // the slowest start
	missing     int            // topics that were not made yet
}

// TestEveryBarrier records what a busy broker has its disk do, and starts a broker on what the disk would have been at
// its flushes, had the power gone there: with all that was sent to it before, and as a cache leaves it that had written
// some blocks of what came after the flush before, and some not.
func TestEveryBarrier(t *testing.T) {
	proc.Binary(t) // not on this test's clock
	b := &barriers{disk: device.Record(t, 512<<20), boot: device.NewBoot(t), acked: map[string]int{}, lost: map[string]int{}}
	points := faults.Amount(100, 5, 1000)
	b.record(t, time.Duration(faults.Amount(2000, 700, 4000))*time.Millisecond)
	all := b.disk.Barriers()
	began := time.Now()
	n := 0
	for i, at := range choose(b.rng, len(all), points) {
		var cache *rand.Rand
		if i%2 == 1 {
			cache = b.rng
		}
		b.point(at, all[at].Issued, cache)
		n++
		if t.Failed() {
			t.Fatalf("barrier %d of %d, cache %v", at, len(all), cache != nil)
		}
	}
	t.Logf("%d of %d barriers, %.0f ms each; acknowledged before them and checked: %v; of those lost, and declared so: %v; slowest start %v; periodic flushes were allowed %v besides their interval",
		n, len(all), float64(time.Since(began).Milliseconds())/float64(n), b.acked, b.lost, b.ready.Round(time.Millisecond), b.slack.Round(time.Millisecond))
}

// choose returns n of the numbers below total in rising order, the first ones always among them; all where n is larger.
func choose(rng *rand.Rand, total, n int) []int {
	list := make([]int, 0, n)
	for i := range total {
		if left := n - len(list); i < n/20 || rng.IntN(total-i) < left {
			list = append(list, i)
		}
	}
	return list
}

// record has publishers at work for a while, and turns the broker off.
func (b *barriers) record(t *testing.T, length time.Duration) {
	t.Helper()
	place := &proc.Place{}
	broker := proc.Start(t, b.disk.Dir, settings())
	place.Set(broker.GRPC)
	b.load = newLoad(t, faults.Seeded(t), place)
	b.names = newNames(b.load)
	b.crowd()
	b.names.start(broker)
	flushes := startPulse(t, b.disk.Dir)
	b.resume()
	timer := time.NewTimer(length)
	<-timer.C
	b.pause()
	b.finish()
	broker.Kill()
	b.names.wait()
	b.slack = flushes.end()
	b.disk.Unmount()
}

// point starts a broker on what the power left at one barrier, and judges it.
func (b *barriers) point(i int, moment time.Time, cache *rand.Rand) {
	b.t.Helper()
	fs := b.disk.Replay(i, cache)
	b.boot.Again()
	began := time.Now()
	broker := proc.Start(b.t, fs.Dir, settings())
	b.ready = max(b.ready, time.Since(began))
	b.place.Set(broker.GRPC)
	for _, tp := range b.topics {
		if !b.exists(tp) {
			if tp.made.Before(moment) {
				b.t.Errorf("%s was made %v before the moment, and is not there", tp.name, moment.Sub(tp.made))
			}
			b.missing++
			continue
		}
		j := &judge{load: b.load, topic: tp, moment: moment, kept: tp.kept(moment, b.slack)}
		j.read(tp.read())
		for _, broken := range j.broken {
			b.t.Error(broken)
		}
		b.acked[tp.name] += j.acked
		b.lost[tp.name] += j.lost
		tp.goesOn()
	}
	b.names.checkAt(broker, moment)
	broker.Kill()
	b.disk.Release(fs)
}

// exists reports whether a topic does, in the incarnation that the load knows.
func (l *load) exists(tp *topic) bool {
	l.t.Helper()
	c := l.place.Client(l.t)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	d, err := c.Admin().DescribeTopic(ctx, tp.name)
	if client.KindOf(err) == client.KindNotFound {
		return false
	}
	if err != nil || d.Topic.Incarnation != tp.incarnation {
		l.t.Fatalf("describe %s: %+v, %v", tp.name, d, err)
	}
	return true
}

// kept returns which acknowledged records a power loss at a moment leaves.
func (tp *topic) kept(moment time.Time, slack time.Duration) func(*publish) bool {
	return func(pub *publish) bool {
		switch tp.mode {
		case history.FsyncOnCommit:
			return true
		case history.FsyncPeriodic:
			return moment.Sub(pub.end) > interval+slack
		default:
			return false
		}
	}
}

// goesOn publishes one record more.
func (tp *topic) goesOn() {
	l := tp.load
	l.t.Helper()
	c := l.place.Client(l.t)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	p, err := c.NewProducer(ctx, tp.name, client.ProducerConfig{})
	if err == nil {
		_, err = p.PublishSync(ctx, record.Record{Value: []byte("goes on")})
	}
	if err != nil {
		l.t.Errorf("publish to %s once the power is back: %v", tp.name, err)
	}
}
