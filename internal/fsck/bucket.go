package fsck

import (
	"context"
	"fmt"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
)

// known is tier.Known of a view.
func known(v *meta.View) func(tier.Partition) tier.Known {
	dead := map[meta.TopicID]bool{}
	for d := range v.Deletions() {
		dead[d.ID] = true
	}
	return func(p tier.Partition) tier.Known {
		t, ok := v.TopicByID(p.TopicID)
		switch {
		case dead[p.TopicID]:
			return tier.Known{State: tier.Dead}
		case !ok || int(p.Number) >= len(t.Partitions):
			return tier.Known{}
		}
		k := tier.Known{State: tier.Live}
		if e := v.Export(p.TopicID, p.Number); e != nil {
			k.Frontier = e.Frontier()
			if m := e.Manifest; m != nil {
				k.Manifest, k.First = &tier.ManifestRef{Base: m.Base, Next: m.Next, Count: m.Count, CRC: m.CRC}, m.First
			}
			for _, o := range e.Objects {
				k.Objects = append(k.Objects, tier.Object(o))
			}
		}
		return k
	}
}

// exported lists the partitions of which something is exported.
func exported(v *meta.View) (all []tier.Partition) {
	for t := range v.Topics("") {
		for n := range int32(len(t.Partitions)) { //nolint:gosec // bounded by meta
			if v.Export(t.ID, n) != nil {
				all = append(all, tier.Partition{TopicID: t.ID, Number: n})
			}
		}
	}
	return all
}

func (c *check) place(p tier.Partition) tier.Place {
	return tier.Place{Prefix: c.Prefix, Cluster: c.Cluster, TopicID: p.TopicID, Partition: p.Number}
}

// unrecorded looks for objects above what the metadata says is exported: whoever put them did not live to record it, or the
// metadata is of an earlier time. Those that prove to go on where the recorded ones end are recorded, with Repair.
func (c *check) unrecorded(ctx context.Context) error {
	c.Progress.at("list of objects")
	is := known(c.View)
	above := map[tier.Partition]bool{}
	for info, err := range c.Store.List(ctx, tier.ClusterDir(c.Prefix, c.Cluster), "") {
		if err != nil {
			return fmt.Errorf("list objects: %w", err)
		}
		place, name, ok := tier.ParseKey(info.Key)
		if !ok || place.Prefix != c.Prefix || place.Cluster != c.Cluster {
			continue
		}
		p := tier.Partition{TopicID: place.TopicID, Number: place.Partition}
		if k := is(p); k.State == tier.Live && name.Base >= k.Frontier {
			above[p] = true
		}
	}
	if len(above) == 0 {
		return nil
	}
	all, _, err := tier.Rebuild(ctx, c.Store, c.Prefix, c.Cluster)
	if err != nil {
		return err
	}
	for i := range all {
		if r := &all[i]; above[r.Partition] {
			if err := c.record(ctx, r, c.logs[r.Partition]); err != nil {
				return err
			}
		}
	}
	return nil
}

