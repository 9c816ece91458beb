package tier

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/goldentest"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/faulty"
	"github.com/leveemq/levee/internal/segfmt"
)

var rewrite = flag.Bool("rewrite", false, "write the golden manifest where there is none")

// goldenManifest is of the vector's object and one behind it.
func goldenManifest() (Place, []Object) {
	first := goldenFooter.Object
	first.StoredMs = 1767225600999
	second := first
	second.Base, second.Next, second.BaseSeq, second.NextSeq, second.Generation, second.CRC, second.StoredMs = 1600, 1700, 50, 57, 10, 0xfedcba98, 0
	return Place{Prefix: "a/b", Cluster: "c1", TopicID: goldenFooter.TopicID, Partition: 7}, []Object{first, second}
}

func TestGoldenManifest(t *testing.T) {
	name := filepath.Join("testdata", "manifest-v1.hex")
	p, all := goldenManifest()
	got := AppendManifest(nil, p, all)
	text := goldentest.Once(t, name, []byte(hex.EncodeToString(got)+"\n"), *rewrite)
	want, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) || len(got) != 64+2*88 {
		t.Errorf("the encoding changed:\n got %x\nwant %x", got, want)
	}
	if prefixed := AppendManifest([]byte("before"), p, all); !bytes.Equal(prefixed, append([]byte("before"), want...)) {
		t.Error("appended it is another")
	}
	m, err := ParseManifest(want, p)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.Objects(0), all) || m.Len() != 2 || m.Next() != 1700 || !slices.Equal(m.Objects(1500), all[1:]) || m.Objects(1700) != nil {
		t.Errorf("%+v", m.Objects(0))
	}
	for offset, i := range map[int64]int{0: 0, 1000: 0, 1499: 0, 1500: 1, 1699: 1, 1700: 2} {
		if got := m.Search(offset); got != i {
			t.Errorf("offset %d is in %d", offset, got)
		}
	}
	r := ManifestRef{Base: 1000, Next: 1700, Count: 2, CRC: 0xab}
	key := "a/b/c1/00112233445566778899aabbccddeeff/7/00000000000000001000-00000000000000001699-2-000000ab.lvman"
	if r.Key(p) != key || r.Size() != int64(len(want)) {
		t.Errorf("%s of %d bytes", r.Key(p), r.Size())
	}
	if place, again, ok := ParseManifestKey(key); !ok || place != p || again != r {
		t.Errorf("%+v %+v %v", place, again, ok)
	}
	for _, bad := range []string{"", key[1:] + "x", strings.Replace(key, "-2-", "-02-", 1), strings.Replace(key, "-2-", "-0-", 1), strings.Replace(key, ".lvman", Suffix, 1), strings.Replace(key, "-2-", "-1048577-", 1)} {
		if _, _, ok := ParseManifestKey(bad); ok {
			t.Errorf("%q is a manifest's key", bad)
		}
	}
}

// resealManifest makes the checksums right again.
func resealManifest(b []byte) []byte {
	le.PutUint32(b[48:], checksum(b[manifestHeader:]))
	le.PutUint32(b[manifestHeader-4:], checksum(b[:manifestHeader-4]))
	return b
}

