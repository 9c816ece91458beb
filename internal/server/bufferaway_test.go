package server

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// stateOf returns how a topic's partition 0 is described.
func (r *running) stateOf(t *testing.T, topic string) string {
	t.Helper()
	d, err := r.broker.Load().DescribeTopic(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return d.Parts[0].State
}

// TestStartWithoutItsBuffer: a broker that starts while its write buffer is away, and may not do without, says of each
// reliable topic that it waits for that, in /readyz, in the log, and where the topic is described. What is not reliable works.
// Once the write buffer answers, everything does.
func TestStartWithoutItsBuffer(t *testing.T) {
	mini := miniredis.RunT(t)
	dir, changes := t.TempDir(), map[string]string{"valkey.mode": "single", "valkey.addresses": mini.Addr(), "valkey.timeout": "5s", "storage.retention_check": "100ms"}
	r := up(t, settings(t, dir, changes))
	createTopic(t, r.broker.Load(), "kept", "on_commit")
	if _, err := r.broker.Load().CreateTopic(t.Context(), broker.TopicSpec{Name: "news", Dispatch: meta.NonReliable}); err != nil {
		t.Fatal(err)
	}
	publish(t, r.broker.Load(), "kept", "one")
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	mini.Close()

	r = up(t, settings(t, dir, changes))
	const words = "not served until the write buffer answers"
	if _, h := readyz(t, r); h.State != "ready" || !slices.ContainsFunc(h.Problems, func(p string) bool {
		return strings.HasPrefix(p, "partition default/kept/0 is unavailable") && strings.Contains(p, words)
	}) {
		t.Errorf("/readyz says %+v", h)
	}
	if state := r.stateOf(t, "kept"); !strings.HasPrefix(state, "unavailable: ") || !strings.Contains(state, words) {
		t.Errorf("it is described as %q", state)
	}
	if !strings.Contains(r.lines.String(), words) {
		t.Error("the log does not say what is waited for")
	}
	b := r.broker.Load()
	if _, _, err := b.Publish(t.Context(), "kept", 0, []record.Record{{Value: []byte("two")}}); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), words) {
		t.Errorf("a publish ends with %v", err)
	}
	sub, err := b.Subscribe(t.Context(), broker.SubscribeSpec{Topic: "news", Start: broker.Latest()})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	publish(t, b, "news", "now")
	for {
		e, err := sub.Next(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == broker.EventData {
			if got := decode(t, e.Batches); !slices.Equal(got, []string{"now"}) {
				t.Errorf("the topic that is not reliable delivers %q", got)
			}
			break
		}
	}
	if err := mini.Restart(); err != nil {
		t.Fatal(err)
	}
	if !until(func() bool { return r.stateOf(t, "kept") == "serving" }) {
		t.Fatalf("with its write buffer it is %q", r.stateOf(t, "kept"))
	}
	publish(t, b, "kept", "three")
	if got, _ := read(t, b, "kept"); !slices.Equal(got, []string{"one", "three"}) {
		t.Errorf("it holds %q", got)
	}
	if !until(func() bool {
		_, h := readyz(t, r)
		return !slices.ContainsFunc(h.Problems, func(p string) bool { return strings.Contains(p, "answer") })
	}) {
		t.Error("/readyz goes on saying that the write buffer does not answer")
	}
}

// TestStartWithBufferThatHangs: while a write buffer takes connections and says nothing, what is being opened is described as
// waiting for it.
func TestStartWithBufferThatHangs(t *testing.T) {
	mini := miniredis.RunT(t)
	dir, changes := t.TempDir(), map[string]string{"valkey.mode": "single", "valkey.addresses": mini.Addr(), "valkey.timeout": "2s"}
	r := up(t, settings(t, dir, changes))
	createTopic(t, r.broker.Load(), "kept", "on_commit")
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	addr := mini.Addr()
	mini.Close()
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	r, _ = launch(t, settings(t, dir, changes), vfs.OS{}, thisMachine())
	if !until(func() bool {
		b := r.broker.Load()
		return b != nil && strings.Contains(r.stateOf(t, "kept"), "opening: the write buffer has not answered yet")
	}) {
		t.Errorf("it is described as %q", r.stateOf(t, "kept"))
	}
}
