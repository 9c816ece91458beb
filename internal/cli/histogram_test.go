package cli

import (
	"math"
	"math/rand/v2"
	"sort"
	"testing"
	"time"
)

func TestBucketsHoldWhatTheySay(t *testing.T) {
	for _, v := range []int64{0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 1 << 20, 1<<20 + 1, 1<<40 - 1, math.MaxInt64} {
		i := bucketOf(v)
		if top := bucketTop(i); top < v || float64(top-v) > float64(v)/64+1 {
			t.Errorf("%d is in bucket %d, which ends at %d", v, i, top)
		}
		if i > 0 && bucketTop(i-1) >= v {
			t.Errorf("%d is above bucket %d's end %d, but in %d", v, i-1, bucketTop(i-1), i)
		}
	}
	if bucketOf(-5) != 0 || bucketOf(math.MaxInt64) >= len(histogram{}.buckets) {
		t.Error("a value is outside all buckets")
	}
}

func TestPercentilesAgainstSortedValues(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	a, b := &histogram{}, &histogram{}
	var all []int64
	for i := range 20_000 {
		v := int64(math.Exp(r.Float64()*16) * 10)
		all = append(all, v)
		if i%2 == 0 {
			a.add(time.Duration(v), 1)
		} else {
			b.add(time.Duration(v), 1)
		}
	}
	a.merge(b)
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(0, int(q*float64(len(all))+0.5)-1)]
		got := int64(a.percentile(q))
		if math.Abs(float64(got-want)) > float64(want)/64+1 {
			t.Errorf("percentile %v: got %d, want %d", q, got, want)
		}
	}
	if a.percentile(1) != time.Duration(all[len(all)-1]) || a.largest != all[len(all)-1] {
		t.Error("the largest is not the maximum")
	}
}

func TestEmptyHistogram(t *testing.T) {
	if got := (&histogram{}).json(); got != (latencyJSON{}) {
		t.Errorf("got %+v", got)
	}
}
