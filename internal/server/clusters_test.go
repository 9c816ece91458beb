package server

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/leveemq/levee/internal/fault"
)

// Two clusters that use one server with the same prefix: the second one's start is refused and says why, the first goes on.
// With a prefix of its own the second one founds its cluster.
func TestTwoClustersInOneWriteBuffer(t *testing.T) {
	mini := miniredis.RunT(t)
	changes := map[string]string{"valkey.mode": "single", "valkey.addresses": mini.Addr(), "valkey.timeout": "5s"}
	first := up(t, settings(t, t.TempDir(), changes))
	createTopic(t, first.broker.Load(), "a", "on_commit")

	others := maps.Clone(changes)
	others["storage.cluster"] = "other"
	dir := t.TempDir()
	second, _ := launch(t, settings(t, dir, others), first.fs.FS, thisMachine())
	select {
	case <-second.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the second cluster's broker runs on the first one's keys")
	}
	if err := second.err; fault.KindOf(err) != fault.Fenced || !strings.Contains(err.Error(), `cluster "main"`) || !strings.Contains(err.Error(), `cluster "other"`) || !strings.Contains(err.Error(), "valkey.prefix") {
		t.Errorf("the second cluster: %v", err)
	}
	createTopic(t, first.broker.Load(), "b", "on_commit")

	others["valkey.prefix"] = "other"
	third := up(t, settings(t, dir, others))
	if n := third.view().TopicCount(); n != 0 {
		t.Errorf("with a prefix of its own it has %d topics", n)
	}
	createTopic(t, third.broker.Load(), "a", "on_commit")
}
