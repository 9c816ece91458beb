package disk

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/proc"
)

// kinds of error that the client package has no constant for.
const (
	kindStopped = "stopped"
	kindUnknown = "outcome_unknown"
	kindIO      = "io"
)

// TestFailedFlush fails the flush of one topic's log: that log acknowledges nothing from then on and
// is not flushed again, nothing unconfirmed is shown, health and metrics say so, the other topic does not notice, and
// after a restart the log is read again and serves.
func TestFailedFlush(t *testing.T) {
	straceOr(t)
	s := open(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	for _, topic := range []string{"broken", "healthy"} {
		s.mustCreate(topic, "on_commit")
	}
	kept := s.mustPublish("broken", values("kept", 10, 100)...)
	other := s.mustPublish("healthy", "before")
	tr := inject(s, s.segments("broken")[0], "fdatasync,pwrite64", "fdatasync:error=EIO")

	_, err := s.publish("broken", "doubtful")
	s.want("the publish whose flush fails", err, kindUnknown)
	for range 3 {
		_, err := s.publish("broken", "refused")
		s.want("a publish after a failed flush", err, kindStopped)
	}
	other = append(other, s.mustPublish("healthy", "during")...)
	got, err := s.readOnce("broken") // what is confirmed, and then why there is no more
	s.want("the end of a log whose flush failed", err, kindStopped)
	if !slices.Equal(got, kept) {
		t.Errorf("after a failed flush readers get %q, want %q", got, kept)
	}
	s.holds("after a failed flush", "healthy", other)
	if p := s.problems(); !strings.Contains(p, "default/broken/0 is unavailable") || !strings.Contains(p, "a flush to the disk failed") {
		t.Errorf("health does not tell of a failed flush: %q", p)
	}
	for _, name := range []string{"levee_server_flush_failures_total", "levee_storage_sync_failures_total"} {
		if n := s.metric(name); n != 1 {
			t.Errorf("%s is %v, want 1", name, n)
		}
	}
	s.await("aware that a flush failed", func() bool { state, _ := proc.RunFile(t, s.dir); return state == "fsync_failed" })
	tr.end()
	_, err = s.publish("broken", "refused")
	s.want("a publish once the disk works again", err, kindStopped)
	if calls := tr.calls(); len(calls) != 2 {
		t.Errorf("one write and one flush of a file should be all there was: %q", calls)
	}
	s.stop(1)

	s.start()
	got, err = s.read("broken")
	if len(got) < len(kept) || len(got) > len(kept)+1 || len(got) > len(kept) && got[len(kept)] != "doubtful" || err != nil {
		t.Errorf("after the restart there is %q (%v), want %q and perhaps the doubtful record", got, err, kept)
	}
	s.holds("after the restart", "broken", append(got, s.mustPublish("broken", "after")...))
	s.holds("after the restart", "healthy", append(other, s.mustPublish("healthy", "after")...))
	s.stop(0)
}

// TestFailedWrite fails writes of one topic's log: they are refused, leave nothing, and the log goes on by itself.
func TestFailedWrite(t *testing.T) {
	straceOr(t)
	s := open(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	kept := map[string][]string{}
	for _, mode := range []string{"on_commit", "periodic", "none"} {
		s.mustCreate(mode, mode)
		kept[mode] = s.mustPublish(mode, "before")
	}
	for mode := range kept {
		tr := inject(s, s.segments(mode)[0], "pwrite64", "pwrite64:error=EIO")
		for range 2 {
			_, err := s.publish(mode, "refused")
			s.want("a publish whose write fails", err, kindIO)
		}
		tr.end()
		s.holds("after failed writes", mode, kept[mode])
		kept[mode] = append(kept[mode], s.mustPublish(mode, "after")...)
	}
	if p := s.problems(); p != "" {
		t.Errorf("nothing is wrong any more, and health says %q", p)
	}
	s.b.Kill()
	s.start()
	for mode := range kept {
		s.holds("after a crash", mode, append(kept[mode], s.mustPublish(mode, "again")...))
	}
	s.stop(0)
}

// TestMetadataFlushFails fails a flush of the metadata's log: changes of topics are refused from then on, and existing
// topics serve all the same. A restart makes everything good.
func TestMetadataFlushFails(t *testing.T) {
	straceOr(t)
	s := open(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	s.mustCreate("there", "on_commit")
	kept := s.mustPublish("there", "before")
	logs, err := filepath.Glob(filepath.Join(s.dir, "raft/log/*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	tr := inject(s, logs[0], "fdatasync", "fdatasync:error=EIO")
	s.want("a topic whose record is not flushed", s.create("doubtful", ""), kindUnknown)
	tr.end()
	s.want("a topic once the disk works again", s.create("refused", ""), kindStopped)
	kept = append(kept, s.mustPublish("there", "during")...)
	s.holds("with failed metadata", "there", kept)
	if p := s.problems(); !strings.Contains(p, "metadata: ") {
		t.Errorf("health does not tell of the metadata: %q", p)
	}
	s.stop(1)
	s.start()
	s.holds("after the restart", "there", append(kept, s.mustPublish("there", "after")...))
	if err := s.create("doubtful", ""); err != nil { // it may or may not be there
		s.want("the doubtful topic", err, client.KindAlreadyExists)
	}
	s.mustCreate("refused", "")
	s.stop(0)
}

// TestFailedRead fails reads of a sealed segment: its readers are told which file it is, the others do not notice, and it
// is over when the disk can be read again.
func TestFailedRead(t *testing.T) {
	straceOr(t)
	s := open(t, filepath.Join(proc.Dir(t), "data"), proc.Options{})
	s.mustCreate("broken", "on_commit")
	s.mustCreate("healthy", "on_commit")
	kept := s.mustPublish("broken", values("kept", 20, 10<<10)...)
	other := s.mustPublish("healthy", "before")
	file := s.segments("broken")[1]
	tr := inject(s, file, "pread64", "pread64:error=EIO")
	got, err := s.readOnce("broken")
	s.want("a read of a file that cannot be read", err, kindIO)
	if err == nil || !strings.Contains(err.Error(), filepath.Base(file)) {
		t.Errorf("the error does not name %s: %v", file, err)
	}
	if len(got) == 0 || len(got) >= len(kept) {
		t.Errorf("%d of %d records were delivered before the one that cannot be read", len(got), len(kept))
	}
	for i := range got {
		if got[i] != kept[i] {
			t.Fatalf("record %d is %.30q, want %.30q", i, got[i], kept[i])
		}
	}
	other = append(other, s.mustPublish("healthy", "during")...)
	s.holds("while another topic cannot be read", "healthy", other)
	kept = append(kept, s.mustPublish("broken", "during")...) // what is written elsewhere goes on
	tr.end()
	s.holds("once the disk can be read", "broken", kept)
	s.stop(0)
}