func TestManifestRefuses(t *testing.T) {
	p, all := goldenManifest()
	good := AppendManifest(nil, p, all)
	for name, c := range map[string]struct {
		damage func(b []byte) []byte
		want   error
	}{
		"empty":           {func([]byte) []byte { return nil }, segfmt.ErrShort},
		"short":           {func(b []byte) []byte { return b[:len(b)-1] }, segfmt.ErrShort},
		"long":            {func(b []byte) []byte { return append(b, 0) }, segfmt.ErrShort},
		"magic":           {func(b []byte) []byte { b[0]++; return b }, segfmt.ErrMagic},
		"version":         {func(b []byte) []byte { b[4]++; return resealManifest(b) }, segfmt.ErrVersion},
		"flags":           {func(b []byte) []byte { b[6]++; return resealManifest(b) }, segfmt.ErrFlags},
		"reserved":        {func(b []byte) []byte { b[55]++; return resealManifest(b) }, segfmt.ErrField},
		"another topic":   {func(b []byte) []byte { b[8]++; return resealManifest(b) }, segfmt.ErrField},
		"another one":     {func(b []byte) []byte { b[24]++; return resealManifest(b) }, segfmt.ErrField},
		"no object":       {func(b []byte) []byte { b[28] = 0; return resealManifest(b[:64]) }, segfmt.ErrField},
		"too many":        {func(b []byte) []byte { b[31] = 1; return resealManifest(b) }, segfmt.ErrField},
		"base":            {func(b []byte) []byte { b[32]++; return resealManifest(b) }, segfmt.ErrField},
		"next":            {func(b []byte) []byte { b[40]++; return resealManifest(b) }, segfmt.ErrField},
		"an entry":        {func(b []byte) []byte { b[64+64]++; return resealManifest(b) }, segfmt.ErrField},
		"does not rise":   {func(b []byte) []byte { copy(b[64+88:], b[64:64+88]); return resealManifest(b) }, segfmt.ErrField},
		"a time below 0":  {func(b []byte) []byte { b[64+79] = 0xff; return resealManifest(b) }, segfmt.ErrField},
		"a flipped entry": {func(b []byte) []byte { b[64+7]++; return b }, segfmt.ErrChecksum},
		"a flipped head":  {func(b []byte) []byte { b[28]++; return b }, segfmt.ErrChecksum},
	} {
		if _, err := ParseManifest(c.damage(bytes.Clone(good)), p); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, expected %v", name, err, c.want)
		}
	}
}

func FuzzManifest(f *testing.F) {
	p, all := goldenManifest()
	f.Add(AppendManifest(nil, p, all))
	f.Add(AppendManifest(nil, p, all[:1]))
	f.Add([]byte("LVXM"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > manifestHeader { // otherwise the checksums would hide the fields
			resealManifest(b)
		}
		m, err := ParseManifest(b, p)
		if err != nil {
			return
		}
		objects := m.Objects(0)
		if again := AppendManifest(nil, p, objects); !bytes.Equal(again, b) || len(objects) != m.Len() {
			t.Errorf("%x\nbecame\n%x", b, again)
		}
		for i, o := range objects {
			if m.Search(o.Base) != i || m.Search(o.Next-1) != i {
				t.Errorf("object %d is not found", i)
			}
		}
	})
}

// A manifest is what was put, whatever the store does meanwhile; or it is not there.
func TestManifestMeetsEveryFault(t *testing.T) {
	p, all := goldenManifest()
	kinds := map[faulty.Kind]bool{}
	for _, op := range []objstore.Op{objstore.OpPutIfAbsent, objstore.OpGet, objstore.OpHead} {
		for _, kind := range faulty.Kinds(op) {
			if kind == faulty.Hang || kind == faulty.HangMid || kind == faulty.Slow {
				continue // time is not what this is about
			}
			for nth := 1; nth <= 2; nth++ {
				kinds[kind] = true
				under := objstore.NewMem()
				s := faulty.New(under, faulty.Config{Script: []faulty.Event{{Op: op, Nth: nth, Kind: kind}}, Seed: uint64(nth)})
				r, err := PutManifest(t.Context(), s, p, all)
				if err != nil {
					r, err = PutManifest(t.Context(), s, p, all)
				}
				if err != nil {
					t.Errorf("%s %d %s: %v", op, nth, kind, err)
					continue
				}
				if err := s.Settle(); err != nil {
					t.Fatal(err)
				}
				if m, err := ReadManifest(t.Context(), under, p, r); err != nil || !slices.Equal(m.Objects(0), all) {
					t.Errorf("%s %d %s: %v", op, nth, kind, err)
				}
			}
		}
	}
	if len(kinds) < 12 {
		t.Errorf("%d kinds", len(kinds))
	}
	if _, err := PutManifest(t.Context(), objstore.NewMem(), p, nil); fault.KindOf(err) != fault.Exhausted {
		t.Error(err)
	}
	if _, err := PutManifest(t.Context(), objstore.NewMem(), p, []Object{all[1], all[0]}); fault.KindOf(err) != fault.InvalidArgument {
		t.Error(err)
	}
}

