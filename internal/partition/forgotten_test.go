package partition

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/writebuf"
)

// slowly is metadata that is told late that the buffer has everything.
type slowly struct {
	meta.Store
	before func()
}

func (s slowly) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if u, ok := c.(meta.SetUncovered); ok && u.From < 0 {
		s.before()
	}
	return s.Store.Propose(ctx, c)
}

// TestForgottenWhileItIsNoted: the buffer has everything, and loses it while the metadata is told so. What the metadata hears
// last is what is true.
func TestForgottenWhileItIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCoveredWorld(t, seglog.OnCommit)
		w.policy.Timeout = time.Second
		var lost, filling atomic.Bool
		w.buffer.Fail = func(op string, _ writebuf.ID) (bool, error) {
			if op == "append" && filling.Load() {
				return false, writebuf.ErrUnavailable // it is not filled again before its broker dies
			}
			if op == "fence" && lost.Load() {
				filling.Store(true)
			}
			return false, nil
		}
		w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, 0, 20) })
		w.uncover(10)
		w.world.store = slowly{w.meta, func() {
			if lost.Swap(true) {
				return
			}
			w.buffer.Lose(w.id())
			<-time.After(10 * time.Second)
		}}
		w.run(seglog.CleanStop, func(p *Partition) {
			if err := p.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			_, _ = p.Append(t.Context(), batch(t, "value 20")) // finds out
			<-time.After(20 * time.Second)
			synctest.Wait()
			if c := w.meta.View().Custody(w.topic.ID, 0); !filling.Load() || c == nil || c.Uncovered == nil {
				t.Fatalf("the buffer was emptied: %v; the metadata has %+v", filling.Load(), c)
			}
		})
	})
}
