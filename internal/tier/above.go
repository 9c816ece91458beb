package tier

import (
	"context"
	"fmt"
	"slices"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
)

// Above finds the objects of a partition that go on where the known ones end: they were exported, and what noted them is
// lost. Each is read from end to end. It ends where none that is whole follows; skipped counts the others. known rise, and
// may be none: then the objects begin with the oldest there is.
func Above(ctx context.Context, store objstore.Store, place Place, known []Object) (found []Object, skipped int, err error) {
	g := newGuard(ctx)
	found, skipped, err = above(g, store, place, known)
	if err = g.end(ctx, err); err != nil {
		return nil, 0, fmt.Errorf("objects of %x/%d: %w", place.TopicID, place.Partition, err)
	}
	return found, skipped, nil
}

func above(g *guard, store objstore.Store, place Place, known []Object) (found []Object, skipped int, err error) {
	var end Object
	if len(known) > 0 {
		end = known[len(known)-1]
	}
	dir := fmt.Sprintf("%s%d/", topicDir(place.Prefix, place.Cluster, place.TopicID), place.Partition)
	var footers []Footer
	for info, err := range store.List(g.ctx, dir, fmt.Sprintf("%s%020d", dir, end.Next)) {
		if err != nil {
			return nil, 0, err
		}
		g.progress()
		at, _, ours := ParseKey(info.Key)
		if !ours || at != place {
			continue
		}
		f, err := footerOf(g.ctx, store, place, info)
		switch kind := fault.KindOf(err); {
		case err == nil:
			footers = append(footers, *f)
		case kind == fault.Corrupt || kind == fault.Unsupported || kind == fault.NotFound:
			skipped++
		default:
			return nil, 0, err
		}
	}
	if chosen, _ := choose(footers); len(known) == 0 && len(chosen) > 0 {
		end.Next = chosen[0].Base
	}
	for {
		found, bad, err := follow(g, store, place, end, footers)
		if err != nil {
			return nil, 0, err
		}
		if bad < 0 {
			return found, skipped + len(footers) - len(found), nil
		}
		// What it holds may be in others, too, that it was merged of.
		footers, skipped = append(footers[:bad], footers[bad+1:]...), skipped+1
	}
}

// follow returns the objects that go on from end, of which only Next may be known, each read from end to end. bad is the
// index of the first of them that is damaged or gone; -1: none is. It may order the footers otherwise.
func follow(g *guard, store objstore.Store, place Place, end Object, footers []Footer) (found []Object, bad int, err error) {
	chosen, _ := choose(footers)
	for i := range chosen {
		f := &chosen[i]
		follows := f.Base == end.Next && (end.NextSeq == 0 || f.BaseSeq == end.NextSeq && f.PrevGeneration == end.Generation)
		if !follows {
			break
		}
		switch err := readBack(g, store, f.Key(place), f); {
		case err == nil:
			found, end = append(found, f.Object), f.Object
		case fault.KindOf(err) == fault.Corrupt || fault.KindOf(err) == fault.NotFound:
			return nil, slices.Index(footers, *f), nil
		default:
			return nil, 0, err
		}
	}
	return found, -1, nil
}
