package server

import (
	"fmt"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

const (
	bufferReplicas = "levee_storage_valkey_confirmed_replicas"
	bufferTrims    = "levee_storage_valkey_trims_total"
	bufferResets   = "levee_storage_valkey_resets_total"
	replays        = "levee_storage_valkey_replays_total"
	replayedFrames = "levee_storage_valkey_replayed_frames_total"
	uncoveredParts = "levee_storage_valkey_uncovered"
	degradedTime   = "levee_storage_valkey_degraded_seconds_total"
)

// metaKey is where the write buffer has the metadata's log.
var metaKey = fmt.Sprintf("levee:{%x/0}:s", metadataID())

// moveDegraded has a broker go on without its write buffer, come back to one that forgot everything, and be lost with its
// disk, so that the next one makes its logs again.
func moveDegraded(s *site) {
	t := s.t
	mini := miniredis.RunT(t)
	s.changes = map[string]string{
		"valkey.mode": "single", "valkey.addresses": mini.Addr(), "valkey.timeout": "5s", "valkey.confirm_timeout": "5s", "valkey.on_failure": "degrade",
		"valkey.keep_segments": "1", "storage.segment_bytes": "64KiB", "storage.retention_check": "100ms",
	}
	m := s.start(disk{vfs.NewMem()}, "a")
	n := 0
	send := func(count int) func() {
		return func() {
			for range count {
				m.send("a", pack(t, record.NoProducer, fmt.Sprintf("%d %s", n, strings.Repeat("x", 20<<10))))
				n++
			}
		}
	}
	m.create(broker.TopicSpec{Name: "a"})
	m.during("segments that need not be kept", send(12), atLeast(bufferTrims, 1), by(bufferResets, 0), by(uncoveredParts, 0), by(degradedTime, 0))
	mini.Close()
	m.during("a write buffer that goes away", send(2), by(uncoveredParts, 1), atLeast(degradedTime, 0.001))
	m.during("its absence", func() {}, atLeast(degradedTime, 0.05))
	mini.FlushAll()
	m.during("its return without what it had", func() {
		if err := mini.Restart(); err != nil {
			t.Fatal(err)
		}
		send(1)()
	}, by(uncoveredParts, -1), atLeast(bufferResets, 1))
	m.during("a publish that it confirms", send(1), atLeast(bufferEntries, 1), by(degradedTime, 0))
	until(func() bool { // or the topic is forgotten, since the write buffer forgot it
		entries, err := mini.Stream(metaKey)
		return err == nil && len(entries) > 0 && entries[len(entries)-1].ID == fmt.Sprintf("%d-0", m.metadata.Load().store.View().Index())
	})
	m.shut(t)
	empty := disk{vfs.NewMem()}
	m = s.start(empty, "a")
	m.sinceStart("a start after the loss of the disk", by(replays, 1), atLeast(replayedFrames, 4), by(uncoveredParts, 0), by(degradedTime, 0))
	m.shut(t)
	s.changes["valkey.replicas"], s.changes["valkey.timeout"] = "1", "100ms"
	m = s.start(empty, "a")
	m.sinceStart("a replica that is asked for", atLeast(bufferReplicas, 1), by(bufferReplicas+":sum", 0))
	m.shut(t)
}
