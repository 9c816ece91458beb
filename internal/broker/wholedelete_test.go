package broker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/vfs"
)

// TestDirectoryIsWholeOrAside covers RET-07: whatever a power loss leaves of a deletion, at any of its steps, the topic's
// directory under its own name is complete or not there at all. What is half removed is where nothing serves it.
func TestDirectoryIsWholeOrAside(t *testing.T) {
	r := newRig(t)
	r.create("a", TopicSpec{Partitions: 2, Settings: Settings{SegmentBytes: ptr[int64](64 << 10)}})
	for p := range int32(2) {
		for range 3 {
			r.publish("a", p, strings.Repeat("x", 40<<10))
		}
	}
	const dir = "/data/topics/default/a@1"
	// Closing the topic writes to its directory once more, so the segments are what must stay together.
	whole := segmentsBelow(t, r.fs, dir)
	if len(whole) < 4 {
		t.Fatalf("only %q", whole)
	}
	var mu sync.Mutex
	states, gone := 0, 0
	r.fs.SetHook(func(op vfs.Op) error {
		if !op.Kind.Changes() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		for seed := range uint64(8) {
			left := r.fs.Crash(vfs.Random(seed))
			states++
			there, err := vfs.Exists(left, dir)
			if err != nil {
				t.Error(err)
			}
			if !there {
				gone++
			} else if got := segmentsBelow(t, left, dir); fmt.Sprint(got) != fmt.Sprint(whole) {
				t.Errorf("before %v, seed %d: %s holds %q, and held %q", op, seed, dir, got, whole)
			}
		}
		return nil
	})
	if err := r.DeleteTopic(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	r.awaitPurged()
	r.fs.SetHook(nil)
	mu.Lock()
	defer mu.Unlock()
	if gone == 0 || gone == states {
		t.Fatalf("the directory was gone in %d of %d states: the test looked at the wrong time", gone, states)
	}
	if there, err := vfs.Exists(r.fs, dir); there || err != nil {
		t.Fatalf("still there: %t, %v", there, err)
	}
}

// segmentsBelow lists the segments of a topic's partitions with their sizes.
func segmentsBelow(t *testing.T, fs vfs.FS, dir string) (list []string) {
	t.Helper()
	for p := range 2 {
		infos, err := fs.List(fmt.Sprint(dir, "/", p))
		if err != nil {
			list = append(list, err.Error())
		}
		for _, i := range infos {
			if strings.HasSuffix(i.Name, ".log") {
				list = append(list, fmt.Sprint(p, "/", i.Name))
			}
		}
	}
	return list
}
