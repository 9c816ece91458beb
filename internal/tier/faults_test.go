package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/faulty"
)

// everything is a rate for every kind of fault.
func everything(rate float64) map[faulty.Kind]float64 {
	all := map[faulty.Kind]float64{}
	for _, op := range []objstore.Op{objstore.OpGet, objstore.OpHead, objstore.OpList, objstore.OpPutIfAbsent, objstore.OpPutIfMatch, objstore.OpDelete} {
		for _, k := range faulty.Kinds(op) {
			all[k] = rate
		}
	}
	return all
}

// seeds is how many runs with faults by chance a test makes.
func seeds() int {
	switch {
	case testing.Short():
		return 4
	case os.Getenv("LEVEE_FAULTS") == "full":
		return 500
	}
	return 25
}

// Everything that can happen to a store happens to exports, then to reading, then to scrubs, while they go on. At the end
// each segment is one object that is whole; readers have seen what was written, in order and once; nothing that counts was
// removed; no orphan and nothing missing is left.
func TestEverythingThroughEveryFault(t *testing.T) {
	rng := seeded(t)
	for range seeds() {
		seed := rng.Uint64()
		synctest.Test(t, func(t *testing.T) {
			sufferAll(t, rand.New(rand.NewPCG(seed, 2)), seed, func() { time.Sleep(time.Minute) })
		})
		if t.Failed() {
			t.Fatalf("with store seed %d", seed)
		}
	}
}

func sufferAll(t *testing.T, rng *rand.Rand, seed uint64, aMinute func()) {
	under := objstore.NewMem()
	store := faulty.New(under, faulty.Config{Seed: seed, Rate: everything(0.015)})
	meta := &catalog{}
	x := newTestExporter(t, store, ExporterConfig{Parallel: 2})
	var logs []*testLog
	var sources []*testSource
	for p := range int32(3) {
		l := newTestLog(t, rng)
		l.plain, l.place.Partition = true, p
		for range 4 {
			l.seal(6, 3000)
		}
		s := &testSource{name: fmt.Sprint("default/t/", p), place: l.place, segments: l.of}
		s.commit = func(o Object) error {
			return stored(under, l, len(s.done), o)
		}
		s.answer = func() error {
			meta.set(partitionOf(l.place), live(append([]Object(nil), s.done...)))
			return nil
		}
		logs, sources = append(logs, l), append(sources, s)
		x.Wake(s)
	}
	scrubbed := func() {
		_, err := Scrub(t.Context(), store, "a/b", "c1", meta.known, ScrubOptions{Full: true, Remove: true, Grace: time.Second})
		if err != nil && fault.KindOf(err) == fault.Internal {
			t.Error(err)
		}
	}
	minutes := 0
	for _, s := range sources {
		for len(s.objects()) < 4 {
			aMinute()
			scrubbed()
			if minutes++; minutes > 10_000 {
				t.Fatal("never exported")
			}
		}
	}
	if err := x.Stop(); err != nil {
		t.Error(err)
	}
	suffered(t, store, logs, sources)
	if err := store.Settle(); err != nil {
		t.Error(err)
	}
	report, err := Scrub(t.Context(), under, "a/b", "c1", meta.known, ScrubOptions{Full: true})
	if err != nil || report.Verified != 12 || report.Orphans.Count+report.Missing.Count+report.Damaged.Count+report.Foreign != 0 {
		t.Errorf("at the end: %+v, %v", report, err)
	}
}

// stored reports why what is committed is not what lies in the store.
func stored(under objstore.Store, l *testLog, i int, o Object) error {
	data, _, err := objstore.Read(context.Background(), under, o.Key(l.place), 1<<30)
	if err == nil && (!bytes.HasPrefix(data, l.segments[i]) || int64(len(data)) != o.Size) {
		err = errors.New("it is another one")
	}
	if err != nil {
		l.tb.Errorf("committed %s: %v", o.Key(l.place), err)
	}
	return nil
}

