package tiers

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
)

// keeping is a single server that keeps one sealed segment of a partition, and the one that is appended to.
func keeping(t *testing.T) *buffer {
	t.Helper()
	b := single(t)
	b.env["LEVEE_VALKEY_KEEP_SEGMENTS"] = "1"
	return b
}

// TestNodeLostWithOldSegments destroys the broker with its disk where Valkey keeps the newest segments alone: what is older is
// lost, as the broker said before, and nothing else.
func TestNodeLostWithOldSegments(t *testing.T) {
	r := newRig(t, setup{name: "wal+valkey", buffer: keeping}, false)
	for _, l := range r.Loads {
		r.History.Topic(history.TopicInfo{
			Topic: l.Topic, Incarnation: l.Incarnation, Fsync: filepath.Base(l.Topic), Interval: time.Second, Retention: true,
		})
		l.Oldest = map[int32]int64{}
	}
	for n := range cycles() {
		r.cycle(fmt.Sprintf("cycle %d", n), func() {
			r.old()
			if text := r.levee("topic", "describe", r.Loads[0].Topic).Stdout; !strings.Contains(text, "is lost: everything older than the newest 1 sealed segments") {
				t.Errorf("before the loss, described as:\n%s", text)
			}
			began := time.Now()
			r.kill()
			for _, l := range r.Loads {
				for p := range l.Partitions {
					l.Oldest[p] = r.kept(l, p)
				}
			}
			r.destroy()
			r.Fault("node lost", began, history.Cost{})
		}, func() {
			for _, l := range r.Loads {
				for _, p := range r.states(l) {
					l.Oldest[p.Partition] = min(l.Oldest[p.Partition], p.End) // behind that Valkey had confirmed nothing
					if p.First == 0 || p.First > l.Oldest[p.Partition] {
						t.Errorf("of %s/%d there is what is above %d; Valkey keeps what is above %d, and nothing old", l.Topic, p.Partition, p.First, l.Oldest[p.Partition])
					}
				}
			}
			for _, f := range r.readers {
				f.skip()
			}
		})
	}
	r.end(cycles())
}

// old waits until every partition has more segments than Valkey keeps, and one more: what the last one that began had it remove
// may not be gone yet.
func (r *rig) old() {
	r.T.Helper()
	r.Broker.Await("publishing to a fourth segment everywhere", func() bool {
		for _, l := range r.Loads {
			for p := range l.Partitions {
				if len(r.segments(l, p)) < 4 {
					return false
				}
			}
		}
		return true
	})
}

// segments returns the names of the files of a partition's segments, oldest first.
func (r *rig) segments(l *faults.Load, partition int32) []string {
	r.T.Helper()
	files, err := filepath.Glob(filepath.Join(r.Dir, "topics", l.Topic+"@*", strconv.Itoa(int(partition)), "*.log"))
	must(r.T, err)
	slices.Sort(files)
	return files
}

// kept returns the first offset of the segments that Valkey keeps of those which the broker had, which is dead.
func (r *rig) kept(l *faults.Load, partition int32) int64 {
	r.T.Helper()
	files := r.segments(l, partition)
	if len(files) < 3 {
		r.T.Fatalf("%s/%d has %d segments only", l.Topic, partition, len(files))
	}
	first, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(files[len(files)-2]), ".log"), 10, 64)
	must(r.T, err)
	return first
}
