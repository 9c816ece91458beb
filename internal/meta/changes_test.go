package meta

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestChangesAreWhatDiffers compares the walk that skips what two versions share with a look at every key.
func TestChangesAreWhatDiffers(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		keys := 1 + rng.IntN(300)
		versions := []tree[string, int]{{}}
		for i := range 40 {
			v := versions[len(versions)-1]
			for range rng.IntN(1 + rng.IntN(100)) {
				key := fmt.Sprint(rng.IntN(keys))
				if rng.IntN(3) == 0 {
					v = v.remove(key)
				} else {
					v = v.set(key, rng.IntN(2+i))
				}
			}
			versions = append(versions, v)
		}
		for range 40 {
			a, b := versions[rng.IntN(len(versions))], versions[rng.IntN(len(versions))]
			got := slices.Collect(a.changes(b, func(x, y int) bool { return x == y }))
			want := []string{}
			for i := range keys {
				x, inA := a.get(fmt.Sprint(i))
				y, inB := b.get(fmt.Sprint(i))
				if inA != inB || x != y {
					want = append(want, fmt.Sprint(i))
				}
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: got %v, want %v", seed, got, want)
			}
		}
	}
}

// TestChangesCostWhatChanged holds what the walk is for: it looks at what one change touched, not at every key.
func TestChangesCostWhatChanged(t *testing.T) {
	var all tree[int, int]
	const n = 1 << 16
	for i := range n {
		all = all.set(i, 0)
	}
	looked := 0
	equal := func(a, b int) bool { looked++; return a == b }
	for _, key := range []int{0, n / 3, n - 1} {
		for what, next := range map[string]tree[int, int]{"set": all.set(key, 1), "removed": all.remove(key)} {
			looked = 0
			if got := slices.Collect(next.changes(all, equal)); len(got) != 1 || got[0] != key {
				t.Fatalf("%d %s: %v", key, what, got)
			}
			if looked > 200 {
				t.Errorf("%d %s: compared %d of %d", key, what, looked, n)
			}
		}
	}
	bigger := all
	for i := range 100 {
		bigger = bigger.set(n+i, 0)
	}
	looked = 0
	if got := slices.Collect(bigger.changes(all, equal)); len(got) != 100 || looked > 1000 {
		t.Errorf("100 added: found %d, compared %d of %d", len(got), looked, n)
	}
}
