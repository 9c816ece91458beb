package partition

import (
	"context"
	"errors"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
)

// Tier is the object store that sealed segments are copied to, and what is read from it.
type Tier struct {
	Store           objstore.Store
	Cold            *tier.Cold
	Exporter        *tier.Exporter
	Remover         *tier.Remover // of what expired; nil: nothing does
	Metrics         *tier.Metrics // nil: none
	Prefix, Cluster string        // of every key
	Inside          bool          // the store is in the data directory, and shares its fate
	SealAge         time.Duration // an active segment that holds records is sealed then, however small it is
	MergeGrace      time.Duration // merged objects are deleted so long after another one took their place; 0: 10 minutes

	// MetadataCopied waits until the metadata's copy in the store has a change of that index; nil: there is no copy.
	MetadataCopied func(ctx context.Context, index uint64) error

	told obs.Throttle // of Report's words
}

// DeleteTopic removes every object of a topic that is gone for good. It may be repeated. Where t is nil there are none.
func (t *Tier) DeleteTopic(ctx context.Context, id meta.TopicID) error {
	if t == nil {
		return nil
	}
	_, err := tier.DeleteTopic(ctx, t.Store, t.Prefix, t.Cluster, id)
	return err
}

// Maintain does what is due from time to time: a partition that failed to open is tried again, what has waited is sealed and
// exported, what the retention no longer keeps, of objects and of the log, is removed, and small objects are merged. It
// returns how many bytes of the log that was.
func (p *Partition) Maintain(ctx context.Context) (removed int64, err error) {
	p.RetryDue()
	if c := p.cover.Load(); c != nil {
		defer c.mirror.Poke() // the buffer need not hold what is exported or removed
	}
	if err := p.Export(ctx); err != nil {
		return 0, err
	}
	expired := (*exporting)(p).expire(ctx) // whatever comes of it, the log's retention goes on
	if p.cfg.Tier != nil {
		(*exporting)(p).mergeObjects()
	}
	if r := p.Retention(); r.Bytes > 0 || r.Age > 0 {
		removed, err = p.Retain(ctx)
	}
	return removed, errors.Join(err, expired)
}

// copied waits until the metadata's copy in the store has a change: whoever takes over from an older one looks for what the
// change is about to have deleted. Where the wait fails, that stays, and a scrub finds it.
func (t *Tier) copied(ctx context.Context, r meta.Result) error {
	if t.MetadataCopied == nil {
		return nil
	}
	return t.MetadataCopied(ctx, r.Index)
}

// exported returns what the metadata has of the partition's objects; nil where there are none.
func (p *Partition) exported() *meta.Export {
	if p.cfg.Tier == nil {
		return nil
	}
	return p.cfg.Meta.View().Export(p.ledger.topic.ID, p.ledger.partition)
}

// copied is seglog.Config.Copied.
func (p *Partition) copied() int64 { return p.exported().Frontier() }

// Export seals what has waited for long enough and has the exporter look at what there is to export. It returns at once,
// and does nothing where there is no tier or no log is open.
func (p *Partition) Export(ctx context.Context) error {
	l := p.log.Load()
	if l == nil || p.cfg.Tier == nil {
		return nil
	}
	if _, err := l.SealOlder(ctx, p.cfg.Tier.SealAge); err != nil {
		return p.explain(err)
	}
	if _, ok := l.SealedAt(p.copied()); ok {
		p.cfg.Tier.Exporter.Wake((*exporting)(p))
	}
	return nil
}

// Exposure is what only the log has of a partition whose segments are copied.
type Exposure struct {
	Copied int64         // offsets below it have a copy, but for what retention had removed before
	Bytes  int64         // of the log above that
	Age    time.Duration // how long ago the oldest segment of those was begun
}

// Exposure returns what only the log has, open or not; ok is false where nothing is copied, or nobody has tried to open the
// log since the start. It does no I/O.
func (p *Partition) Exposure() (e Exposure, ok bool) {
	if p.cfg.Tier == nil {
		return e, false
	}
	l := p.log.Load()
	if l == nil {
		return p.resting()
	}
	e.Copied = p.copied()
	e.Bytes, e.Age = l.Above(e.Copied)
	return e, true
}

// StopExporting ends what is being exported or merged of a partition that was closed, and waits for that, or for ctx. Closing alone
// does not: a store that hangs must not hold up a stop.
func (p *Partition) StopExporting(ctx context.Context) error {
	if p.cfg.Tier == nil {
		return nil
	}
	if err := p.cfg.Tier.Exporter.Forget(ctx, (*exporting)(p)); err != nil {
		return err
	}
	if !p.tidy.Take(ctx.Done()) { // what merges ends with the partition
		return fault.New(fault.KindOf(context.Cause(ctx)), "what is done to objects of %s does not end: %w", p.ledger.where(), context.Cause(ctx))
	}
	p.tidy.Give()
	return nil
}

