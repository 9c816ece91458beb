package tier

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/faulty"
)

// others are the objects of others in the same bucket.
var others = []string{"a/b/c1/readme.txt", "a/b/c1/" + strings.Repeat("0", 32) + "/7/x.lvseg", "a/b/c2/x.lvseg", "backup.tar"}

// cell is one fault at one operation, so many times in a row.
type cell struct {
	op    objstore.Op
	kind  faulty.Kind
	times int
}

func (c cell) String() string { return fmt.Sprintf("%s/%s/%d times", c.op, c.kind, c.times) }

// events lets it happen from the nth operation on.
func (c cell) events(nth int) (all []faulty.Event) {
	for i := range c.times {
		all = append(all, faulty.Event{Op: c.op, Nth: nth + i, Kind: c.kind})
	}
	if c.op == objstore.OpPutIfMatch { // something must be there to be replaced
		for i := range 3 {
			all = append(all, faulty.Event{Op: objstore.OpPutIfAbsent, Nth: 1 + i, Kind: faulty.Rotten})
		}
	}
	return all
}

// Each thing that can go wrong at each operation, once, a few times, and for long, happens to exports, to reads, to scrubs
// and to deletions. What was committed lay in the store when it was; what is read is what was written, or an error that
// says what is wrong and where; in the end all of it is done; and what belongs to others is as it was.
func TestEachFaultAtEachOperation(t *testing.T) {
	rng := seeded(t)
	seeds := 2
	switch {
	case testing.Short():
		seeds = 1
	case os.Getenv("LEVEE_FAULTS") == "full":
		seeds = 20
	}
	cells, runs, kinds := 0, 0, map[faulty.Kind]bool{}
	for op := objstore.OpGet; op <= objstore.OpDelete; op++ {
		for _, kind := range faulty.Kinds(op) {
			for _, times := range []int{1, 4, 40} {
				c := cell{op, kind, times}
				cells++
				kinds[kind] = true
				t.Run(c.String(), func(t *testing.T) {
					played := 0
					for range seeds {
						seed := rng.Uint64()
						synctest.Test(t, func(t *testing.T) { played += c.suffer(t, rand.New(rand.NewPCG(seed, 5))) })
						runs++
						if t.Failed() {
							t.Fatalf("with seed %d", seed)
						}
					}
					if played == 0 {
						t.Error("it never happened")
					}
				})
			}
		}
	}
	t.Logf("%d kinds of faults in %d cells, %d runs", len(kinds), cells, runs)
	if len(kinds) < 15 || cells < 15*3 {
		t.Errorf("%d kinds, %d cells", len(kinds), cells)
	}
}

// suffer plays the cell in each of four places, and returns how often it happened.
func (c cell) suffer(t *testing.T, rng *rand.Rand) (played int) {
	under := objstore.NewMem()
	for _, key := range others {
		put(t, under, key)
	}
	l := newTestLog(t, rng)
	l.plain = true
	for range 3 {
		l.seal(6, 3000)
	}
	// What is rotten is so for everybody, so the first store stays below the next ones.
	first := faulty.New(under, faulty.Config{Script: c.events(1 + rng.IntN(3)), Seed: rng.Uint64(), Delay: 5 * time.Second})
	meta := &catalog{}
	all := c.exports(t, under, first, l, meta)
	if err := first.Settle(); err != nil {
		t.Fatal(err)
	}
	again := func(nth int) *faulty.Store {
		return faulty.New(first, faulty.Config{Script: c.events(nth), Seed: rng.Uint64(), Delay: 5 * time.Second})
	}
	second := again(1 + rng.IntN(2))
	c.reads(t, second, l, all)
	third := again(1)
	c.scrubs(t, third, l, all, meta)
	for _, s := range []*faulty.Store{first, second, third} {
		played += s.Played()[c.kind]
	}
	return played + c.deletes(t, under, again(1), l, meta)
}

// exports has all segments exported, however long it takes. Nothing is committed that is not in the store, whole.
func (c cell) exports(t *testing.T, under objstore.Store, store *faulty.Store, l *testLog, meta *catalog) []Object {
	x := newTestExporter(t, store, ExporterConfig{Parallel: 1})
	s := &testSource{name: "default/t", place: l.place, segments: l.of}
	s.commit = func(o Object) error { return stored(under, l, len(s.done), o) }
	s.answer = func() error { meta.set(partitionOf(l.place), live(append([]Object(nil), s.done...))); return nil }
	x.Wake(s)
	begun := time.Now()
	for len(s.objects()) < 3 {
		if time.Since(begun) > 3*time.Hour {
			t.Fatalf("%d of 3 segments exported: %+v", len(s.objects()), x.Stats())
		}
		<-time.After(10 * time.Second)
	}
	if err := x.Stop(); err != nil {
		t.Error(err)
	}
	if s.released < 3 {
		t.Errorf("%d segments were let go of", s.released)
	}
	for _, o := range s.objects() { // what its readers see
		if _, _, err := objstore.Read(t.Context(), store, o.Key(l.place), 1<<30); err != nil && (c.kind == faulty.Rotten || store.Played()[c.kind] >= c.times) {
			t.Errorf("committed %s: %v", o.Key(l.place), err)
		}
	}
	return s.objects()
}

