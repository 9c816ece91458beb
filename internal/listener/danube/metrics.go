package danube

import (
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	producers prometheus.Gauge
	consumers prometheus.Gauge
	streams   prometheus.Gauge
	sent      prometheus.Counter
	delivered prometheus.Counter
	resumed   *prometheus.CounterVec
	errors    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		producers: gauge("levee_danube_producers", "Producers that Danube clients announced and that were heard of lately."),
		consumers: gauge("levee_danube_consumers", "Consumers that Danube clients announced and that were heard of lately."),
		streams:   gauge("levee_danube_receive_streams", "ReceiveMessages calls of Danube clients that are open."),
		sent:      counter("levee_danube_messages_published_total", "Messages of Danube clients that were taken."),
		delivered: counter("levee_danube_messages_delivered_total", "Messages sent to Danube clients, redeliveries among them."),
		resumed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_danube_resumed_total", Help: "Clients that went on with an id this process had not given out, by kind: producer or consumer.",
		}, []string{"kind"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_danube_call_errors_total", Help: "Calls of Danube clients that the broker ended with an error, by its gRPC code.",
		}, []string{"code"}),
	}
	for _, kind := range []string{"producer", "consumer"} {
		m.resumed.WithLabelValues(kind) // so that the first one is an increase from 0
	}
	obs.Register(reg, m.producers, m.consumers, m.streams, m.sent, m.delivered, m.resumed, m.errors)
	return m
}
