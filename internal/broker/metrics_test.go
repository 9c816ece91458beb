package broker

import (
	"context"
	"testing"

	"github.com/leveemq/levee/record"
)

// metric returns a metric's value; of a labelled one, that of the given label value. It fails for a name that is not
// registered.
func (r *rig) metric(name string, label ...string) float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(label) > 0 && (len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() != label[0]) {
				continue
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return 0
	}
	if len(label) == 0 {
		r.t.Fatalf("there is no metric %s", name)
	}
	return 0
}

// TestEveryMetricMoves does everything that the broker counts and checks each figure.
func TestEveryMetricMoves(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Subscribers = 2; c.Limits.RingBatches = 1 })
	ctx := context.Background()
	r.create("a", TopicSpec{Partitions: 2})
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	batch := pack(t, record.ProducerInfo{ID: 7, Epoch: 0, Sequence: 0}, "one", "two")
	for range 2 {
		if _, err := r.PublishBatch(ctx, "a", 0, batch); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.PublishBatch(ctx, "a", 0, batch[:10]); err == nil {
		t.Fatal("a batch cut short was taken")
	}
	p, err := r.OpenPublisher(ctx, "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	s, slow := r.subscribe("a", 0, Earliest()), r.subscribe("fast", 0, Latest())
	if _, err := r.Subscribe(ctx, SubscribeSpec{Topic: "a"}); err == nil {
		t.Fatal("one subscriber too many")
	}
	for next(t, s).Kind != EventAtEnd {
	}
	r.publish("fast", 0, "x", "y", "z")
	r.publish("fast", 0, "w")
	if e := next(t, slow); e.Dropped != 3 {
		t.Fatalf("%+v", e)
	}
	if _, err := r.OpenPublisher(ctx, "a", make([]byte, 16)); err == nil {
		t.Fatal("an incarnation that never was")
	}
	for _, c := range []struct {
		name  string
		label []string
		want  float64
	}{
		{"levee_broker_publish_records_total", nil, 2 + 4},
		{"levee_broker_publish_duplicate_records_total", nil, 2},
		{"levee_broker_publish_errors_total", []string{"invalid_argument"}, 1},
		{"levee_broker_delivered_records_total", nil, 2 + 1},
		{"levee_broker_non_reliable_dropped_records_total", nil, 3},
		{"levee_broker_subscribers", nil, 2},
		{"levee_broker_subscribers_refused_total", nil, 1},
		{"levee_broker_publishers", nil, 1},
		{"levee_topic_incarnation_refused_total", nil, 1},
		{"levee_broker_topics", nil, 2},
		{"levee_broker_partitions", []string{"serving"}, 2},
		{"levee_broker_in_flight_bytes", nil, 0},
		{"levee_broker_lost_ranges_told_total", nil, 0}, // moves in TestLossyOpenTellsSubscribers
	} {
		if got := r.metric(c.name, c.label...); got != c.want {
			t.Errorf("%s %v is %v, want %v", c.name, c.label, got, c.want)
		}
	}
	for _, name := range []string{"levee_broker_publish_bytes_total", "levee_broker_delivered_bytes_total"} {
		if got := r.metric(name); got < float64(len(batch)) {
			t.Errorf("%s is %v", name, got)
		}
	}
	p.Close()
	p.Close()
	if got := r.metric("levee_broker_publishers"); got != 0 {
		t.Errorf("%v publishers after the last one closed", got)
	}
	if err := r.DeleteTopic(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	r.awaitPurged()
	r.halt() // the counter moves after the metadata: wait for who does both
	if got := r.metric("levee_broker_topics_purged_total"); got != 1 {
		t.Errorf("%v topics purged", got)
	}
}
