package main

import (
	"math"
	"testing"
	"time"
)

func TestQuantilesAreWithinAStep(t *testing.T) {
	h := &hist{}
	for i := 1; i <= 100_000; i++ {
		h.add(time.Duration(i) * time.Microsecond)
	}
	for _, p := range []float64{.5, .99, .999} {
		if got, want := h.quantile(p), p*1e5; math.Abs(got-want) > want*0.02 {
			t.Errorf("quantile %v is %.1f us, want about %.1f", p, got, want)
		}
	}
	if h.max != int64(100*time.Millisecond) {
		t.Errorf("the largest is %d", h.max)
	}
}

func TestBucketsGrow(t *testing.T) {
	last := -1
	for v := int64(1); v < 1<<40; v += max(v/200, 1) {
		b := bucket(v)
		if b < last {
			t.Fatalf("bucket of %d is %d, below %d", v, b, last)
		}
		if m := middle(b); math.Abs(m-float64(v)) > max(float64(v)*0.02, 1) {
			t.Fatalf("%d is counted as %.0f", v, m)
		}
		last = b
	}
}
