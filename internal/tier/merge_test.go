package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/faulty"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/prometheus/client_golang/prometheus"
)

func newExporter(t *testing.T, store objstore.Store) *Exporter {
	t.Helper()
	x, err := NewExporter(context.Background(), store, ExporterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Stop(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// What several objects are merged into is what would have been exported had their log never begun a new segment, to the
// byte, across generations and lost ranges; it reads as they do, and does so through a store that fails in every way.
func TestMergeIsOneSegment(t *testing.T) {
	rng := seeded(t)
	for range 20 {
		store := objstore.NewMem()
		l := newTestLog(t, rng)
		for range 2 + rng.IntN(6) {
			l.seal(1+rng.IntN(30), 1+rng.IntN(4000))
		}
		all := l.export(store)
		all[len(all)-1].StoredMs = 77
		whole := append([]byte(nil), l.segments[0]...)
		for _, s := range l.segments[1:] {
			whole = append(whole, s[segfmt.SegmentHeaderSize:]...)
		}
		first, last := l.of[0], l.of[len(l.of)-1]
		want, err := Upload(t.Context(), objstore.NewMem(), l.place, Segment{
			Name: "whole", Reader: bytes.NewReader(whole), Size: int64(len(whole)), Base: first.Base, Next: last.Next, BaseSeq: first.BaseSeq, NextSeq: last.NextSeq, Generation: last.Generation,
		})
		if err != nil {
			t.Fatal(err)
		}
		want.StoredMs = 77
		flaky := faulty.New(store, faulty.Config{Seed: rng.Uint64(), Rate: map[faulty.Kind]float64{faulty.Unavailable: 0.02}})
		for again := range 2 {
			o, err := newExporter(t, flaky).Merge(t.Context(), l.place, all)
			if err == nil && o != want {
				t.Fatalf("%+v; a segment of all has %+v", o, want)
			}
			if err != nil && (again > 0 || fault.KindOf(err) == fault.Corrupt) {
				o, err = newExporter(t, store).Merge(t.Context(), l.place, all)
				if err != nil || o != want {
					t.Fatalf("%+v, %v", o, err)
				}
			}
		}
		if err := l.follow(newCold(t, store, ColdConfig{StretchBytes: 4 << 10, CacheBytes: 64 << 10}).NewReader(l.place, lookup([]Object{want}), 0), 10_000, 100); err != nil {
			t.Error(err)
		}
	}
}

// An object that is damaged or gone, or does not belong there, is named, and nothing is stored.
func TestMergeNamesWhatItCannotRead(t *testing.T) {
	rng := seeded(t)
	for round := range 40 {
		store := objstore.NewMem()
		l := newTestLog(t, rng)
		for range 4 {
			l.seal(10, 500)
		}
		all := l.export(store)
		n, which := 0, rng.IntN(len(all))
		key := all[which].Key(l.place)
		data, info, err := objstore.Read(t.Context(), store, key, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		at := segfmt.SegmentHeaderSize + rng.Int64N(all[which].SegmentBytes-segfmt.SegmentHeaderSize)
		switch round % 4 {
		case 0:
			err = store.Delete(t.Context(), key)
		case 1:
			data[at] ^= 1 << rng.IntN(8)
			_, err = store.PutIfMatch(t.Context(), key, info.Version, objstore.Bytes(data))
		case 2:
			at = all[which].SegmentBytes / 2
			_, err = store.PutIfMatch(t.Context(), key, info.Version, objstore.Bytes(data[:at]))
		case 3: // another's bytes under its name
			o := all[(which+1)%len(all)]
			if data, _, err = objstore.Read(t.Context(), store, o.Key(l.place), 1<<30); err == nil {
				_, err = store.PutIfMatch(t.Context(), key, info.Version, objstore.Bytes(data))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = newExporter(t, store).Merge(t.Context(), l.place, all)
		var gone *MissingError
		var bad *CorruptError
		if errors.As(err, &gone) {
			bad = &CorruptError{Where: gone.Key}
		} else if !errors.As(err, &bad) {
			t.Fatalf("round %d: %v", round, err)
		}
		if fault.KindOf(err) != fault.Corrupt || bad.Where != key && round%4 != 3 {
			t.Errorf("round %d: %s: %v; expected one about %s", round, fault.KindOf(err), err, key)
		}
		for range objectsIn(t, store) {
			n++
		}
		if round%4 == 0 {
			n++
		}
		if n != len(all) {
			t.Errorf("round %d: %d objects are there", round, n)
		}
	}
}

// objectsIn lists the keys in a store.
func objectsIn(t *testing.T, store objstore.Store) (all []string) {
	t.Helper()
	for info, err := range store.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, info.Key)
	}
	return all
}

// sized describes objects of these segments' sizes that follow each other.
func sized(sizes ...int64) (all []Object) {
	for i, size := range sizes {
		all = append(all, Object{Base: int64(10 * i), Next: int64(10*i + 10), BaseSeq: uint64(i + 1), NextSeq: uint64(i + 2), Generation: 1, SegmentBytes: size})
	}
	return all
}

func TestRipe(t *testing.T) {
	limit := MergeLimit{Bytes: 1000}
	repeat := func(size int64, n int) (all []int64) {
		for range n {
			all = append(all, size)
		}
		return all
	}
	gap, otherSeq, older := sized(100, 100, 100), sized(100, 100, 100), sized(100, 100, 100)
	gap[2].Base = 21
	otherSeq[1].NextSeq, otherSeq[2].BaseSeq = 5, 6
	otherSeq[2].Generation, older[1].Generation = 2, 2
	aged := sized(repeat(1, 8)...)
	for i := range aged {
		aged[i].StoredMs = int64(1000 + 250*i) // the age's eighth is a second
	}
	for name, c := range map[string]struct {
		all      []Object
		limit    MergeLimit
		skip     int64 // size that cannot be read
		from, to int   // 0, 0: nothing
	}{
		"nothing":                         {},
		"one":                             {all: sized(1)},
		"too few":                         {all: sized(repeat(1, mergeAtOnce-1)...)},
		"enough":                          {all: sized(repeat(1, mergeAtOnce)...), to: mergeAtOnce},
		"half of one":                     {all: sized(200, 200, 100), to: 3},
		"as many as fit":                  {all: sized(200, 200, 200, 200, 200, 200), to: 5},
		"none is small":                   {all: sized(repeat(250, 20)...)},
		"closed by a large one":           {all: sized(500, 10, 10, 500, 10), from: 1, to: 3},
		"a single one between large ones": {all: sized(500, 10, 500, 10, 500)},
		"most of it is one":               {all: sized(append([]int64{200}, repeat(1, mergeAtOnce-1)...)...)},
		"behind what is most of it":       {all: sized(append([]int64{200}, repeat(1, mergeAtOnce)...)...), from: 1, to: mergeAtOnce + 1},
		"closed by a gap":                 {all: gap, to: 2},
		"frames are missing":              {all: otherSeq, to: 2},
		"the generation falls":            {all: older, to: 2},
		"one that cannot be read":         {all: sized(10, 10, 11, 10, 10), skip: 11, to: 2},
		"an age's eighth":                 {all: aged, limit: MergeLimit{Bytes: 1000, Age: 8 * time.Second}, to: 4},
		"no age":                          {all: aged, to: 8},
	} {
		if c.limit == (MergeLimit{}) {
			c.limit = limit
		}
		from, to, ok := Ripe(c.all, c.limit, func(o *Object) bool { return c.skip > 0 && o.SegmentBytes == c.skip })
		if from != c.from || to != c.to || ok != (c.to > 0) {
			t.Errorf("%s: %d to %d, %v; expected %d to %d", name, from, to, ok, c.from, c.to)
		}
	}
	keep := Retention{Bytes: 8000, Age: time.Hour}
	if l := MergeLimitOf(1<<40, keep); l != (MergeLimit{1000, time.Hour}) {
		t.Errorf("%+v", l)
	}
	if l := MergeLimitOf(1<<40, Retention{}); l != (MergeLimit{mergedBytes, 0}) {
		t.Errorf("%+v", l)
	}
}

// However objects of any sizes come, one after the other: there are never many more of them than what they hold needs, and
// no byte is written again often.
func TestMergesBoundObjects(t *testing.T) {
	rng := seeded(t)
	const most = 1 << 20
	for name, next := range map[string]func(i int) int64{
		"a record each":   func(int) int64 { return 200 },
		"a trickle":       func(int) int64 { return 6000 },
		"nearly a fourth": func(int) int64 { return most/4 - 1 },
		"any":             func(int) int64 { return 200 + rng.Int64N(most) },
		"mostly small":    func(int) int64 { return 200 + most>>rng.IntN(13) },
		"small and large": func(i int) int64 { return 300 + int64(i%2)*most*9/10 },
	} {
		var all []Object
		var came, here, wrote, offset int64 // here: of what came, and was not folded
		worst := 0.0
		for i := range 20_000 {
			o := sized(next(i))[0]
			o.Base, o.Next, o.BaseSeq, o.NextSeq = offset, offset+1, uint64(offset+1), uint64(offset+2)
			offset++
			came, here = came+o.SegmentBytes, here+o.SegmentBytes
			all = append(all, o)
			for {
				from, to, ok := Ripe(all, MergeLimit{Bytes: most}, nil)
				if !ok {
					break
				}
				m := all[from]
				m.Next, m.NextSeq, m.SegmentBytes = all[to-1].Next, all[to-1].NextSeq, 0
				for _, o := range all[from:to] {
					m.SegmentBytes += o.SegmentBytes
				}
				if m.SegmentBytes > most {
					t.Fatalf("%s: merged into %d bytes", name, m.SegmentBytes)
				}
				wrote += m.SegmentBytes
				all = append(append(all[:from:from], m), all[to:]...)
			}
			worst = max(worst, float64(len(all))-2*mergeSmall*float64(here)/most)
			if len(all) > 500 { // as if they were folded, so that this test ends soon
				for _, o := range all[:400] {
					here -= o.SegmentBytes
				}
				all = all[400:]
			}
		}
		again := float64(wrote) / float64(came)
		t.Logf("%-16s %d objects of %d bytes, at most %.0f more than their bytes ask for; each byte was written again %.1f times", name, len(all), came, worst, again)
		if worst > 60 || again > 8 {
			t.Errorf("%s: %.0f objects too many, each byte written again %.1f times", name, worst, again)
		}
	}
}

// What was merged is deleted after a while and not counted as expired; more than can be remembered is refused.
func TestRemoveLater(t *testing.T) {
	store, reg := objstore.NewMem(), prometheus.NewPedanticRegistry()
	metrics := NewMetrics(reg)
	r := NewRemover(context.Background(), store, metrics, nil)
	var keys []string
	for i := range 3 {
		keys = append(keys, fmt.Sprintf("a/%d", i))
		if _, err := store.PutIfAbsent(t.Context(), keys[i], objstore.Bytes([]byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	if !r.RemoveLater(time.Hour, keys[:1]) || !r.RemoveLater(time.Millisecond, keys[1:]) || r.RemoveLater(time.Hour, make([]string, maxRemovals)) {
		t.Error("not taken, or too many")
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(20 * time.Second); len(objectsIn(t, store)) > 1; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("they stay")
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if v := f.GetMetric()[0].GetCounter().GetValue(); f.GetName() == "levee_storage_objects_expired_total" && v != 0 {
			t.Errorf("%v expired", v)
		}
	}
	if r.Later() != 1 || len(objectsIn(t, store)) != 1 {
		t.Errorf("%d wait, %d are there", r.Later(), len(objectsIn(t, store)))
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
}
