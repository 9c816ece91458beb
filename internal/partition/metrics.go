package partition

import (
	"sync"
	"time"

	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

// BufferMetrics are what the partitions of a broker count together of their write buffer. A nil one counts nothing.
type BufferMetrics struct {
	replays  prometheus.Counter
	replayed prometheus.Counter
	alone    aloneTime
}

// NewBufferMetrics makes them and registers them, unless reg is nil.
func NewBufferMetrics(reg prometheus.Registerer) *BufferMetrics {
	m := &BufferMetrics{
		replays: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_storage_valkey_replays_total", Help: "Logs that were given back frames of the write buffer when they were opened: they were made again after a broker was lost with its disk, or had lost their end.",
		}),
		replayed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_storage_valkey_replayed_frames_total", Help: "Frames of the write buffer that logs were given back when they were opened.",
		}),
	}
	obs.Register(reg, m.replays, m.replayed, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "levee_storage_valkey_degraded_seconds_total", Help: "Time in which any partition acknowledged records without the write buffer, as valkey.on_failure = degrade allows.",
	}, func() float64 { return m.alone.total().Seconds() }))
	return m
}

// gave counts a log that was given so many frames.
func (m *BufferMetrics) gave(frames uint64) {
	if m != nil && frames > 0 {
		m.replays.Inc()
		m.replayed.Add(float64(frames))
	}
}

// goesAlone counts one partition more or less that does without the write buffer.
func (m *BufferMetrics) goesAlone(more int) {
	if m != nil {
		m.alone.change(more)
	}
}

// aloneTime adds up the time in which any partition does without the write buffer.
type aloneTime struct {
	mu    sync.Mutex
	n     int           // guarded by mu; partitions that do now
	since time.Time     // guarded by mu; with n > 0
	past  time.Duration // guarded by mu; before since
}

func (a *aloneTime) change(more int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.n
	a.n += more
	switch {
	case before == 0 && a.n > 0:
		a.since = time.Now()
	case before > 0 && a.n == 0:
		a.past += time.Since(a.since)
	}
}

func (a *aloneTime) total() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n == 0 {
		return a.past
	}
	return a.past + time.Since(a.since)
}
