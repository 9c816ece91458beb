package seglog

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

// fourSegments returns a log of small segments, ten frames, one record each.
func fourSegments(t *testing.T, fs vfs.FS) (*Log, Config) {
	t.Helper()
	cfg := testConfig(fs)
	cfg.SegmentBytes = 512
	l := mustOpen(t, cfg)
	for i := range 10 {
		mustAppend(t, l, batch(t, noProducer, fmt.Sprintf("%0100d", i)))
	}
	return l, cfg
}

// TestTruncationCutShort fails every operation of a truncation and of a reset: nothing was removed and the log goes on, or
// it stops; either way, opened again it holds a prefix of what it held, with all that was to stay.
func TestTruncationCutShort(t *testing.T) {
	for name, cut := range map[string]struct {
		do   func(l *Log) error
		keep int
	}{
		"truncate": {func(l *Log) error { return l.TruncateAfter(context.Background(), 4) }, 4},
		"reset":    {func(l *Log) error { return l.Reset(context.Background(), 50, 500, 1) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { cutShort(t, cut.do, cut.keep) }) // no time passes, so no timer writes a mark beside it
		})
	}
}

func cutShort(t *testing.T, cut func(l *Log) error, keep int) {
	for nth, failed := 1, true; failed; nth++ {
		fs := vfs.NewMem()
		l, cfg := fourSegments(t, fs)
		n, removed := 0, false
		failed = false
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpReserve {
				return nil // beside the queue, and harmless
			}
			if n++; n == nth {
				failed = true
				return vfs.ErrIO
			}
			if op.Kind == vfs.OpRemove && !failed {
				removed = true
			}
			return nil
		})
		err := cut(l)
		fs.SetHook(nil)
		switch stopped := l.Err(); {
		case removed && err != nil && fault.KindOf(stopped) != fault.Stopped:
			t.Fatalf("operation %d failed (%v) after a part was removed, and the log goes on: %v", nth, err, stopped)
		case err != nil && stopped == nil:
			if got := len(readAll(t, l, 0)); got != 10 {
				t.Fatalf("operation %d failed (%v): the log goes on with %d records", nth, err, got)
			}
		}
		cfg.FS, cfg.Crash = fs.Crash(vfs.KeepNothing), MachineCrash
		again := mustOpen(t, cfg)
		if err != nil {
			for i, r := range readAll(t, again, 0) {
				if string(r.Value) != fmt.Sprintf("%0100d", i) || r.Offset != int64(i) {
					t.Fatalf("operation %d: record %d is %d %s", nth, i, r.Offset, r.Value)
				}
			}
			if end := again.Bounds().End; end < int64(keep) {
				t.Fatalf("operation %d: the log ends at %d", nth, end)
			}
		}
		mustClose(t, again)
		if err := l.Close(); err != nil && l.Err() == nil {
			t.Fatal(err)
		}
	}
}
