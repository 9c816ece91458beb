package broker

import (
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/vfs"
)

// Who waits for a lost broker is told, and the loss of what it had is accepted for those that were named alone.
func TestRecover(t *testing.T) {
	r := newRig(t)
	id := r.create("t", TopicSpec{Partitions: 3}).ID
	r.create("u")
	if w, err := r.Recover(t.Context(), "t", -1, false); err != nil || len(w) != 0 {
		t.Fatalf("before anything is lost: %v, %v", w, err)
	}
	if w, err := r.Recover(t.Context(), "t", -1, true); err != nil || len(w) != 0 {
		t.Errorf("nothing to accept: %v, %v", w, err)
	}
	if _, err := r.store.Propose(t.Context(), meta.TakeOver{AtMs: 5000, From: "host:data", By: "other"}); err != nil {
		t.Fatal(err)
	}
	w, err := r.Recover(t.Context(), "t", -1, false)
	if err != nil || len(w) != 3 || w[2].Partition != 2 || w[2].Broker != "host:data" || w[2].Since.UnixMilli() != 5000 {
		t.Fatalf("after a loss: %v, %v", w, err)
	}
	if w, err = r.Recover(t.Context(), "t", 1, true); err != nil || len(w) != 1 || w[0].Partition != 1 {
		t.Fatalf("accepted: %v, %v", w, err)
	}
	for { // nobody has to use it for that
		changed := r.store.Changed()
		if c := r.store.View().Custody(id, 1); c != nil && c.Report != nil {
			break
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatal("the take-over of what was accepted is not carried out")
		}
	}
	for p, want := range map[int32]bool{0: false, 1: true, 2: false} {
		c := r.store.View().Custody(id, p)
		if got := c != nil && (c.Pending == nil || c.Pending.Accepted); got != want {
			t.Errorf("partition %d: %+v", p, c)
		}
	}
	for _, p := range []int32{3, -2} {
		if _, err := r.Recover(t.Context(), "t", p, false); fault.KindOf(err) != fault.NotFound {
			t.Errorf("partition %d: %v", p, err)
		}
	}
	if _, err := r.Recover(t.Context(), "nowhere", -1, true); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a topic that is not there: %v", err)
	}
}

// A directory is opened for partitions that wait alone, and let go of where it is not theirs: of a broker that knew no such
// topic, or was waiting itself.
func TestReturnRefuses(t *testing.T) {
	r := newRig(t)
	r.create("t", TopicSpec{Partitions: 2})
	if _, err := r.Return(t.Context(), "t", -1, "/old"); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("where nothing else can be read: %v", err)
	}
	opened, released, was := 0, 0, meta.NewState().View()
	r.cfg.Former = func(dir string) (*Former, error) {
		opened++
		return &Former{FS: vfs.NewMem(), Dir: dir, View: was, Release: func() error { released++; return nil }}, nil
	}
	if back, err := r.Return(t.Context(), "t", -1, "/old"); err != nil || len(back) != 0 || opened != 0 {
		t.Errorf("nobody waits: %v, %v, opened %d times", back, err, opened)
	}
	if _, err := r.store.Propose(t.Context(), meta.TakeOver{AtMs: 5000, From: "host:data", By: "other"}); err != nil {
		t.Fatal(err)
	}
	for says, view := range map[string]*meta.View{"knew no such topic": was, "was waiting for host:data itself": r.store.View()} {
		was = view
		if back, err := r.Return(t.Context(), "t", 1, "/old"); fault.KindOf(err) != fault.Conflict || len(back) != 0 || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v", says, back, err)
		}
	}
	if opened != 2 || released != 2 {
		t.Errorf("opened %d times, let go of %d times", opened, released)
	}
	if _, err := r.Return(t.Context(), "nowhere", -1, "/old"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a topic that is not there: %v", err)
	}
}
