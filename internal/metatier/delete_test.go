package metatier

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
)

// Who asks whether it may delete hears that it may not, at most a second after somebody else took over, and its broker has to
// stop; while it may, the store is asked once a second. While nobody says whose the data is, nothing is deleted.
func TestMayDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: objstore.NewMem()}
		a := founded(t, store, "one")
		store.n = 0
		for range 100 {
			if err := a.keeper.MayDelete(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		asked := store.n
		if asked == 0 || asked > 2 {
			t.Errorf("100 deletions asked %d times", asked)
		}
		store.before = func(int) error { return objstore.ErrUnavailable }
		<-time.After(lately)
		if err := a.keeper.MayDelete(t.Context()); err == nil || fenced(err) {
			t.Errorf("no answer: %v", err)
		}
		store.before = nil
		b := newBroker(t, "second", store)
		if _, err := b.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := a.keeper.MayDelete(t.Context()); !fenced(err) {
			t.Errorf("taken over: %v", err)
		}
		<-a.keeper.Fenced()
		if !fenced(a.keeper.Err()) {
			t.Errorf("its broker goes on: %v", a.keeper.Err())
		}
		if err := b.keep().MayDelete(t.Context()); err != nil {
			t.Errorf("the owner: %v", err)
		}
		if err := store.Delete(t.Context(), b.place.Key()); err != nil {
			t.Fatal(err)
		}
		<-time.After(lately)
		if err := b.keeper.MayDelete(t.Context()); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("nobody's: %v", err)
		}
	})
}