// Cold readers ask for a manifest once, and are told where it is missing or damaged.
func TestColdManifest(t *testing.T) {
	p, all := goldenManifest()
	store := newTestStore()
	r, err := PutManifest(t.Context(), store, p, all)
	if err != nil {
		t.Fatal(err)
	}
	cold := newCold(t, store, ColdConfig{})
	before, _ := store.counts()
	for range 3 {
		if m, err := cold.Manifest(t.Context(), p, r); err != nil || m.Len() != 2 {
			t.Fatal(err)
		}
	}
	if gets, _ := store.counts(); gets != before+1 {
		t.Errorf("%d requests", gets-before)
	}
	rot(store, r.Key(p), 100)
	if _, err := newCold(t, store, ColdConfig{}).Manifest(t.Context(), p, r); fault.KindOf(err) != fault.Corrupt {
		t.Errorf("damaged: %v", err)
	}
	if err := store.Delete(t.Context(), r.Key(p)); err != nil {
		t.Fatal(err)
	}
	var missing *MissingError
	if _, err := newCold(t, store, ColdConfig{}).Manifest(t.Context(), p, r); !errors.As(err, &missing) || missing.Next != 1700 {
		t.Errorf("missing: %v", err)
	}
	if _, err := cold.Manifest(t.Context(), p, r); err != nil {
		t.Errorf("what is in memory: %v", err)
	}
}

// A scrub reads what a manifest describes; without it nothing of that is taken for an orphan; and manifests that were
// replaced go.
func TestScrubManifests(t *testing.T) {
	rng := seeded(t)
	l := newTestLog(t, rng)
	for range 6 {
		l.seal(4, 50)
	}
	store := newTestStore()
	all := l.export(store)
	put := func(objects []Object) ManifestRef {
		t.Helper()
		r, err := PutManifest(t.Context(), store, l.place, objects)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	old, now, early := put(all[:2]), put(all[:4]), put(all[:5])
	k := live(all[4:])
	k.Manifest, k.First = &now, all[0].Next // the first was dropped
	meta := &catalog{}
	meta.set(partitionOf(l.place), k)
	run := func(remove bool) Report {
		t.Helper()
		report, err := Scrub(t.Context(), store, l.place.Prefix, l.place.Cluster, meta.known, ScrubOptions{
			Full: true, Remove: remove, Now: func() time.Time { return time.Now().Add(48 * time.Hour) },
		})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	r := run(false)
	if r.Verified != 5 || r.Manifests != 1 || r.Objects != 6 || r.Missing.Count != 0 || r.Damaged.Count != 0 || r.Foreign != 0 || r.Unknown != 0 {
		t.Errorf("%+v", r)
	}
	if orphans := named(r.Orphans); !slices.Contains(orphans, all[0].Key(l.place)) || !slices.Contains(orphans, old.Key(l.place)) || len(orphans) != 3 {
		t.Errorf("orphans: %v", orphans)
	}

	// Damaged, or gone: it is said, and nothing of what it may describe is touched.
	store2 := store.Mem
	rot(store, now.Key(l.place), 100)
	if r := run(true); r.Damaged.Count != 1 || r.Unknown != 3 || r.Verified != 2 || !slices.Contains(keys(store2), all[1].Key(l.place)) {
		t.Errorf("damaged: %+v", r)
	}
	if err := store.Delete(context.Background(), now.Key(l.place)); err != nil {
		t.Fatal(err)
	}
	r = run(true)
	if r.Missing.Count != 1 || r.Unknown != 3 || named(r.Missing)[0] != now.Key(l.place) {
		t.Errorf("missing: %+v", r)
	}
	put(all[:4])
	r = run(true)
	left := keys(store)
	if r.Missing.Count != 0 || slices.Contains(left, all[0].Key(l.place)) || slices.Contains(left, old.Key(l.place)) {
		t.Errorf("%+v: %v", r, left)
	}
	if !slices.Contains(left, early.Key(l.place)) { // it may be recorded yet
		t.Error("a manifest that reaches further was removed")
	}
	if rebuilt, foreign, err := Rebuild(t.Context(), store, l.place.Prefix, l.place.Cluster); err != nil || foreign != 0 || len(rebuilt) != 1 || len(rebuilt[0].Objects) != 5 || len(rebuilt[0].Damaged) != 0 {
		t.Errorf("%+v, %d, %v", rebuilt, foreign, err)
	}
	if _, err := DeleteTopic(t.Context(), store, l.place.Prefix, l.place.Cluster, l.place.TopicID); err != nil || len(keys(store)) != 0 {
		t.Errorf("of a deleted topic stays %v, %v", keys(store), err)
	}
}
