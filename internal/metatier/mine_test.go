package metatier

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/writebuf"
)

// A write buffer that forgot everything forgot the fence. A broker that was taken over and has not noticed does not make it its
// own again: it asks the object store whose the cluster's data is, and stops. While that does not answer, it waits.
func TestForgottenFenceIsTheOwnersToSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, store := writebuf.NewMem(), objstore.NewMem()
		a := newBroker(t, "A", store)
		a.bufs = metadataIn(mem)
		if _, err := a.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		k := a.keep()
		if err := k.attempt(t.Context()); err != nil {
			t.Fatal(err)
		}
		asked := 0
		c := NewConfirmer(ConfirmerConfig{Buffers: *a.bufs, Dir: "/A", Log: a.log, Source: a, Entries: 20, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			Mine: func(ctx context.Context) error {
				if asked++; asked == 1 {
					return errors.New("no answer")
				}
				return k.Mine(ctx)
			}})
		if err := c.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Start()
		c.Enable()
		defer stopped(t, c)
		if err := a.propose(c, topicOf("kept")); err != nil {
			t.Fatal(err)
		}
		if asked > 0 {
			t.Errorf("asked %d times before anything was forgotten", asked)
		}

		// It is still its own: it is filled again.
		mem.Lose(idOf(0))
		mem.Lose(idOf(1))
		if err := a.propose(c, topicOf("filled")); err != nil || asked < 2 {
			t.Fatalf("by its owner it is filled again: %v, asked %d times", err, asked)
		}

		b := newBroker(t, "B", store)
		b.bufs = metadataIn(mem)
		if taken, err := b.take(t.Context()); err != nil || taken.Topics != 2 {
			t.Fatalf("%+v, %v", taken, err)
		}
		mem.Lose(idOf(0))
		mem.Lose(idOf(1))
		if err := a.propose(c, topicOf("stray")); err == nil {
			t.Error("a broker that was taken over had a change confirmed")
		}
		<-c.Fenced()
		if !fenced(c.Err()) {
			t.Errorf("it stops because of %v", c.Err())
		}
		for n := range uint32(2) {
			if st, err := mem.Buffer(idOf(n)).Bounds(t.Context()); err != nil || st.Known {
				t.Errorf("it wrote to part %d: %+v, %v", n, st, err)
			}
		}
	})
}
