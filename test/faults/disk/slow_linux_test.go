package disk

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/device"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
)

// TestOneLogHangs has the flush of one topic's log hang: the other topic publishes and reads as before, in the meantime,
// the hanging one is read as far as it is confirmed, whoever waits for it is answered at its deadline, and what waits is
// stored once the disk goes on.
func TestOneLogHangs(t *testing.T) {
	straceOr(t)
	s := open(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	s.mustCreate("slow", "on_commit")
	s.mustCreate("other", "on_commit")
	kept, other := s.mustPublish("slow", "before"), s.mustPublish("other", "before")
	for n := range faults.Amount(3, 1, 20) {
		tr := inject(s, s.segments("slow")[0], "fdatasync", "fdatasync:delay_enter=600s")
		waits := fmt.Sprintf("waits-%d", n)
		answer := make(chan error, 1)
		go func() { _, err := s.publish("slow", waits); answer <- err }()
		s.await("waiting for the disk", func() bool { return s.metric("levee_broker_in_flight_bytes") > 0 })
		_, err := s.publishWithin(100*time.Millisecond, "slow", "given up")
		if c := status.Code(err); c != codes.DeadlineExceeded && c != codes.Unknown { // its own clock's word, or the broker's that nobody knows
			t.Errorf("a publish whose time is over before the disk answers: %v", err)
		}
		for i := range 50 {
			other = append(other, s.mustPublish("other", fmt.Sprintf("during-%d-%d", n, i))...)
		}
		s.holds("while another topic hangs", "other", other)
		s.holds("while its flush hangs", "slow", kept)
		select {
		case err := <-answer:
			t.Fatalf("a publish was answered while its flush hangs: %v", err)
		default:
		}
		tr.end()
		if err := <-answer; err != nil {
			t.Fatalf("a publish whose flush took long: %v", err)
		}
		s.await("done with what waited", func() bool { return s.metric("levee_broker_in_flight_bytes") == 0 })
		got, err := s.read("slow")
		if rest := got[min(len(kept), len(got)):]; err != nil || len(rest) < 1 || len(rest) > 2 || rest[0] != waits {
			t.Fatalf("after its flush hung, the log holds %q (%v), want %q and what waited", got, err, kept)
		}
		kept = got
	}
	s.b.Kill()
	s.start()
	s.holds("after a crash", "slow", append(kept, s.mustPublish("slow", "after")...))
	s.holds("after a crash", "other", other)
	s.stop(0)
}

// TestHealthTellsOfAHungFlush has a flush hang for seconds: health names the log that waits for the disk.
func TestHealthTellsOfAHungFlush(t *testing.T) {
	straceOr(t)
	s := open(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	s.mustCreate("slow", "on_commit")
	s.mustPublish("slow", "before")
	tr := inject(s, s.segments("slow")[0], "fdatasync", "fdatasync:delay_enter=600s")
	answer := make(chan error, 1)
	go func() { _, err := s.publish("slow", "waits"); answer <- err }()
	began := time.Now()
	s.await("telling that a flush hangs, or silent for 20s", func() bool {
		return strings.Contains(s.problems(), "default/slow/0") || time.Since(began) > 20*time.Second
	})
	if p := s.problems(); !strings.Contains(p, "default/slow/0") {
		t.Errorf("a flush of default/slow/0 hangs for 20s, and health says %q", p)
	}
	tr.end()
	if err := <-answer; err != nil {
		t.Fatal(err)
	}
	s.await("well again", func() bool { return s.problems() == "" })
	s.stop(0)
}

// TestStopWhileAFlushHangs stops a broker one of whose flushes hangs for longer than a stop may take.
func TestStopWhileAFlushHangs(t *testing.T) {
	straceOr(t)
	s := open(t, filepath.Join(proc.Dir(t), "data"), proc.Options{Env: map[string]string{"LEVEE_DRAIN_TIMEOUT": "1s"}})
	s.mustCreate("slow", "on_commit")
	s.mustCreate("other", "on_commit")
	kept, other := s.mustPublish("slow", "before"), s.mustPublish("other", "before")
	tr := inject(s, s.segments("slow")[0], "fdatasync", "fdatasync:delay_enter=600s")
	answer := make(chan error, 1)
	go func() { _, err := s.publish("slow", "doubtful"); answer <- err }()
	s.await("waiting for the disk", func() bool { return s.metric("levee_broker_in_flight_bytes") > 0 })
	s.b.Terminate()
	patience := time.NewTimer(15 * time.Second)
	defer patience.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting && !over(s.b.PID()); {
		select {
		case <-s.b.Exited():
			waiting = false
		case <-tick.C:
		case <-patience.C:
			waiting = false
			t.Error("a stop with a time limit of 1s goes on after 15s, because a flush hangs")
		}
	}
	tr.end()
	if code := s.b.Wait(); code == 0 {
		t.Error("a stop that left a flush behind calls itself clean")
	}
	if text := s.b.Printed(); !strings.Contains(text, "waited for the disk") || !strings.Contains(text, "default/slow/0") {
		t.Errorf("the stop does not tell what it left: %s", text)
	}
	if err := <-answer; err == nil {
		kept = append(kept, "doubtful")
	}
	s.start()
	got, err := s.read("slow")
	if err != nil || !slices.Equal(got, kept) && !slices.Equal(got, append(kept, "doubtful")) {
		t.Errorf("after the stop there is %q (%v), want %q and perhaps the doubtful record", got, err, kept)
	}
	s.holds("after the stop", "other", append(other, s.mustPublish("other", "after")...))
	s.stop(0)
}

// TestSlowDisk has every flush of the whole disk take long, or hang until it is let go: what is published meanwhile is
// held within its bound and confirmed afterwards, reads and health answer, and nothing is lost.
func TestSlowDisk(t *testing.T) {
	fs := device.NewDisk(t, 1<<30)
	const bound = 256 << 10
	c := faults.Begin(t, faults.Options{Dir: on(t, fs.Dir), Broker: proc.Options{Env: map[string]string{"LEVEE_LIMITS_IN_FLIGHT_BYTES": fmt.Sprint(bound), "LEVEE_LIMITS_BATCH_BYTES": "128KiB", "LEVEE_LIMITS_RECORD_BYTES": "100KiB"}}})
	for _, mode := range faults.Modes {
		l := c.Load(client.TopicSpec{Name: "default/" + mode, Settings: client.Settings{Fsync: &mode}})
		publishers, window := 2, 2 // few, for those who need not wait for the disk would fill it
		if mode == "on_commit" {
			publishers, window = 16, 16
		}
		for i := range publishers {
			l.Add(faults.Kind{Idempotent: i%2 == 0, Window: window})
		}
	}
	s := &site{t: t, dir: c.Dir, b: c.Broker, raw: c.Broker.Raw()}
	commit := c.Loads[0]
	stalls := faults.Amount(3, 1, 20)
	for n := range stalls {
		hit := commit.After(20)
		c.Resume()
		faults.Await(t, hit, "acknowledgements")
		var release func()
		if n%2 == 0 {
			release = fs.HangFlush()
			s.await("waiting for the disk", func() bool { return fs.Counts().Waiting > 0 })
		} else {
			fs.DelayFlush(time.Duration(100+c.Rng.IntN(faults.Amount(900, 400, 1900))) * time.Millisecond)
			release = func() { fs.DelayFlush(0) }
			faults.Await(t, commit.After(1), "an acknowledgement of a slow disk")
		}
		began := time.Now()
		for range 20 {
			if held := s.metric("levee_broker_in_flight_bytes"); held > bound {
				t.Errorf("stall %d: the broker holds %v bytes, its limit is %d", n, held, bound)
			}
			if code, text := s.get("/readyz"); code != 200 || !strings.Contains(text, `"ready"`) {
				t.Errorf("stall %d: not ready: %s", n, text)
			}
		}
		c.Pause() // or a reader might never come to the end; what waits for the disk goes on waiting
		c.Check(fmt.Sprintf("stall %d", n))
		hit = commit.After(1)
		release()
		c.Resume() // a disk that was only slow may have answered all that waited by now
		faults.Await(t, hit, "an acknowledgement once the disk goes on")
		c.Fault("slow disk", began, history.Cost{})
		c.Pause()
	}
	fs.DelayFlush(0)
	_ = s.raw.Conn.Close()
	c.End()
	c.Report(stalls)
}
