package cli

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets whose width is at most 1/64 of their value, so that a percentile is off by
// 1.6 % at most. It is log-linear like HdrHistogram; a library would bring encodings and corrections nobody here uses.
// It takes 30 KiB, records in a few nanoseconds, and is not safe for concurrent use.
type histogram struct {
	buckets [(64-histogramBits)<<histogramBits + 1<<histogramBits]uint64
	total   uint64
	largest int64
}

// histogramBits is the number of bits of a value below its highest that choose the bucket.
const histogramBits = 6

func bucketOf(v int64) int {
	if v < 1<<histogramBits {
		return int(max(v, 0))
	}
	shift := bits.Len64(uint64(v)) - histogramBits - 1
	return shift<<histogramBits + int(v>>shift)
}

// bucketTop is the largest value that falls into bucket i.
func bucketTop(i int) int64 {
	if i < 2<<histogramBits {
		return int64(i)
	}
	shift := i>>histogramBits - 1
	mantissa := int64(i) - int64(shift)<<histogramBits
	return (mantissa+1)<<shift - 1
}

// add counts d n times.
func (h *histogram) add(d time.Duration, n uint64) {
	h.buckets[bucketOf(int64(d))] += n
	h.total += n
	h.largest = max(h.largest, int64(d))
}

// merge adds what o counted.
func (h *histogram) merge(o *histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.total += o.total
	h.largest = max(h.largest, o.largest)
}

// percentile returns the duration that a share q (0 … 1) of what was counted does not exceed; 0 when nothing was.
func (h *histogram) percentile(q float64) time.Duration {
	rank := uint64(q*float64(h.total) + 0.5)
	rank = min(max(rank, 1), h.total)
	seen := uint64(0)
	for i, n := range h.buckets {
		if seen += n; n > 0 && seen >= rank {
			return time.Duration(min(bucketTop(i), h.largest))
		}
	}
	return 0
}

// latencyJSON is a histogram in numbers, in microseconds.
type latencyJSON struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func (h *histogram) json() latencyJSON {
	return latencyJSON{
		P50:  microseconds(h.percentile(0.5)),
		P99:  microseconds(h.percentile(0.99)),
		P999: microseconds(h.percentile(0.999)),
		Max:  microseconds(time.Duration(h.largest)),
	}
}

// microseconds keeps one decimal: more is below the clock's own resolution.
func microseconds(d time.Duration) float64 { return float64(d.Round(100*time.Nanosecond)) / 1000 }
