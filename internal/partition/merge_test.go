package partition

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
)

// mergeable is a partition whose objects are small beside the size of its segments.
func (w *world) mergeable(store objstore.Store, keep tier.Retention) *expiring {
	w.t.Helper()
	p := w.newExpiring(store, seglog.Retention{Bytes: 1}, keep, nil)
	p.cfg.Tier.MergeGrace = time.Nanosecond
	return p
}

// trickle appends records that make n more objects of a few each.
func (p *expiring) trickle(from int64, n int) int64 {
	p.w.t.Helper()
	for range n {
		for range 1 + rand.IntN(3) {
			mustAppend(p.w.t, p.Partition, numbered(from))
			from++
		}
		if _, err := p.log.Load().SealOlder(p.w.t.Context(), math.MinInt64); err != nil {
			p.w.t.Fatal(err)
		}
		exportAll(p.w.t, p.w, p.Partition)
	}
	return from
}

// merged has everything merged that is to be, and waits until what is to be deleted is.
func (p *expiring) merged() {
	p.w.t.Helper()
	if _, err := p.Maintain(p.w.t.Context()); err != nil {
		p.w.t.Fatal(err)
	}
	p.quiet()
	p.settled(nil)
}

// quiet waits until nothing is being merged and nothing waits to be deleted.
func (p *expiring) quiet() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		p.merging.mu.Lock()
		queued := p.merging.queued
		p.merging.mu.Unlock()
		if !queued && p.cfg.Tier.Remover.Later() == 0 {
			return
		}
		<-tick.C
	}
}

