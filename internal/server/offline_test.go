package server

import (
	"errors"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

// A directory can be looked at and changed while no broker has it; the next one goes on with that as after its own stop.
func TestOffline(t *testing.T) {
	cfg := settings(t, t.TempDir(), nil)
	run := func(fn func(b *broker.Broker)) {
		t.Helper()
		r, ready := launch(t, cfg, vfs.OS{}, thisMachine())
		<-ready
		if _, err := OpenOffline(cfg, vfs.OS{}); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "stop that broker") {
			t.Errorf("beside a broker: %v", err)
		}
		fn(r.broker.Load())
		r.cancel()
		<-r.done
		if r.err != nil {
			t.Fatal(r.err)
		}
	}
	run(func(b *broker.Broker) {
		if _, err := b.CreateTopic(t.Context(), broker.TopicSpec{Name: "a"}); err != nil {
			t.Fatal(err)
		}
	})
	look := func(topics int) *Offline {
		t.Helper()
		o, err := OpenOffline(cfg, vfs.OS{})
		if err != nil {
			t.Fatal(err)
		}
		v, damaged, err := o.Metadata()
		if err != nil || len(damaged) != 0 || v.TopicCount() != topics || o.Crash != seglog.CleanStop {
			t.Fatalf("%d topics, crash %v, %v, %v", v.TopicCount(), o.Crash, damaged, err)
		}
		if found, err := o.Unaccounted(v); err != nil || len(found) != 0 {
			t.Errorf("%v, %v", found, err)
		}
		return o
	}
	o := look(1)
	err := o.Change(func(s meta.Store) error {
		_, err := s.Propose(t.Context(), meta.CreateTopic{Name: meta.Name{Namespace: "default", Topic: "b"}, ID: meta.TopicID{7}, Partitions: 1, Dispatch: meta.NonReliable})
		return err
	})
	if err := errors.Join(err, o.Close()); err != nil {
		t.Fatal(err)
	}
	if err := look(2).Close(); err != nil {
		t.Fatal(err)
	}
	run(func(b *broker.Broker) {
		if _, err := b.Topic("b"); err != nil {
			t.Error(err)
		}
	})

	// A change that failed leaves a run that did not end.
	o = look(2)
	refused := errors.New("refused")
	if err := errors.Join(o.Change(func(meta.Store) error { return refused })); !errors.Is(err, refused) {
		t.Error(err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	o, err = OpenOffline(cfg, vfs.OS{})
	if err != nil || o.Crash != seglog.ProcessCrash {
		t.Errorf("%v, %v", o.Crash, err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	run(func(*broker.Broker) {})
	if err := look(2).Close(); err != nil {
		t.Fatal(err)
	}
}
