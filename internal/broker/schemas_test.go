package broker

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/record"
)

const asInteger = `{"type":"integer","maximum":100}`

func (r *rig) policy(topic, policy string) {
	r.t.Helper()
	if err := r.Schemas().SetTopicSchema(context.Background(), topic, TopicSchema{Subject: "n", Policy: policy, Validate: true}); err != nil {
		r.t.Fatal(err)
	}
}

// TestEnforce: what does not match is refused by every way to publish, from the moment the policy is set, also after a
// restart, and until the topic is deleted.
func TestEnforce(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	r.create("a", TopicSpec{Partitions: 2})
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	if _, _, err := r.Schemas().Register(ctx, "n", SchemaSpec{Type: "json_schema", Definition: asInteger}); err != nil {
		t.Fatal(err)
	}
	good, bad := pack(t, record.NoProducer, "1", "2"), pack(t, record.NoProducer, "1", "200")
	publish := func(topic string, batch []byte, ok bool) {
		t.Helper()
		_, err := r.PublishBatch(ctx, topic, 0, batch)
		if ok {
			if err != nil {
				t.Error(err)
			}
			return
		}
		if d := fault.DetailsOf(err); fault.KindOf(err) != fault.InvalidArgument || d["reason"] != "schema_mismatch" || d["record"] != "1" || !strings.Contains(err.Error(), "100") {
			t.Errorf("%v %v", err, d)
		}
	}
	publish("a", bad, true)
	r.policy("a", "enforce")
	r.policy("fast", "enforce")
	publish("a", bad, false)
	publish("a", good, true)
	publish("fast", bad, false)
	publish("fast", good, true)
	if _, _, err := r.Publish(ctx, "a", -1, []record.Record{{Value: []byte("1")}, {Value: []byte("x")}}); fault.DetailsOf(err)["reason"] != "schema_mismatch" {
		t.Errorf("by records: %v", err)
	}
	if n := r.metric("levee_broker_publish_errors_total", "invalid_argument"); n != 3 {
		t.Errorf("%v refusals counted", n)
	}
	r.policy("a", "warn")
	publish("a", bad, true)
	if n := r.metric("levee_schema_records_mismatched_total", "warn"); n != 1 {
		t.Errorf("%v mismatches counted", n)
	}
	r.policy("a", "enforce")
	r.halt()
	r.start()
	publish("a", bad, false)
	r.policy("a", "none")
	publish("a", bad, true)
	r.policy("a", "enforce")
	if err := r.DeleteTopic(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	r.create("a", TopicSpec{})
	publish("a", bad, true)
	if g := r.topics.get(meta.Name{Namespace: "default", Topic: "a"}).guard.Load(); g != nil {
		t.Error("a topic made again has the old one's policy")
	}
}

// TestEnforceFollowsTheMetadata: a policy that came by another way than this broker's registry counts, too.
func TestEnforceFollowsTheMetadata(t *testing.T) {
	r := newRig(t)
	info := r.create("a", TopicSpec{})
	name := meta.Name{Namespace: "default", Topic: "a"}
	if _, err := r.store.Propose(context.Background(), meta.SetTopicSchema{Topic: name, ID: info.ID, Subject: "n", Policy: meta.PolicyEnforce}); err != nil {
		t.Fatal(err)
	}
	tick, tooLate := time.NewTicker(10*time.Millisecond), time.After(20*time.Second)
	defer tick.Stop()
	for {
		_, err := r.PublishBatch(context.Background(), "a", 0, pack(t, record.NoProducer, "1"))
		if fault.DetailsOf(err)["reason"] == "schema_mismatch" {
			return
		}
		select {
		case <-tick.C:
		case <-tooLate:
			t.Fatalf("published in spite of the policy: %v", err)
		}
	}
}
