package partition

import (
	"fmt"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
)

// TestRunsWithoutTheBuffer: an operator switches the write buffer off, and on again. It still is as whole as it was, and
// lacks what was acknowledged meanwhile: none of these offsets is given out twice.
func TestRunsWithoutTheBuffer(t *testing.T) {
	for _, mode := range []seglog.Mode{seglog.OnCommit, seglog.Periodic} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newCoveredWorld(t, mode)
			w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, 0, 20) })
			w.without = true
			w.run(seglog.CleanStop, func(p *Partition) {
				fill(t, p, 20, 40)
				if mode != seglog.OnCommit {
					w.powerLoss()
				}
			})
			w.without = false
			if mode == seglog.OnCommit {
				w.loseDirectory()
				w.run(seglog.CleanStop, func(p *Partition) {
					if r, err := p.Append(t.Context(), batch(t, "x")); fault.KindOf(err) != fault.Unavailable {
						t.Fatalf("offset %d, %v", r.Offset, err)
					}
				})
				return
			}
			w.run(seglog.MachineCrash, func(p *Partition) {
				r, err := p.Append(t.Context(), batch(t, "x"))
				if err != nil || r.Offset < 40 {
					t.Fatalf("offset %d, %v", r.Offset, err)
				}
				if err := readOn(t, p, 0, 20, func(at int64) string { return fmt.Sprintf("value %d", at) }); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestSwitchedOnAgain: once the buffer has everything again, it is relied on as before.
func TestSwitchedOnAgain(t *testing.T) {
	w := newCoveredWorld(t, seglog.OnCommit)
	w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, 0, 20) })
	w.without = true
	for at := int64(20); at < 60; at += 20 {
		w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, at, at+20) })
		if c := w.meta.View().Custody(w.topic.ID, 0); c == nil || c.Uncovered == nil {
			t.Fatalf("%+v", c)
		}
	}
	w.without = false
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 60, 80)
		for {
			changed := w.meta.Changed() // before the look: a change right after it must not be missed
			if c := w.meta.View().Custody(w.topic.ID, 0); c == nil || c.Uncovered == nil {
				break
			}
			<-changed
		}
	})
	w.loseDirectory()
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 80, 90)
		finds(t, p, 0, 90)
	})
}
