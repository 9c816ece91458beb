package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// firstSegment is in the path of the first segment of partition 0 of a topic's first incarnation.
func firstSegment(topic string) string {
	return "/" + topic + "@1/0/" + segfmt.FileName(0, segfmt.LogSuffix)
}

func ptr[T any](v T) *T { return &v }

// blocks returns batches of one record of 20 KiB each: three fill the smallest segment there is.
func blocks(t *testing.T, n int) (batches [][]byte) {
	for range n {
		batches = append(batches, pack(t, record.NoProducer, strings.Repeat("x", 20<<10)))
	}
	return batches
}

func movePublish(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "a")
	b := m.broker.Load()
	m.sinceStart("the start",
		by(`levee_build_info{go="`+runtime.Version()+`",version="test"}`, 1),
		by(`levee_server_last_run{end="clean"}`, 1),
	)
	m.during("creating a topic", func() { m.create(broker.TopicSpec{Name: "a", Partitions: 2}) },
		by("levee_broker_topics", 1), by(`levee_broker_partitions{state="serving"}`, 2),
		by("levee_raft_propose_seconds", 1), by("levee_raft_commit_entries", 1), by("levee_raft_commit_entries:sum", 1),
	)
	one, two, three := pack(t, record.NoProducer, "1"), pack(t, record.NoProducer, "2", "3"), pack(t, record.NoProducer, "4", "5", "6")
	m.during("three batches of six records", func() { m.send("a", one, two, three) },
		by("levee_broker_publish_records_total", 6), by("levee_broker_publish_bytes_total", float64(len(one)+len(two)+len(three))),
		by("levee_storage_append_duration_seconds", 3), atLeast("levee_storage_append_duration_seconds:sum", 1e-9),
		by("levee_storage_sync_duration_seconds", 3), atLeast("levee_storage_sync_duration_seconds:sum", 1e-9),
		by("levee_storage_sync_batch_records", 3), by("levee_storage_sync_batch_records:sum", 6),
		by("levee_storage_segments", 1), by("levee_storage_bytes", segfmt.SegmentHeaderSize+frame(one)+frame(two)+frame(three)),
		by("levee_broker_in_flight_bytes", 0), by("levee_storage_unsynced_bytes", 0), by("levee_broker_publishers", 0),
		by("levee_broker_publish_duplicate_records_total", 0), by("levee_raft_propose_seconds", 0),
	)
	m.matchesDisk("appends")
	again := pack(t, record.ProducerInfo{ID: 7}, "7", "8")
	m.during("a batch sent twice", func() { m.send("a", again, again) },
		by("levee_broker_publish_records_total", 2), by("levee_broker_publish_bytes_total", float64(len(again))),
		by("levee_broker_publish_duplicate_records_total", 2), by("levee_storage_sync_batch_records:sum", 2),
	)
	m.during("batches that are refused", func() { m.refused("a", one[:10]); m.refused("nothing", one); m.refused("nothing", one) },
		by(`levee_broker_publish_errors_total{kind="invalid_argument"}`, 1), by(`levee_broker_publish_errors_total{kind="not_found"}`, 2),
		by("levee_broker_publish_records_total", 0), by("levee_broker_in_flight_bytes", 0),
	)
	m.during("records that are refused", func() {
		for _, c := range []struct {
			topic     string
			partition int32
			records   []record.Record
		}{{"nothing", 0, []record.Record{{}}}, {"a", 0, nil}, {"a", -1, []record.Record{{Key: []byte("k")}, {Key: []byte("l")}}}} {
			if _, _, err := b.Publish(t.Context(), c.topic, c.partition, c.records); err == nil {
				t.Errorf("%+v was published", c)
			}
		}
	}, by(`levee_broker_publish_errors_total{kind="invalid_argument"}`, 2), by(`levee_broker_publish_errors_total{kind="not_found"}`, 1))
	m.during("an incarnation that never was", func() {
		if _, err := b.OpenPublisher(t.Context(), "a", make([]byte, 16)); err == nil {
			t.Error("opened")
		}
	}, by("levee_topic_incarnation_refused_total", 1), by("levee_broker_publishers", 0))

	var p *broker.Publisher
	m.during("opening a publisher", func() {
		var err error
		if p, err = b.OpenPublisher(t.Context(), "a", nil); err != nil {
			t.Fatal(err)
		}
	}, by("levee_broker_publishers", 1))
	reached, release := d.hold(t, where{vfs.OpSync, firstSegment("a")})
	m.during("a flush that takes its time", func() {
		if err := p.Submit(t.Context(), 0, two, func(broker.PublishResult) {}); err != nil {
			t.Fatal(err)
		}
		<-reached
	}, by("levee_broker_in_flight_bytes", float64(len(two))), by("levee_storage_unsynced_bytes", frame(two)),
		by("levee_broker_publish_records_total", 0))
	m.during("its end", release, by("levee_broker_in_flight_bytes", -float64(len(two))), by("levee_storage_unsynced_bytes", -frame(two)),
		by("levee_broker_publish_records_total", 2))
	m.during("closing the publisher", p.Close, by("levee_broker_publishers", -1))
	m.matchesDisk("all of it")
}

