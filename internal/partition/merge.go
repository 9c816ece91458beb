package partition

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/tier"
)

// mergeGrace is for how long merged objects stay that another one has taken the place of. A reader on its way finds the
// other one by itself, so nothing depends on it; it spares it the question.
const mergeGrace = 10 * time.Minute

// Bounds of the waits after a merge failed.
const (
	firstMergeRetry = time.Minute
	lastMergeRetry  = time.Hour
)

// merging is what a partition remembers of merging its objects, so that they are looked at where something can have changed.
type merging struct {
	mu       sync.Mutex
	queued   bool            // guarded by mu; somebody is at it, or waits for a slot
	seen     *meta.Export    // guarded by mu; there was nothing to merge
	limit    tier.MergeLimit // guarded by mu; by this limit
	bad      map[uint32]bool // guarded by mu; CRC of objects that cannot be read; nil: none
	failures int             // guarded by mu; in a row
	due      time.Time       // guarded by mu; not before that; zero: at once
}

// begin reports whether there may be anything to merge, which is then the caller's to do, and to end.
func (m *merging) begin(e *meta.Export, limit tier.MergeLimit, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queued || m.seen == e && m.limit == limit || now.Before(m.due) {
		return false
	}
	m.queued = true
	return true
}

func (m *merging) end() {
	m.mu.Lock()
	m.queued = false
	m.mu.Unlock()
}

// nothing notes that there is nothing to merge in e.
func (m *merging) nothing(e *meta.Export, limit tier.MergeLimit) {
	m.mu.Lock()
	m.seen, m.limit = e, limit
	m.mu.Unlock()
}

// skip reports whether an object could not be read.
func (m *merging) skip(o *tier.Object) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bad[o.CRC]
}

// done notes what a merge came to.
func (m *merging) done(err error, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.failures, m.due = 0, time.Time{}
		return
	}
	m.due = now.Add(min(firstMergeRetry<<min(m.failures, 8), lastMergeRetry))
	m.failures++
}

// leave notes which of the objects of a merge is to stay as it is, where err names one: it is damaged or gone, and the
// others are merged without it.
func (m *merging) leave(place tier.Place, sources []tier.Object, err error) {
	key := ""
	var damaged *tier.CorruptError
	var gone *tier.MissingError
	switch {
	case errors.As(err, &gone):
		key = gone.Key
	case errors.As(err, &damaged):
		key = damaged.Where
	}
	for i := range sources {
		if sources[i].Key(place) != key {
			continue
		}
		m.mu.Lock()
		if m.bad == nil {
			m.bad = map[uint32]bool{}
		}
		m.bad[sources[i].CRC] = true
		m.mu.Unlock()
	}
}

// mergeSlots bounds how many partitions merge objects side by side.
var mergeSlots = make(chan struct{}, 2)

// mergeObjects has small neighbouring objects merged, where there are enough of them. It returns at once, and goes on by
// itself. Those that a manifest describes stay as they are: what is small is merged before it gets there.
func (x *exporting) mergeObjects() {
	p, m := (*Partition)(x), &x.merging
	t, e := p.cfg.Tier, p.exported()
	p.mu.Lock()
	limit, state := tier.MergeLimitOf(p.mu.settings.SegmentBytes, p.mu.settings.Objects), p.mu.status.State
	p.mu.Unlock()
	if e == nil || t.Remover == nil || state == Closed || !m.begin(e, limit, p.cfg.now()) {
		return
	}
	if _, _, ok := tier.Ripe(own(e), limit, m.skip); !ok {
		m.nothing(e, limit)
		m.end()
		return
	}
	if !p.aside("merge objects", mergeSlots, func(ctx context.Context) {
		for more := true; more; {
			var err error
			if more, err = x.mergeNow(ctx, limit); ctx.Err() != nil {
				return
			}
			m.done(err, p.cfg.now())
			if err != nil {
				p.cfg.logger().Warn("small objects were not merged; it is tried again", "partition", p.ledger.where(), "error", err)
			}
		}
	}, m.end) {
		m.end()
	}
}

// own returns the objects that the metadata describes itself.
func own(e *meta.Export) []tier.Object {
	all := make([]tier.Object, len(e.Objects))
	for i, o := range e.Objects {
		all[i] = tier.Object(o)
	}
	return all
}

// mergeNow merges once, and reports whether there may be more to merge.
//
// The order matters. The new object is stored and was read back before the metadata names it; those whose place it took are
// deleted only once the copy of the metadata in the store names it, too: who adopts that copy would look for them.
func (x *exporting) mergeNow(ctx context.Context, limit tier.MergeLimit) (more bool, err error) {
	p := (*Partition)(x)
	t, l, place := p.cfg.Tier, &p.ledger, x.Place()
	if !p.tidy.Take(ctx.Done()) {
		return false, nil
	}
	defer p.tidy.Give()
	e := p.exported()
	if e == nil {
		return false, nil
	}
	all := own(e)
	from, to, ok := tier.Ripe(all, limit, x.merging.skip)
	if !ok {
		x.merging.nothing(e, limit)
		return false, nil
	}
	sources := all[from:to]
	merged, err := t.Exporter.Merge(ctx, place, sources)
	if err != nil {
		x.merging.leave(place, sources, err)
		return false, fault.New(fault.KindOf(err), "merge the objects of %s from offset %d to %d: %w", l.where(), sources[0].Base, sources[len(sources)-1].Next-1, err)
	}
	entry, err := l.read()
	if err != nil {
		return false, err
	}
	c := meta.MergeObjects{Name: l.topic.Name, ID: l.topic.ID, Partition: l.partition, Generation: entry.Generation, Object: meta.ExportedObject(merged)}
	keys := make([]string, len(sources))
	for i := range sources {
		c.Sources = append(c.Sources, sources[i].CRC)
		keys[i] = sources[i].Key(place)
	}
	r, err := l.store.Propose(ctx, c)
	if err != nil {
		return false, fault.New(fault.KindOf(err), "note that objects of %s from offset %d to %d were merged: %w", l.where(), merged.Base, merged.Next-1, err)
	}
	if t.Metrics != nil {
		t.Metrics.Merged.Add(float64(len(sources)))
	}
	if err := t.copied(ctx, r); err != nil {
		return false, err
	}
	grace := t.MergeGrace
	if grace == 0 {
		grace = mergeGrace
	}
	if !t.Remover.RemoveLater(grace, keys) {
		p.cfg.logger().Warn("many objects wait to be deleted: those that were merged stay until levee fsck removes them", "partition", l.where(), "objects", len(keys))
		return false, nil
	}
	return true, nil
}
