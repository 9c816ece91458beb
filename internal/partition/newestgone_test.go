package partition

import (
	"fmt"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/writebuf"
)

// TestNewestObjectGone: a log that is to be made again from an object that is gone waits for an operator's word, as for any
// other loss, and goes on behind it then. What else there is can be read.
func TestNewestObjectGone(t *testing.T) {
	w := newCoveredWorld(t, seglog.OnCommit)
	w.objects = objstore.NewMem()
	w.run(seglog.CleanStop, func(p *Partition) {
		fill(t, p, 0, 400)
		exportAll(t, w.world, p)
	})
	all := w.meta.View().Export(w.topic.ID, 0).Objects
	newest := tier.Object(all[len(all)-1])
	if err := w.objects.Delete(t.Context(), newest.Key(tier.Place{Prefix: "levee", Cluster: "test", TopicID: w.topic.ID})); err != nil {
		t.Fatal(err)
	}
	w.buffer = writebuf.NewMem()
	w.loseDirectory()
	for range 2 {
		w.run(seglog.CleanStop, func(p *Partition) {
			_, err := p.Append(t.Context(), batch(t, "x"))
			if err == nil || !strings.Contains(err.Error(), "levee partition recover default/t/0 --accept-loss") || !mayPass(err) {
				t.Fatal(err)
			}
		})
	}
	if _, err := w.meta.Propose(t.Context(), meta.AcceptLoss{Name: w.topic.Name, ID: w.topic.ID}); err != nil {
		t.Fatal(err)
	}
	w.run(seglog.CleanStop, func(p *Partition) {
		r, err := p.Append(t.Context(), batch(t, "after"))
		if err != nil || r.Offset < unknownLoss {
			t.Fatal(r, err)
		}
		if err := readOn(t, p, 0, int(newest.Base), func(at int64) string { return fmt.Sprintf("value %d", at) }); err != nil {
			t.Fatal(err)
		}
		if c := w.meta.View().Custody(w.topic.ID, 0); c == nil || c.Pending != nil || c.Report.Lost == nil || c.Report.Lost.From != newest.Next {
			t.Fatalf("%+v", c)
		}
		reader, err := p.NewReader(t.Context(), newest.Base)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reader.Next(t.Context(), 1<<20, 100); fault.KindOf(err) != fault.NotFound && fault.KindOf(err) != fault.Corrupt {
			t.Fatal(err)
		}
	})
}
