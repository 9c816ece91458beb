package server

import (
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// consumer opens a consumer of a subscription of a topic, which is made with these settings where it is missing.
func (m *meter) consumer(topic, name string, s broker.SubscriptionSettings) *broker.Consumer {
	m.t.Helper()
	b := m.broker.Load()
	if _, err := b.DescribeSubscription(m.t.Context(), topic, name); err != nil {
		if _, err := b.CreateSubscription(m.t.Context(), broker.SubscriptionSpec{Topic: topic, Name: name, Type: broker.Exclusive, Settings: s}); err != nil {
			m.t.Fatal(err)
		}
	}
	c, err := b.OpenConsumer(m.t.Context(), broker.ConsumerSpec{Topic: topic, Subscription: name, Name: "c", WindowMessages: 3})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(c.Close)
	return c
}

// take waits until a consumer is handed something, and returns how many records that are.
func (m *meter) take(c *broker.Consumer) int {
	m.t.Helper()
	for {
		e, err := c.Next(m.t.Context(), 0)
		if err != nil {
			m.t.Fatal(err)
		}
		if e.Kind == broker.ConsumerData {
			return e.Records
		}
	}
}

func settle(t *testing.T, c *broker.Consumer, s broker.Settlement) {
	t.Helper()
	if err := c.Settle(s); err != nil {
		t.Fatal(err)
	}
}

// nacked gives one offset back, at once.
func nacked(offset int64) broker.Settlement {
	return broker.Settlement{Below: -1, Nacks: []broker.Nack{{Range: broker.Range{From: offset, To: offset}, Reason: "will not do"}}}
}

const (
	saveOK     = `levee_subscription_cursor_saves_total{outcome="ok"}`
	saveFailed = `levee_subscription_cursor_saves_total{outcome="failed"}`
	acks       = `levee_subscription_settlements_total{kind="ack"}`
	nacks      = `levee_subscription_settlements_total{kind="nack"}`
)

func moveSubscriptions(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "a")
	m.create(broker.TopicSpec{Name: "a"})
	m.send("a", pack(t, record.NoProducer, "1", "2", "3"), pack(t, record.NoProducer, "4"))
	m.sinceStart("the start", by(saveOK, 0), by(saveFailed, 0), by(acks, 0), by(nacks, 0))
	var c *broker.Consumer
	m.during("a consumer that takes what its window holds", func() {
		c = m.consumer("a", "s", broker.SubscriptionSettings{})
		if n := m.take(c); n != 3 {
			t.Errorf("%d records", n)
		}
	}, by("levee_subscription_consumers", 1), by("levee_subscription_delivered_records_total", 3), by("levee_subscription_redelivered_records_total", 0))
	m.during("a save that is asked for", func() {
		if err := c.Save(t.Context()); err != nil {
			t.Error(err)
		}
	}, by(saveOK, 1), by(saveFailed, 0), by("levee_subscription_cursors_saved_total", 1))
	m.during("one that fails, and is repeated a second later", func() { // and fails again, where healing the disk takes as long
		d.fail(vfs.ErrNoSpace, where{vfs.OpWrite, "/" + logDir + "/"})
		if err := c.Save(t.Context()); err == nil {
			t.Error("saved")
		}
		d.heal()
	}, by(saveOK, 1), atLeast(saveFailed, 1), by("levee_subscription_cursors_saved_total", 1))
	m.during("two of three acknowledged, one given back", func() {
		settle(t, c, broker.Settlement{Below: 1})
		settle(t, c, broker.Settlement{Below: -1, Acks: []broker.Range{{From: 1, To: 1}}})
		settle(t, c, nacked(2))
		for n := 0; n < 2; {
			n += m.take(c)
		}
	}, by(acks, 2), by(nacks, 1), by("levee_subscription_delivered_records_total", 2), by("levee_subscription_redelivered_records_total", 1),
		atLeast(saveOK, 1), atLeast("levee_subscription_cursors_saved_total", 1))
	m.during("another one of its name", func() { c = m.consumer("a", "s", broker.SubscriptionSettings{}) },
		by("levee_subscription_takeovers_total", 1), by("levee_subscription_consumers", 0))
	m.during("leaving", c.Close, by("levee_subscription_consumers", -1), by("levee_subscription_takeovers_total", 0))
	movePoison(m)
	moveTrimmed(m, d)
	moveStrained(m)
}

// moveStrained leaves the first of very many records unsettled.
func moveStrained(m *meter) {
	const most = 4096 // limits.subscription_span
	m.create(broker.TopicSpec{Name: "many"})
	values := make([]string, most)
	m.send("many", pack(m.t, record.NoProducer, values...))
	m.during("a position that stands still", func() {
		c, err := m.broker.Load().OpenConsumer(m.t.Context(), broker.ConsumerSpec{Topic: "many", Subscription: "s", Create: true, WindowMessages: most})
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(c.Close)
		for n := 0; n < most; {
			n += m.take(c)
		}
		settle(m.t, c, broker.Settlement{Below: -1, Acks: []broker.Range{{From: 1, To: most - 1}}})
	}, by("levee_subscription_strained_total", 1))
}

// movePoison has a subscription of each policy give up two records.
func movePoison(m *meter) {
	for _, p := range []struct {
		policy string
		moves  []change
	}{
		{"dead_letter", []change{by("levee_subscription_dead_letters_total", 2), by("levee_subscription_dropped_records_total", 0), by("levee_subscription_blocked_total", 0)}},
		{"drop", []change{by("levee_subscription_dead_letters_total", 0), by("levee_subscription_dropped_records_total", 2), by("levee_subscription_blocked_total", 0)}},
		{"block", []change{by("levee_subscription_dead_letters_total", 0), by("levee_subscription_dropped_records_total", 0), by("levee_subscription_blocked_total", 1)}},
	} {
		m.during(p.policy, func() {
			c := m.consumer("a", p.policy, broker.SubscriptionSettings{MaxDeliveries: ptr[int32](1), Poison: &p.policy})
			m.take(c)
			settle(m.t, c, nacked(0))
			settle(m.t, c, nacked(1))
		}, p.moves...)
	}
}

// moveTrimmed has retention pass a subscription that skips what is gone.
func moveTrimmed(m *meter, d disk) {
	m.create(broker.TopicSpec{Name: "big", Settings: broker.Settings{SegmentBytes: ptr(int64(64 << 10))}})
	settings := broker.SubscriptionSettings{OnTrimmed: ptr("skip_to_oldest")}
	m.consumer("big", "s", settings).Close()
	m.send("big", blocks(m.t, 15)...) // three to a segment
	if _, err := m.broker.Load().SetTopic(m.t.Context(), "big", broker.Settings{RetentionBytes: ptr(int64(150 << 10))}, nil); err != nil {
		m.t.Fatal(err)
	}
	if !until(func() bool { return len(d.find(m.t, m.dir, "/big@1/0/", segfmt.LogSuffix)) == 2 }) {
		m.t.Fatal("nothing was trimmed")
	}
	m.during("skipping what retention removed", func() { m.take(m.consumer("big", "s", settings)) },
		by("levee_subscription_trimmed_records_total", 9))
}
