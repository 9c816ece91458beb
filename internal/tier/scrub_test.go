package tier

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
)

// catalog is the metadata of a test.
type catalog struct {
	mu  sync.Mutex
	all map[Partition]Known
}

func (c *catalog) known(p Partition) Known {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.all[p]
	k.Objects = slices.Clone(k.Objects)
	return k
}

func (c *catalog) set(p Partition, k Known) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[Partition]Known{}
	}
	c.all[p] = k
}

func live(all []Object) Known {
	k := Known{State: Live, Objects: all}
	if len(all) > 0 {
		k.Frontier = all[len(all)-1].Next
	}
	return k
}

func partitionOf(p Place) Partition { return Partition{p.TopicID, p.Partition} }

func named(f Findings) (all []string) {
	for _, one := range f.Named {
		all = append(all, one.Key)
	}
	return all
}

// put stores something that is no exported segment.
func put(t *testing.T, store objstore.Store, key string) {
	t.Helper()
	if _, err := store.PutIfAbsent(t.Context(), key, objstore.Bytes([]byte("x"))); err != nil {
		t.Fatal(err)
	}
}

func TestScrub(t *testing.T) {
	rng := seeded(t)
	store, meta := newTestStore(), &catalog{}
	log := func(partition int32, topic byte, segments int) (*testLog, []Object) {
		l := newTestLog(t, rng)
		l.place.Partition, l.place.TopicID[0] = partition, topic
		for range segments {
			l.seal(5, 50)
		}
		return l, l.export(store)
	}
	good, goodObjects := log(1, 1, 3)
	meta.set(partitionOf(good.place), live(goodObjects))
	torn, tornObjects := log(10, 1, 3)
	meta.set(partitionOf(torn.place), live(tornObjects))
	dead, deadObjects := log(1, 2, 2)
	meta.set(partitionOf(dead.place), Known{State: Dead, Objects: deadObjects})
	_, foreignObjects := log(1, 3, 2) // nobody knows it
	pending, pendingObjects := log(2, 1, 3)
	meta.set(partitionOf(pending.place), live(pendingObjects[:2])) // the last one was put and not recorded yet
	replaced, replacedObjects := log(3, 1, 3)
	meta.set(partitionOf(replaced.place), Known{State: Live, Objects: replacedObjects[2:], Frontier: replacedObjects[2].Next})
	gone, goneObjects := log(4, 1, 1)
	meta.set(partitionOf(gone.place), live(goneObjects))

	middle := func(o Object) int64 { return o.SegmentBytes / 2 }
	rot(store, tornObjects[0].Key(torn.place), middle(tornObjects[0]))
	rot(store, tornObjects[1].Key(torn.place), tornObjects[1].Size-7)
	for _, key := range []string{tornObjects[2].Key(torn.place), goneObjects[0].Key(gone.place)} {
		if err := store.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"a/b/c1/notes.txt", "a/b/c1/x/" + goodObjects[0].Key(Place{Cluster: "c1"}), "a/b/c2/other", goodObjects[0].Key(good.place) + ".bak"} {
		put(t, store, key)
	}
	before := keys(store)

	run := func(opts ScrubOptions) Report {
		t.Helper()
		opts.Expect = []Partition{partitionOf(good.place), partitionOf(gone.place)}
		r, err := Scrub(t.Context(), store, "a/b", "c1", meta.known, opts)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	orphans := []string{
		pendingObjects[2].Key(pending.place), replacedObjects[0].Key(replaced.place), replacedObjects[1].Key(replaced.place),
		deadObjects[0].Key(dead.place), deadObjects[1].Key(dead.place),
	}
	missing := []string{tornObjects[2].Key(torn.place), goneObjects[0].Key(gone.place)}
	later := func() time.Time { return time.Now().Add(25 * time.Hour) }
	for _, tc := range []struct {
		opts    ScrubOptions
		damaged []Object
		removed int64
	}{
		{ScrubOptions{}, tornObjects[1:2], 0},
		{ScrubOptions{Full: true}, tornObjects[:2], 0},
		{ScrubOptions{Remove: true}, tornObjects[1:2], 0},             // too young
		{ScrubOptions{Now: later}, tornObjects[1:2], 0},               // not asked to
		{ScrubOptions{Remove: true, Now: later}, tornObjects[1:2], 4}, // all but the one that may yet be recorded
	} {
		r := run(tc.opts)
		var damaged []string
		for _, o := range tc.damaged {
			damaged = append(damaged, o.Key(torn.place))
		}
		if !slices.Equal(named(r.Orphans), orphans) || !slices.Equal(named(r.Missing), missing) || !slices.Equal(named(r.Damaged), damaged) {
			t.Errorf("%+v:\norphans %v\nmissing %v\ndamaged %v", tc.opts, named(r.Orphans), named(r.Missing), named(r.Damaged))
		}
		for _, f := range append(r.Damaged.Named, r.Missing.Named...) {
			if fault.KindOf(f.Why) != fault.Corrupt {
				t.Errorf("%s: %v", f.Key, f.Why)
			}
		}
		want := Report{Objects: 3 + 2 + 2 + 2 + 3 + 3, Verified: int64(3 + 2 + 1 + 2 - len(tc.damaged)), Foreign: 3, Unknown: int64(len(foreignObjects)), Removed: tc.removed}
		if r.Objects != want.Objects || r.Verified != want.Verified || r.Foreign != want.Foreign || r.Unknown != want.Unknown || r.Removed != want.Removed {
			t.Errorf("%+v: %+v, want %+v", tc.opts, r, want)
		}
		if after := keys(store); tc.removed == 0 && !slices.Equal(before, after) {
			t.Errorf("%+v changed the bucket", tc.opts)
		}
	}
	// Nothing that counts went, and what went is not found again.
	if r := run(ScrubOptions{Remove: true, Now: later, Full: true}); r.Orphans.Count != 1 || r.Removed != 0 || r.Verified != 6 {
		t.Errorf("%+v", r)
	}
	if c := newCold(t, store, ColdConfig{}); good.follow(c.NewReader(good.place, lookup(goodObjects), 0), 1<<20, 1<<20) != nil {
		t.Error("an object that counts went")
	}
}

// The metadata moves while the scrub runs: what it records meanwhile is neither missing nor an orphan.
func TestScrubBesideExports(t *testing.T) {
	l := newTestLog(t, seeded(t))
	for range 3 {
		l.seal(5, 50)
	}
	store, meta := newTestStore(), &catalog{}
	all := l.export(store)
	p := partitionOf(l.place)
	asked := 0
	known := func(q Partition) Known {
		if asked++; asked == 1 {
			meta.set(p, live(all[:2]))
			defer meta.set(p, live(all)) // recorded right after it was asked
		}
		return meta.known(q)
	}
	r, err := Scrub(t.Context(), store, "a/b", "c1", known, ScrubOptions{Remove: true, Grace: 1, Now: func() time.Time { return time.Now().Add(time.Hour) }})
	if err != nil || r.Removed != 0 || len(keys(store)) != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	// Retention takes one away after it was asked.
	asked = 0
	known = func(q Partition) Known {
		if asked++; asked == 1 {
			if err := store.Delete(t.Context(), all[0].Key(l.place)); err != nil {
				t.Error(err)
			}
			defer meta.set(p, live(all[1:]))
		}
		return meta.known(q)
	}
	if r, err := Scrub(t.Context(), store, "a/b", "c1", known, ScrubOptions{}); err != nil || r.Missing.Count != 0 || r.Verified != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestScrubEndsWithTheStore(t *testing.T) {
	l := newTestLog(t, seeded(t))
	l.seal(5, 50)
	store, meta := newTestStore(), &catalog{}
	meta.set(partitionOf(l.place), live(l.export(store)))
	store.before = failing("get", 100, objstore.ErrDenied)
	r, err := Scrub(t.Context(), store, "a/b", "c1", meta.known, ScrubOptions{})
	if fault.KindOf(err) != fault.Unavailable || r.Damaged.Count+r.Missing.Count+r.Verified != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestDeleteTopic(t *testing.T) {
	rng := seeded(t)
	store := newTestStore()
	l := newTestLog(t, rng)
	for range 20 {
		l.seal(2, 20)
	}
	all := l.export(store)
	other := newTestLog(t, rng)
	other.place.TopicID[0]++
	other.seal(2, 20)
	rest := []string{other.export(store)[0].Key(other.place)}
	foreign := strings.TrimSuffix(all[0].Key(l.place), Suffix)
	put(t, store, foreign)
	store.before = failing("delete", 3, objstore.ErrDenied)
	removed, tries := int64(0), 0
	for ; ; tries++ {
		n, err := DeleteTopic(t.Context(), store, "a/b", "c1", l.place.TopicID)
		removed += n
		if err == nil {
			break
		}
	}
	if want := append([]string{foreign}, rest...); removed != 20 || tries != 3 || !slices.Equal(keys(store), want) {
		t.Errorf("%d removed after %d failures: %v are left, not %v", removed, tries, keys(store), want)
	}
}

// script makes footers of a partition out of lines "base-next seq-seq prev>generation".
func script(t *testing.T, lines string) (all []Footer) {
	for i, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		var f Footer
		if _, err := fmt.Sscanf(strings.TrimSpace(line), "%d-%d %d-%d %d>%d", &f.Base, &f.Next, &f.BaseSeq, &f.NextSeq, &f.PrevGeneration, &f.Generation); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		f.CRC = uint32(i)
		all = append(all, f)
	}
	return all
}

func TestChoose(t *testing.T) {
	for name, tc := range map[string]struct{ objects, want string }{
		"one chain": {"0-10 1-5 0>1\n10-20 5-9 1>1\n20-30 9-12 1>2", "012"},
		"what a broker put that was not the owner any more": {`
			0-10 1-5 0>1
			10-30 5-20 1>1
			10-20 5-9 1>2
			20-30 9-12 2>2`, "023"},
		"a stale object that ends where the next owner's begins": {`
			0-10 1-5 0>1
			10-20 5-9 1>1
			10-20 5-9 1>2
			20-30 9-12 2>2`, "023"},
		"the same segment cut in two ways": {`
			0-10 1-5 0>1
			10-20 5-9 1>1
			10-40 5-20 1>1
			20-30 9-12 1>1`, "02"},
		"a cut that leads nowhere": {`
			0-10 1-5 0>1
			10-25 5-11 1>1
			10-20 5-9 1>1
			20-30 9-12 1>1`, "023"},
		"merged": {`
			0-10 1-5 0>1
			10-20 5-9 1>1
			0-20 1-9 0>1
			20-30 9-12 1>1`, "23"},
		"the oldest were trimmed": {"100-110 51-55 3>3\n110-120 55-59 3>3", "01"},
		"one is missing":          {"0-10 1-5 0>1\n20-30 9-12 1>1\n30-40 12-15 1>1", "012"},
		"one is missing, and a stale one below": {`
			0-10 1-5 0>1
			10-18 5-8 1>5
			20-30 9-12 1>6
			30-40 12-15 6>6`, "023"},
		"offsets alone do not chain": {"0-10 1-5 0>1\n10-20 6-9 1>1", "01"},
		"a longer stale chain": {`
			0-10 1-5 0>1
			10-20 5-9 1>1
			20-90 9-50 1>1
			20-30 9-12 1>3`, "013"},
		"nothing": {"0-10 1-5 0>1", "0"},
	} {
		chosen, left := choose(script(t, tc.objects))
		got := ""
		for _, f := range chosen {
			got += fmt.Sprint(f.CRC)
		}
		if got != tc.want || len(chosen)+len(left) != strings.Count(strings.TrimSpace(tc.objects), "\n")+1 {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestRebuild(t *testing.T) {
	rng := seeded(t)
	store := newTestStore()
	one := newTestLog(t, rng)
	one.generation = 9 // the stale one stays below
	for range 4 {
		one.seal(5, 50)
	}
	two := newTestLog(t, rng)
	two.place.Partition = 12
	two.seal(5, 50)
	objects := [][]Object{one.export(store), two.export(store)}
	put(t, store, "a/b/c1/notes.txt")
	stale := newTestLog(t, rng) // another log's first segment in the same place
	stale.seal(3, 30)
	staleKey := stale.export(store)[0].Key(one.place)
	rot(store, objects[0][2].Key(one.place), objects[0][2].Size-1)
	misplaced := one.place // an object under a key of another one
	misplaced.Partition = 12
	data, _, err := objstore.Read(t.Context(), store, objects[0][0].Key(one.place), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.PutIfAbsent(t.Context(), objects[0][0].Key(misplaced), objstore.Bytes(data)); err != nil {
		t.Fatal(err)
	}
	all, foreign, err := Rebuild(t.Context(), store, "a/b", "c1")
	if err != nil || foreign != 1 || len(all) != 2 {
		t.Fatalf("%+v, %d, %v", all, foreign, err)
	}
	for i, p := range []Partition{partitionOf(two.place), partitionOf(one.place)} {
		if k := slices.IndexFunc(all, func(r Rebuilt) bool { return r.Partition == p }); k < 0 {
			t.Errorf("partition %d is not there", i)
		}
	}
	for _, r := range all {
		if r.Partition == partitionOf(two.place) {
			if !slices.Equal(r.Objects, objects[1]) || len(r.Gaps)+len(r.Left) != 0 || len(r.Damaged) != 1 || r.Damaged[0].Key != objects[0][0].Key(misplaced) {
				t.Errorf("%+v", r)
			}
			continue
		}
		want := []Object{objects[0][0], objects[0][1], objects[0][3]}
		gap := Range{objects[0][2].Base, objects[0][2].Next - 1}
		if !slices.Equal(r.Objects, want) || !slices.Equal(r.Gaps, []Range{gap}) || !slices.Equal(r.Left, []string{staleKey}) || len(r.Damaged) != 1 {
			t.Errorf("%+v", r)
		}
	}
}
