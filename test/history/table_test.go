package history

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestTable compares a table with a map.
func TestTable(t *testing.T) {
	offsets := rapid.OneOf(
		rapid.Int64Range(0, 3*chunkSize), rapid.Int64Range(math.MaxInt64-chunkSize, math.MaxInt64-1), rapid.Int64Range(-chunkSize, -1),
		rapid.Int64(),
	)
	rapid.Check(t, func(t *rapid.T) {
		var tab table
		want := map[int64]Value{}
		for i := range rapid.IntRange(1, 50).Draw(t, "puts") {
			o, v := offsets.Draw(t, "offset"), Value{int32(i), 1}
			before, taken := want[o]
			if !taken {
				before = v
				want[o] = v
			}
			if has, first := tab.put(o, v); has != before || first == taken {
				t.Fatalf("put at %d returned %v, %v; want %v, %v", o, has, first, before, !taken)
			}
		}
		if tab.count != len(want) {
			t.Fatalf("count is %d, want %d", tab.count, len(want))
		}
		for range 20 {
			o := offsets.Draw(t, "offset")
			before, taken := want[o]
			if has, ok := tab.get(o); ok != taken || has != before {
				t.Fatalf("get at %d returned %v, %v; want %v, %v", o, has, ok, before, taken)
			}
		}
		from, to := offsets.Draw(t, "from"), offsets.Draw(t, "to")
		last, n := int64(math.MinInt64), 0
		tab.each(from, to, func(o int64, v Value) {
			if o < last || o < from || o > to || want[o] != v {
				t.Fatalf("each from %d to %d gave %v at %d after %d, want %v", from, to, v, o, last, want[o])
			}
			last = o
			n++
		})
		for o := range want {
			if o >= from && o <= to {
				n--
			}
		}
		if n != 0 {
			t.Fatalf("each from %d to %d missed %d", from, to, -n)
		}
	})
}

// TestSpans compares a set of ranges with a set of numbers.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s spans
		want := map[int64]bool{}
		for range rapid.IntRange(0, 12).Draw(t, "adds") {
			from := rapid.Int64Range(0, 40).Draw(t, "from")
			to := from + rapid.Int64Range(-1, 6).Draw(t, "length")
			s = s.add(span{from, to})
			for o := from; o <= to; o++ {
				want[o] = true
			}
		}
		for i := range s {
			if s[i].to < s[i].from || i > 0 && s[i].from <= s[i-1].to+1 {
				t.Fatalf("%v is not in order, or has ranges that touch", s)
			}
		}
		from, to := rapid.Int64Range(0, 50).Draw(t, "from"), rapid.Int64Range(0, 50).Draw(t, "to")
		missing := map[int64]bool{}
		s.missing(from, to, func(g span) {
			for o := g.from; o <= g.to; o++ {
				missing[o] = true
			}
		})
		for o := range int64(60) {
			if s.contains(o) != want[o] {
				t.Fatalf("%v contains %d: %v", s, o, s.contains(o))
			}
			if missing[o] != (o >= from && o <= to && !want[o]) {
				t.Fatalf("of %v, %d is missing between %d and %d: %v", s, o, from, to, missing[o])
			}
		}
	})
}
