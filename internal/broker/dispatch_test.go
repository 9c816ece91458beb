package broker

import (
	"context"
	"testing"

	"github.com/leveemq/levee/internal/fault"
)

// TestDispatchIsForLife covers SUB-01: what a topic was created as it stays, whatever is set, created again or restarted;
// only a deletion frees its name for the other kind.
func TestDispatchIsForLife(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	other := map[Dispatch]Dispatch{Reliable: NonReliable, NonReliable: Reliable}
	names := map[Dispatch]string{Reliable: "kept", NonReliable: "passing"}
	if info := r.create("kept"); info.Dispatch != Reliable {
		t.Fatalf("without a word a topic is %s", info.Dispatch)
	}
	r.create("passing", TopicSpec{Dispatch: NonReliable})
	check := func(when string) {
		t.Helper()
		for dispatch, name := range names {
			info, err := r.Topic(name)
			if err != nil || info.Dispatch != dispatch {
				t.Errorf("%s: %s is %s, %v", when, name, info.Dispatch, err)
			}
			s := r.subscribe(name, 0, Latest())
			if s.Info().Reliable != (dispatch == Reliable) {
				t.Errorf("%s: subscribers of %s are told %+v", when, name, s.Info())
			}
			s.Close()
		}
	}
	check("created")
	for dispatch, name := range names {
		_, err := r.CreateTopic(ctx, TopicSpec{Name: name, Dispatch: other[dispatch]})
		wantKind(t, err, fault.AlreadyExists, name)
		_, err = r.SetTopic(ctx, name, Settings{}, []string{"dispatch"})
		wantKind(t, err, fault.InvalidArgument, name)
	}
	if _, err := r.SetTopic(ctx, "kept", Settings{Fsync: ptr("none")}, nil); err != nil {
		t.Fatal(err)
	}
	check("set")
	r.publish("kept", 0, "one")
	r.halt()
	r.start()
	check("restarted")
	wantHistory(t, r.history("kept", 0), "0=one")
	if err := r.DeleteTopic(ctx, "kept"); err != nil {
		t.Fatal(err)
	}
	if info := r.create("kept", TopicSpec{Dispatch: NonReliable}); info.Dispatch != NonReliable || info.Incarnation != 2 {
		t.Fatalf("%+v", info)
	}
}
