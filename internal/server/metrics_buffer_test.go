package server

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
)

const (
	confirms       = "levee_storage_valkey_confirm_seconds"
	bufferCalls    = "levee_storage_valkey_batch_calls"
	bufferEntries  = "levee_storage_valkey_confirmed_entries_total"
	bufferBytes    = "levee_storage_valkey_confirmed_bytes_total"
	bufferFailures = `levee_storage_valkey_failures_total{op="append",outcome="unavailable"}`
	connected      = `levee_storage_valkey_connects_total{result="ok"}`
	notConnected   = `levee_storage_valkey_connects_total{result="failed"}`
)

// moveBuffer has frames stored in a write buffer that comes and goes.
func moveBuffer(s *site) {
	t := s.t
	mini := miniredis.RunT(t)
	s.changes = map[string]string{"valkey.mode": "single", "valkey.addresses": mini.Addr(), "valkey.timeout": "5s", "valkey.on_failure": "degrade"} // its scripts are slow under the race detector
	m := s.start(disk{vfs.NewMem()}, "a")
	b := m.buffer.Store.Buffer(writebuf.ID{Topic: [16]byte{1}})
	seq := uint64(0)
	one := func() error {
		return b.Append(t.Context(), writebuf.Batch{Generation: 1, Floor: 1, Entries: []writebuf.Entry{{Seq: seq + 1, Frame: make([]byte, 1000)}}})
	}
	m.during("frames", func() {
		for range 3 {
			if err := one(); err != nil {
				t.Fatal(err)
			}
			seq++
		}
	}, atLeast(confirms, 3), atLeast(bufferCalls, 3), atLeast(bufferEntries, 3), atLeast(bufferBytes, 3000), by(bufferFailures, 0))
	m.sinceStart("the first", atLeast(connected, 1))
	mini.Close()
	m.during("frames without a server", func() {
		for m.value(bufferFailures) == 0 {
			if err := one(); err == nil {
				t.Fatal("a frame was taken by nobody")
			}
		}
	}, atLeast(bufferFailures, 1), atLeast(notConnected, 1))
	m.during("a change of the metadata without a server", func() { m.create(broker.TopicSpec{Name: "a"}) }, atLeast("levee_storage_metadata_unconfirmed_total", 1))
	if err := mini.Restart(); err != nil {
		t.Fatal(err)
	}
	m.during("its return", func() {
		if err := one(); err != nil {
			t.Fatal(err)
		}
	}, atLeast(connected, 1), atLeast(bufferEntries, 1))
	m.shut(t)
}

// TestBufferMetricsAreThereFromTheStart: what failed in which way is served before anything did, so that a first failure is
// a rise from 0.
func TestBufferMetricsAreThereFromTheStart(t *testing.T) {
	r := up(t, settings(t, t.TempDir(), nil))
	for _, series := range []string{confirms, bufferFailures, connected, `levee_storage_valkey_failures_total{op="append",outcome="fenced"}`} {
		if n, is := readMetrics(t, r.registry)[series]; !is || n != 0 {
			t.Errorf("%s: %v, %v", series, n, is)
		}
	}
}
