package main

import (
	"math/bits"
	"time"
)

// hist is a histogram of durations: 64 steps for every power of two, so within 1.6 %, and no allocation for a sample.
type hist struct {
	count [64 * 64]uint32
	n     uint64
	max   int64
}

func (h *hist) add(d time.Duration) {
	v := max(int64(d), 0)
	h.max = max(h.max, v)
	h.count[bucket(v)]++
	h.n++
}

func bucket(v int64) int {
	if v < 64 {
		return int(v)
	}
	e := bits.Len64(uint64(v)) - 1
	return (e-5)*64 + int((v>>(uint(e)-6))&63)
}

// middle returns the value in the middle of a bucket.
func middle(i int) float64 {
	if i < 64 {
		return float64(i)
	}
	e := i/64 + 5
	return float64((int64(64)+int64(i%64))<<(uint(e)-6)) * 1.008
}

func (h *hist) merge(o *hist) {
	for i, c := range o.count {
		h.count[i] += c
	}
	h.n += o.n
	h.max = max(h.max, o.max)
}

// quantile returns microseconds.
func (h *hist) quantile(p float64) float64 {
	if h.n == 0 {
		return 0
	}
	rank := uint64(p * float64(h.n))
	var sum uint64
	for i, c := range h.count {
		if sum += uint64(c); sum > rank {
			return middle(i) / 1e3
		}
	}
	return float64(h.max) / 1e3
}
