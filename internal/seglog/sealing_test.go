package seglog

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// TestSealingFlushesThenTrims covers LOG-11 in every mode: once a segment's last frame is written it is flushed, then cut
// to what it holds, and only then does its successor come to exist.
func TestSealingFlushesThenTrims(t *testing.T) {
	for _, mode := range []Mode{OnCommit, Periodic, None} {
		synctest.Test(t, func(t *testing.T) {
			fs := vfs.NewMem()
			cfg := testConfig(fs)
			cfg.Mode, cfg.SegmentBytes = mode, 64<<10
			first := path.Join(cfg.Dir, segfmt.FileName(0, segfmt.LogSuffix))
			var story []string
			var end, trimmed int64
			fs.SetHook(func(op vfs.Op) error {
				what := ""
				switch {
				case op.Path == first && op.Kind == vfs.OpWrite:
					what, end = "write", op.Off+op.Len
				case op.Path == first && op.Kind == vfs.OpSync:
					what = "flush"
				case op.Path == first && op.Kind == vfs.OpTruncate:
					what, trimmed = "trim", op.Off
				case op.Path != first && op.Kind == vfs.OpCreate && strings.HasSuffix(op.Path, segfmt.LogSuffix):
					what = "successor"
				}
				if what != "" && (len(story) == 0 || story[len(story)-1] != what) {
					story = append(story, what)
				}
				return nil
			})
			l := mustOpen(t, cfg)
			for l.Bounds().Segments < 2 {
				mustAppend(t, l, batch(t, noProducer, strings.Repeat("x", 3000)))
				synctest.Wait() // space is reserved
			}
			fs.SetHook(nil)
			told := strings.Join(story, ", ")
			if !strings.HasSuffix(told, "write, flush, trim, successor") || trimmed != end {
				t.Errorf("%v: %s; frames end at %d, trimmed to %d", mode, told, end, trimmed)
			}
			mustClose(t, l)
		})
	}
}

// TestReservingHoldsUpNobody covers LOG-12: a device that takes for ever to reserve space, or refuses to, costs an
// append nothing.
func TestReservingHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		cfg.SegmentBytes = 1 << 20
		gate := make(chan struct{})
		var asked atomic.Bool
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpReserve {
				asked.Store(true)
				<-gate
				return vfs.ErrNoSpace
			}
			return nil
		})
		l := mustOpen(t, cfg)
		for i := range 40 {
			if r, err := l.Append(context.Background(), batch(t, noProducer, strings.Repeat("x", 5000))); err != nil || r.Offset != int64(i) {
				t.Fatalf("append %d: %+v, %v", i, r, err)
			}
		}
		synctest.Wait()
		if !asked.Load() {
			t.Fatal("nothing was reserved")
		}
		close(gate)
		synctest.Wait()
		if got := readAll(t, l, 0); len(got) != 40 {
			t.Fatalf("%d records", len(got))
		}
		mustClose(t, l)
	})
}

// TestEmptyLogHasNoFiles covers LOG-12: what was never written to costs no disk, opened again and again.
func TestEmptyLogHasNoFiles(t *testing.T) {
	for _, mode := range []Mode{OnCommit, Periodic, None} {
		fs := vfs.NewMem()
		for _, crash := range allCrashes {
			cfg := testConfig(fs)
			cfg.Mode, cfg.Crash = mode, crash
			l := mustOpen(t, cfg)
			if _, err := l.Retain(context.Background()); err != nil {
				t.Fatal(err)
			}
			mustClose(t, l)
		}
		if infos, err := fs.List("/"); err != nil || len(infos) != 0 {
			t.Errorf("%v: an empty log left %s, %v", mode, fmt.Sprint(infos), err)
		}
	}
}