func moveSubscribe(s *site) {
	t := s.t
	m := s.start(disk{vfs.NewMem()}, "a")
	b := m.broker.Load()
	m.create(broker.TopicSpec{Name: "a"})
	m.create(broker.TopicSpec{Name: "fast", Dispatch: broker.NonReliable})
	batch := pack(t, record.NoProducer, "1", "2")
	m.send("a", batch)
	var reader, slow *broker.Subscriber
	m.during("subscribing", func() { reader = m.subscribe("a", broker.Earliest()) }, by("levee_broker_subscribers", 1))
	m.during("reading", func() {
		for m.next(reader).Kind != broker.EventAtEnd {
		}
	}, by("levee_broker_delivered_records_total", 2), by("levee_broker_delivered_bytes_total", float64(len(batch))))
	m.during("subscribing once more", func() { slow = m.subscribe("fast", broker.Latest()) }, by("levee_broker_subscribers", 1))
	m.during("one subscriber too many", func() {
		if _, err := b.Subscribe(t.Context(), broker.SubscribeSpec{Topic: "a"}); err == nil {
			t.Error("subscribed")
		}
	}, by("levee_broker_subscribers_refused_total", 1), by("levee_broker_subscribers", 0))

	last := pack(t, record.NoProducer, "6")
	m.during("more than a slow subscriber may have waiting", func() { m.send("fast", pack(t, record.NoProducer, "3", "4", "5"), last) },
		by("levee_broker_non_reliable_dropped_records_total", 3), by("levee_broker_publish_records_total", 4))
	m.during("what is left for it", func() {
		if e := m.next(slow); e.Dropped != 3 || e.Records != 1 {
			t.Errorf("%+v", e)
		}
	}, by("levee_broker_delivered_records_total", 1), by("levee_broker_delivered_bytes_total", float64(len(last))))
	m.during("leaving", func() { slow.Close(); reader.Close() }, by("levee_broker_subscribers", -2))

	old := reader.Info().TopicID
	gone := func() {
		if _, err := b.Subscribe(t.Context(), broker.SubscribeSpec{Topic: "a", ID: old[:]}); err == nil {
			t.Error("subscribed")
		}
	}
	m.during("subscribing to what was deleted", func() {
		if err := b.DeleteTopic(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		gone()
	}, by("levee_topic_incarnation_refused_total", 1), by("levee_broker_topics", -1))
	m.during("subscribing to what was replaced", func() { m.create(broker.TopicSpec{Name: "a"}); gone() },
		by("levee_topic_incarnation_refused_total", 1), by("levee_broker_topics", 1))
}

func moveTopics(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "a")
	b := m.broker.Load()
	m.create(broker.TopicSpec{Name: "big", Settings: broker.Settings{SegmentBytes: ptr(int64(64 << 10))}})
	m.during("appends over five segments", func() { m.send("big", blocks(t, 15)...) }, by("levee_storage_segments", 5))
	m.matchesDisk("rolls")

	const keep = 150 << 10
	removed, size := 0.0, 0.0
	files := d.find(t, m.dir, "/big@1/0/", segfmt.LogSuffix)
	sizes := below(t, d, m.dir)
	total := 0.0
	for _, name := range files {
		total += float64(sizes[name])
	}
	for ; total-size > keep; removed++ {
		size += float64(sizes[files[int(removed)]])
	}
	m.during("retention", func() {
		if _, err := b.SetTopic(t.Context(), "big", broker.Settings{RetentionBytes: ptr(int64(keep))}, nil); err != nil {
			t.Fatal(err)
		}
	}, by("levee_storage_retention_deleted_bytes_total", size), by("levee_storage_segments", -removed))
	m.matchesDisk("retention")

	left := float64(len(files)) - removed
	m.during("unloading", func() {
		if err := b.UnloadTopic(t.Context(), "big"); err != nil {
			t.Fatal(err)
		}
	}, by(`levee_broker_partitions{state="serving"}`, -1), by(`levee_broker_partitions{state="unloaded"}`, 1),
		by("levee_storage_segments", -left), by("levee_storage_unsynced_bytes", 0))
	m.matchesDisk("unloading", "big")
	m.during("using it again", func() { m.subscribe("big", broker.Earliest()) },
		by(`levee_broker_partitions{state="serving"}`, 1), by(`levee_broker_partitions{state="unloaded"}`, -1),
		by("levee_storage_segments", left), by("levee_storage_recovery_duration_seconds", 1),
		by("levee_storage_producer_state_rebuilt_total", 0), by("levee_storage_index_rebuilt_total", 0))
	m.matchesDisk("loading")
	m.during("deleting", func() {
		if err := b.DeleteTopic(t.Context(), "big"); err != nil {
			t.Fatal(err)
		}
	}, by("levee_broker_topics", -1), by(`levee_broker_partitions{state="serving"}`, -1), by("levee_broker_topics_purged_total", 1),
		by("levee_storage_segments", -left), by("levee_storage_retention_deleted_bytes_total", 0))
	m.matchesDisk("deleting")
	if f, _ := m.onDisk(); f != 1 {
		t.Errorf("%v segments are left beside the metadata's", f-1)
	}
}

