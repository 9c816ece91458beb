package seglog

import (
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is what all logs of one broker measure together. A nil *Metrics measures nothing.
type Metrics struct {
	appendSeconds   prometheus.Histogram
	syncSeconds     prometheus.Histogram
	syncRecords     prometheus.Histogram
	unsynced        prometheus.Gauge
	syncFailures    prometheus.Counter
	full            prometheus.Counter
	truncated       prometheus.Gauge
	recoverySeconds prometheus.Histogram
	rebuilt         prometheus.Counter
	segments        prometheus.Gauge
	bytes           prometheus.Gauge
	deleted         prometheus.Counter
	salvaged        prometheus.Counter
	indexRebuilt    prometheus.Counter
}

// NewMetrics registers the logs' metrics with reg, which may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	latency := prometheus.ExponentialBuckets(10e-6, 2, 20) // 10 µs to 5 s
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "levee_storage_" + name, Help: help, Buckets: buckets})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "levee_storage_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "levee_storage_" + name, Help: help})
	}
	m := &Metrics{
		appendSeconds:   histogram("append_duration_seconds", "Time from taking a group of batches off a topic's queue until it can be acknowledged: written, and flushed where the fsync mode asks for it.", latency),
		syncSeconds:     histogram("sync_duration_seconds", "Time of one flush of written frames to the device (fdatasync).", latency),
		syncRecords:     histogram("sync_batch_records", "Records that one flush made durable.", prometheus.ExponentialBuckets(1, 2, 16)),
		unsynced:        gauge("unsynced_bytes", "Bytes written to logs and not yet known to be on the device."),
		syncFailures:    counter("sync_failures_total", "Flushes of what was written to a log that failed. Each stopped that log until it is opened again."),
		full:            counter("full_total", "Writes, each of one or more batches, and creations of segment files refused because the disk or a quota was full."),
		truncated:       gauge("recovery_truncated_bytes", "Bytes cut off the tails of logs that this process opened. It never falls."),
		recoverySeconds: histogram("recovery_duration_seconds", "Time to open one log: checking, repairing, rebuilding indexes.", prometheus.ExponentialBuckets(100e-6, 4, 12)),
		rebuilt:         counter("producer_state_rebuilt_total", "Logs whose producers' snapshot was missing or damaged and was rebuilt from the records."),
		segments:        gauge("segments", "Segment files of all open logs, the metadata's among them."),
		bytes:           gauge("bytes", "Bytes in segment files of all open logs, the metadata's among them."),
		deleted:         counter("retention_deleted_bytes_total", "Bytes of the segments that retention removed from topics."),
		salvaged:        counter("salvaged_bytes_total", "Bytes that recovery kept aside before it cut them off."),
		indexRebuilt:    counter("index_rebuilt_total", "Index files that were missing or wrong and were written again."),
	}
	obs.Register(reg, m.appendSeconds, m.syncSeconds, m.syncRecords, m.unsynced, m.syncFailures, m.full, m.truncated,
		m.recoverySeconds, m.rebuilt, m.segments, m.bytes, m.deleted, m.salvaged, m.indexRebuilt)
	return m
}

// opened notes that a log was opened, and whether its producers' state had to be made from the records.
func (m *Metrics) opened(took time.Duration, rebuilt bool) {
	if m == nil {
		return
	}
	m.recoverySeconds.Observe(took.Seconds())
	if rebuilt {
		m.rebuilt.Inc()
	}
}

// committed notes one group of appends.
func (m *Metrics) committed(took time.Duration) {
	if m != nil {
		m.appendSeconds.Observe(took.Seconds())
	}
}

func (m *Metrics) flushFailed() {
	if m != nil {
		m.syncFailures.Inc()
	}
}

// RefusedFull counts what was not begun because the disk is full. It is for whoever refuses before a log is asked.
func (m *Metrics) RefusedFull() {
	if m != nil {
		m.full.Inc()
	}
}

// retained notes what retention removed, in bytes.
func (m *Metrics) retained(deleted int64) {
	if m != nil {
		m.deleted.Add(float64(deleted))
	}
}

// synced notes one flush, and how many records it made durable.
func (m *Metrics) synced(d time.Duration, records int64) {
	if m != nil {
		m.syncSeconds.Observe(d.Seconds())
		if records > 0 {
			m.syncRecords.Observe(float64(records))
		}
	}
}

// repaired notes a repair that was carried out.
func (m *Metrics) repaired(r Repair) {
	switch {
	case m == nil:
	case r.Op == "salvage":
		m.salvaged.Add(float64(r.Bytes))
	case r.Op == "truncate":
		m.truncated.Add(float64(r.Bytes))
	case r.Op == "write":
		m.indexRebuilt.Inc()
	}
}

// share is what one log has added to the gauges that all logs share, so that it can take back exactly that, whatever
// has failed meanwhile.
type share struct {
	metrics                   *Metrics
	segments, bytes, unsynced atomic.Int64
}

// add notes a change of how many segments, bytes and unsynced bytes the log has.
func (s *share) add(segments, bytes, unsynced int64) {
	if s.metrics == nil {
		return
	}
	s.segments.Add(segments)
	s.bytes.Add(bytes)
	s.unsynced.Add(unsynced)
	s.metrics.segments.Add(float64(segments))
	s.metrics.bytes.Add(float64(bytes))
	s.metrics.unsynced.Add(float64(unsynced))
}

// set notes how many there are; nothing may be added meanwhile.
func (s *share) set(segments, bytes, unsynced int64) {
	s.add(segments-s.segments.Load(), bytes-s.bytes.Load(), unsynced-s.unsynced.Load())
}
