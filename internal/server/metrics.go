package server

import (
	"runtime"

	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are what the server itself counts.
type metrics struct {
	flushFailures prometheus.Counter
	lastStop      *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer, version string) *metrics {
	m := &metrics{
		flushFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_server_flush_failures_total",
			Help: "Flushes of files and directories below the data directory that failed. After one, the next start treats this run as one that lost its machine.",
		}),
		lastStop: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "levee_server_last_run",
			Help: "1 for how the run before this one ended, as far as logs still have to reckon with it: clean, process_crash or machine_crash.",
		}, []string{"end"}),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "levee_build_info",
		Help: "Always 1; the labels say what runs.",
	}, []string{"version", "go"})
	build.WithLabelValues(version, runtime.Version()).Set(1)
	obs.Register(reg, m.flushFailures, m.lastStop, build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// reserve tells whether r is there.
func (m *metrics) reserve(reg prometheus.Registerer, r *reserve) {
	obs.Register(reg, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "levee_server_metadata_reserve_bytes",
		Help: "Room on the disk that is kept so that the metadata can go on when topics have filled it; 0 while the disk is too full for it.",
	}, func() float64 {
		if r.isHeld() {
			return reserveBytes
		}
		return 0
	}))
}

// uncovered tells what count returns.
func (m *metrics) uncovered(reg prometheus.Registerer, count func() float64) {
	obs.Register(reg, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "levee_storage_valkey_uncovered",
		Help: "Partitions of which the write buffer may lack records that were acknowledged: without it, as valkey.on_failure = degrade allows, or before it lost them. They are lost with this disk, unless they are in objects.",
	}, count))
}

// lastRun says once how the run before this one ended.
func (m *metrics) lastRun(c seglog.Crash) {
	end := map[seglog.Crash]string{seglog.CleanStop: "clean", seglog.ProcessCrash: "process_crash", seglog.MachineCrash: "machine_crash"}[c]
	m.lastStop.WithLabelValues(end).Set(1)
}
