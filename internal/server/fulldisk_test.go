package server

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// TestFullDiskRefusesTopics covers LOG-06 for the whole broker: while the disk is full, publishes and creations of topics
// are refused with kind no_space, counted, and leave nothing; reads go on; and once there is room everything works
// again by itself, also after a restart.
func TestFullDiskRefusesTopics(t *testing.T) {
	dir := t.TempDir()
	var full atomic.Bool
	disk := vfs.Inject(vfs.OS{}, func(op vfs.Op) error {
		writes := op.Kind == vfs.OpWrite || op.Kind == vfs.OpCreate || op.Kind == vfs.OpReserve || op.Kind == vfs.OpMkdir
		if full.Load() && writes {
			return vfs.ErrNoSpace
		}
		return nil
	})
	r := upOn(t, settings(t, dir, nil), disk, thisMachine())
	b := r.broker.Load()
	createTopic(t, b, "orders", "on_commit")
	publish(t, b, "orders", "kept")
	createTopic(t, b, "empty", "on_commit")

	full.Store(true)
	for range 3 {
		if _, err := b.CreateTopic(t.Context(), broker.TopicSpec{Name: "late"}); fault.KindOf(err) != fault.NoSpace {
			t.Fatalf("a topic on a full disk: %v", err)
		}
		for _, topic := range []string{"orders", "empty"} {
			if _, _, err := b.Publish(t.Context(), topic, 0, []record.Record{{Value: []byte("x")}}); fault.KindOf(err) != fault.NoSpace {
				t.Fatalf("a publish to %s on a full disk: %v", topic, err)
			}
		}
	}
	if values, lost := read(t, b, "orders"); len(values) != 1 || len(lost) > 0 {
		t.Fatalf("a read on a full disk: %q, lost %v", values, lost)
	}
	if n, _ := b.Counts(); n != 2 {
		t.Fatalf("%d topics", n)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if _, text := get(t, client, "http://"+r.listening.HTTP+"/metrics"); !strings.Contains(text, "levee_storage_full_total 9\n") {
		t.Errorf("refusals are not counted as 9:\n%s", linesWith(text, "levee_storage_full_total"))
	}

	full.Store(false)
	createTopic(t, b, "late", "on_commit")
	for topic, want := range map[string]int64{"orders": 1, "empty": 0, "late": 0} {
		if offset := publish(t, b, topic, "with room"); offset != want {
			t.Errorf("%s goes on at offset %d, want %d", topic, offset, want)
		}
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	next := up(t, settings(t, dir, nil))
	for topic, want := range map[string]int{"orders": 2, "empty": 1, "late": 1} {
		if values, lost := read(t, next.broker.Load(), topic); len(values) != want || len(lost) > 0 {
			t.Errorf("%s after a restart: %q, lost %v", topic, values, lost)
		}
	}
}

// linesWith returns the lines of text that hold what.
func linesWith(text, what string) string {
	var list []string
	for _, line := range strings.Split(text, "\n") {
		if strings.Contains(line, what) {
			list = append(list, line)
		}
	}
	return strings.Join(list, "\n")
}