// reads follows the log from its objects. What a reader is told meanwhile is fit to be told.
func (c cell) reads(t *testing.T, store objstore.Store, l *testLog, all []Object) {
	cold, err := NewCold(t.Context(), store, ColdConfig{StretchBytes: 4 << 10, CacheBytes: 16 << 10, ReadAhead: 2})
	if err != nil {
		t.Fatal(err)
	}
	r := cold.NewReader(l.place, lookup(all), 0)
	for tries := 0; ; tries++ {
		err := l.follow(r, 5000, 1000)
		if err == nil {
			break
		}
		var corrupt *CorruptError
		var missing *MissingError
		switch kind := fault.KindOf(err); {
		case errors.As(err, &corrupt) && c.damages() && corrupt.Where == keyAt(l, all, r.Offset()) && corrupt.Position >= 0 && corrupt.Position <= sizeAt(all, r.Offset()):
		case errors.As(err, &missing) && c.kind == faulty.Missing && missing.Key == keyAt(l, all, r.Offset()):
		case kind == fault.Unavailable && !c.damages(), kind == fault.Timeout && !c.damages(), (kind == fault.Unavailable || kind == fault.Timeout) && c.cuts():
		default:
			t.Fatalf("at %d, a reader is told (%s): %v", r.Offset(), kind, err)
		}
		if tries > 1000 {
			t.Fatalf("at %d: %v", r.Offset(), err)
		}
	}
	if err := cold.Close(); err != nil {
		t.Error(err)
	}
}

// damages reports whether the fault gives other bytes than were written.
func (c cell) damages() bool {
	return slices.Contains([]faulty.Kind{faulty.Flipped, faulty.Shifted, faulty.Truncated, faulty.Rotten}, c.kind)
}

// cuts reports whether it may show as a body that ends early.
func (c cell) cuts() bool { return c.kind == faulty.Truncated || c.kind == faulty.Shifted }

func objectAt(all []Object, offset int64) Object {
	o, _ := lookup(all)(offset)
	return o
}

func keyAt(l *testLog, all []Object, offset int64) string {
	o := objectAt(all, offset)
	return o.Key(l.place)
}
func sizeAt(all []Object, offset int64) int64 { return objectAt(all, offset).Size }

// scrubs has scrubs and rebuilds look at the bucket until they can. None removes what counts.
func (c cell) scrubs(t *testing.T, store *faulty.Store, l *testLog, all []Object, meta *catalog) {
	p := partitionOf(l.place)
	opts := ScrubOptions{Full: true, Remove: true, Grace: time.Nanosecond, Expect: []Partition{p}, Now: func() time.Time { return time.Now().Add(time.Hour) }}
	for tries := 0; ; tries++ {
		r, err := Scrub(t.Context(), store, "a/b", "c1", meta.known, opts)
		if r.Removed != 0 {
			t.Fatalf("removed what counts: %+v", r)
		}
		for _, f := range append(r.Damaged.Named, r.Missing.Named...) {
			if !slices.ContainsFunc(all, func(o Object) bool { return o.Key(l.place) == f.Key }) || !strings.Contains(f.Why.Error(), f.Key) {
				t.Errorf("found %+v", f)
			}
		}
		if err == nil && r.Verified == 3 && r.Damaged.Count+r.Missing.Count == 0 && r.Foreign == 2 {
			break
		}
		if tries > 100 {
			t.Fatalf("scrub: %+v, %v", r, err)
		}
	}
	for tries := 0; ; tries++ {
		list, foreign, err := Rebuild(t.Context(), store, "a/b", "c1")
		if err == nil && foreign == 2 && len(list) == 1 && slices.Equal(list[0].Objects, all) {
			break
		}
		if tries > 100 {
			t.Fatalf("rebuilt: %+v, %d, %v", list, foreign, err)
		}
	}
}

// deletes deletes the topic. After a scrub nothing is left of it, whatever a list had kept back.
func (c cell) deletes(t *testing.T, under objstore.Store, store *faulty.Store, l *testLog, meta *catalog) int {
	for tries := 0; ; tries++ {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		_, err := DeleteTopic(ctx, store, "a/b", "c1", l.place.TopicID)
		cancel()
		if err == nil {
			break
		}
		if kind := fault.KindOf(err); kind == fault.Internal || tries > 100 {
			t.Fatalf("delete (%s): %v", kind, err)
		}
	}
	meta.set(partitionOf(l.place), Known{State: Dead})
	if _, err := Scrub(t.Context(), under, "a/b", "c1", meta.known, ScrubOptions{Remove: true, Grace: time.Nanosecond, Now: func() time.Time { return time.Now().Add(time.Hour) }}); err != nil {
		t.Error(err)
	}
	left, want := keys(under), slices.Clone(others)
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("left are %v", left)
	}
	return store.Played()[c.kind]
}
