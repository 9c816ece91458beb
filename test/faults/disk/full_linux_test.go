package disk

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/device"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
)

// all makes Fill take what is kept for root as well, for the broker may be root.
const all = -1 << 40

// resumption is how soon a broker must acknowledge again once there is room.
const resumption = 5 * time.Second

// fullDisk is a broker under load on a small disk of its own.
type fullDisk struct {
	*faults.Campaign
	fs    *device.FS
	probe *site // asks without a client that would try again

	slowest time.Duration // from the moment there was room to the first acknowledgement
	refused int
}

func beginOnDisk(t *testing.T, size int64) *fullDisk {
	t.Helper()
	fs := device.Ext4(t, size)
	d := &fullDisk{fs: fs, Campaign: faults.Begin(t, faults.Options{Dir: on(t, fs.Dir)})}
	for _, mode := range faults.Modes {
		l := d.Load(client.TopicSpec{Name: "default/" + mode, Partitions: 2, Settings: client.Settings{Fsync: &mode, SegmentBytes: new(int64(64 << 10))}})
		for i := range 4 {
			l.Add(faults.Kind{Idempotent: i%2 == 0, Ordered: i/2 == 0, Window: 4, Stubborn: true, Timeout: time.Second})
		}
	}
	d.look()
	d.probe.mustCreate("probe", "on_commit")
	return d
}

// look makes the probe ask the present broker.
func (d *fullDisk) look() {
	d.probe = &site{t: d.T, dir: d.Dir, b: d.Broker, raw: d.Broker.Raw()}
}

// restart ends the broker, in one of two ways, and starts it again on the disk as it is.
func (d *fullDisk) restart(kill bool) {
	d.T.Helper()
	_ = d.probe.raw.Conn.Close()
	if kill {
		d.Crash()
	} else {
		began := time.Now()
		d.Place.Set("")
		d.Broker.Terminate()
		if code := d.Broker.Wait(); code != 0 {
			d.T.Errorf("a stop on a full disk ended with exit code %d", code)
		}
		d.Fault("stop", began, history.Cost{})
	}
	d.Start()
	d.look()
}

// full wants publishes refused as on a full disk, and reads to go on.
func (d *fullDisk) full(when string) {
	d.T.Helper()
	d.probe.await("out of room", func() bool {
		_, err := d.probe.publish("probe", strings.Repeat("x", 8<<10))
		if err == nil {
			return false
		}
		kind, retriable := kindOf(err)
		if kind != client.KindNoSpace || !retriable {
			d.T.Fatalf("%s: a publish on a full disk: %v (kind %s, retriable %v), want no_space, retriable", when, err, kind, retriable)
		}
		d.refused++
		return true
	})
	d.Check(when)
	if d.probe.metric("levee_storage_full_total") == 0 {
		d.T.Errorf("%s: no refusal is counted", when)
	}
	if code, text := d.probe.get("/readyz"); code != 200 {
		d.T.Errorf("%s: not ready: %s", when, text)
	}
}

// room frees space and wants every load to be acknowledged again soon, by itself.
func (d *fullDisk) room(free func()) {
	d.T.Helper()
	hits := make([]<-chan struct{}, len(d.Loads))
	free()
	began := time.Now()
	d.History.Heal()
	for i, l := range d.Loads {
		hits[i] = l.After(1)
	}
	d.Resume()
	for i, l := range d.Loads {
		faults.Await(d.T, hits[i], "the first acknowledgement of "+l.Topic+" once there was room")
	}
	took := time.Since(began)
	d.slowest = max(d.slowest, took)
	if took > resumption {
		d.T.Errorf("publishes went on %v after there was room, want %v at most", took, resumption)
	}
}

// fill publishes to a topic of its own until that is refused for want of room, and returns what deletes the topic. It
// takes all the room there is only while no load does.
func (d *fullDisk) fill(name string) (free func()) {
	d.T.Helper()
	d.probe.await("able to create a topic", func() bool { // it may be busy getting its reserve back
		_, err := d.probe.raw.CreateTopic(d.probe.context(), &leveev1.CreateTopicRequest{Name: name, Settings: &leveev1.TopicSettings{
			Fsync: new("none"), SegmentBytes: new(int64(8 << 20)), // few files, which go one by one
		}})
		if kind, _ := kindOf(err); err != nil && kind != client.KindNoSpace {
			d.T.Fatal(err)
		}
		return err == nil
	})
	for _, size := range []int{256 << 10, 16 << 10, 1 << 10} {
		for {
			_, err := d.probe.publish(name, strings.Repeat("x", size))
			if err == nil {
				continue
			}
			if kind, _ := kindOf(err); kind != client.KindNoSpace {
				d.T.Fatalf("fill the disk by publishing: %v", err)
			}
			break
		}
	}
	return func() {
		d.T.Helper()
		before := d.probe.metric("levee_broker_topics_purged_total")
		if _, err := d.probe.raw.DeleteTopic(d.probe.context(), &leveev1.DeleteTopicRequest{Name: name}); err != nil {
			d.T.Fatalf("delete a topic on a full disk: %v", err)
		}
		began := time.Now()
		d.probe.await("rid of the topic", func() bool { return d.probe.metric("levee_broker_topics_purged_total") > before })
		if took := time.Since(began); took > resumption {
			d.T.Errorf("a deletion gave its room back after %v", took)
		}
	}
}

