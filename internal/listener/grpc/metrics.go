package grpc

import (
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	connections prometheus.Gauge
	refused     prometheus.Counter
	received    prometheus.Counter
	sent        prometheus.Counter
	streams     *prometheus.GaugeVec
	publishes   *prometheus.CounterVec
	batches     prometheus.Counter
	errors      *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "levee_grpc_connections", Help: "Connections to the gRPC listener that are open.",
		}),
		refused:  counter("levee_grpc_connections_refused_total", "Connections closed as they came because the limit was reached."),
		received: counter("levee_grpc_received_bytes_total", "Bytes read from connections of the gRPC listener, as on the wire."),
		sent:     counter("levee_grpc_sent_bytes_total", "Bytes written to connections of the gRPC listener, as on the wire."),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "levee_grpc_streams", Help: "Long-lived calls that are open, by kind: publish, subscribe or consume.",
		}, []string{"kind"}),
		publishes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_grpc_publish_requests_total", Help: "Messages with something to publish, by call: stream (Publish) or once (PublishOnce).",
		}, []string{"call"}),
		batches: counter("levee_grpc_publish_batches_total", "Batches received on publish streams."),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_grpc_call_errors_total", Help: "Calls that the broker ended with an error, by its kind; answers inside a stream are not counted.",
		}, []string{"kind"}),
	}
	obs.Register(reg, m.connections, m.refused, m.received, m.sent, m.streams, m.publishes, m.batches, m.errors)
	return m
}