// suffered reads everything through the faults. Errors are fine, as long as they say what they are and pass.
func suffered(t *testing.T, store objstore.Store, logs []*testLog, sources []*testSource) {
	c, err := NewCold(t.Context(), store, ColdConfig{StretchBytes: 4 << 10, CacheBytes: 16 << 10, ReadAhead: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range logs {
		r := c.NewReader(l.place, lookup(sources[i].objects()), 0)
		for tries := 0; ; tries++ {
			err := l.follow(r, 5000, 1000)
			if err == nil {
				break
			}
			if kind := fault.KindOf(err); kind == fault.Internal || kind == fault.InvalidArgument || tries > 1000 {
				t.Fatalf("at %d: %v", r.Offset(), err)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A store that never answers is given up after a while, and nothing else waits for it meanwhile.
func TestNothingHangsForEver(t *testing.T) {
	rng := seeded(t)
	for _, op := range []objstore.Op{objstore.OpHead, objstore.OpPutIfAbsent, objstore.OpGet} {
		for _, kind := range []faulty.Kind{faulty.Hang, faulty.HangMid} {
			if kind == faulty.HangMid && op != objstore.OpGet {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				store := faulty.New(objstore.NewMem(), faulty.Config{Script: []faulty.Event{{Op: op, Nth: 1, Kind: kind}}})
				x := newTestExporter(t, store, ExporterConfig{Parallel: 1})
				s := newTestSource(t, rng, 1, 1)
				x.Wake(s)
				time.Sleep(3 * stalled)
				synctest.Wait()
				if st := x.Stats(); len(s.objects()) != 1 || store.Played()[kind] != 1 || op != objstore.OpHead && st.Failures[fault.Timeout] != 1 {
					t.Errorf("%s %s: %+v, %v", op, kind, st, store.Played())
				}
				if err := x.Stop(); err != nil {
					t.Error(err)
				}
				again := faulty.New(store, faulty.Config{Script: []faulty.Event{{Op: objstore.OpGet, Nth: 1, Kind: kind}}})
				c, err := NewCold(t.Context(), again, ColdConfig{})
				if err != nil {
					t.Fatal(err)
				}
				if chunk, err := c.NewReader(s.place, lookup(s.objects()), 0).Next(t.Context(), 1, 1, nil); err != nil || chunk.Next == 0 || again.Played()[kind] != 1 {
					t.Errorf("%+v, %v, %v", chunk, err, again.Played())
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// What is read ahead with one request is usable as it comes, and what did not come is asked for again from there on.
func TestReadAheadGoesOnWhereItBroke(t *testing.T) {
	rng := seeded(t)
	for _, kind := range []faulty.Kind{faulty.Cut, faulty.Short, faulty.HangMid, faulty.Hang, faulty.Unavailable, faulty.Flipped} {
		synctest.Test(t, func(t *testing.T) {
			l := newTestLog(t, rng)
			l.plain = true
			for range 2 {
				l.seal(100, 3000)
			}
			under := objstore.NewMem()
			all := l.export(under)
			events := []faulty.Event{{Op: objstore.OpGet, Nth: 2, Kind: kind}} // the first is of one stretch
			if kind != faulty.Flipped {                                        // twice in one frame it is damage, and is said to be
				events = append(events, faulty.Event{Op: objstore.OpGet, Nth: 4, Kind: kind})
			}
			store := &sizedGets{Store: faulty.New(under, faulty.Config{Seed: rng.Uint64(), Script: events})}
			c, err := NewCold(t.Context(), store, ColdConfig{StretchBytes: 16 << 10})
			if err != nil {
				t.Fatal(err)
			}
			if err := l.follow(c.NewReader(l.place, lookup(all), 0), 4000, 1000); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			c.cache.mu.Lock()
			defer c.cache.mu.Unlock()
			if c.cache.alone != 0 || len(c.cache.flights) != 0 {
				t.Errorf("%s: %d pieces that nobody has asked for, %d under way", kind, c.cache.alone, len(c.cache.flights))
			}
			most, together := all[0].SegmentBytes+all[1].SegmentBytes+2*4*16<<10, int64(4*16<<10)
			if kind == faulty.Flipped {
				most *= 2 // all that is kept of the object is forgotten
			}
			if store.bytes > most || store.largest != together {
				t.Errorf("%s: %d bytes asked for, at most %d; up to %d at once, not %d", kind, store.bytes, most, store.largest, together)
			}
		})
	}
}

// sizedGets counts what is asked for.
type sizedGets struct {
	objstore.Store

	mu             sync.Mutex
	bytes, largest int64 // guarded by mu
}

func (s *sizedGets) Get(ctx context.Context, key string, off, n int64) (*objstore.Body, error) {
	s.mu.Lock()
	s.bytes, s.largest = s.bytes+n, max(s.largest, n)
	s.mu.Unlock()
	return s.Store.Get(ctx, key, off, n)
}

// However many read on side by side, what is read ahead for them does not push itself out of the cache before it is used.
func TestReadAheadOfManyFitsTheCache(t *testing.T) {
	rng := seeded(t)
	synctest.Test(t, func(t *testing.T) {
		under := newTestStore()
		store := &sizedGets{Store: under}
		c, err := NewCold(t.Context(), store, ColdConfig{StretchBytes: 16 << 10, CacheBytes: 64 * 16 << 10})
		if err != nil {
			t.Fatal(err)
		}
		var readers []*Reader
		var size int64
		var ends []int64
		for i := range 20 {
			l := newTestLog(t, rng)
			l.plain, l.place.Partition = true, int32(i)
			l.seal(200, 3000)
			all := l.export(under)
			readers, size, ends = append(readers, c.NewReader(l.place, lookup(all), 0)), size+all[0].SegmentBytes, append(ends, all[0].Next)
		}
		under.before = func(string, string) error { time.Sleep(20 * time.Millisecond); return nil }
		for left := len(readers); left > 0; {
			left = 0
			for _, r := range readers {
				chunk, err := r.Next(t.Context(), 4000, 1000, nil)
				if err != nil {
					t.Fatal(err)
				}
				if chunk.Data != nil || chunk.Lost != nil { // what was lost is not the end
					left++
				}
			}
			time.Sleep(time.Millisecond)
		}
		for i, r := range readers {
			if r.Offset() != ends[i] {
				t.Errorf("read up to %d, not %d", r.Offset(), ends[i])
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if store.bytes > size+size/20 {
			t.Errorf("%d bytes asked for to read %d", store.bytes, size)
		}
		t.Logf("%d bytes asked for to read %d", store.bytes, size)
	})
}
