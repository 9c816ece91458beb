package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

const (
	exports     = "levee_storage_exports_total"
	exporting   = "levee_storage_exports_in_progress"
	unavailable = `levee_storage_export_failures_total{kind="unavailable"}`
	cacheHits   = "levee_storage_cold_cache_hits_total"
	cacheMisses = "levee_storage_cold_cache_misses_total"
	cacheShared = "levee_storage_cold_cache_shared_total"

	metadataCopied      = "levee_storage_metadata_copied_index"
	metadataUnavailable = `levee_storage_metadata_failures_total{kind="unavailable"}`

	damaged = "levee_storage_cold_damaged_total"
)

// moveTiers has segments copied to a directory, and read there.
func moveTiers(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	root := filepath.Join(t.TempDir(), "objects")
	s.changes = map[string]string{
		"storage.mode": "shared_fs", "storage.root": root, "storage.retention_check": "100ms", "storage.segment_bytes": "64KiB",
		"storage.retention_bytes": "1", "storage.export_parallel": "1", "storage.seal_age": "1s",
	}
	if err := os.Mkdir(root, 0o755); err != nil { // a first start has to ask the directory whether there is a copy of the metadata
		t.Fatal(err)
	}
	m := s.start(d, "a")
	m.during("a new topic", func() {
		m.create(broker.TopicSpec{Name: "a"})
		until(func() bool { return m.value(metadataCopied) >= float64(m.metadata.Load().store.View().Index()) })
	}, atLeast(metadataCopied, 1), atLeast("levee_storage_metadata_copies_total", 1), atLeast("levee_storage_metadata_copy_bytes", 1))
	m.shut(t)
	if err := os.Rename(root, root+"-away"); err != nil {
		t.Fatal(err)
	}
	m = s.start(d, "a")
	m.sinceStart("a start without the directory", atLeast(metadataUnavailable, 1))
	m.during("a change that cannot be copied", func() { m.create(broker.TopicSpec{Name: "b"}) }, atLeast("levee_storage_metadata_lag_seconds", 0.0001))
	m.sinceStart("the start", by(unavailable, 0))
	send := func(from, n int) {
		for i := from; i < from+n; i++ {
			m.send("a", pack(t, record.NoProducer, fmt.Sprintf("%d %s", i, strings.Repeat("x", 20<<10))))
		}
	}
	m.during("a copy to a directory that is not there", func() { send(0, 4) }, atLeast(unavailable, 1), by(exports, 0))
	const lag, held, exposed = "levee_storage_export_lag_bytes", "levee_storage_export_held_bytes", "levee_storage_exposure_bytes"
	m.during("what waits for the directory", func() { send(28, 4) }, atLeast(lag, 60<<10), atLeast(held, 60<<10), atLeast(exposed, 60<<10))
	const lagAge, exposedAge = "levee_storage_export_lag_seconds", "levee_storage_exposure_seconds"
	m.during("what waits longer", func() {}, atLeast(lagAge, 0.01), atLeast(exposedAge, 0.01))
	until(func() bool { return strings.Contains(m.lines.String(), "stay on this disk until they are") })
	m.during("the directory that is back", func() {
		if err := os.Rename(root+"-away", root); err != nil {
			t.Fatal(err)
		}
		until(func() bool { return m.value("levee_storage_metadata_lag_seconds") == 0 })
	}, atLeast("levee_storage_metadata_lag_seconds", -0.0001), atLeast(lag, -1000), atLeast(held, -1000), atLeast(exposed, -1000), atLeast(lagAge, -0.001), atLeast(exposedAge, -0.001))
	m.during("copies", func() { send(4, 20) }, atLeast(exports, 4), atLeast("levee_storage_exported_bytes_total", 4*60<<10), atLeast("levee_storage_export_duration_seconds", 4))
	until(func() bool { // nothing is left to seal by its age either, whose copy would be under way already
		dsc, err := m.broker.Load().DescribeTopic(t.Context(), "a")
		return err == nil && dsc.Parts[0].ExposedBytes == 0 && m.value(exporting) == 0
	})
	reached, release := d.hold(t, where{vfs.OpRead, "/topics/"})
	m.during("one that waits for the disk", func() { send(24, 4); <-reached }, by(exporting, 1))
	m.during("its end", release, by(exporting, -1))
	until(func() bool {
		dsc, err := m.broker.Load().DescribeTopic(t.Context(), "a")
		return err == nil && dsc.Parts[0].Segments == 1
	})
	m.during("a read of what is only copied", func() { m.readCold(t, 10) }, atLeast(cacheMisses, 2), atLeast("levee_storage_cold_fetch_seconds", 2), atLeast("levee_storage_cold_read_seconds", 1), atLeast("levee_storage_cold_cache_used_bytes", 1000))
	m.during("another one", func() { m.readCold(t, 10) }, atLeast(cacheHits, 1), by(cacheMisses, 0))
	m.shut(t)
	for range 50 { // until two ask for the same at the same time
		m = s.start(d, "a")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { m.readCold(t, 3) })
		}
		wg.Wait()
		if m.value(cacheShared) > 0 {
			break
		}
		m.shut(t)
	}
	m.sinceStart("eight reads at once", atLeast(cacheShared, 1), by(damaged, 0))
	m.shut(t)
	damageObjects(t, root)
	m = s.start(d, "a")
	m.during("a read of damaged bytes", func() {
		sub := m.subscribe("a", broker.Earliest())
		for {
			_, err := sub.Next(t.Context(), 0)
			if fault.KindOf(err) == fault.Corrupt {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}, atLeast(damaged, 1))
	m.create(broker.TopicSpec{Name: "c"})
	until(func() bool { return m.value(metadataCopied) >= float64(m.metadata.Load().store.View().Index()) })
	m.during("a retention of the copies", func() {
		one := int64(1)
		if _, err := m.broker.Load().SetTopic(t.Context(), "a", broker.Settings{ObjectRetentionBytes: &one}, nil); err != nil {
			t.Fatal(err)
		}
	}, atLeast("levee_storage_objects_expired_total", 3), atLeast("levee_storage_objects_expired_bytes_total", 3*60<<10), atLeast("levee_storage_metadata_copy_bytes", -1))
}

// readCold reads so many records from the oldest on.
func (m *meter) readCold(t *testing.T, n int) {
	sub, err := m.broker.Load().Subscribe(t.Context(), broker.SubscribeSpec{Topic: "a", Start: broker.Earliest()})
	if err != nil {
		t.Error(err)
		return
	}
	defer sub.Close()
	for n > 0 {
		e, err := sub.Next(t.Context(), 0)
		if err != nil {
			t.Error(err)
			return
		}
		n -= e.Records
	}
}

// shut stops the server.
func (m *meter) shut(t *testing.T) {
	t.Helper()
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
}

// damageObjects changes a byte of a record in each of the objects below a directory.
func damageObjects(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, e os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".lvseg") {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		b[len(b)/3] ^= 1
		return os.WriteFile(name, b, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}
