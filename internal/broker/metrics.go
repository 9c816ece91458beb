package broker

import (
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/task"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the broker counts. None has a label per topic: a broker may hold ten thousand.
type metrics struct {
	publishRecords, publishBytes     prometheus.Counter
	publishDuplicates                prometheus.Counter
	publishErrors                    *prometheus.CounterVec
	deliveredRecords, deliveredBytes prometheus.Counter
	lostRanges                       prometheus.Counter
	dropped                          prometheus.Counter
	subscribers, publishers          prometheus.Gauge
	incarnationRefused               prometheus.Counter
	subscribersRefused               prometheus.Counter
	purgedTopics                     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, existing *registry, held *task.Budget) *metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		obs.Register(reg, c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		obs.Register(reg, g)
		return g
	}
	m := &metrics{
		publishRecords:     counter("levee_broker_publish_records_total", "Records acknowledged to publishers, those of batches that are duplicates as a whole not counted."),
		publishBytes:       counter("levee_broker_publish_bytes_total", "Bytes of the batches acknowledged to publishers, as they were sent, duplicates not counted."),
		publishDuplicates:  counter("levee_broker_publish_duplicate_records_total", "Records of batches that idempotent producers sent again as a whole and that were acknowledged as duplicates."),
		deliveredRecords:   counter("levee_broker_delivered_records_total", "Records handed to subscribers, those before their position in a first batch included."),
		deliveredBytes:     counter("levee_broker_delivered_bytes_total", "Bytes of the batches handed to subscribers."),
		lostRanges:         counter("levee_broker_lost_ranges_told_total", "Times a subscriber was told of a range of offsets that a crash had lost."),
		dropped:            counter("levee_broker_non_reliable_dropped_records_total", "Records of non-reliable topics that a subscriber lost because it was slow, counted for each subscriber."),
		subscribers:        gauge("levee_broker_subscribers", "Subscribers open now."),
		publishers:         gauge("levee_broker_publishers", "Publisher handles open now."),
		incarnationRefused: counter("levee_topic_incarnation_refused_total", "Publishers and subscribers refused because they asked for an incarnation of a topic that is not the current one, and directories of such incarnations that a start found and left alone."),
		subscribersRefused: counter("levee_broker_subscribers_refused_total", "Subscribers refused because as many as allowed were open."),
		purgedTopics:       counter("levee_broker_topics_purged_total", "Deleted topics of which nothing is left on the disk."),
		publishErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "levee_broker_publish_errors_total", Help: "Batches that were not acknowledged, by kind of error.",
		}, []string{"kind"}),
	}
	obs.Register(reg, m.publishErrors, census{
		existing:   existing,
		held:       held,
		topics:     prometheus.NewDesc("levee_broker_topics", "Topics that exist.", nil, nil),
		partitions: prometheus.NewDesc("levee_broker_partitions", "Partitions of reliable topics, by state.", []string{"state"}, nil),
		inFlight:   prometheus.NewDesc("levee_broker_in_flight_bytes", "Bytes of batches that were submitted and are not answered yet.", nil, nil),
	})
	return m
}

func (m *metrics) published(records int64, bytes int, duplicate bool) {
	if duplicate {
		m.publishDuplicates.Add(float64(records))
		return
	}
	m.publishRecords.Add(float64(records))
	m.publishBytes.Add(float64(bytes))
}

func (m *metrics) noteDropped(records int) { m.dropped.Add(float64(records)) }

func (m *metrics) refused(err error) {
	m.publishErrors.WithLabelValues(fault.KindOf(err).String()).Inc()
}

// census counts what exists at the moment it is asked.
type census struct {
	existing                     *registry
	held                         *task.Budget
	topics, partitions, inFlight *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c census) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.topics
	ch <- c.partitions
	ch <- c.inFlight
}

// Collect implements prometheus.Collector.
func (c census) Collect(ch chan<- prometheus.Metric) {
	topics, states := c.existing.census()
	ch <- prometheus.MustNewConstMetric(c.topics, prometheus.GaugeValue, float64(topics))
	for _, s := range []partition.State{partition.Opening, partition.Unloaded, partition.Serving, partition.Unavailable} {
		ch <- prometheus.MustNewConstMetric(c.partitions, prometheus.GaugeValue, float64(states[s]), s.String())
	}
	ch <- prometheus.MustNewConstMetric(c.inFlight, prometheus.GaugeValue, float64(c.held.Used()))
}