func moveUnsynced(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "a")
	m.create(broker.TopicSpec{Name: "p", Settings: broker.Settings{Fsync: ptr("periodic"), FsyncInterval: ptr(time.Millisecond)}})
	m.send("p", pack(t, record.NoProducer, "makes the file"))
	m.sinceStart("the first interval", by("levee_storage_unsynced_bytes", 0))
	batch := pack(t, record.NoProducer, "1", "2", "3")
	reached, release := d.hold(t, where{vfs.OpSync, firstSegment("p")})
	m.during("an append that is not flushed yet", func() { m.send("p", batch); <-reached },
		by("levee_storage_unsynced_bytes", frame(batch)), by("levee_storage_append_duration_seconds", 1),
		by("levee_storage_sync_duration_seconds", 0), by("levee_broker_in_flight_bytes", 0))
	m.during("the flush after the interval", release,
		by("levee_storage_unsynced_bytes", -frame(batch)), by("levee_storage_sync_duration_seconds", 1),
		by("levee_storage_sync_batch_records", 1), by("levee_storage_sync_batch_records:sum", 3))

	m.create(broker.TopicSpec{Name: "n", Settings: broker.Settings{Fsync: ptr("none")}})
	m.during("appends that nobody flushes", func() { m.send("n", batch, batch) },
		by("levee_storage_unsynced_bytes", 2*frame(batch)), by("levee_storage_sync_duration_seconds", 0))
	m.during("unloading flushes them", func() {
		if err := m.broker.Load().UnloadTopic(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
	}, by("levee_storage_unsynced_bytes", -2*frame(batch)), by("levee_storage_sync_batch_records:sum", 6))
	m.matchesDisk("flushes", "n")
}

