package server

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/tier"
)

// A broker that was taken over and has not looked at the record since deletes nothing, and stops: neither what expired by its
// metadata, nor a topic that it was told to delete.
func TestAStaleOwnerDeletesNothing(t *testing.T) {
	for _, how := range []string{"a topic", "what expired"} {
		dir, _, changes := copiedSettings(t)
		stale := up(t, settings(t, dir, changes))
		id := [16]byte{1, 2, 3}
		place := tier.Place{Prefix: stale.cfg.Tier.Prefix, Cluster: stale.cfg.Tier.Cluster, TopicID: id}
		object := tier.Object{Next: 5, BaseSeq: 1, NextSeq: 6, Generation: 1, Size: 5}
		if _, err := stale.store.PutIfAbsent(t.Context(), object.Key(place), objstore.Bytes([]byte("bytes"))); err != nil {
			t.Fatal(err)
		}
		owner := up(t, settings(t, t.TempDir(), changes))
		if how == "a topic" {
			if err := stale.tier.DeleteTopic(t.Context(), id); fault.KindOf(err) != fault.Fenced {
				t.Errorf("%s: %v", how, err)
			}
		} else {
			stale.tier.Remover.Remove(place, object)
		}
		select {
		case <-stale.done:
			if fault.KindOf(stale.err) != fault.Fenced || !strings.Contains(stale.err.Error(), "epoch 2") {
				t.Errorf("%s: it stops with %v", how, stale.err)
			}
		case <-time.After(8 * time.Second): // sooner than it looks by itself
			t.Errorf("%s: it goes on", how)
		}
		if _, err := owner.store.Head(t.Context(), object.Key(place)); err != nil {
			t.Errorf("%s: its object: %v", how, err)
		}
		if err := owner.tier.DeleteTopic(t.Context(), id); err != nil {
			t.Error(err)
		}
		if _, err := owner.store.Head(t.Context(), object.Key(place)); fault.KindOf(err) != fault.NotFound {
			t.Errorf("the owner's deletion: %v", err)
		}
	}
}

// What the write buffer lacks is not taken as noted where the copy of the note will never be made, because the data was taken
// over: who noted it hears that, at once.
func TestANoteOfAStaleOwnerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it measures time
		place := metatier.Place{Store: objstore.NewMem(), Cluster: "c"}
		theirs := metatier.Owner{Claim: metatier.ID{2}, Run: metatier.ID{2}, Write: metatier.ID{2}, Broker: "1", Who: "b:/data", Epoch: 2, Before: "broker 1 at a:/data"}
		record, err := theirs.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := place.Store.PutIfAbsent(t.Context(), place.Key(), objstore.Bytes(record)); err != nil {
			t.Fatal(err)
		}
		k := metatier.NewKeeper(metatier.KeeperConfig{Place: place, Claim: metatier.ID{1}})
		var keeper atomic.Pointer[metatier.Keeper]
		keeper.Store(k)
		m := metaStore{keeper: &keeper, log: slog.New(slog.DiscardHandler)}
		note := meta.SetUncovered{From: 5}
		if err := m.copied(t.Context(), note, 7); err != nil {
			t.Errorf("a store that did not answer in time: %v", err)
		}
		if err := k.Check(t.Context()); fault.KindOf(err) != fault.Fenced {
			t.Fatal(err)
		}
		began := time.Now()
		if err := m.copied(t.Context(), note, 7); fault.KindOf(err) != fault.Fenced {
			t.Errorf("taken over: %v", err)
		}
		if took := time.Since(began); took > copyPatience/2 {
			t.Errorf("that took %s", took)
		}
	})
}
