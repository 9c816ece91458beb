package metatier

import (
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what a Keeper counts.
type metrics struct {
	copied   prometheus.Gauge
	bytes    prometheus.Gauge
	copies   prometheus.Counter
	failures *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, lag func() float64) *metrics {
	m := &metrics{
		copied: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "levee_storage_metadata_copied_index", Help: "Position of the newest change of the metadata that its copy in the object store has.",
		}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "levee_storage_metadata_copy_bytes", Help: "Size of the newest copy of the metadata in the object store.",
		}),
		copies: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_storage_metadata_copies_total", Help: "Copies of the metadata that were put into the object store, read back and recorded.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_storage_metadata_failures_total", Help: "Attempts to copy the metadata, or to look at who owns it, that failed, by kind of fault. Each is tried again; but after one of kind fenced the broker stops.",
		}, []string{"kind"}),
	}
	for _, k := range []fault.Kind{fault.Unavailable, fault.OutcomeUnknown, fault.Corrupt, fault.Timeout, fault.Fenced} {
		m.failures.WithLabelValues(k.String()) // so that the first one is an increase from 0
	}
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "levee_storage_metadata_lag_seconds", Help: "Age of the oldest change of the metadata that its copy in the object store lacks; 0 where it has all.",
	}, lag)
	obs.Register(reg, m.copied, m.bytes, m.copies, m.failures, age)
	return m
}

// newUnconfirmed returns what a Confirmer counts.
func newUnconfirmed(reg prometheus.Registerer) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "levee_storage_metadata_unconfirmed_total", Help: "Changes of the metadata that were acknowledged without the write buffer, as valkey.on_failure says: losing the data directory before it has them loses them.",
	})
	obs.Register(reg, c)
	return c
}
