package metatier

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
)

// A record that is gone is not written again by who knew it, running or at its next start: somebody else may have owned the
// data by then, and would be fenced. Put back, it counts as before.
func TestARecordThatIsGone(t *testing.T) {
	store := objstore.NewMem()
	a := founded(t, store, "one")
	if a.claim.Epoch != 1 {
		t.Errorf("after the founding the directory notes %+v", a.claim)
	}
	was, info, err := objstore.Read(t.Context(), store, a.place.Key(), ownerLimit)
	if err != nil {
		t.Fatal(info, err)
	}
	b := newBroker(t, "second", store)
	if _, err := b.take(t.Context()); err != nil || b.claim.Epoch != 2 {
		t.Fatalf("%+v, %v", b.claim, err)
	}
	if err := store.Delete(t.Context(), a.place.Key()); err != nil {
		t.Fatal(err)
	}
	var seen []uint64
	again := func() *Keeper {
		return NewKeeper(KeeperConfig{Place: a.place, Self: a.self(), Claim: a.claim.ID, Epoch: a.claim.Epoch, Source: a, NewID: a.newID, Now: time.Now,
			Seen: func(epoch uint64) error { seen = append(seen, epoch); return nil }})
	}
	for what, err := range map[string]error{"running": a.keeper.attempt(t.Context()), "starting": again().Check(t.Context())} {
		var gone *GoneError
		if !errors.As(err, &gone) || gone.Epoch != 1 || fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), "/first/ownership") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if o, err := a.place.Owner(t.Context()); err != nil || o != nil {
		t.Fatalf("it was written again: %+v, %v", o, err)
	}
	if _, err := store.PutIfAbsent(t.Context(), a.place.Key(), objstore.Bytes(was)); err != nil {
		t.Fatal(err)
	}
	if err := a.keeper.attempt(t.Context()); err != nil {
		t.Errorf("put back: %v", err)
	}
	if err := again().Check(t.Context()); err != nil || len(seen) > 0 {
		t.Errorf("put back: %v, noted anew: %v", err, seen)
	}
	a.claim.Epoch = 0 // a directory of before there was such a note
	if err := again().Check(t.Context()); err != nil || len(seen) != 1 || seen[0] != 1 {
		t.Errorf("it has noted %v, %v", seen, err)
	}
}
