package broker

import (
	"testing"

	"github.com/leveemq/levee/internal/meta"
)

// What is known of a take-over is described: nothing before one, what it found once it is settled, that part of it is lost where
// that was accepted, and what the write buffer may lack. What is summed up for health checks says the same in numbers.
func TestTakeOversAreDescribed(t *testing.T) {
	r := newRig(t)
	id := r.create("t", TopicSpec{Partitions: 3}).ID
	parts := func() []PartitionInfo {
		t.Helper()
		d, err := r.DescribeTopic(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		return d.Parts
	}
	propose := func(c meta.Command) {
		t.Helper()
		if _, err := r.store.Propose(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range parts() {
		if p.TakenOver != nil || p.Uncovered != nil {
			t.Errorf("before anything is lost: %+v", p)
		}
	}
	if e := r.Exposed(); e.Waiting != 0 || e.Uncovered != 0 {
		t.Errorf("before anything is lost: %+v", e)
	}

	propose(meta.TakeOver{AtMs: 5000, From: "host:data", By: "other"})
	if e := r.Exposed(); e.Waiting != 3 || e.Uncovered != 0 {
		t.Errorf("while all three are pending: %+v", e)
	}
	for _, p := range parts() {
		if p.TakenOver != nil {
			t.Errorf("one that is pending was taken over already: %+v", p.TakenOver)
		}
	}

	n := meta.Name{Namespace: "default", Topic: "t"}
	settle := func(partition int32, report meta.TakeoverReport) {
		t.Helper()
		report.AtMs, report.From = 6000, "host:data"
		topic, ok := r.store.View().TopicByID(id)
		if !ok {
			t.Fatal("the topic is gone")
		}
		propose(meta.SettleTakeover{Name: n, ID: id, Partition: partition, Generation: topic.Partitions[partition].Generation, Report: report})
	}
	settle(0, meta.TakeoverReport{Objects: 10, Replayed: 17})
	propose(meta.AcceptLoss{Name: n, ID: id, Partition: 1})
	if e := r.Exposed(); e.Waiting != 2 {
		t.Errorf("one is settled, of one the loss is accepted: %+v", e)
	}
	settle(1, meta.TakeoverReport{Objects: 10, Replayed: 12, Lost: &meta.OffsetRange{From: 12, To: 99}})
	if got := parts()[0].TakenOver; got == nil || got.Objects != 10 || got.Replayed != 17 || got.Lost != nil || got.From != "host:data" || got.AtMs != 6000 {
		t.Errorf("settled: %+v", got)
	}
	if got := parts()[1].TakenOver; got == nil || got.Lost == nil || *got.Lost != (meta.OffsetRange{From: 12, To: 99}) {
		t.Errorf("with a loss: %+v", got)
	}
	if got := parts()[2].TakenOver; got != nil {
		t.Errorf("still pending: %+v", got)
	}

	topic, _ := r.store.View().TopicByID(id)
	propose(meta.SetUncovered{Name: n, ID: id, Partition: 1, Generation: topic.Partitions[1].Generation, From: 100})
	if got := parts()[1].Uncovered; got == nil || *got != 100 {
		t.Errorf("uncovered: %v", got)
	}
	if e := r.Exposed(); e.Waiting != 1 || e.Uncovered != 1 {
		t.Errorf("in the end: %+v", e)
	}
}