func moveFull(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "a")
	m.create(broker.TopicSpec{Name: "a"})
	m.create(broker.TopicSpec{Name: "b"})
	one := pack(t, record.NoProducer, "1")
	m.send("a", one)
	full := func(what string, err error, at where, topic string) {
		t.Helper()
		m.during(what, func() {
			d.fail(err, at)
			m.refused(topic, one)
			m.refused(topic, one)
			d.heal()
		}, by("levee_storage_full_total", 2), by(`levee_broker_publish_errors_total{kind="no_space"}`, 2),
			by("levee_storage_bytes", 0), by("levee_storage_segments", 0), by("levee_storage_unsynced_bytes", 0),
			by("levee_broker_in_flight_bytes", 0), by("levee_storage_sync_failures_total", 0))
		m.matchesDisk(what)
	}
	full("writes refused", vfs.ErrNoSpace, where{vfs.OpWrite, firstSegment("a")}, "a")
	full("writes cut short", vfs.ShortWrite{N: 10, Err: vfs.ErrNoSpace}, where{vfs.OpWrite, firstSegment("a")}, "a")
	full("segments not created", vfs.ErrNoSpace, where{vfs.OpCreate, firstSegment("b")}, "b")
	m.during("a disk that is full", func() {
		d.SetSpace(0)
		m.refused("a", blocks(t, 4)[3])
		m.refused("a", pack(t, record.NoProducer, strings.Repeat("larger than what is reserved ", 10_000)))
		d.SetSpace(-1)
	}, atLeast("levee_storage_full_total", 1))
	m.during("a disk with room again", func() { m.send("a", one); m.send("b", one) },
		by("levee_storage_full_total", 0), by("levee_broker_publish_records_total", 2))
	m.matchesDisk("a full disk")
	m.during("no room for the metadata", func() {
		d.fail(vfs.ErrNoSpace, where{vfs.OpWrite, "/" + logDir + "/"}, where{vfs.OpWrite, "/" + reserveFile}) // or the reserve may be back before anybody looks
		if _, err := m.broker.Load().CreateTopic(t.Context(), broker.TopicSpec{Name: "c"}); err == nil {
			t.Error("created")
		}
	}, by("levee_storage_full_total", 1), by("levee_raft_append_failures_total", 1), by("levee_raft_stopped", 0),
		by("levee_broker_topics", 0), by("levee_raft_propose_seconds", 0), by("levee_server_metadata_reserve_bytes", -reserveBytes))
	m.matchesDisk("metadata refused")
	m.during("room for the metadata", func() { d.heal(); m.create(broker.TopicSpec{Name: "c"}) },
		by("levee_storage_full_total", 0), by("levee_broker_topics", 1), by("levee_server_metadata_reserve_bytes", reserveBytes))
}

func moveFailedFlush(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "a")
	m.create(broker.TopicSpec{Name: "a"})
	one, lost := pack(t, record.NoProducer, "1"), pack(t, record.NoProducer, "2", "3")
	m.send("a", one)
	m.during("a flush that fails", func() {
		d.fail(vfs.ErrIO, where{vfs.OpSync, firstSegment("a")})
		m.refused("a", lost)
		d.heal()
	}, by("levee_storage_sync_failures_total", 1), by("levee_server_flush_failures_total", 1), by("levee_storage_sync_duration_seconds", 0),
		by(`levee_broker_publish_errors_total{kind="outcome_unknown"}`, 1), by("levee_storage_unsynced_bytes", frame(lost)),
		by("levee_storage_bytes", frame(lost)), by("levee_broker_in_flight_bytes", 0),
		by(`levee_broker_partitions{state="serving"}`, -1), by(`levee_broker_partitions{state="unavailable"}`, 1))
	m.matchesDisk("a flush that failed")
	// What the device never got reads as zeros, which recovery cuts and does not keep.
	m.during("opening it again", func() {
		if m.broker.Load().UnloadTopic(t.Context(), "a") == nil {
			t.Error("a log that stood stopped was unloaded as if nothing were the matter")
		}
		m.send("a", one)
	}, by("levee_storage_unsynced_bytes", -frame(lost)), by("levee_storage_bytes", frame(one)-frame(lost)),
		by("levee_storage_recovery_truncated_bytes", frame(lost)), by("levee_storage_salvaged_bytes_total", 0),
		by(`levee_broker_partitions{state="serving"}`, 1), by(`levee_broker_partitions{state="unavailable"}`, -1))
	m.matchesDisk("opening it again")
}

