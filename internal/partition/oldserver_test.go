package partition

import (
	"fmt"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
)

// powerLoss has the disk lose everything that was not flushed.
func (w *coveredWorld) powerLoss() {
	w.fs = w.fs.Crash(vfs.ChooserFunc(func(vfs.Unsynced) vfs.Fate { return vfs.Fate{How: vfs.Lost} }))
}

// yesterdays returns a server that has what the buffer has now: one that comes back from an older state of its own, with its
// entries harmed.
func (w *coveredWorld) yesterdays(harm ...func([]writebuf.Entry)) *writebuf.Mem {
	w.t.Helper()
	old := writebuf.NewMem()
	entries, err := w.buffer.Buffer(w.id()).Read(w.t.Context(), 1, writebuf.Limit{Entries: 1 << 20, Bytes: 1 << 30})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, h := range harm {
		h(entries)
	}
	b := old.Buffer(w.id())
	if err := b.Append(w.t.Context(), writebuf.Batch{Generation: w.entry().Generation, Floor: 1, Entries: entries}); err != nil {
		w.t.Fatal(err)
	}
	return old
}

// TestServerOfAnEarlierTime: power fails, and both lose what they had last: the server comes back from an older state of
// its own, which is whole. What the log has beyond shows that: the offsets that were given out count as used.
func TestServerOfAnEarlierTime(t *testing.T) {
	w := newCoveredWorld(t, seglog.Periodic)
	w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, 0, 20) })
	older := w.yesterdays()
	w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, 20, 30) })
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 30, 50)
		w.powerLoss()
	})
	w.buffer = older
	w.run(seglog.MachineCrash, func(p *Partition) {
		r, err := p.Append(t.Context(), batch(t, "x"))
		if err != nil || r.Offset < 50 {
			t.Fatalf("offset %d, %v", r.Offset, err)
		}
	})
}

// TestServerBehindTheObjects: a server that lacks even what objects have is one of an earlier time.
func TestServerBehindTheObjects(t *testing.T) {
	w := newCoveredWorld(t, seglog.OnCommit)
	w.objects = objstore.NewMem()
	w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, 0, 20) })
	older := w.yesterdays()
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 20, 400)
		exportAll(t, w.world, p)
		fill(t, p, 400, 410)
	})
	w.buffer = older
	w.loseDirectory()
	w.run(seglog.CleanStop, func(p *Partition) {
		if r, err := p.Append(t.Context(), batch(t, "x")); fault.KindOf(err) != fault.Unavailable {
			t.Fatalf("offset %d, %v", r.Offset, err)
		}
	})
}

// TestDamageInTheBuffer: what a server gives back in place of what it was given does not get into a log, and is named. What
// comes before it does, and nothing is served.
func TestDamageInTheBuffer(t *testing.T) {
	const at = 10 // the entry's place
	for name, harm := range map[string]func([]writebuf.Entry){
		"a bit of a record":     func(e []writebuf.Entry) { e[at].Frame[len(e[at].Frame)-1] ^= 1 },
		"a bit of the head":     func(e []writebuf.Entry) { e[at].Frame[5] ^= 1 },
		"its end":               func(e []writebuf.Entry) { e[at].Frame = e[at].Frame[:len(e[at].Frame)-1] },
		"bytes behind it":       func(e []writebuf.Entry) { e[at].Frame = append(e[at].Frame, 0) },
		"another entry's frame": func(e []writebuf.Entry) { e[at].Frame = e[at-1].Frame },
	} {
		t.Run(name, func(t *testing.T) {
			w := newCoveredWorld(t, seglog.OnCommit)
			w.run(seglog.CleanStop, func(p *Partition) { fill(t, p, 0, 20) })
			var seq uint64
			w.buffer = w.yesterdays(harm, func(e []writebuf.Entry) { seq = e[at].Seq })
			w.loseDirectory()
			w.run(seglog.CleanStop, func(p *Partition) {
				_, err := p.Append(t.Context(), batch(t, "x"))
				if fault.KindOf(err) != fault.Corrupt || !strings.Contains(err.Error(), fmt.Sprintf("frame %d in the write buffer", seq)) {
					t.Fatalf("append: %v; want that frame %d is damaged", err, seq)
				}
			})
		})
	}
}

// TestUncoveredAndTheMachineLost: that the buffer may lack something is no reason to leave what it has.
func TestUncoveredAndTheMachineLost(t *testing.T) {
	w := newCoveredWorld(t, seglog.Periodic)
	w.policy.Degrade = true
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 0, 50)
		w.uncover(50) // what came then was acknowledged by the log alone, and is gone
		w.powerLoss()
	})
	w.run(seglog.MachineCrash, func(p *Partition) {
		r, err := p.Append(t.Context(), batch(t, "x"))
		if err != nil || r.Offset < 50 {
			t.Fatalf("offset %d, %v", r.Offset, err)
		}
		if err := readOn(t, p, 0, 50, func(at int64) string { return fmt.Sprintf("value %d", at) }); err != nil {
			t.Fatal(err)
		}
	})
}
