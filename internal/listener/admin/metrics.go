package admin

import (
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	streams  prometheus.Gauge
	refused  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_http_requests_total", Help: "HTTP requests answered, by route and status.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "levee_http_request_duration_seconds", Help: "Time from the head of an HTTP request to the end of its answer, by route; streams are not counted.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 4, 10),
		}, []string{"route"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "levee_http_streams", Help: "Server-sent event streams open now.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "levee_http_refused_connections_total", Help: "HTTP connections closed at once because too many were open.",
		}),
	}
	obs.Register(reg, m.requests, m.seconds, m.streams, m.refused)
	return m
}