func moveTornTail(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "first")
	m.create(broker.TopicSpec{Name: "a"})
	m.create(broker.TopicSpec{Name: "p", Settings: broker.Settings{Fsync: ptr("periodic"), FsyncInterval: ptr(time.Hour)}})
	m.send("a", pack(t, record.NoProducer, "kept"))
	m.send("p", pack(t, record.NoProducer, "kept"))
	const torn = 30
	var found atomic.Pointer[vfs.Mem]
	d.SetHook(func(op vfs.Op) error {
		if at := (where{vfs.OpSync, firstSegment("a")}); at.is(op) {
			found.CompareAndSwap(nil, d.Crash(vfs.ChooserFunc(func(u vfs.Unsynced) vfs.Fate {
				if u.Kind == vfs.OpWrite && strings.Contains(u.Path, firstSegment("a")) {
					return vfs.Fate{How: vfs.Torn, N: torn}
				}
				return vfs.Fate{How: vfs.Kept}
			})))
		}
		return nil
	})
	m.send("a", pack(t, record.NoProducer, "cut off"))
	d.heal()
	_ = m.end()

	m = s.start(disk{found.Load()}, "second")
	m.sinceStart("power lost in the middle of a write",
		by(`levee_server_last_run{end="machine_crash"}`, 1), by(`levee_server_last_run{end="clean"}`, 0),
		by("levee_storage_recovery_truncated_bytes", torn), by("levee_storage_salvaged_bytes_total", torn),
		by("levee_storage_recovery_duration_seconds", 3), atLeast("levee_storage_recovery_duration_seconds:sum", 1e-9),
		by("levee_storage_unsynced_bytes", 0))
	m.matchesDisk("recovery")
	// Nothing but metadata was written since: offsets that were declared lost are no records.
	if records, entries := m.value("levee_storage_sync_batch_records:sum"), m.value("levee_raft_commit_entries:sum"); records != entries {
		t.Errorf("flushes made %v records durable, of %v that were written", records, entries)
	}
	m.during("reading what may have lost records", func() {
		for sub := m.subscribe("p", broker.Earliest()); m.next(sub).Kind != broker.EventLost; {
		}
	}, by("levee_broker_lost_ranges_told_total", 1))
}

func moveRepairs(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "a")
	m.create(broker.TopicSpec{Name: "a", Settings: broker.Settings{SegmentBytes: ptr(int64(64 << 10))}})
	m.send("a", blocks(t, 9)...)
	dir := m.dir
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	m = s.start(d, "a")
	m.sinceStart("a start on all there is", by("levee_storage_index_rebuilt_total", 0), by("levee_storage_producer_state_rebuilt_total", 0),
		by("levee_topic_incarnation_refused_total", 0))
	if err := m.end(); err != nil {
		t.Fatal(err)
	}

	d.remove(t, d.find(t, dir, "/a@1/0/", segfmt.IndexSuffix)[0])
	for _, name := range d.find(t, dir, "/a@1/0/", segfmt.ProducersPrefix) {
		d.remove(t, name)
	}
	if err := d.MkdirAll(dir + "/" + topicsDir + "/default/ghost@3"); err != nil {
		t.Fatal(err)
	}
	m = s.start(d, "a")
	m.sinceStart("a start on what is left", by("levee_storage_index_rebuilt_total", 1), by("levee_storage_producer_state_rebuilt_total", 1),
		by("levee_topic_incarnation_refused_total", 1), by("levee_storage_recovery_truncated_bytes", 0))
	m.matchesDisk("repairs")
}

