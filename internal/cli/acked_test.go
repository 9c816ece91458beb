package cli

import (
	"math/rand/v2"
	"testing"
)

func TestAckedPrefix(t *testing.T) {
	var p ackedPrefix
	if first, last := p.offsets(); first != -1 || last != -1 || p.n != 0 {
		t.Errorf("empty: %d %d %d", p.n, first, last)
	}
	step := func(i, offset, n, last int64) {
		t.Helper()
		p.acknowledge(i, offset)
		if _, got := p.offsets(); p.n != n || got != last {
			t.Errorf("after record %d: n %d, last %d", i, p.n, got)
		}
	}
	step(0, 100, 1, 100)
	step(2, 7, 1, 100)
	step(3, 8, 1, 100)
	step(1, -1, 4, 8) // -1 is an offset nobody knows any more, not a missing answer
	step(4, 101, 5, 101)
	if first, _ := p.offsets(); first != 100 {
		t.Errorf("first is %d", first)
	}
}

// TestAckedPrefixAgainstModel acknowledges in a random order with a window and compares with a set.
func TestAckedPrefixAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 50 {
		const records, window = 2000, 300
		var p ackedPrefix
		got := map[int64]bool{}
		next, want, open := int64(0), int64(0), []int64{}
		for len(got) < records {
			for len(open) < window && next < records {
				open = append(open, next)
				next++
			}
			at := r.IntN(len(open))
			i := open[at]
			open[at] = open[len(open)-1]
			open = open[:len(open)-1]
			p.acknowledge(i, i*3)
			got[i] = true
			for got[want] {
				want++
			}
			if _, last := p.offsets(); p.n != want || want > 0 && last != (want-1)*3 {
				t.Fatalf("n %d, want %d, last %d", p.n, want, last)
			}
		}
	}
}
