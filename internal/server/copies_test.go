package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
)

// copied is a broker whose metadata is copied to a directory beside its data.
func copiedSettings(t *testing.T) (dir, root string, changes map[string]string) {
	t.Helper()
	dir, root = filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "objects")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, root, map[string]string{"storage.mode": "shared_fs", "storage.root": root}
}

func (r *running) view() *meta.View { return r.metadata.Load().store.View() }

// A broker whose directory is gone finds everything in the copy, with generations raised; the directory as it was before
// does not start any more, and says why.
func TestADirectoryThatIsGoneIsTakenOver(t *testing.T) {
	dir, _, changes := copiedSettings(t)
	r := up(t, settings(t, dir, changes))
	for _, name := range []string{"a", "b"} {
		createTopic(t, r.broker.Load(), name, "on_commit")
	}
	if err := r.broker.Load().CreateNamespace(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.broker.Load().CreateSubscription(t.Context(), broker.SubscriptionSpec{Topic: "a", Name: "s"}); err != nil {
		t.Fatal(err)
	}
	publish(t, r.broker.Load(), "a", "one")
	before := r.view()
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	old := dir + "-old"
	if err := os.Rename(dir, old); err != nil {
		t.Fatal(err)
	}

	r = up(t, settings(t, dir, changes))
	after := r.view()
	for topic := range before.Topics("") {
		now, ok := after.TopicByID(topic.ID)
		if !ok || now.Incarnation != topic.Incarnation || now.Partitions[0].Generation != topic.Partitions[0].Generation+1 {
			t.Errorf("%+v is %+v", topic, now)
		}
	}
	if _, err := after.Namespace("other"); err != nil {
		t.Error(err)
	}
	if after.Registration("1") != before.Registration("1")+1 {
		t.Errorf("registration %d after %d", after.Registration("1"), before.Registration("1"))
	}
	createTopic(t, r.broker.Load(), "c", "on_commit")
	if err := r.end(); err != nil {
		t.Fatal(err)
	}

	was, _ := launch(t, settings(t, old, changes), r.fs.FS, thisMachine())
	<-was.done
	if fault.KindOf(was.err) != fault.Fenced || !strings.Contains(was.err.Error(), dir) || !strings.Contains(was.err.Error(), "epoch 2") {
		t.Errorf("the old directory: %v", was.err)
	}
	r = up(t, settings(t, dir, changes))
	if _, err := r.view().Topic(meta.Name{Namespace: "default", Topic: "c"}); err != nil {
		t.Error(err)
	}
}

// A start that finds the record gone which its directory knows of is refused, and says what to do; with that done the directory
// is the owner anew.
func TestAnOwnerRecordThatIsGone(t *testing.T) {
	dir, root, changes := copiedSettings(t)
	r := up(t, settings(t, dir, changes))
	createTopic(t, r.broker.Load(), "a", "on_commit")
	place, _, _ := r.copyParts()
	key := place.Key()
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(root, key)); err != nil {
		t.Fatal(err)
	}
	refused, ready := launch(t, settings(t, dir, changes), r.fs.FS, thisMachine())
	select {
	case <-refused.done:
	case <-ready:
		t.Fatal("it founds the cluster again")
	}
	note := filepath.Join(dir, "ownership")
	if err := refused.err; fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), note) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(root, key)); !os.IsNotExist(err) {
		t.Errorf("the record: %v", err)
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	r = up(t, settings(t, dir, changes))
	if _, err := r.view().Topic(meta.Name{Namespace: "default", Topic: "a"}); err != nil {
		t.Error(err)
	}
}
