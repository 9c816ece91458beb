package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/task"
)

func TestReaderAgainstModel(t *testing.T) {
	rng := seeded(t)
	rounds := 60
	if testing.Short() {
		rounds = 8
	}
	for range rounds {
		l := newTestLog(t, rng)
		for range 1 + rng.IntN(4) {
			l.seal(1+rng.IntN(120), []int{20, 2000, 40000}[rng.IntN(3)])
		}
		store := objstore.NewMem()
		all := l.export(store)
		c, err := NewCold(t.Context(), store, ColdConfig{StretchBytes: 4<<10 + rng.Int64N(60<<10), CacheBytes: 256<<10 + rng.Int64N(1<<20), ReadAhead: rng.IntN(6) - 1})
		if err != nil {
			t.Fatal(err)
		}
		for range 12 {
			from := rng.Int64N(l.offset + 1)
			if err := l.follow(c.NewReader(l.place, lookup(all), from), 1+rng.IntN(100_000), 1+rng.IntN(200)); err != nil {
				t.Errorf("from %d: %v", from, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Each byte of a small object is changed. Whoever reads gets an error or what was written, and never anything else; an
// error names the object, and a byte at or before the damage.
func TestNoDamageIsRead(t *testing.T) {
	rng := seeded(t)
	l := newTestLog(t, rng)
	l.seal(10, 40)
	l.seal(6, 40)
	store := newTestStore()
	all := l.export(store)
	step := 1
	if testing.Short() {
		step = 7
	}
	noticed := 0
	for i, o := range all {
		key := o.Key(l.place)
		for at := rng.Int64N(int64(step)); at < o.Size; at += int64(step) {
			rot(store, key, at)
			c := newCold(t, store, ColdConfig{StretchBytes: 4 << 10, CacheBytes: 64 << 10})
			for _, from := range []int64{0, o.Base + 1, o.Next - 1} {
				err := l.follow(c.NewReader(l.place, lookup(all), from), 200, 1000)
				var damage *CorruptError
				switch {
				case err == nil:
					if from == 0 && at >= segfmt.SegmentHeaderSize && at < o.SegmentBytes {
						t.Errorf("object %d, byte %d: not noticed by reading all of it", i, at)
					}
				case errors.As(err, &damage):
					noticed++
					if damage.Where != key || damage.Position > at {
						t.Errorf("object %d, byte %d: %v", i, at, err)
					}
				default:
					t.Errorf("object %d, byte %d, from %d: %v", i, at, from, err)
				}
			}
			rot(store, key, at) // right again
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if noticed == 0 {
		t.Error("nothing was noticed")
	}
}

// An object that was cut, wherever: an error, and up to there what was written.
func TestNoCutObjectIsRead(t *testing.T) {
	rng := seeded(t)
	l := newTestLog(t, rng)
	l.seal(10, 40)
	store := newTestStore()
	o := l.export(store)[0]
	key := o.Key(l.place)
	data, info, err := objstore.Read(t.Context(), store, key, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for cut := rng.IntN(7); cut < len(data); cut += 7 {
		if info, err = store.PutIfMatch(t.Context(), key, info.Version, objstore.Bytes(data[:cut])); err != nil {
			t.Fatal(err)
		}
		c := newCold(t, store, ColdConfig{})
		for _, from := range []int64{0, o.Next - 1} {
			err := l.follow(c.NewReader(l.place, lookup([]Object{o}), from), 200, 1000)
			if cut >= int(o.SegmentBytes) && err == nil {
				continue // the segment is whole
			}
			var damage *CorruptError
			if !errors.As(err, &damage) || damage.Where != key || damage.Position > int64(cut) {
				t.Errorf("cut at %d of %d, from %d: %v", cut, len(data), from, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A descriptor that is possible, and not the object's.
func TestReaderRefusesAnotherDescriptor(t *testing.T) {
	l := newTestLog(t, seeded(t))
	l.seal(30, 40)
	store := newTestStore()
	o := l.export(store)[0]
	for name, change := range map[string]func(*Object){
		"a shorter segment":  func(o *Object) { o.SegmentBytes -= 48; o.IndexBytes += 48 },
		"a longer segment":   func(o *Object) { o.SegmentBytes += 16; o.TimesBytes -= 16 },
		"more frames":        func(o *Object) { o.NextSeq++ },
		"fewer frames":       func(o *Object) { o.NextSeq-- },
		"a later generation": func(o *Object) { o.Generation++ },
	} {
		wrong := o
		change(&wrong)
		// It lies where that descriptor says.
		data, _, err := objstore.Read(t.Context(), store, o.Key(l.place), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := objstore.PutOnce(t.Context(), store, wrong.Key(l.place), objstore.Bytes(data)); err != nil {
			t.Fatal(err)
		}
		if wrong.Validate() != nil {
			continue // refused by itself
		}
		c := newCold(t, store, ColdConfig{})
		for _, from := range []int64{0, 1} {
			r := c.NewReader(l.place, lookup([]Object{wrong}), from)
			var err error
			for err == nil && r.Offset() < o.Next {
				_, err = r.Next(t.Context(), 1<<20, 1<<20, nil)
			}
			if err == nil { // what stands behind the last record is looked at with the next call
				_, err = r.Next(t.Context(), 1<<20, 1<<20, nil)
			}
			if err == nil {
				t.Errorf("%s, from %d: no error", name, from)
			}
		}
	}
}

// Damage that happens on the way is asked for once more, wherever it happens.
func TestDamageOnTheWayHeals(t *testing.T) {
	rng := seeded(t)
	l := newTestLog(t, rng)
	for range 3 {
		l.seal(100, 300)
	}
	store := newTestStore()
	all := l.export(store)
	var mu sync.Mutex
	met := map[string]bool{}
	store.change = func(key string, off int64, b []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if at := fmt.Sprint(key, off); !met[at] { // the first answer to each request is damaged
			met[at] = true
			b = bytes.Clone(b)
			b[rng.IntN(len(b))] ^= 1
		}
		return b
	}
	c := newCold(t, store, ColdConfig{StretchBytes: 8 << 10, CacheBytes: 1 << 20})
	read := func(from int64) error {
		r := c.NewReader(l.place, lookup(all), from)
		for range 200 { // a frame may lie in two stretches
			if err := l.follow(r, 3000, 1000); fault.KindOf(err) != fault.Corrupt {
				return err
			}
		}
		return errors.New("never heals")
	}
	for _, from := range []int64{all[1].Base + 1, 0} {
		if err := read(from); err != nil {
			t.Errorf("from %d: %v", from, err)
		}
	}
}

// A hundred readers of one place ask for everything once.
func TestReadersShareRequests(t *testing.T) {
	l := newTestLog(t, seeded(t))
	l.seal(100, 300)
	store := newTestStore()
	all := l.export(store)
	before, _ := store.counts()
	c := newCold(t, store, ColdConfig{ReadAhead: -1})
	g := task.NewGroup(t.Context())
	hold := make(chan struct{})
	var waiting atomic.Int32
	store.set(func(s *testStore) {
		s.before = func(op, _ string) error {
			if op == "get" {
				<-hold
			}
			return nil
		}
	})
	for range 100 {
		g.Go("reader", func(context.Context) error {
			waiting.Add(1)
			return l.follow(c.NewReader(l.place, lookup(all), all[0].Base+1), 1<<20, 1<<20)
		})
	}
	for waiting.Load() < 100 {
		runtime.Gosched()
	}
	close(hold)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	after, _ := store.counts()
	if n := after - before; n != 2 {
		t.Errorf("%d requests for an index and a stretch", n)
	}
}

// From nothing to the first record: the index and one stretch, or the stretch alone where the object begins there.
func TestRoundTripsToTheFirstRecord(t *testing.T) {
	l := newTestLog(t, seeded(t))
	for range 3 {
		l.seal(500, 1000)
	}
	store := newTestStore()
	all := l.export(store)
	for _, tc := range []struct {
		from int64
		most int
	}{{all[1].Base, 1}, {all[1].Base + 1, 2}, {(all[1].Base + all[1].Next) / 2, 2}, {all[1].Next - 1, 2}} {
		c := newCold(t, store, ColdConfig{})
		before, _ := store.counts()
		chunk, err := c.NewReader(l.place, lookup(all), tc.from).Next(t.Context(), 1, 1, nil)
		after, _ := store.counts()
		if n := after - before; err != nil || chunk.Next <= tc.from || n > tc.most {
			t.Errorf("from %d: %d round trips, at most %d; %v", tc.from, n, tc.most, err)
		}
	}
}

func TestReaderNamesWhatIsMissing(t *testing.T) {
	l := newTestLog(t, seeded(t))
	for range 3 {
		l.seal(20, 100)
	}
	store := newTestStore()
	all := l.export(store)
	key := all[1].Key(l.place)
	if err := store.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	c := newCold(t, store, ColdConfig{})
	for _, from := range []int64{0, all[1].Base, all[1].Next - 1} {
		r := c.NewReader(l.place, lookup(all), from)
		err := l.follow(r, 1<<20, 1<<20)
		var missing *MissingError
		if !errors.As(err, &missing) || missing.Key != key || missing.Base != all[1].Base || missing.Next != all[1].Next || r.Offset() < all[1].Base {
			t.Errorf("from %d: %v at %d", from, err, r.Offset())
		}
		// Once retention has removed what is missing, it is only the end of what there is.
		r.objects = lookup(nil)
		if chunk, err := r.Next(t.Context(), 1, 1, nil); err != nil || chunk.Data != nil || chunk.Next != r.Offset() {
			t.Errorf("from %d, then trimmed: %+v, %v", from, chunk, err)
		}
	}
}

// An object that was replaced while it was read: the reader goes on in the new one.
func TestReaderFollowsTheMetadata(t *testing.T) {
	rng := seeded(t)
	l := newTestLog(t, rng)
	l.seal(200, 300)
	// The same frames once more, cut into two segments elsewhere.
	file, store := l.segments[0], newTestStore()
	whole := l.export(store)
	cut, h := int64(0), chain{}
	if _, _, err := scan(t.Context(), "", bytes.NewReader(file), int64(len(file)), func(at int64, f *segfmt.Frame, _ []byte) error {
		if cut == 0 && at > int64(len(file))/3 && f.Kind == segfmt.KindData && f.Batch.BaseOffset > 0 {
			cut, h = at, chain{f.Seq, f.Batch.BaseOffset, uint32(f.Batch.Generation)}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var prev uint32
	if _, end, err := scan(t.Context(), "", bytes.NewReader(file[:cut]), cut, ignore); err != nil {
		t.Fatal(err)
	} else {
		prev = end.generation
	}
	one := Segment{Reader: bytes.NewReader(file), Size: cut, Next: h.offset, BaseSeq: 1, NextSeq: h.seq, Generation: prev}
	second := segfmt.SegmentHeader{BaseOffset: h.offset, BaseSeq: h.seq, PrevGeneration: prev, TopicID: l.place.TopicID, Partition: uint32(l.place.Partition)}.Append(nil)
	second = append(second, file[cut:]...)
	two := Segment{Reader: bytes.NewReader(second), Size: int64(len(second)), Base: h.offset, Next: l.offset, BaseSeq: h.seq, NextSeq: l.seq, Generation: l.generation}
	var parts []Object
	for _, seg := range []Segment{one, two} {
		o, err := Upload(t.Context(), store, l.place, seg)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, o)
	}
	for _, way := range [][2][]Object{{whole, parts}, {parts, whole}} {
		for range 20 {
			c := newCold(t, store, ColdConfig{StretchBytes: 4 << 10, CacheBytes: 8 << 10, ReadAhead: -1})
			now := way[0]
			r := c.NewReader(l.place, func(at int64) (Object, bool) { return lookup(now)(at) }, 0)
			m := newTestLog(t, rng)
			m.place, m.items = l.place, l.items
			stop := rng.Int64N(l.offset)
			for r.Offset() < stop {
				if _, err := r.Next(t.Context(), 2000, 1000, nil); err != nil {
					t.Fatal(err)
				}
			}
			for _, o := range way[0] {
				if err := store.Delete(t.Context(), o.Key(l.place)); err != nil {
					t.Fatal(err)
				}
			}
			now = way[1]
			if err := m.follow(r, 2000, 1000); err != nil {
				t.Errorf("switched at %d: %v", stop, err)
			}
			for _, seg := range append([]Segment{one, two}, l.of...) {
				if _, err := Upload(t.Context(), store, l.place, seg); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Objects that are each right, and do not belong together.
func TestReaderRefusesWhatDoesNotContinue(t *testing.T) {
	rng := seeded(t)
	l := newTestLog(t, rng)
	l.generation = 5
	l.seal(20, 50)
	offset, seq, generation := l.offset, l.seq, l.generation
	store := newTestStore()
	for name, start := range map[string]func(){
		"frames are missing":    func() { l.seq += 3 },
		"an earlier generation": func() { l.generation = 2 },
		"another partition":     func() { l.place.Partition++ },
		"another topic":         func() { l.place.TopicID[0]++ },
		"earlier frames":        func() { l.seq, l.offset = l.seq-15, l.offset-3 },
	} {
		l.segments, l.of, l.items = l.segments[:1], l.of[:1], nil
		l.offset, l.seq, l.generation, l.place = offset, seq, generation, testPlace
		start()
		second := l.seal(20, 50)
		first, err := Upload(t.Context(), store, testPlace, l.of[0])
		if err != nil {
			t.Fatal(err)
		}
		o, err := Upload(t.Context(), store, l.place, second)
		if err != nil {
			t.Fatal(err)
		}
		// It lies where it would be if it belonged there.
		data, _, err := objstore.Read(t.Context(), store, o.Key(l.place), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := objstore.PutOnce(t.Context(), store, o.Key(testPlace), objstore.Bytes(data)); err != nil {
			t.Fatal(err)
		}
		c := newCold(t, store, ColdConfig{})
		r := c.NewReader(testPlace, lookup([]Object{first, o}), 0)
		err = nil
		for err == nil && r.Offset() < l.offset {
			_, err = r.Next(t.Context(), 1<<20, 1<<20, nil)
		}
		if fault.KindOf(err) != fault.Corrupt || r.Offset() != offset {
			t.Errorf("%s: %v at %d, the first object ends at %d", name, err, r.Offset(), offset)
		}
		if strings.HasPrefix(name, "another") {
			r = c.NewReader(testPlace, lookup([]Object{o}), o.Base+1)
			if _, err := r.Next(t.Context(), 1<<20, 1<<20, nil); fault.KindOf(err) != fault.Corrupt {
				t.Errorf("%s, by the index: %v", name, err)
			}
		}
		if err := store.Delete(t.Context(), o.Key(testPlace)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReaderPassesErrorsOn(t *testing.T) {
	l := newTestLog(t, seeded(t))
	l.seal(50, 100)
	store := newTestStore()
	all := l.export(store)
	c := newCold(t, store, ColdConfig{})
	r := c.NewReader(l.place, lookup(all), 1)
	store.set(func(s *testStore) { s.before = failing("get", fetchTries, objstore.ErrUnavailable) })
	if _, err := r.Next(t.Context(), 1, 1, nil); fault.KindOf(err) != fault.Unavailable {
		t.Error(err)
	}
	if err := l.follow(r, 1<<20, 1<<20); err != nil {
		t.Errorf("when the store is back: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.NewReader(l.place, lookup(all), 1).Next(ctx, 1, 1, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	wrong := all[0]
	wrong.SegmentBytes--
	if _, err := c.NewReader(l.place, lookup([]Object{wrong}), 1).Next(t.Context(), 1, 1, nil); fault.KindOf(err) != fault.InvalidArgument {
		t.Error(err)
	}
	if _, err := c.NewReader(l.place, func(int64) (Object, bool) { return all[0], true }, all[0].Next).Next(t.Context(), 1, 1, nil); fault.KindOf(err) != fault.Internal {
		t.Error(err)
	}
}

func TestOffsetForTime(t *testing.T) {
	rng := seeded(t)
	for range 10 {
		l := newTestLog(t, rng)
		for range 3 {
			l.seal(1+rng.IntN(100), 1500)
		}
		store := newTestStore()
		all := l.export(store)
		c := newCold(t, store, ColdConfig{StretchBytes: 4 << 10, CacheBytes: 100 << 10})
		for range 50 {
			ms, from := 1_000_000-5+rng.Int64N(l.time-1_000_000+10), rng.Int64N(l.offset)
			want, found := l.offset, false
			for _, it := range l.items {
				for i, at := range it.times {
					if at >= ms && it.base+int64(i) >= from && !found {
						want, found = it.base+int64(i), true
					}
				}
			}
			got, ok, err := c.OffsetForTime(t.Context(), l.place, lookup(all), from, ms)
			if got != want || ok != found || err != nil {
				t.Errorf("time %d from %d: %d %v %v, want %d %v", ms, from, got, ok, err, want, found)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