// propose changes the metadata n times.
func (m *meter) propose(n int) {
	m.t.Helper()
	store := m.metadata.Load().store
	var left atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := store.Propose(m.t.Context(), meta.ReserveProducerIDs{Count: 1}); err != nil {
					m.t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func moveMetadata(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "a")
	const due, again = 10_000, 1_100 // commands to a snapshot, and to the next try after one that failed
	m.during("commands up to a snapshot that cannot be written", func() {
		d.fail(vfs.ErrIO, where{vfs.OpCreate, "/" + snapshotDir + "/"})
		m.propose(due)
	}, by("levee_raft_propose_seconds", due), atLeast("levee_raft_propose_seconds:sum", 1e-9), by("levee_raft_commit_entries:sum", due),
		by("levee_raft_snapshot_failures_total", 1), by("levee_raft_snapshots_total", 0), by("levee_raft_snapshot_bytes", 0))
	d.heal()
	m.during("commands up to the next try", func() { m.propose(again) },
		by("levee_raft_snapshots_total", 1), by("levee_raft_snapshot_failures_total", 0), atLeast("levee_raft_snapshot_bytes", 1))
	m.matchesDisk("a snapshot")
	size, dir := m.value("levee_raft_snapshot_bytes"), m.dir
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	name := d.find(t, dir, "/"+snapshotDir+"/", ".snap")[0]
	if whole := float64(below(t, d, dir)[name]); whole <= size || whole > size+200 {
		t.Errorf("a snapshot of %v bytes is a file of %v", size, whole)
	}
	f, err := d.Open(name, false)
	if err != nil {
		t.Fatal(err)
	}
	_, werr := f.WriteAt([]byte("damage"), 20)
	if err := errors.Join(werr, f.Close()); err != nil {
		t.Fatal(err)
	}
	m = s.start(d, "a")
	m.sinceStart("a start on a damaged snapshot, which another replaces", by("levee_raft_snapshots_damaged_total", 1), by("levee_raft_snapshots_total", 1))
}

func moveMetadataStops(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	m := s.start(d, "a")
	m.during("a flush of the metadata that fails", func() {
		d.fail(vfs.ErrIO, where{vfs.OpSync, "/" + logDir + "/" + segfmt.FileName(0, segfmt.LogSuffix)})
		if _, err := m.broker.Load().CreateTopic(t.Context(), broker.TopicSpec{Name: "a"}); err == nil {
			t.Error("created")
		}
		d.heal()
	}, by("levee_raft_append_failures_total", 1), by("levee_raft_stopped", 1), by("levee_storage_sync_failures_total", 1),
		by("levee_server_flush_failures_total", 1), by("levee_broker_topics", 0))
}

// wire counts the bytes of a client's connections.
type wire struct{ read, written atomic.Int64 }

func (w *wire) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &countedConn{c, w}, nil
}

type countedConn struct {
	net.Conn
	wire *wire
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.read.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.wire.written.Add(int64(n))
	return n, err
}

