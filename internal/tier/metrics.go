package tier

import (
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what the exports and the cold reads of a broker count together.
type Metrics struct {
	Exports       prometheus.Counter
	ExportedBytes prometheus.Counter
	Failures      *prometheus.CounterVec
	InProgress    prometheus.Gauge
	Duration      prometheus.Histogram

	LagBytes, LagSeconds           prometheus.Gauge
	HeldBytes                      prometheus.Gauge
	ExposureBytes, ExposureSeconds prometheus.Gauge

	Merged       prometheus.Counter
	Expired      prometheus.Counter
	ExpiredBytes prometheus.Counter

	CacheHits   prometheus.Counter
	CacheShared prometheus.Counter
	CacheMisses prometheus.Counter
	CacheBytes  prometheus.Gauge
	Fetch       prometheus.Histogram
	Read        prometheus.Histogram
	Damaged     prometheus.Counter
}

// NewMetrics makes them and registers them, unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "levee_storage_" + name, Help: help})
		obs.Register(reg, c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "levee_storage_" + name, Help: help})
		obs.Register(reg, g)
		return g
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "levee_storage_" + name, Help: help, Buckets: buckets})
		obs.Register(reg, h)
		return h
	}
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "levee_storage_export_failures_total", Help: "Attempts to export a segment that failed, by kind of fault. Each is tried again.",
	}, []string{"kind"})
	for _, k := range []fault.Kind{fault.Unavailable, fault.OutcomeUnknown, fault.Corrupt, fault.IO, fault.Fenced} {
		failures.WithLabelValues(k.String()) // so that the first one is an increase from 0
	}
	obs.Register(reg, failures)
	return &Metrics{
		Exports:         counter("exports_total", "Segments exported to the object store, read back and recorded."),
		ExportedBytes:   counter("exported_bytes_total", "Bytes of the objects that segments were exported as."),
		Failures:        failures,
		InProgress:      gauge("exports_in_progress", "Segments being exported now."),
		Duration:        histogram("export_duration_seconds", "Time to export one segment: checking, upload, reading back, recording.", prometheus.ExponentialBuckets(0.01, 3, 10)),
		LagBytes:        gauge("export_lag_bytes", "Bytes of sealed segments that are not exported yet. As the next four, as of the last pass of storage.retention_check; as the next two, of all partitions that are open."),
		LagSeconds:      gauge("export_lag_seconds", "How long ago the oldest sealed segment was begun that is not exported yet; 0 where all are."),
		HeldBytes:       gauge("export_held_bytes", "Bytes of sealed segments that retention would have removed if they were exported."),
		ExposureBytes:   gauge("exposure_bytes", "Bytes of records that are in no object yet, of partitions whose segments are exported, open or not: they are on this broker's disk, and in the write buffer where there is one. One that nobody has tried to open since the start does not count."),
		ExposureSeconds: gauge("exposure_seconds", "How long ago the oldest segment was begun that holds any of these; 0 where there are none."),
		Merged:          counter("merged_objects_total", "Small objects whose place in the object store a merged one has taken."),
		Expired:         counter("objects_expired_total", "Objects removed from the object store because their own retention was over."),
		ExpiredBytes:    counter("objects_expired_bytes_total", "Bytes of these."),
		CacheHits:       counter("cold_cache_hits_total", "Pieces of objects that cold reads found in memory."),
		CacheShared:     counter("cold_cache_shared_total", "Pieces of objects that cold reads got from a request that was under way for another one."),
		CacheMisses:     counter("cold_cache_misses_total", "Pieces of objects that were requested from the object store, read-ahead included."),
		CacheBytes:      gauge("cold_cache_used_bytes", "Bytes of objects kept in memory for cold reads."),
		Fetch:           histogram("cold_fetch_seconds", "Time of one ranged read from the object store.", prometheus.ExponentialBuckets(0.0005, 3, 10)),
		Read:            histogram("cold_read_seconds", "Time of one read of records from objects, as their reader waited for it, from memory or from the object store.", prometheus.ExponentialBuckets(0.0001, 4, 10)),
		Damaged:         counter("cold_damaged_total", "Pieces of objects that were not what was written, each time counted. They are asked for once more before a read fails."),
	}
}
