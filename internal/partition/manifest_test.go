package partition

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
)

// large is a record that fills most of a segment.
func large(offset int64) string { return numbered(offset) + strings.Repeat("y", 5000) }

// grow appends records that make n more objects, and has them exported.
func (p *expiring) grow(from int64, n int) int64 {
	p.w.t.Helper()
	for ; n > 0; n-- {
		mustAppend(p.w.t, p.Partition, large(from))
		from++
		if n%50 == 0 {
			exportAll(p.w.t, p.w, p.Partition)
		}
	}
	exportAll(p.w.t, p.w, p.Partition)
	return from
}

// described counts the objects that the metadata and the manifest describe.
func (p *expiring) described() (own, folded int64) {
	e := p.exported()
	if e.Manifest != nil {
		folded = e.Manifest.Count
	}
	return int64(len(e.Objects)), folded
}

// The metadata describes the newest objects only; the others are found through a manifest, from any offset on, while there
// are more and more, and after a restart; they expire like any others, and a scrub knows them.
func TestManifests(t *testing.T) {
	w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
	p := w.newExpiring(store, seglog.Retention{Bytes: 1}, tier.Retention{}, nil)
	retain := func() {
		t.Helper()
		if _, err := p.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	end := p.grow(0, foldAt-10)
	if own, folded := p.described(); folded != 0 || own < foldAt-20 {
		t.Fatalf("%d and %d", own, folded)
	}
	retain()
	stop, readers := make(chan struct{}), make(chan error, 3)
	for range cap(readers) {
		go func() {
			for {
				select {
				case <-stop:
					readers <- nil
					return
				default:
				}
				from := rand.Int64N(p.copied() - 20)
				if err := readOn(t, p.Partition, from, 20, large); err != nil {
					readers <- err
					return
				}
			}
		}()
	}
	end = p.grow(end, 60)
	retain()
	end = p.grow(end, foldAt)
	retain()
	close(stop)
	for range cap(readers) {
		if err := <-readers; err != nil {
			t.Error(err)
		}
	}
	p.settled(nil)
	own, folded := p.described()
	if own >= foldAt || own < foldKeep || folded < foldAt || p.exported().Manifest.First != 0 {
		t.Fatalf("the metadata describes %d objects, its manifest %d", own, folded)
	}
	manifests := 0
	for key := range listed(t, store) {
		if strings.HasSuffix(key, tier.ManifestSuffix) {
			manifests++
		}
	}
	if manifests != 1 {
		t.Errorf("%d manifests are there", manifests)
	}
	checkScrub(t, w, store)
	if err := readOn(t, p.Partition, 0, int(end), large); err != nil {
		t.Error(err)
	}
	if at, err := p.OffsetForTime(t.Context(), 1000); err != nil || at != 0 {
		t.Errorf("the first of that time is %d, %v", at, err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}

	w.expireManifest(store, end)
	if _, err := tier.DeleteTopic(t.Context(), store, "levee", "test", w.topic.ID); err != nil || len(listed(t, store)) != 0 {
		t.Errorf("%d objects of a deleted topic stay, %v", len(listed(t, store)), err)
	}
}

// expireManifest is another run, which has nothing in memory, with a retention that ends within the manifest; and then one
// with a retention that ends behind it.
func (w *world) expireManifest(store objstore.Store, end int64) {
	t := w.t
	t.Helper()
	total, own := int64(0), int64(len(w.meta.View().Export(w.topic.ID, 0).Objects))
	for _, o := range w.meta.View().Export(w.topic.ID, 0).Objects {
		total += o.Size
	}
	each := total / own
	for _, keep := range []int64{own + 100, own - 20} {
		p := w.newExpiring(store, seglog.Retention{Bytes: 1}, tier.Retention{Bytes: keep * each}, nil)
		if err := p.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := *p.exported()
		if _, err := p.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.expired(&before)
		first, _ := p.exported().First()
		if (p.exported().Manifest != nil) != (keep > own) {
			t.Errorf("%d objects are kept, and the manifest is %+v", keep, p.exported().Manifest)
		}
		var trimmed *seglog.TrimmedError
		if err := readOn(t, p.Partition, first-1, 1, large); !errors.As(err, &trimmed) || trimmed.Oldest != first {
			t.Errorf("%v; expected trimmed, the oldest %d", err, first)
		}
		if err := readOn(t, p.Partition, first, int(end-first), large); err != nil {
			t.Error(err)
		}
		if n := int64(len(listed(t, store))); n < keep-5 || n > keep+5 {
			t.Errorf("%d objects are there, expected about %d", n, keep)
		}
		checkScrub(t, w, store)
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}
}

// expired waits until objects were forgotten, and are gone.
func (p *expiring) expired(before *meta.Export) {
	p.w.t.Helper()
	was, _ := before.First()
	deadline := time.After(20 * time.Second)
	for {
		changed := p.w.meta.Changed()
		if now, _ := p.exported().First(); now > was {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			p.w.t.Fatal("nothing expires")
		}
	}
	p.idle()
	p.settled(nil)
}

// idle waits until nobody looks at the retention.
func (p *expiring) idle() {
	if p.tidy.Take(nil) {
		p.tidy.Give()
	}
}

// checkScrub: everything that is known is whole, and nothing else is there.
func checkScrub(t *testing.T, w *world, store objstore.Store) {
	t.Helper()
	report, err := tier.Scrub(t.Context(), store, "levee", "test", scrubbed(w), tier.ScrubOptions{Full: true, Expect: []tier.Partition{{TopicID: w.topic.ID}}})
	if err != nil || report.Missing.Count+report.Damaged.Count+report.Orphans.Count+report.Unknown+report.Foreign != 0 || report.Verified != report.Objects {
		t.Errorf("%+v, %v", report, err)
	}
}

// scrubbed is what a scrub knows of w.
func scrubbed(w *world) func(tier.Partition) tier.Known {
	return func(tier.Partition) tier.Known {
		e := w.meta.View().Export(w.topic.ID, 0)
		k := tier.Known{State: tier.Live, Frontier: e.Frontier()}
		for _, o := range e.Objects {
			k.Objects = append(k.Objects, tier.Object(o))
		}
		if m := e.Manifest; m != nil {
			r := refOf(m)
			k.Manifest, k.First = &r, m.First
		}
		return k
	}
}

// A fold that dies at any step loses nothing; the next one does it all, and a scrub removes what was left.
func TestFoldCrashesAnywhere(t *testing.T) {
	for _, halfway := range []bool{false, true} {
		for at := 1; at <= 3; at++ {
			w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
			p := w.newExpiring(store, seglog.Retention{Bytes: 1}, tier.Retention{}, nil)
			end := p.grow(0, 40)
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			d := &dying{left: at, halfway: halfway, dead: make(chan struct{})}
			dead := &dyingPuts{dyingStore{store, d}}
			p = w.newExpiring(dead, seglog.Retention{Bytes: 1}, tier.Retention{}, nil)
			p.cfg.Meta = &dyingFolds{dyingMeta{w.meta, d}}
			p.Partition = New(p.cfg, p.ledger.topic, 0, Settings{Mode: seglog.OnCommit, ModeChosen: true, SegmentBytes: 8 << 10, Retention: seglog.Retention{Bytes: 1}})
			if err := p.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := (*exporting)(p.Partition).foldOf(t.Context(), p.exported(), 20); !errors.Is(err, errDead) && at < 3 {
				t.Fatalf("the process lives: %v", err)
			}
			if err := errors.Join(p.Close(context.Background(), errors.New("over")), p.stop()); err != nil {
				t.Fatal(err)
			}
			p = w.newExpiring(store, seglog.Retention{Bytes: 1}, tier.Retention{}, nil)
			if err := p.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			end = p.grow(end, 5)
			if err := (*exporting)(p.Partition).foldOf(t.Context(), p.exported(), len(p.exported().Objects)-10); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.settled(nil)
			if own, folded := p.described(); own != 10 || folded < 30 {
				t.Errorf("%d and %d", own, folded)
			}
			if err := readOn(t, p.Partition, 0, int(end), large); err != nil {
				t.Error(err)
			}
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			if _, err := tier.Scrub(t.Context(), store, "levee", "test", scrubbed(w), tier.ScrubOptions{
				Remove: true, Grace: time.Nanosecond, Now: func() time.Time { return time.Now().Add(time.Hour) },
			}); err != nil {
				t.Fatal(err)
			}
			checkScrub(t, w, store)
		}
	}
}

// dyingPuts is a store whose puts count as what the process did before it died.
type dyingPuts struct{ dyingStore }

func (s *dyingPuts) PutIfAbsent(ctx context.Context, key string, src objstore.Source) (info objstore.Info, err error) {
	err = s.d.do(func() (err error) { info, err = s.Store.PutIfAbsent(ctx, key, src); return err })
	return info, err
}

// dyingFolds is a metadata of which only folds count so.
type dyingFolds struct{ dyingMeta }

func (m *dyingFolds) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if _, fold := c.(meta.FoldObjects); !fold {
		return m.Memory.Propose(ctx, c)
	}
	return m.dyingMeta.Propose(ctx, c)
}