// dial connects to the gRPC listener.
func (m *meter) dial(w *wire) *rpc.ClientConn {
	m.t.Helper()
	conn, err := rpc.NewClient("passthrough:///"+m.listening.GRPC, rpc.WithTransportCredentials(insecure.NewCredentials()), rpc.WithContextDialer(w.dial))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// plain connects and says nothing.
func plain(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// cutOff waits until the other side closes the connection.
func cutOff(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the connection is not closed: %v", err)
	}
}

func moveGRPC(s *site) {
	t := s.t
	m := s.start(disk{vfs.NewMem()}, "a")
	m.create(broker.TopicSpec{Name: "a"})
	w := &wire{}
	conn := m.dial(w)
	client := leveev1.NewStreamClient(conn)
	m.during("connecting", conn.Connect, by("levee_grpc_connections", 1))
	m.during("publishing once, and to nowhere", func() {
		once := &leveev1.PublishOnceRequest{Topic: "a", Records: []*leveev1.Record{{Value: []byte("1")}}}
		if _, err := client.PublishOnce(t.Context(), once); err != nil {
			t.Fatal(err)
		}
		once.Topic = "nothing"
		if _, err := client.PublishOnce(t.Context(), once); err == nil {
			t.Error("published")
		}
	}, by(`levee_grpc_publish_requests_total{call="once"}`, 2), by(`levee_grpc_call_errors_total{kind="not_found"}`, 1),
		by("levee_grpc_connections", 0), by("levee_broker_publish_records_total", 1))
	moveStreams(m, client)
	if !until(func() bool {
		now := readMetrics(t, m.registry)
		return now["levee_grpc_received_bytes_total"] == float64(w.written.Load()) && now["levee_grpc_sent_bytes_total"] == float64(w.read.Load())
	}) {
		t.Fatalf("the client sent %d bytes and read %d; the broker says %v and %v", w.written.Load(), w.read.Load(),
			m.value("levee_grpc_received_bytes_total"), m.value("levee_grpc_sent_bytes_total"))
	}
	m.seen.note("levee_grpc_received_bytes_total", float64(w.written.Load()))
	m.seen.note("levee_grpc_sent_bytes_total", float64(w.read.Load()))

	var second net.Conn
	m.during("a second connection", func() { second = plain(t, m.listening.GRPC) }, by("levee_grpc_connections", 1))
	m.during("a third, of two that may be open", func() { cutOff(t, plain(t, m.listening.GRPC)) },
		by("levee_grpc_connections_refused_total", 1), by("levee_grpc_connections", 0))
	m.during("leaving", func() { _ = second.Close(); _ = conn.Close() }, by("levee_grpc_connections", -2))
}

// moveStreams opens and ends the long-lived calls.
func moveStreams(m *meter, client leveev1.StreamClient) {
	t := m.t
	batch := pack(t, record.NoProducer, "2")
	pub, err := client.Publish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sendAll := func(reqs ...*leveev1.PublishRequest) {
		for _, r := range reqs {
			if err := pub.Send(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.during("opening a publish stream", func() { sendAll(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: "a"}}) },
		by(`levee_grpc_streams{kind="publish"}`, 1), by(`levee_grpc_publish_requests_total{call="stream"}`, 0))
	m.during("three batches in two messages", func() {
		sendAll(&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: 1, Data: batch}, {Id: 2, Data: batch}}},
			&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: 3, Data: batch}}})
	}, by(`levee_grpc_publish_requests_total{call="stream"}`, 2), by("levee_grpc_publish_batches_total", 3),
		by("levee_broker_publish_records_total", 3))
	m.during("ending it", func() {
		err := pub.CloseSend()
		for err == nil {
			_, err = pub.Recv()
		}
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}, by(`levee_grpc_streams{kind="publish"}`, -1))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sub, err := client.Subscribe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m.during("opening a subscribe stream", func() {
		if err := sub.Send(&leveev1.SubscribeRequest{Open: &leveev1.OpenSubscribe{Topic: "a"}, Credit: &leveev1.Credit{Bytes: 1 << 20}}); err != nil {
			t.Fatal(err)
		}
	}, by(`levee_grpc_streams{kind="subscribe"}`, 1), by("levee_broker_subscribers", 1), by("levee_broker_delivered_records_total", 4))
	m.during("leaving it", func() {
		cancel()
		for err == nil {
			_, err = sub.Recv()
		}
	}, by(`levee_grpc_streams{kind="subscribe"}`, -1), by("levee_broker_subscribers", -1))
}

func moveHTTP(s *site) {
	t := s.t
	m := s.start(disk{vfs.NewMem()}, "a")
	m.create(broker.TopicSpec{Name: "a"})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	url := "http://" + m.listening.HTTP
	m.during("requests", func() { get(t, client, url+"/healthz"); get(t, client, url+"/healthz"); get(t, client, url+"/nothing") },
		by(`levee_http_requests_total{code="200",route="/healthz"}`, 2), by(`levee_http_request_duration_seconds{route="/healthz"}`, 2),
		by(`levee_http_requests_total{code="404",route="unknown"}`, 1), by(`levee_http_request_duration_seconds{route="unknown"}`, 1),
		atLeast(`levee_http_request_duration_seconds{route="/healthz"}:sum`, 1e-9))
	const records = "/v1/topics/{namespace}/{topic}/records"
	var resp *http.Response
	m.during("a stream", func() {
		var err error
		if resp, err = client.Get(url + "/v1/topics/default/a/records?follow=1"); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}, by("levee_http_streams", 1), by("levee_broker_subscribers", 1))
	m.during("its end", func() { _ = resp.Body.Close() }, by("levee_http_streams", -1), by("levee_broker_subscribers", -1),
		by(`levee_http_requests_total{code="200",route="`+records+`"}`, 1), by(`levee_http_request_duration_seconds{route="`+records+`"}`, 0))
	client.CloseIdleConnections()
	_ = m.end()

	m = s.start(disk{vfs.NewMem()}, "a") // no connection of the other's clients takes up room here
	m.during("three connections, of two that may be open", func() {
		plain(t, m.listening.HTTP)
		plain(t, m.listening.HTTP)
		cutOff(t, plain(t, m.listening.HTTP))
	}, by("levee_http_refused_connections_total", 1))
}
