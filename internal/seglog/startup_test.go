package seglog

import (
	"fmt"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// readsOf counts the bytes that opening reads, by file.
func readsOf(t *testing.T, fs *vfs.Mem, cfg Config) map[string]int64 {
	t.Helper()
	var mu sync.Mutex
	read := map[string]int64{}
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpRead {
			mu.Lock()
			read[op.Path] += op.Len
			mu.Unlock()
		}
		return nil
	})
	l := mustOpen(t, cfg)
	fs.SetHook(nil)
	mustClose(t, l)
	mu.Lock()
	defer mu.Unlock()
	return read
}

// TestStartupIsBounded covers REC-07: however many sealed segments there are, opening reads of each its header and what
// stands behind its last index entry, and the active one in full; with VerifyAllOnOpen it reads everything.
func TestStartupIsBounded(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	cfg.SegmentBytes, cfg.IndexInterval, cfg.Mode = 64<<10, 1<<10, None
	l := mustOpen(t, cfg)
	frame := int64(0)
	for i := 0; l.Bounds().Segments < 20 || i%100 != 0; i++ {
		b := batch(t, producer(1, int32(i)), fmt.Sprintf("%0200d", i))
		frame = int64(len(b) + segfmt.FrameHeaderSize)
		mustAppend(t, l, b)
	}
	segs := l.view.Load().segs
	end := l.Bounds().End
	mustClose(t, l)
	most := segfmt.SegmentHeaderSize + 2*(cfg.IndexInterval+2*frame)
	for _, crash := range allCrashes {
		cfg.Crash = crash
		read := readsOf(t, fs, cfg)
		for i, s := range segs {
			info, err := fs.Stat(s.path)
			if err != nil {
				t.Fatal(err)
			}
			switch sealed := i < len(segs)-1; {
			case sealed && (read[s.path] > most || read[s.path] < segfmt.SegmentHeaderSize+frame):
				t.Errorf("%s: %d bytes of the sealed %s were read, want at most %d of its %d", crash.name(), read[s.path], s.path, most, info.Size)
			case !sealed && read[s.path] < info.Size:
				t.Errorf("%s: %d bytes of the active segment's %d were read", crash.name(), read[s.path], info.Size)
			}
		}
	}
	cfg.Crash, cfg.VerifyAllOnOpen = CleanStop, true
	read := readsOf(t, fs, cfg)
	for _, s := range segs {
		if info, err := fs.Stat(s.path); err != nil || read[s.path] < info.Size {
			t.Errorf("verify all: %d of %d bytes of %s were read, %v", read[s.path], info.Size, s.path, err)
		}
	}
	cfg.VerifyAllOnOpen = false
	l = mustOpen(t, cfg)
	if got := readAll(t, l, 0); int64(len(got)) != end {
		t.Fatalf("%d records of %d", len(got), end)
	}
	mustClose(t, l)
}

// TestFlushedBefore covers what of a file need not be read from the device again.
func TestFlushedBefore(t *testing.T) {
	fs := vfs.NewMem()
	const name = "/durable"
	if got := flushedBefore(fs, name, 7); got != 0 {
		t.Errorf("no mark: %d", got)
	}
	at := 5*vfs.LargestPage + 123
	put(t, fs, name, segfmt.Mark{Counter: 0, Seq: 3, Offset: 9, File: 7, Position: at}.Append(nil))
	if got := flushedBefore(fs, name, 7); got != 5*vfs.LargestPage {
		t.Errorf("flushed before %d: %d, want %d", at, got, 5*vfs.LargestPage)
	}
	if got := flushedBefore(fs, name, 8); got != 0 {
		t.Errorf("a mark in another segment: %d", got)
	}
	put(t, fs, name, []byte("no mark, but as long as one, or as long as it takes to be looked at and not believed"))
	if got := flushedBefore(fs, name, 7); got != 0 {
		t.Errorf("a mark that does not check: %d", got)
	}
}