// Small objects become few, while readers that stand in them read on; what they held is read from anywhere, after a restart
// too, and is deleted from the store; the log's retention and that of objects go on as before.
func TestSmallObjectsAreMerged(t *testing.T) {
	w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
	p := w.mergeable(store, tier.Retention{})
	end := p.trickle(0, 7)
	p.merged()
	if n := len(p.exported().Objects); n != 7 {
		t.Fatalf("%d objects of 7, too few to merge", n)
	}
	var readers []*Reader
	for offset := int64(0); offset < end; offset += 3 {
		r, err := p.NewReader(t.Context(), offset)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Next(t.Context(), 1, 1); err != nil {
			t.Fatal(err)
		}
		readers = append(readers, r)
	}
	end = p.trickle(end, 60)
	p.merged()
	if n := len(p.exported().Objects); n > 12 || len(listed(t, store)) != n {
		t.Errorf("%d objects of 67, %d are there", n, len(listed(t, store)))
	}
	checkScrub(t, w, store)
	for i, r := range readers {
		for r.offset < end {
			at := r.offset
			if c, err := r.Next(t.Context(), 100, 10); err != nil || c.First > at || c.Next <= at {
				t.Fatalf("the %dth reader at %d: %+v, %v", i, at, c, err)
			}
		}
	}
	for offset := range end {
		if err := readOn(t, p.Partition, offset, int(min(5, end-offset)), numbered); err != nil {
			t.Fatal(err)
		}
	}
	if at, err := p.OffsetForTime(t.Context(), 1000); err != nil || at != 0 {
		t.Errorf("the first of that time is %d, %v", at, err)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, o := range w.meta.View().Export(w.topic.ID, 0).Objects {
		total += o.Size
	}
	p = w.mergeable(store, tier.Retention{Bytes: total / 2})
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := readOn(t, p.Partition, 0, int(end), numbered); err != nil {
		t.Error(err)
	}
	p.merged()
	if first, _ := p.exported().First(); first == 0 || readOn(t, p.Partition, first, int(end-first), numbered) != nil {
		t.Errorf("what is kept begins at %d", first)
	}
	checkScrub(t, w, store)
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// dyingMerges is a metadata of which only merges count as what the process did before it died.
type dyingMerges struct{ dyingMeta }

func (m *dyingMerges) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if _, merge := c.(meta.MergeObjects); !merge {
		return m.Memory.Propose(ctx, c)
	}
	return m.dyingMeta.Propose(ctx, c)
}

// Wherever a run dies that merges: everything that is known is there and whole, at once; the next run merges what is left;
// and a scrub removes what nobody knows.
func TestMergeCrashesAnywhere(t *testing.T) {
	const objects = 10
	for _, halfway := range []bool{false, true} {
		for at := 1; at <= 2+objects; at++ { // a put, a command, and a deletion each
			w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
			p := w.mergeable(store, tier.Retention{})
			end := p.trickle(0, objects)
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			d := &dying{left: at, halfway: halfway, dead: make(chan struct{})}
			w.store = &dyingMerges{dyingMeta{w.meta, d}}
			p = w.mergeable(&dyingPuts{dyingStore{store, d}}, tier.Retention{})
			name := fmt.Sprintf("death at operation %d, done: %v", at, halfway)
			(*exporting)(p.Partition).mergeObjects()
			p.quiet()
			p.settled(d.dead)
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			<-d.dead
			w.store = nil
			if merges := len(w.meta.View().Export(w.topic.ID, 0).Objects) == 1; merges != (at > 2 || at == 2 && halfway) {
				t.Fatalf("%s: merged: %v", name, merges)
			}
			report, err := tier.Scrub(t.Context(), store, "levee", "test", scrubbed(w), tier.ScrubOptions{Full: true})
			if err != nil || report.Missing.Count+report.Damaged.Count != 0 {
				t.Fatalf("%s: %+v, %v", name, report, err)
			}
			p = w.mergeable(store, tier.Retention{})
			if err := p.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := readOn(t, p.Partition, 0, int(end), numbered); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			end = p.trickle(end, 2)
			p.merged()
			if n := len(p.exported().Objects); n != 1 && n != 3 {
				t.Fatalf("%s: %d objects", name, n)
			}
			if err := errors.Join(readOn(t, p.Partition, 0, int(end), numbered), p.stop()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			checkExpired(t, w, store, name)
		}
	}
}

// What was merged stays until the copy of the metadata in the store names what took its place; a topic that is deleted, or
// a partition that another broker has, takes no merge; and who closes it waits for one that is under way.
func TestMergeWaitsForTheMetadataAndEndsWithThePartition(t *testing.T) {
	w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
	p := w.mergeable(store, tier.Retention{})
	copied, asked := make(chan struct{}), make(chan uint64, 1)
	p.cfg.Tier.MetadataCopied = func(ctx context.Context, index uint64) error {
		asked <- index
		select {
		case <-copied:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	end := p.trickle(0, 9)
	if _, err := p.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if index := <-asked; index == 0 || index != w.meta.View().Index() || len(p.exported().Objects) != 1 || len(listed(t, store)) != 10 {
		t.Errorf("change %d, %d objects are known, %d are there", index, len(p.exported().Objects), len(listed(t, store)))
	}
	close(copied)
	p.quiet()
	p.settled(nil)
	if n := len(listed(t, store)); n != 1 {
		t.Errorf("%d objects are there", n)
	}
	copied = make(chan struct{})
	p.trickle(end, 9)
	if _, err := p.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-asked
	soon, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.StopExporting(soon); err == nil {
		t.Error("stopped while it is merging")
	}
	if err := errors.Join(p.Close(t.Context(), errors.New("deleted")), p.StopExporting(t.Context())); err != nil {
		t.Error(err)
	}
	if _, err := w.meta.Propose(t.Context(), meta.DeleteTopic{Name: w.topic.Name, ID: w.topic.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := (*exporting)(p.Partition).mergeNow(t.Context(), tier.MergeLimit{Bytes: 8 << 10}); err != nil && fault.KindOf(err) != fault.Deleted {
		t.Errorf("of a topic that is gone: %v", err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// A damaged object is left as it is, the others around it are merged all the same.
func TestMergeLeavesWhatItCannotRead(t *testing.T) {
	w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
	p := w.mergeable(store, tier.Retention{})
	var now atomic.Int64
	p.cfg.Now = func() time.Time { return time.UnixMilli(now.Load()) }
	p.trickle(0, 19)
	bad := tier.Object(p.exported().Objects[9])
	if err := store.Delete(t.Context(), bad.Key((*exporting)(p.Partition).Place())); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		p.merged()
		now.Add(int64(2 * time.Hour / time.Millisecond))
	}
	e := p.exported()
	if len(e.Objects) != 3 || tier.Object(e.Objects[1]) != bad {
		t.Errorf("%d objects: %+v", len(e.Objects), e.Objects)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// A broker whose generation is not current merges nothing, and deletes nothing.
func TestMergeIsFenced(t *testing.T) {
	w, store := newWorld(t, seglog.OnCommit), objstore.NewMem()
	p := w.mergeable(store, tier.Retention{})
	p.cfg.Meta = &staleGeneration{Memory: w.meta}
	p.ledger.store = p.cfg.Meta
	p.trickle(0, 9)
	entry, err := p.ledger.read()
	if err != nil {
		t.Fatal(err)
	}
	old := *w.meta.View().Export(w.topic.ID, 0)
	if _, err := w.meta.Propose(t.Context(), meta.NewGeneration{Name: w.topic.Name, ID: w.topic.ID, From: entry.Generation, To: entry.Generation + 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := (*exporting)(p.Partition).mergeNow(t.Context(), tier.MergeLimitOf(8<<10, tier.Retention{})); fault.KindOf(err) != fault.Fenced {
		t.Errorf("%v; expected fenced", err)
	}
	p.settled(nil)
	if now := w.meta.View().Export(w.topic.ID, 0); len(now.Objects) != len(old.Objects) || len(listed(t, store)) != len(old.Objects)+1 {
		t.Errorf("%d objects are known, %d are there", len(now.Objects), len(listed(t, store)))
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// staleGeneration is the metadata for who does not know of the newest generation.
type staleGeneration struct{ *meta.Memory }

func (m *staleGeneration) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if merge, ok := c.(meta.MergeObjects); ok {
		merge.Generation--
		c = merge
	}
	return m.Memory.Propose(ctx, c)
}