// exporting is a partition as tier.Source.
type exporting Partition

// Name implements tier.Source.
func (x *exporting) Name() string { return x.ledger.where() }

// Place implements tier.Source.
func (x *exporting) Place() tier.Place {
	return tier.Place{Prefix: x.cfg.Tier.Prefix, Cluster: x.cfg.Tier.Cluster, TopicID: x.ledger.topic.ID, Partition: x.ledger.partition}
}

// Next implements tier.Source.
func (x *exporting) Next(context.Context) (*tier.Segment, error) {
	p := (*Partition)(x)
	l := p.log.Load()
	if l == nil {
		return nil, nil
	}
	s, ok := l.SealedAt(p.copied())
	c, err := coverOf(p, l)
	if err != nil {
		return nil, nil //nolint:nilerr // it is being closed
	}
	if !ok || c != nil && s.Next > c.bound() { // what is not confirmed may yet become something else
		return nil, nil
	}
	f, err := l.OpenSealed(s)
	if err != nil {
		return nil, p.explain(err)
	}
	return &tier.Segment{
		Name: f.Path(), Reader: f, Size: s.Size, Base: s.Base, Next: s.Next, BaseSeq: s.BaseSeq, NextSeq: s.NextSeq, Generation: s.Generation,
		Release: func() { _ = f.Close() },
	}, nil
}

// Commit implements tier.Source.
func (x *exporting) Commit(ctx context.Context, o tier.Object) error {
	l := &x.ledger
	entry, err := l.read()
	if err != nil {
		return err
	}
	o.StoredMs = x.cfg.age().UnixMilli()
	_, err = l.store.Propose(ctx, meta.ExportObject{
		Name: l.topic.Name, ID: l.topic.ID, Partition: l.partition, Generation: entry.Generation, Frontier: (*Partition)(x).copied(),
		Object: meta.ExportedObject(o),
	})
	if err != nil {
		return fault.New(fault.KindOf(err), "note offsets %d to %d of %s as exported: %w", o.Base, o.Next-1, l.where(), err)
	}
	// Without it the metadata only grows, so what fails is tried again with the next object.
	if err := x.fold(ctx); err != nil && ctx.Err() == nil {
		x.cfg.logger().Warn("the metadata still describes all of a partition's objects", "partition", l.where(), "error", err)
	}
	return nil
}

// chain reads on where the log says that an offset was trimmed: from objects as far as they go, and then from the log
// again. Which of them has an offset may change between any two reads: what is exported stays there for longer than in the
// log, and is noted before the log lets go of it.
func (r *Reader) chain(ctx context.Context, maxBytes, maxRecords int) (seglog.Chunk, error) {
	for empty := 0; ; {
		if r.cold != nil {
			if err := r.resolve(ctx, r.p.exported()); err != nil {
				return seglog.Chunk{}, err
			}
			c, err := r.cold.Next(ctx, maxBytes, maxRecords, r.Memory)
			if err != nil {
				return seglog.Chunk{}, err
			}
			if c.Data != nil || c.Lost != nil || c.Next > r.offset {
				r.offset = c.Next
				out := seglog.Chunk{Data: c.Data, First: c.First, Next: c.Next, Records: c.Records, End: r.Bounds().End}
				if c.Lost != nil {
					out.Lost = &seglog.Range{From: c.Lost.From, To: c.Lost.To}
				}
				return out, nil
			}
			r.cold, r.reader = nil, r.ofLog(r.offset)
			empty++
		}
		r.reader.Memory = r.Memory
		c, err := r.reader.Next(maxBytes, maxRecords)
		var trimmed *seglog.TrimmedError
		if !errors.As(err, &trimmed) || r.p.cfg.Tier == nil {
			if err == nil {
				r.offset = c.Next
			}
			return c, err
		}
		x, e := (*exporting)(r.p), r.p.exported()
		if err := r.resolve(ctx, e); err != nil {
			return seglog.Chunk{}, err
		}
		if o, ok := objectAt(e, r.older, r.offset); !ok || o.Base > r.offset {
			if ok {
				trimmed.Oldest = min(trimmed.Oldest, o.Base)
			}
			return c, err
		}
		if empty > 1 {
			return c, fault.New(fault.Internal, "%s: offset %d is in no log and in no object, and the metadata has one that should hold it: read again", r.p.ledger.where(), r.offset)
		}
		r.cold = r.p.cfg.Tier.Cold.NewReader(x.Place(), x.holding(e, &r.older), r.offset)
	}
}
