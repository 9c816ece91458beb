package tier

import (
	"fmt"
	"slices"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/faulty"
)

// Above finds what goes on where the known objects end, or everything where none is known: up to the first that is damaged,
// gone or of another log, the newest owner's where there are several, and one that was merged before those it was made of,
// which count where it is damaged. A store that does not answer is an error, and not an end.
func TestAbove(t *testing.T) {
	rng := seeded(t)
	store := objstore.NewMem()
	l := newTestLog(t, rng)
	for range 8 {
		l.seal(5, 300)
	}
	all := l.export(store)
	above := func(name string, known []Object, want []Object, skipped int) {
		t.Helper()
		found, n, err := Above(t.Context(), store, l.place, known)
		if err != nil || !slices.Equal(found, want) || n != skipped {
			t.Errorf("%s: %d objects and %d others, %v; expected %d and %d", name, len(found), n, err, len(want), skipped)
		}
	}
	spoil := func(o Object) func() {
		t.Helper()
		key := o.Key(l.place)
		data, info, err := objstore.Read(t.Context(), store, key, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		bad := slices.Clone(data)
		bad[len(bad)/3] ^= 4
		info, err = store.PutIfMatch(t.Context(), key, info.Version, objstore.Bytes(bad))
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if _, err := store.PutIfMatch(t.Context(), key, info.Version, objstore.Bytes(data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range all {
		above(fmt.Sprintf("above the %dth", i), all[:i], all[i:], 0)
	}
	above("above all", all, nil, 0)
	if _, err := store.PutIfAbsent(t.Context(), fmt.Sprintf("%s%d/notes", topicDir(l.place.Prefix, l.place.Cluster, l.place.TopicID), l.place.Partition), objstore.Bytes([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	above("with another's object", all[:1], all[1:], 0)
	mend := spoil(all[5])
	above("one is damaged", all[:2], all[2:5], 3)
	above("one is damaged, and none is known", nil, all[:5], 3)
	mend()
	mend = spoil(all[0])
	above("the oldest is damaged, and none is known", nil, nil, 8)
	mend()
	other := all[2]
	other.NextSeq++
	above("the known ones end otherwise", []Object{other}, nil, 5)
	other = all[2]
	other.Generation += 1000
	above("the known ones are of another owner", []Object{other}, nil, 5)

	front, err := newExporter(t, store).Merge(t.Context(), l.place, all[:2])
	if err != nil {
		t.Fatal(err)
	}
	mend = spoil(front)
	above("merged, the oldest, and damaged", nil, all, 1)
	mend()
	if err := store.Delete(t.Context(), front.Key(l.place)); err != nil {
		t.Fatal(err)
	}
	merged, err := newExporter(t, store).Merge(t.Context(), l.place, all[3:6])
	if err != nil {
		t.Fatal(err)
	}
	above("merged", all[:2], []Object{all[2], merged, all[6], all[7]}, 3)
	above("merged, and known is one of what it was merged of", all[:4], all[4:], 0)
	mend = spoil(merged)
	above("merged, and damaged", all[:2], all[2:], 1)
	mend()
	for _, o := range all[3:6] {
		if err := store.Delete(t.Context(), o.Key(l.place)); err != nil {
			t.Fatal(err)
		}
	}
	above("merged, and the others are gone", all[:2], []Object{all[2], merged, all[6], all[7]}, 0)
	if err := store.Delete(t.Context(), merged.Key(l.place)); err != nil {
		t.Fatal(err)
	}
	above("some are gone", all[:2], all[2:3], 2)
	if err := store.Delete(t.Context(), all[0].Key(l.place)); err != nil {
		t.Fatal(err)
	}
	above("the oldest are gone, and none is known", nil, all[1:3], 2)

	away := faulty.New(store, faulty.Config{Rate: map[faulty.Kind]float64{faulty.Denied: 1}})
	if found, _, err := Above(t.Context(), away, l.place, nil); err == nil || found != nil || fault.KindOf(err) == fault.Corrupt {
		t.Errorf("a store that refuses: %d objects, %v", len(found), err)
	}
}
