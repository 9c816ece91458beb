package subscription

import (
	"github.com/leveemq/levee/internal/obs"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what the subscriptions of a broker count together. None has a label per subscription: there may be a
// hundred thousand.
type Metrics struct {
	Consumers   prometheus.Gauge
	Delivered   prometheus.Counter
	Redelivered prometheus.Counter
	Settlements *prometheus.CounterVec
	DeadLetters prometheus.Counter
	Dropped     prometheus.Counter
	Blocked     prometheus.Counter
	Skipped     prometheus.Counter
	Takeovers   prometheus.Counter
	Strained    prometheus.Counter
	Saves       *prometheus.CounterVec
	Saved       prometheus.Counter
}

// NewMetrics makes them and registers them, unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		obs.Register(reg, c)
		return c
	}
	vec := func(name, help string, label []string, values ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, label)
		for _, v := range values {
			c.WithLabelValues(v) // so that the first one is an increase from 0
		}
		obs.Register(reg, c)
		return c
	}
	m := &Metrics{
		Consumers:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "levee_subscription_consumers", Help: "Consumers of subscriptions connected now."}),
		Delivered:   counter("levee_subscription_delivered_records_total", "Records handed to consumers of subscriptions, each time counted."),
		Redelivered: counter("levee_subscription_redelivered_records_total", "Records handed out again: given back, not settled in time, or held by a consumer that was gone."),
		Settlements: vec("levee_subscription_settlements_total", "Times consumers said what became of records: ack or nack, many records maybe at a time.", []string{"kind"}, "ack", "nack"),
		DeadLetters: counter("levee_subscription_dead_letters_total", "Records that subscriptions gave up and put into a dead-letter topic."),
		Dropped:     counter("levee_subscription_dropped_records_total", "Records that subscriptions gave up and dropped, as their poison policy says, or, of non-reliable topics, had no room to keep until they were handed out."),
		Blocked:     counter("levee_subscription_blocked_total", "Times a subscription came to a stand before a record that could not be handled."),
		Skipped:     counter("levee_subscription_trimmed_records_total", "Records that retention had removed before a subscription had settled them, and that it skipped as it is set to."),
		Takeovers:   counter("levee_subscription_takeovers_total", "Consumers that ended because another one of their name joined."),
		Strained:    counter("levee_subscription_strained_total", "Times a subscription came to four fifths of how far above its position records are handed out: one there is not settled."),
		Saves:       vec("levee_subscription_cursor_saves_total", "Commands that saved cursors, by outcome: ok or failed.", []string{"outcome"}, "ok", "failed"),
		Saved:       counter("levee_subscription_cursors_saved_total", "Cursors made durable, each save of each counted."),
	}
	obs.Register(reg, m.Consumers)
	return m
}

// NoteSave counts one command of the saver.
func (m *Metrics) NoteSave(cursors int, err error) {
	if err != nil {
		m.Saves.WithLabelValues("failed").Inc()
		return
	}
	m.Saves.WithLabelValues("ok").Inc()
	m.Saved.Add(float64(cursors))
}
