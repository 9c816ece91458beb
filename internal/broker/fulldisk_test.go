package broker

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// TestFullRefusesPublishes covers LOG-06: while what is left of the disk is not the topics', publishes to logs are refused,
// counted and leave nothing. What is not stored goes on.
func TestFullRefusesPublishes(t *testing.T) {
	var full atomic.Bool
	r := newRig(t, func(c *Config) {
		c.Full, c.LogMetrics = full.Load, seglog.NewMetrics(c.Registerer)
	})
	r.create("a")
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	r.publish("a", 0, "kept")
	full.Store(true)
	for range 3 {
		_, _, err := r.Publish(t.Context(), "a", 0, []record.Record{{Value: []byte("refused")}})
		wantKind(t, err, fault.NoSpace, "default/a")
	}
	r.publish("fast", 0, "x")
	if n := r.metric("levee_storage_full_total"); n != 3 {
		t.Errorf("%v refusals are counted, want 3", n)
	}
	full.Store(false)
	r.publish("a", 0, "after")
	wantHistory(t, r.history("a", 0), "0=kept 1=after")
}

// TestRefusalForWantOfRoomIsAProblem has publishes find no room: health says so until one finds some, or nobody has asked
// for a while.
func TestRefusalForWantOfRoomIsAProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.create("b")
		r.publish("a", 0, "kept")
		var full atomic.Bool
		r.fs.SetHook(func(op vfs.Op) error {
			if full.Load() && op.Kind == vfs.OpWrite {
				return vfs.ErrNoSpace
			}
			return nil
		})
		refuse := func() {
			t.Helper()
			full.Store(true)
			_, _, err := r.Publish(t.Context(), "a", 0, []record.Record{{Value: []byte("refused")}})
			wantKind(t, err, fault.NoSpace)
			full.Store(false)
			if p := r.Problems(); len(p) != 1 || !strings.Contains(p[0], "the disk is full") || !strings.Contains(p[0], "default/a") {
				t.Errorf("problems are %q", p)
			}
		}
		refuse()
		r.publish("b", 0, "x")
		if p := r.Problems(); len(p) != 1 {
			t.Errorf("another topic found room: problems are %q", p)
		}
		r.publish("a", 0, "after")
		if p := r.Problems(); len(p) != 0 {
			t.Errorf("there was room again: problems are %q", p)
		}
		refuse()
		<-time.After(recently)
		if p := r.Problems(); len(p) != 0 {
			t.Errorf("nobody was refused for %v: problems are %q", recently, p)
		}
		r.halt()
	})
}

// TestDeletionOnAFullDisk deletes a topic when the disk takes no new name: the place for it is there already, what makes
// room goes by the way that may have some, and where that is full as well it is tried again soon.
func TestDeletionOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full, housekeeping atomic.Bool
		refuse := func(when *atomic.Bool) func(vfs.Op) error {
			return func(op vfs.Op) error {
				if when.Load() && (op.Kind == vfs.OpMkdir || op.Kind == vfs.OpRename || op.Kind == vfs.OpCreate || op.Kind == vfs.OpWrite) {
					return vfs.ErrNoSpace
				}
				return nil
			}
		}
		r := newRig(t, func(c *Config) {
			c.Housekeeping = vfs.Inject(c.FS, refuse(&housekeeping))
			c.FS = vfs.Inject(c.FS, refuse(&full))
		})
		if there, err := vfs.Exists(r.fs, r.layout.Deleted()); err != nil || !there {
			t.Fatalf("the directory for deleted topics is not there: %v", err)
		}
		for _, name := range []string{"a", "b"} {
			r.create(name)
			r.publish(name, 0, "x")
		}
		full.Store(true)
		gone := func(n float64) bool { return r.metric("levee_broker_topics_purged_total") == n }
		if err := r.DeleteTopic(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !gone(1) {
			t.Errorf("a topic is not removed on a full disk: %q", r.Problems())
		}
		housekeeping.Store(true)
		if err := r.DeleteTopic(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if p := r.Problems(); gone(2) || len(p) != 1 || !strings.Contains(p[0], "the disk is full") {
			t.Errorf("problems are %q", p)
		}
		<-time.After(5 * time.Second) // nothing but the remover itself asks again by then
		housekeeping.Store(false)
		<-time.After(retryFull)
		synctest.Wait()
		if !gone(2) {
			t.Errorf("there is room for a rename, and %v later the topic is still there: %q", retryFull, r.Problems())
		}
		full.Store(false)
		r.halt()
	})
}

// TestRemovalIsNotFlushedNameByName deletes a topic of many files: what was set aside needs no order.
func TestRemovalIsNotFlushedNameByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var removed, synced atomic.Int64
		r := newRig(t, func(c *Config) {
			c.Housekeeping = vfs.Inject(c.FS, func(op vfs.Op) error {
				switch op.Kind {
				case vfs.OpRemove:
					removed.Add(1)
				case vfs.OpSyncDir:
					synced.Add(1)
				}
				return nil
			})
		})
		r.create("a", TopicSpec{Settings: Settings{SegmentBytes: ptr[int64](64 << 10)}})
		for range 20 {
			r.publish("a", 0, strings.Repeat("x", 60<<10))
		}
		before := synced.Load()
		if err := r.DeleteTopic(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := r.metric("levee_broker_topics_purged_total"); n != 1 || removed.Load() < 20 {
			t.Fatalf("%v topics are removed, and %d files", n, removed.Load())
		}
		if n := synced.Load() - before; n > 6 {
			t.Errorf("%d directory flushes to remove %d names", n, removed.Load())
		}
		r.halt()
	})
}
