package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// moveMerges has small objects merged, deleted where the copy of the metadata says so, and read.
func moveMerges(s *site) {
	t, d := s.t, disk{vfs.NewMem()}
	root := filepath.Join(t.TempDir(), "objects")
	s.changes = map[string]string{
		"storage.mode": "shared_fs", "storage.root": root, "storage.retention_check": "100ms", "storage.segment_bytes": "64KiB",
		"storage.retention_bytes": "1", "storage.seal_age": "1s",
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	m := s.start(d, "a")
	m.create(broker.TopicSpec{Name: "a"})
	const merged = "levee_storage_merged_objects_total"
	m.during("small objects before a large one", func() {
		for i := range 5 {
			size, before := 100, m.value(exports)
			if i > 2 { // of these two one is sealed by size, and nothing can come to the small ones any more
				size = 50 << 10
			}
			m.send("a", pack(t, record.NoProducer, fmt.Sprintf("%d %s", i, strings.Repeat("x", size))))
			until(func() bool { return m.value(exports) > before || i == 3 })
		}
		until(func() bool { return m.value(merged) > 0 })
	}, by(merged, 3))
	m.readCold(t, 4)
	m.shut(t)
	if n := segmentObjects(t, root); n > 6 { // those that were merged stay for ten minutes
		t.Errorf("%d objects", n)
	}
}

// segmentObjects counts the objects of segments below a directory.
func segmentObjects(t *testing.T, root string) (n int) {
	t.Helper()
	if err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, tier.Suffix) {
			n++
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
