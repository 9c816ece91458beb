package valkey

import (
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is what stores count.
type Metrics struct {
	confirm  prometheus.Histogram
	batch    prometheus.Histogram
	entries  prometheus.Counter
	bytes    prometheus.Counter
	replicas prometheus.Histogram
	trims    prometheus.Counter
	resets   prometheus.Counter
	failures *prometheus.CounterVec
	connects *prometheus.CounterVec
}

// NewMetrics returns metrics that count from 0, registered with reg unless that is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		confirm: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "levee_storage_valkey_confirm_seconds", Help: "Time from a call that appends to the write buffer until it is confirmed.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 3, 10),
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "levee_storage_valkey_batch_calls", Help: "Calls that one trip to the write buffer carried.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
		entries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_storage_valkey_confirmed_entries_total", Help: "Frames that the write buffer confirmed.",
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_storage_valkey_confirmed_bytes_total", Help: "Bytes of the frames that the write buffer confirmed.",
		}),
		replicas: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "levee_storage_valkey_confirmed_replicas", Help: "Replicas that had confirmed what one trip to the write buffer changed, when the waiting for them ended; where valkey.replicas asks for any.",
			Buckets: []float64{0, 1, 2, 3, 4, 5},
		}),
		trims: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_storage_valkey_trims_total", Help: "Times that the write buffer was told to let go of the oldest frames of a log: they are in objects, or the retention keeps them no more.",
		}),
		resets: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_storage_valkey_resets_total", Help: "Times that what the write buffer held of a log was thrown away, to fill it again: it lacked frames, or had others than the log.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_storage_valkey_failures_total", Help: "Calls of the write buffer that failed, by what was called and how it ended.",
		}, []string{"op", "outcome"}),
		connects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_storage_valkey_connects_total", Help: "Connections for changes that were tried, by how it ended (ok, failed).",
		}, []string{"result"}),
	}
	for _, o := range outcomes {
		m.failures.WithLabelValues("append", o.name) // so that the first one is an increase from 0
	}
	for _, r := range []string{"ok", "failed"} {
		m.connects.WithLabelValues(r)
	}
	obs.Register(reg, m.confirm, m.batch, m.entries, m.bytes, m.replicas, m.trims, m.resets, m.failures, m.connects)
	return m
}
