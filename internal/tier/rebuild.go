package tier

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
)

// Rebuilt is what a bucket alone tells of one partition.
type Rebuilt struct {
	Partition
	Objects []Object // the chain that counts, rising
	Gaps    []Range  // offsets between them that no object of the chain holds
	Left    []string // keys of objects that are right and not in the chain
	Damaged []Finding
}

// Rebuild reads the footers of a cluster's objects and finds for each partition the objects that its newest owner
// exported. It changes nothing. foreign counts objects of other names.
func Rebuild(ctx context.Context, store objstore.Store, prefix, cluster string) (all []Rebuilt, foreign int64, err error) {
	g := newGuard(ctx)
	err = eachPartition(g, store, prefix, cluster, &foreign, func(p Partition, list []objstore.Info) error {
		r := Rebuilt{Partition: p}
		place := Place{Prefix: prefix, Cluster: cluster, TopicID: p.TopicID, Partition: p.Number}
		var footers []Footer
		for _, info := range list {
			g.progress()
			if _, _, manifest := ParseManifestKey(info.Key); manifest {
				continue // it says nothing that the footers do not
			}
			f, err := footerOf(g.ctx, store, place, info)
			switch kind := fault.KindOf(err); {
			case err == nil:
				footers = append(footers, *f)
			case kind == fault.Corrupt || kind == fault.Unsupported:
				r.Damaged = append(r.Damaged, Finding{Key: info.Key, Size: info.Size, Why: err})
			case kind == fault.NotFound: // removed meanwhile
			default:
				return err
			}
		}
		chosen, left := choose(footers)
		for i, f := range chosen {
			if i > 0 && chosen[i-1].Next < f.Base {
				r.Gaps = append(r.Gaps, Range{chosen[i-1].Next, f.Base - 1})
			}
			r.Objects = append(r.Objects, f.Object)
		}
		for _, f := range left {
			r.Left = append(r.Left, f.Key(place))
		}
		all = append(all, r)
		return nil
	})
	if err = g.end(ctx, err); err != nil {
		return nil, foreign, fmt.Errorf("rebuild from %s: %w", ClusterDir(prefix, cluster), err)
	}
	return all, foreign, nil
}

// footerOf reads an object's footer, which must say what its key says.
func footerOf(ctx context.Context, store objstore.Store, place Place, info objstore.Info) (f *Footer, err error) {
	err = objstore.Retry(ctx, fetchTries, func() error {
		for range 2 { // damage may have come on the way to here
			if f, err = fetchFooter(ctx, store, info.Key, info.Size); err == nil && f.Key(Place{place.Prefix, place.Cluster, f.TopicID, f.Partition}) != info.Key {
				cause := fmt.Errorf("its footer is of %s", f.Key(Place{place.Prefix, place.Cluster, f.TopicID, f.Partition}))
				err = &CorruptError{Where: info.Key, Position: info.Size - FooterSize, Offset: -1, Cause: cause}
			}
			if fault.KindOf(err) != fault.Corrupt {
				break
			}
		}
		return err
	})
	return f, err
}

// tail is the best way on from one object: where it ends, and which object comes next.
type tail struct {
	generation uint32
	next       int64
	steps      int // fewer are better: merged objects
	by         int // index of the next object; -1: none
}

func (t tail) compare(o tail) int {
	return cmp.Or(cmp.Compare(t.generation, o.generation), cmp.Compare(t.next, o.next), cmp.Compare(o.steps, t.steps))
}

// choose returns the objects that count, rising, and the others. Objects chain: each begins where the one before ends, in
// offset, seq and generation, and frames of one seq and generation are the same frames. So the chain counts whose end has
// the highest generation, and of those the one that reaches furthest; below its start, where an object is missing, the
// best chain that ends there or before.
func choose(all []Footer) (chosen, left []Footer) {
	// By where they begin; so what comes next stands behind.
	slices.SortFunc(all, func(a, b Footer) int {
		return cmp.Or(cmp.Compare(a.Base, b.Base), cmp.Compare(a.Next, b.Next), cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.CRC, b.CRC))
	})
	taken := make([]bool, len(all))
	for below := (*Footer)(nil); ; {
		chain := bestChain(all, below)
		if len(chain) == 0 {
			break
		}
		for _, i := range chain {
			taken[i] = true
		}
		below = &all[chain[0]]
	}
	for i, f := range all {
		if taken[i] {
			chosen = append(chosen, f)
		} else {
			left = append(left, f)
		}
	}
	return chosen, left
}

// before reports whether f can be of the log that goes on with n, with something between them or nothing.
func (f *Footer) before(n *Footer) bool {
	return n == nil || f.Next <= n.Base && f.NextSeq <= n.BaseSeq && f.Generation <= n.PrevGeneration
}

// bestChain returns the indexes of the best chain of objects before below.
func bestChain(all []Footer, below *Footer) []int {
	begins := map[int64][]int{} // by base
	for i := range all {
		if all[i].before(below) {
			begins[all[i].Base] = append(begins[all[i].Base], i)
		}
	}
	tails := make([]tail, len(all))
	best := -1
	for i := len(all) - 1; i >= 0; i-- {
		f := &all[i]
		if !f.before(below) {
			continue
		}
		tails[i] = tail{f.Generation, f.Next, 1, -1}
		for _, j := range begins[f.Next] {
			n := &all[j]
			on := tail{tails[j].generation, tails[j].next, tails[j].steps + 1, j}
			if n.BaseSeq == f.NextSeq && n.PrevGeneration == f.Generation && (tails[i].by < 0 || on.compare(tails[i]) > 0) {
				tails[i] = on
			}
		}
		if best < 0 || betterStart(tails[i], tails[best], f.Base, all[best].Base) {
			best = i
		}
	}
	var chain []int
	for i := best; i >= 0; i = tails[i].by {
		chain = append(chain, i)
	}
	return chain
}

// betterStart compares two starts: of those with the same end the one further down tells more.
func betterStart(a, b tail, aBase, bBase int64) bool {
	return cmp.Or(cmp.Compare(a.generation, b.generation), cmp.Compare(a.next, b.next), cmp.Compare(bBase, aBase), cmp.Compare(b.steps, a.steps)) > 0
}
