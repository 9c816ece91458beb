package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/tier"
)

// How many objects of a partition the metadata describes itself: once there are foldAt, all but foldKeep go into a manifest.
const (
	foldAt   = 256
	foldKeep = 64
)

// refOf returns the name of the manifest's object.
func refOf(m *meta.Manifest) tier.ManifestRef {
	return tier.ManifestRef{Base: m.Base, Next: m.Next, Count: m.Count, CRC: m.CRC}
}

// older returns the manifest that what holds an offset is described in; nil where the metadata describes it itself.
func (x *exporting) older(ctx context.Context, offset int64) (*tier.Manifest, error) {
	p := (*Partition)(x)
	for {
		e := p.exported()
		if e == nil || e.Manifest == nil || offset >= e.Manifest.Next {
			return nil, nil
		}
		m, err := p.cfg.Tier.Cold.Manifest(ctx, x.Place(), refOf(e.Manifest))
		if err == nil {
			return m, nil
		}
		if now := p.exported(); errors.Is(err, objstore.ErrNotFound) && now != nil && (now.Manifest == nil || refOf(now.Manifest) != refOf(e.Manifest)) {
			continue // it was replaced meanwhile
		}
		return nil, fmt.Errorf("look up offset %d of %s: %w", offset, p.ledger.where(), err)
	}
}

// objectAt returns the object of e that holds an offset, or else the next one, where older, which may be nil or of another
// time, tells; false where there is none or older does not tell.
func objectAt(e *meta.Export, older *tier.Manifest, offset int64) (tier.Object, bool) {
	if e == nil || e.Manifest == nil || offset >= e.Manifest.Next {
		o, ok := e.At(offset)
		return tier.Object(o), ok
	}
	if older == nil {
		return tier.Object{}, false
	}
	// What ends at or below First was dropped.
	i := older.Search(max(offset, e.Manifest.First))
	switch {
	case i < older.Len():
		return older.At(i), true
	case older.Next() < e.Manifest.Next:
		return tier.Object{}, false
	}
	return tier.Object(e.Objects[0]), true
}

// holding returns tier.Objects for lookups with what older describes, which tells all of was.
func (x *exporting) holding(was *meta.Export, older **tier.Manifest) tier.Objects {
	return func(offset int64) (tier.Object, bool) {
		o, ok := objectAt((*Partition)(x).exported(), *older, offset)
		if !ok { // what older does not tell was folded since
			o, ok = objectAt(was, *older, offset)
		}
		if !ok || o.Base > offset {
			return tier.Object{}, false
		}
		return o, true
	}
}

// resolve sees to it that objects of e at and behind the reader's offset can be looked up.
func (r *Reader) resolve(ctx context.Context, e *meta.Export) (err error) {
	if e == nil || e.Manifest == nil || r.offset >= e.Manifest.Next || r.p.cfg.Tier == nil {
		r.older = nil
		return nil
	}
	if r.older == nil || r.older.Next() <= r.offset {
		r.older, err = (*exporting)(r.p).older(ctx, r.offset)
	}
	return err
}

// everything returns what is described of a partition's objects, oldest first.
func (x *exporting) everything(ctx context.Context, e *meta.Export) ([]tier.Object, error) {
	p := (*Partition)(x)
	var all []tier.Object
	if e.Manifest != nil {
		m, err := p.cfg.Tier.Cold.Manifest(ctx, x.Place(), refOf(e.Manifest))
		if err != nil {
			return nil, fmt.Errorf("objects of %s: %w", p.ledger.where(), err)
		}
		all = m.Objects(e.Manifest.First)
	}
	for _, o := range e.Objects {
		all = append(all, tier.Object(o))
	}
	return all, nil
}

// fold moves the descriptors of older objects from the metadata into a manifest, where there are many. One goroutine at a
// time calls it. What it stored and did not get recorded is an orphan, which a scrub finds.
func (x *exporting) fold(ctx context.Context) error {
	p := (*Partition)(x)
	e := p.exported()
	if e == nil || len(e.Objects) < foldAt || !p.tidy.Try() { // who is at it may change what is there; the next object will do
		return nil
	}
	defer p.tidy.Give()
	if e = p.exported(); len(e.Objects) < foldAt {
		return nil
	}
	return x.foldOf(ctx, e, len(e.Objects)-foldKeep)
}

// foldOf folds the oldest n objects of what is exported, of which some stay.
func (x *exporting) foldOf(ctx context.Context, e *meta.Export, n int) error {
	p := (*Partition)(x)
	all, err := x.everything(ctx, e)
	if err != nil {
		return err
	}
	all = all[:len(all)-(len(e.Objects)-n)]
	l, place := &p.ledger, x.Place()
	entry, err := l.read()
	if err != nil {
		return err
	}
	put, err := tier.PutManifest(ctx, p.cfg.Tier.Store, place, all)
	if err != nil {
		return fmt.Errorf("describe objects of %s: %w", l.where(), err)
	}
	done, err := l.store.Propose(ctx, meta.FoldObjects{
		Name: l.topic.Name, ID: l.topic.ID, Partition: l.partition, Generation: entry.Generation,
		From: e.Manifest, Base: e.Objects[0].Base, Objects: n, Through: e.Objects[n-1].Next,
		Manifest: meta.Manifest{First: put.Base, Base: put.Base, Next: put.Next, Count: put.Count, CRC: put.CRC},
	})
	if err != nil {
		return fault.New(fault.KindOf(err), "note the manifest of %s below offset %d: %w", l.where(), put.Next, err)
	}
	if e.Manifest != nil && refOf(e.Manifest) != put && p.cfg.Tier.Remover != nil {
		remove := func(ctx context.Context) {
			if err := p.cfg.Tier.copied(ctx, done); err != nil {
				p.cfg.logger().Warn("a manifest that was replaced stays until levee fsck removes it", "partition", l.where(), "error", err)
				return
			}
			p.cfg.Tier.Remover.RemoveKey(refOf(e.Manifest).Key(place), 0)
		}
		if p.cfg.Tier.MetadataCopied == nil {
			remove(ctx)
		} else { // beside the exports, which must not wait for that
			p.aside("delete a manifest", expiringSlots, remove, func() {})
		}
	}
	return nil
}
