package record

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// pickable builds a batch of n records at base, some without keys, some with headers.
func pickable(t testing.TB, codec Codec, base int64, n int) []byte {
	t.Helper()
	b := NewBuilder(codec)
	for i := range n {
		r := Record{Value: fmt.Appendf(nil, "value %d", i), Timestamp: 1000 + int64(i%3)}
		if i%4 != 0 {
			r.Key = fmt.Appendf(nil, "key %d", i%5)
		}
		if i%3 == 0 {
			r.Headers = []Header{{"a", nil}, {"n", fmt.Append(nil, i)}, {"n", []byte("second")}}
		}
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build(ProducerInfo{ID: 7, Epoch: 1, Sequence: 3})
	if err != nil {
		t.Fatal(err)
	}
	SetPlacement(batch, base, 9)
	return batch
}

func TestPickKeepsWhatIsWanted(t *testing.T) {
	for _, codec := range []Codec{None, Gzip, Snappy, LZ4, Zstd} {
		for range 50 {
			n := 1 + rand.IntN(40)
			batch := pickable(t, codec, 100, n)
			all, err := Records(batch)
			if err != nil {
				t.Fatal(err)
			}
			wanted := map[int64]bool{}
			var want []Record
			for _, r := range all {
				if rand.IntN(3) > 0 {
					wanted[r.Offset] = true
					want = append(want, r)
				}
			}
			before := []byte("before")
			got, err := Pick(before, batch, func(offset int64) bool { return wanted[offset] })
			if err != nil || !bytes.HasPrefix(got, before) {
				t.Fatalf("%v, %q", err, got)
			}
			got = got[len(before):]
			if len(want) == 0 {
				if len(got) != 0 {
					t.Fatalf("%d bytes of no records", len(got))
				}
				continue
			}
			info, err := Check(got)
			if err != nil || info.Codec() != None || info.ProducerID != -1 || info.BaseOffset != 100 || info.Generation != 9 {
				t.Fatalf("%+v, %v", info, err)
			}
			picked, err := Records(got)
			if err != nil || !reflect.DeepEqual(picked, want) {
				t.Fatalf("%s: %v\n%v\n%v", codec, err, picked, want)
			}
		}
	}
}

// Records picked by their places are those picked by a look at each.
func TestPickAtIsPick(t *testing.T) {
	for range 200 {
		n := 1 + rand.IntN(40)
		batch := pickable(t, None, 100, n)
		var at []int
		wanted := map[int64]bool{}
		err := Scan(batch, func(g *Glimpse) error {
			if rand.IntN(3) > 0 {
				wanted[g.Offset] = true
				at = append(at, g.At)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(at) == 0 {
			continue
		}
		want, err := Pick([]byte("before"), batch, func(offset int64) bool { return wanted[offset] })
		if err != nil {
			t.Fatal(err)
		}
		if got, err := PickAt([]byte("before"), batch, at); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v\n%q\n%q", err, got, want)
		}
	}
}

func TestPickAtRefuses(t *testing.T) {
	batch := pickable(t, None, 100, 3)
	var at []int
	if err := Scan(batch, func(g *Glimpse) error { at = append(at, g.At); return nil }); err != nil {
		t.Fatal(err)
	}
	packed := pickable(t, Zstd, 100, 40)
	if err := Scan(packed, func(g *Glimpse) error {
		if g.At != 0 {
			t.Errorf("a record of a compressed batch begins at %d", g.At)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		batch []byte
		at    []int
	}{
		"compressed": {packed, at}, "cut": {batch[:len(batch)-1], at}, "in the header": {batch, []int{HeaderSize - 1}}, "negative": {batch, []int{-1}},
		"behind the end": {batch, []int{len(batch)}}, "descending": {batch, []int{at[1], at[0]}}, "twice": {batch, []int{at[0], at[0]}},
		"too many": {batch, append(at[:3:3], at[2])}, "no record": {batch, []int{len(batch) - 1}}, "no batch": {nil, at},
	} {
		if got, err := PickAt([]byte("x"), c.batch, c.at); err == nil || string(got) != "x" {
			t.Errorf("%s: %v, %q", name, err, got)
		}
	}
}

func TestScanSeesWhatRecordsDecodes(t *testing.T) {
	for _, codec := range []Codec{None, Zstd} {
		batch := pickable(t, codec, 5, 30)
		all, err := Records(batch)
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		err = Scan(batch, func(g *Glimpse) error {
			r := all[i]
			i++
			if g.Offset != r.Offset || g.Timestamp != r.Timestamp || !bytes.Equal(g.Key, r.Key) || g.HasKey != (r.Key != nil) || g.Bytes < len(r.Value) {
				t.Errorf("%+v is not %+v", g, r)
			}
			v, ok := g.Header("n")
			if ok != (len(r.Headers) > 0) || ok && !bytes.Equal(v, r.Headers[1].Value) {
				t.Errorf("header %q %t of %+v", v, ok, r)
			}
			if _, ok := g.Header("missing"); ok {
				t.Error("a header that is not there")
			}
			return nil
		})
		if err != nil || i != len(all) {
			t.Fatalf("%d of %d: %v", i, len(all), err)
		}
		stop := errors.New("stop")
		if err := Scan(batch, func(*Glimpse) error { return stop }); !errors.Is(err, stop) {
			t.Fatal(err)
		}
	}
}

func TestPickAndScanRefuseWhatIsNoBatch(t *testing.T) {
	good := pickable(t, None, 0, 5)
	for _, bad := range [][]byte{nil, good[:60], good[:len(good)-1], append(bytes.Clone(good), 0)} {
		if err := Scan(bad, func(*Glimpse) error { return nil }); err == nil {
			t.Errorf("scanned %d bytes", len(bad))
		}
		if got, err := Pick([]byte("x"), bad, func(int64) bool { return true }); err == nil {
			t.Errorf("picked %q of %d bytes", got, len(bad))
		}
	}
}

func TestHasHeader(t *testing.T) {
	for _, codec := range []Codec{None, Zstd} {
		b := pickable(t, codec, 0, 5)
		if !HasHeader(b, "n") || !HasHeader(b, "a") || HasHeader(b, "missing") || HasHeader(b, "key 1") {
			t.Errorf("%s: headers are taken for others", codec)
		}
		if !HasHeader(b[:len(b)-1], "missing") {
			t.Errorf("%s: what cannot be read may have it", codec)
		}
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	batch := pickable(t, None, 0, 100)
	dst := make([]byte, 0, 2*len(batch))
	var at []int
	if err := Scan(batch, func(g *Glimpse) error { at = append(at, g.At); return nil }); err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(100, func() {
		_ = Scan(batch, func(g *Glimpse) error { return nil })
		_ = HasHeader(batch, "missing")
		_, _ = Pick(dst, batch, func(offset int64) bool { return offset%4 == 1 })
		_, _ = PickAt(dst, batch, at)
	})
	if n > 8 {
		t.Errorf("%v allocations for 400 records", n)
	}
}
