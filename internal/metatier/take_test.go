package metatier

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/faulty"
	"github.com/leveemq/levee/internal/objstore/objstoretest"
)

func TestTakeOver(t *testing.T) {
	store := objstore.NewMem()
	a := founded(t, store, "one", "two")
	b := newBroker(t, "second", store)
	taken, err := b.take(t.Context())
	if err != nil || taken.Before == nil || taken.Before.Claim != a.claim.ID || !taken.Found || taken.Topics != 2 || taken.Epoch != 2 {
		t.Fatalf("%+v, %v", taken, err)
	}
	if got := names(b); !slices.Equal(got, []string{"one@2", "two@2"}) {
		t.Errorf("%v", got)
	}
	o := b.owner()
	if o.Claim != b.claim.ID || o.Epoch != 2 || o.Snapshot.Epoch != 2 || b.claim.State != Held || !strings.Contains(o.Before, "/first") {
		t.Errorf("%+v, %+v", o, b.claim)
	}
	a.create("late")
	if err := a.keeper.attempt(t.Context()); !fenced(err) || fault.KindOf(err) != fault.Fenced || !strings.Contains(err.Error(), "host:/second") {
		t.Errorf("the old owner: %v", err)
	}
	if err := a.keep().Check(t.Context()); !fenced(err) {
		t.Errorf("a restart of the old owner: %v", err)
	}
	b.create("three")
	if err := b.keep().attempt(t.Context()); err != nil {
		t.Error(err)
	}
	c := newBroker(t, "third", store)
	if _, err := c.take(t.Context()); err != nil || !slices.Equal(names(c), []string{"one@3", "three@2", "two@3"}) {
		t.Errorf("%v, %v", names(c), err)
	}
}

// A process that dies at any request to the store, before or after it takes effect, is followed by one that goes on: with
// everything, as the only owner, and with generations that are raised once.
func TestTakeOverCrashesAtAnyRequest(t *testing.T) {
	origin := objstore.NewMem()
	founded(t, origin, "one", "two")
	states := 0
	for n := 1; ; n++ {
		reached := false
		for _, done := range []bool{false, true} {
			store := &hooked{Store: objstoretest.Clone(t, origin)}
			b := newBroker(t, "second", store)
			ctx, cancel := context.WithCancel(t.Context())
			crash := func(at int) error {
				if at >= n {
					reached = true
					cancel()
					return errCrash
				}
				return nil
			}
			if store.before = crash; done {
				store.before, store.after = nil, crash
			}
			_, err := b.take(ctx)
			cancel()
			if !reached {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
			store.before, store.after = nil, nil
			if _, err := b.take(t.Context()); err != nil {
				t.Fatalf("request %d, done: %v: %v", n, done, err)
			}
			if got := names(b); !slices.Equal(got, []string{"one@2", "two@2"}) {
				t.Errorf("request %d, done: %v: %v", n, done, got)
			}
			if o := b.owner(); o.Claim != b.claim.ID || o.Run != b.self().Run || b.claim.State != Held || o.Epoch != 2 {
				t.Errorf("request %d, done: %v: %+v", n, done, o)
			}
			states++
		}
		if !reached {
			break
		}
	}
	t.Logf("%d states", states)
	if states < 16 {
		t.Error("too few")
	}
}

// Two that take over at once: one owns the data in the end, with all of it, and the other one knows that it does not.
func TestTwoTakeOver(t *testing.T) {
	origin := objstore.NewMem()
	founded(t, origin, "one")
	for _, restarts := range []bool{false, true} {
		for n := 1; n < 40; n++ {
			store := objstoretest.Clone(t, origin)
			hook := &hooked{Store: store}
			a, b := newBroker(t, "A", hook), newBroker(t, "B", store)
			met := false
			hook.before = func(at int) error {
				if at != n {
					return nil
				}
				met = true
				if _, err := b.take(t.Context()); err != nil {
					t.Fatalf("request %d: %v", n, err)
				}
				return nil
			}
			_, err := a.take(t.Context())
			if !met {
				break
			}
			if restarts && err != nil {
				_, err = a.take(t.Context())
			}
			owners := 0
			for _, x := range []*broker{a, b} {
				switch {
				case x == a && err != nil:
					if !fenced(err) {
						t.Errorf("request %d: %v", n, err)
					}
				case x.keep().Check(t.Context()) == nil:
					owners++
					if len(names(x)) != 1 || x.generation("one") < 2 {
						t.Errorf("request %d: %s has %v", n, x.name, names(x))
					}
				case !fenced(x.keeper.Err()):
					t.Errorf("request %d: %v", n, x.keeper.Err())
				}
			}
			if owners != 1 {
				t.Errorf("request %d: %d owners", n, owners)
			}
		}
	}
}

// Somebody takes over at any moment of a copy: a copy that was reported is in what was taken over, and the one who made it
// finds out with the next one at the latest.
func TestTakeOverDuringACopy(t *testing.T) {
	for n := 1; ; n++ {
		store := objstore.NewMem()
		hook := &hooked{Store: store}
		a := founded(t, hook, "one")
		b := newBroker(t, "second", store)
		a.create("two")
		met := false
		hook.n, hook.before = 0, func(at int) error {
			if at == n {
				met = true
				if _, err := b.take(t.Context()); err != nil {
					t.Fatalf("request %d: %v", n, err)
				}
			}
			return nil
		}
		err := a.keeper.attempt(t.Context())
		if !met {
			if n < 6 {
				t.Errorf("a copy makes %d requests only", n-1)
			}
			return
		}
		if err == nil && b.generation("two") != 2 {
			t.Errorf("request %d: copied, and lost: %v", n, names(b))
		}
		if b.generation("one") != 2 {
			t.Errorf("request %d: %v", n, names(b))
		}
		a.create("three")
		if err := a.keeper.attempt(t.Context()); !fenced(err) {
			t.Errorf("request %d: it goes on: %v", n, err)
		}
		if err := b.keep().attempt(t.Context()); err != nil {
			t.Errorf("request %d: %v", n, err)
		}
		again := newBroker(t, "third", store)
		if _, err := again.take(t.Context()); err != nil || again.generation("one") != 3 {
			t.Errorf("request %d: %v", n, err)
		}
	}
}

// Whatever the store does, a taking over ends with everything, or goes on.
func TestTakeOverOnBadDays(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 15
	}
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			under := objstore.NewMem()
			founded(t, under, "one", "two")
			rate := map[faulty.Kind]float64{}
			for _, op := range []objstore.Op{objstore.OpGet, objstore.OpHead, objstore.OpList, objstore.OpPutIfAbsent, objstore.OpPutIfMatch, objstore.OpDelete} {
				for _, k := range faulty.Kinds(op) {
					rate[k] = 0.012
				}
			}
			b := newBroker(t, "second", faulty.New(under, faulty.Config{Seed: seed, Rate: rate}))
			var err error
			for range 20 {
				if _, err = b.take(t.Context()); err == nil || fault.KindOf(err) != fault.Corrupt && fault.KindOf(err) != fault.NotFound {
					break
				}
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			b.place.Store = under
			if b.generation("one") != 2 || b.generation("two") != 2 {
				t.Errorf("seed %d: %v", seed, names(b))
			}
			if o := b.owner(); o.Claim != b.claim.ID || o.Epoch != 2 {
				t.Errorf("seed %d: %+v", seed, o)
			}
		})
	}
}