// record records what a bucket proves of one partition.
func (c *check) record(ctx context.Context, r *tier.Rebuilt, log *seglog.Plan) error {
	t, ok := c.View.TopicByID(r.TopicID)
	if !ok {
		return nil
	}
	place, e := c.place(r.Partition), c.View.Export(r.TopicID, r.Number)
	for _, o := range r.Objects {
		if o.Base < e.Frontier() {
			continue
		}
		f := Finding{Level: Repair, Area: "descriptor", Kind: "unrecorded", Where: o.Key(place), Bytes: o.Size}
		why := c.unproven(ctx, t, r.Number, e, o, log, place)
		if why != "" {
			f.Level, f.Why = Note, why
			c.found(f)
			continue
		}
		before := e.Frontier()
		e = with(e, o)
		c.proven[r.Partition] = e
		f.Why = fmt.Sprintf("it goes on where the objects of %s/%d end that the metadata has", t.Name, r.Number)
		if c.Repair {
			err := c.Change(func(s meta.Store) error {
				_, err := s.Propose(ctx, meta.ExportObject{
					Name: t.Name, ID: t.ID, Partition: r.Number, Generation: t.Partitions[r.Number].Generation,
					Frontier: before, Object: meta.ExportedObject(o),
				})
				if err == nil {
					c.View = s.View()
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("record object %s: %w", f.Where, err)
			}
			f.Repaired = true
			c.totals.Added++
		}
		c.found(f)
	}
	return nil
}

// unproven says why an object cannot be recorded behind what is exported; "" where it can.
func (c *check) unproven(ctx context.Context, t *meta.Topic, n int32, e *meta.Export, o tier.Object, log *seglog.Plan, place tier.Place) string {
	generation := t.Partitions[n].Generation
	switch {
	case log == nil || log.Err != nil:
		return "the partition's log cannot be read, so it is not known which of them counts"
	case holdsFrames(log) && o.Next > log.First:
		return "the log has its offsets, too: the next export records it, or another in its place"
	case e != nil && o.Base != e.Frontier():
		return fmt.Sprintf("it does not begin at offset %d, where the recorded ones end", e.Frontier())
	case e != nil && o.BaseSeq != e.Objects[len(e.Objects)-1].NextSeq:
		return fmt.Sprintf("it begins with frame %d, and the recorded ones end before frame %d", o.BaseSeq, e.Objects[len(e.Objects)-1].NextSeq)
	case o.Generation != generation:
		return fmt.Sprintf("it is of generation %d and the partition at %d: others may have been given its offsets since", o.Generation, generation)
	}
	if err := tier.Verify(ctx, c.Store, place, o); err != nil {
		return err.Error()
	}
	return ""
}

// with returns what is exported with one object more.
func with(e *meta.Export, o tier.Object) *meta.Export {
	next := &meta.Export{}
	if e != nil {
		next.Manifest, next.Objects = e.Manifest, append(next.Objects, e.Objects...)
	}
	next.Objects = append(next.Objects, meta.ExportedObject(o))
	return next
}

// bucket compares the object store with the metadata and reads every object that counts.
func (c *check) bucket(ctx context.Context) error {
	is, other := known(c.View), int64(0)
	copied, err := c.copied(ctx)
	if err != nil {
		return err
	}
	if copied != nil {
		c.compare(copied)
		other = copied.Objects
	}
	c.Progress.at("objects")
	report, err := tier.Scrub(ctx, c.Store, c.Prefix, c.Cluster, is, tier.ScrubOptions{
		Full: true, Remove: c.Repair && !c.theirs, May: c.ours, Grace: c.Grace, BytesPerSec: c.BytesPerSec, Expect: exported(c.View), Now: c.Now, Read: c.Progress.add,
	})
	c.totals.Objects, c.totals.ObjectBytes, c.totals.Verified = report.Objects, report.Bytes, report.Verified
	c.totals.Orphans, c.totals.Removed, c.totals.RemovedBytes = report.Orphans.Count, report.Removed, report.RemovedBytes
	report.Foreign = max(0, report.Foreign-other)
	c.totals.Foreign += report.Foreign + report.Unknown
	c.lost(&report)
	for _, f := range report.Orphans.Named {
		place, name, _ := tier.ParseKey(f.Key)
		p := tier.Partition{TopicID: place.TopicID, Number: place.Partition}
		if k := is(p); k.State == tier.Live && name.Base >= k.Frontier {
			continue // see unrecorded
		}
		c.found(Finding{Level: Repair, Area: "object", Kind: "orphan", Where: f.Key, Bytes: f.Size, Why: "it does not count, and never will", Repaired: f.Removed})
	}
	c.unnamed(&report.Orphans, Repair, "orphan")
	if report.Foreign > 0 {
		c.found(Finding{Level: Note, Area: "object", Kind: "foreign", Where: tier.ClusterDir(c.Prefix, c.Cluster), Why: fmt.Sprintf("objects that are no exported segments: %d; left alone", report.Foreign)})
	}
	if report.Unknown > 0 {
		c.found(Finding{Level: Note, Area: "object", Kind: "unknown", Where: tier.ClusterDir(c.Prefix, c.Cluster), Why: fmt.Sprintf("objects of topics that the metadata does not know: %d; left alone", report.Unknown)})
	}
	return err
}

// lost reports the objects that count and are not what they should be.
func (c *check) lost(report *tier.Report) {
	for _, f := range report.Missing.Named {
		c.found(Finding{Level: Lost, Area: "object", Kind: "missing", Where: f.Key, Bytes: f.Size, Why: f.Why.Error()})
	}
	c.unnamed(&report.Missing, Lost, "missing")
	for _, f := range report.Damaged.Named {
		c.found(Finding{Level: Lost, Area: "object", Kind: kindOf(f.Why), Where: f.Key, Bytes: f.Size, Why: f.Why.Error()})
	}
	c.unnamed(&report.Damaged, Lost, "corrupt")
}

// unnamed says how many there are beyond those that a report names.
func (c *check) unnamed(f *tier.Findings, level Level, kind string) {
	if more := f.Count - int64(len(f.Named)); more > 0 {
		c.found(Finding{Level: level, Area: "object", Kind: kind, Where: tier.ClusterDir(c.Prefix, c.Cluster), Why: fmt.Sprintf("and %d more like these", more)})
	}
}

// Held is what a bucket alone tells of one partition.
type Held struct {
	TopicID        meta.TopicID
	Topic          string // its name, where the copy of the metadata tells
	Partition      int32
	First, Next    int64 // offsets of the chain that counts; Next is not in it
	Generation     uint32
	Objects, Bytes int64
	Left           int64 // objects that are not in the chain
}

// BucketInput is what Bucket looks at.
type BucketInput struct {
	Store           objstore.Store
	Prefix, Cluster string
	BytesPerSec     int64
	Held            func(Held)
	Found           func(Finding)
	Progress        *Progress
}

// Bucket tells what a bucket holds, without any metadata, and reads every object of it that would count from end to end. It
// changes nothing.
func Bucket(ctx context.Context, in BucketInput) (Totals, error) {
	c := &check{Input: Input{Store: in.Store, Prefix: in.Prefix, Cluster: in.Cluster, Found: in.Found, Progress: in.Progress}}
	c.Progress.at("footers of objects")
	all, foreign, err := tier.Rebuild(ctx, in.Store, in.Prefix, in.Cluster)
	if err != nil {
		return c.totals, err
	}
	copied, err := c.copied(ctx)
	if err != nil {
		return c.totals, err
	}
	if c.totals.Foreign = foreign; copied != nil {
		c.totals.Foreign = max(0, foreign-copied.Objects)
	}
	by := map[tier.Partition]*tier.Rebuilt{}
	for i := range all {
		r := &all[i]
		by[r.Partition] = r
		c.held(r, copied, in.Held)
	}
	c.Progress.at("objects")
	report, err := tier.Scrub(ctx, in.Store, in.Prefix, in.Cluster, func(p tier.Partition) tier.Known {
		if r := by[p]; r != nil {
			return tier.Known{State: tier.Live, Objects: r.Objects} // with no frontier, nothing is beyond hope
		}
		return tier.Known{}
	}, tier.ScrubOptions{Full: true, BytesPerSec: in.BytesPerSec, Read: c.Progress.add})
	c.totals.Objects, c.totals.ObjectBytes, c.totals.Verified = report.Objects, report.Bytes, report.Verified
	c.lost(&report)
	return c.totals, err
}

// held reports one partition.
func (c *check) held(r *tier.Rebuilt, copied *metatier.Copied, held func(Held)) {
	h := Held{TopicID: r.TopicID, Partition: r.Number, Objects: int64(len(r.Objects)), Left: int64(len(r.Left))}
	if copied != nil && copied.View != nil {
		if t, ok := copied.View.TopicByID(r.TopicID); ok {
			h.Topic = t.Name.String()
		}
	}
	for i, o := range r.Objects {
		if i == 0 {
			h.First = o.Base
		}
		h.Next, h.Generation = o.Next, o.Generation
		h.Bytes += o.Size
	}
	if c.Progress != nil {
		c.Progress.Total.Add(h.Bytes)
	}
	if len(r.Objects) > 0 {
		held(h)
	}
	where := fmt.Sprintf("%s/%d", meta.TopicID(r.TopicID), r.Number)
	for _, g := range r.Gaps {
		c.found(Finding{Level: Lost, Area: "object", Kind: "missing", Where: where, Why: fmt.Sprintf("no object holds offsets %d to %d", g.From, g.To)})
	}
	for _, f := range r.Damaged {
		c.found(Finding{Level: Lost, Area: "object", Kind: kindOf(f.Why), Where: f.Key, Bytes: f.Size, Why: f.Why.Error()})
	}
	c.totals.Orphans += h.Left
	for _, key := range r.Left {
		c.found(Finding{Level: Note, Area: "object", Kind: "orphan", Where: key, Why: "it is in no chain that counts: of a broker that had lost the partition, or merged into another"})
	}
}
