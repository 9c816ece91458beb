package raft

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/leveemq/levee/internal/obs"
)

type metrics struct {
	proposeSeconds   prometheus.Histogram
	commitEntries    prometheus.Histogram
	appendFailures   prometheus.Counter
	snapshots        prometheus.Counter
	snapshotFailures prometheus.Counter
	snapshotsDamaged prometheus.Counter
	snapshotBytes    prometheus.Gauge
	stopped          prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		proposeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "levee_raft_propose_seconds", Help: "Time from a metadata command's proposal until it was durable and applied.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		commitEntries: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "levee_raft_commit_entries", Help: "Metadata commands made durable by one append to the log.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}),
		appendFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_raft_append_failures_total", Help: "Appends to the metadata log that failed.",
		}),
		snapshots: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_raft_snapshots_total", Help: "Metadata snapshots written.",
		}),
		snapshotFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_raft_snapshot_failures_total", Help: "Metadata snapshots that could not be written.",
		}),
		snapshotsDamaged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_raft_snapshots_damaged_total", Help: "Metadata snapshots found damaged at the start.",
		}),
		snapshotBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "levee_raft_snapshot_bytes", Help: "Size of the newest metadata snapshot written by this process, without its header.",
		}),
		stopped: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "levee_raft_stopped", Help: "1 when the metadata takes no changes until the broker restarts, 0 otherwise.",
		}),
	}
}

// register is apart from newMetrics so that an Open that fails leaves nothing registered.
func (m *metrics) register(reg prometheus.Registerer) {
	obs.Register(reg, m.proposeSeconds, m.commitEntries, m.appendFailures, m.snapshots, m.snapshotFailures, m.snapshotsDamaged, m.snapshotBytes, m.stopped)
}