// TestFullDisk fills the disk of a broker under load, from outside and by publishing, again and again: publishes fail
// with a typed error meanwhile, reads go on, a restart works, a deletion makes room, and everything goes on by itself
// once there is room. Nothing acknowledged is lost.
func TestFullDisk(t *testing.T) {
	cycles := faults.Amount(5, 2, 50)
	d := beginOnDisk(t, 32<<20+int64(cycles)<<20)
	for n := range cycles {
		hit := d.Loads[n%len(d.Loads)].After(50)
		d.Resume()
		faults.Await(t, hit, "acknowledgements")
		when := fmt.Sprintf("cycle %d, full from outside", n)
		var free func()
		if n%2 == 0 {
			free = d.fs.Fill(all)
		} else {
			when = fmt.Sprintf("cycle %d, full by publishing", n)
			d.Pause()
			free = d.fill(fmt.Sprintf("ballast-%d", n))
		}
		began := time.Now()
		d.Resume()
		d.full(when)
		if n%3 != 0 {
			d.Pause()
			d.restart(n%3 == 1)
			d.full(when + ", after a restart")
		}
		d.Fault("full disk", began, history.Cost{})
		d.room(free)
		d.Pause()
		d.Check(when + ", with room again")
	}
	d.End()
	d.Report(cycles)
	t.Logf("refused as full %d times; slowest resumption %v", d.refused, d.slowest.Round(time.Millisecond))
}

// TestHealthTellsOfAFullDisk refuses a publish for want of room: health says so, until there is room again.
func TestHealthTellsOfAFullDisk(t *testing.T) {
	fs := device.Ext4(t, 16<<20)
	s := open(t, filepath.Join(on(t, fs.Dir), "data"), proc.Options{})
	s.mustCreate("orders", "on_commit")
	s.mustPublish("orders", "before")
	free := fs.Fill(all)
	s.await("out of room", func() bool {
		_, err := s.publish("orders", strings.Repeat("x", 8<<10))
		kind, _ := kindOf(err)
		return kind == client.KindNoSpace
	})
	if p := s.problems(); !strings.Contains(p, "the disk is full") {
		t.Errorf("a publish was refused because the disk is full, and health says %q", p)
	}
	free()
	s.mustPublish("orders", "after")
	s.await("well again", func() bool { return s.problems() == "" })
	s.stop(0)
}

// TestFileSizeLimit lets files grow no further, as a quota of a user's files does: that is a full disk, too.
func TestFileSizeLimit(t *testing.T) {
	s := open(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	kept := map[string][]string{}
	for _, mode := range faults.Modes {
		s.mustCreate(mode, mode)
		kept[mode] = s.mustPublish(mode, values("before", 3, 10<<10)...)
	}
	var before unix.Rlimit
	limit := func(bytes uint64) {
		t.Helper()
		if err := unix.Prlimit(s.b.PID(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: before.Max}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Prlimit(s.b.PID(), unix.RLIMIT_FSIZE, nil, &before); err != nil {
		t.Fatal(err)
	}
	limit(40 << 10)
	for _, mode := range faults.Modes {
		for range 3 {
			_, err := s.publish(mode, strings.Repeat("y", 12<<10)) // the limit is in its middle
			s.want("a publish over the limit of files", err, client.KindNoSpace)
		}
		s.holds("at the limit of files", mode, kept[mode])
	}
	limit(before.Cur)
	for _, mode := range faults.Modes {
		kept[mode] = append(kept[mode], s.mustPublish(mode, values("after", 3, 12<<10)...)...)
	}
	s.b.Kill()
	s.start()
	for _, mode := range faults.Modes {
		s.holds("after a crash", mode, append(kept[mode], s.mustPublish(mode, "again")...))
	}
	s.stop(0)
}