func TestFounding(t *testing.T) {
	store := objstore.NewMem()
	a := newBroker(t, "A", store)
	taken, err := a.take(t.Context())
	if err != nil || taken.Before != nil || taken.Found || taken.Epoch != 1 {
		t.Fatalf("%+v, %v", taken, err)
	}
	if o := a.owner(); o.Claim != a.claim.ID || o.Snapshot != (Snapshot{}) || a.claim.State != Held {
		t.Errorf("%+v", o)
	}
	b := newBroker(t, "B", store)
	if taken, err := b.take(t.Context()); err != nil || taken.Found || taken.Epoch != 2 {
		t.Errorf("before anything was copied: %+v, %v", taken, err)
	}
}

func TestACopyThatCannotBeReadFencesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := objstore.NewMem()
		a := founded(t, store, "one")
		before := a.owner()
		if err := store.Delete(t.Context(), a.place.dir()+before.Snapshot.Name); err != nil {
			t.Fatal(err)
		}
		b := newBroker(t, "B", store)
		if _, err := b.take(t.Context()); err == nil || !strings.Contains(err.Error(), before.Snapshot.Name) || b.claim != nil {
			t.Errorf("%v, %+v", err, b.claim)
		}
		if a.owner() != before {
			t.Error("the record moved")
		}
		if err := a.keeper.attempt(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestAwait: who waits for a change to be copied is told once it is, and not before.
func TestAwait(t *testing.T) {
	b := founded(t, objstore.NewMem(), "one")
	if err := b.keeper.Await(t.Context(), b.View().Index()); err != nil {
		t.Fatal(err)
	}
	b.create("two")
	soon, stop := context.WithTimeoutCause(t.Context(), time.Millisecond, errCrash)
	defer stop()
	if err := b.keeper.Await(soon, b.View().Index()); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() { told <- b.keeper.Await(context.Background(), b.View().Index()) }()
	if err := b.keeper.attempt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-told; err != nil || b.owner().Snapshot.Index != b.View().Index() {
		t.Fatal(err)
	}
}
