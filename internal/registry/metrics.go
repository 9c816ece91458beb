package registry

import (
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the registry counts.
type metrics struct {
	registered   prometheus.Counter
	incompatible prometheus.Counter
	checked      prometheus.Counter
	mismatched   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		registered:   counter("levee_schema_versions_registered_total", "Versions that were added to subjects."),
		incompatible: counter("levee_schema_versions_refused_total", "Versions that were refused because they break their subject's compatibility."),
		checked:      counter("levee_schema_records_checked_total", "Records that were held against a schema because their topic has a policy."),
		mismatched: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_schema_records_mismatched_total", Help: "Records that did not match their topic's schema, by policy: under enforce their batch was refused at the first one, under warn they were taken.",
		}, []string{"policy"}),
	}
	for _, policy := range []string{meta.PolicyWarn, meta.PolicyEnforce} {
		m.mismatched.WithLabelValues(policy) // so that its first mismatch is an increase from 0
	}
	obs.Register(reg, m.registered, m.incompatible, m.checked, m.mismatched)
	return m
}
