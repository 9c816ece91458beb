package seglog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// TestLazily: many appends share one flush, and when the call is over, also with an error, everything is on the device and
// the log is in its own mode.
func TestLazily(t *testing.T) {
	failed := errors.New("a page was not there")
	for _, mode := range []Mode{OnCommit, Periodic, None} {
		for _, why := range []error{nil, failed} {
			t.Run(fmt.Sprintf("%v, %v", mode, why), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { lazily(t, mode, why) }) // no time passes, so no interval ends
			})
		}
	}
}

func lazily(t *testing.T, mode Mode, why error) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	cfg.Mode, cfg.SegmentBytes = mode, 1<<20
	l := mustOpen(t, cfg)
	mustAppend(t, l, batch(t, noProducer, "makes the file"))
	if err := l.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	flushes := 0
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync && strings.HasSuffix(op.Path, segfmt.LogSuffix) {
			flushes++
		}
		return nil
	})
	err := l.Lazily(context.Background(), func() error {
		for seq := uint64(2); seq <= 100; seq++ {
			e := Entry{Seq: seq, Generation: 1, Kind: segfmt.KindData, Batch: batch(t, noProducer, fmt.Sprintf("%0900d", seq))}
			if err := l.PutEntries(context.Background(), []Entry{e}); err != nil {
				return err
			}
		}
		return why
	})
	if !errors.Is(err, why) || flushes != 1 || l.mode() != mode {
		t.Fatalf("%v, %d flushes, mode %v", err, flushes, l.mode())
	}
	fs.SetHook(nil)
	cfg.FS = fs.Crash(vfs.KeepNothing)
	cfg.Crash = MachineCrash
	again := mustOpen(t, cfg)
	if b := again.Bounds(); b.NextSeq != 101 || b.End != 100 {
		t.Fatalf("after a power cut the log ends at frame %d, offset %d", b.NextSeq, b.End)
	}
	mustClose(t, again)
	mustAppend(t, l, batch(t, noProducer, "goes on"))
	mustClose(t, l)
}

// TestPutEntriesOfAnotherLength: a batch that is not as long as it says is refused, whoever has checked it, and the log goes on.
func TestPutEntriesOfAnotherLength(t *testing.T) {
	l := mustOpen(t, testConfig(vfs.NewMem()))
	mustAppend(t, l, batch(t, noProducer, "makes the file"))
	good := batch(t, noProducer, "value")
	for name, b := range map[string][]byte{"short": good[:len(good)-1], "long": append(good[:len(good):len(good)], 0)} {
		err := l.PutEntries(context.Background(), []Entry{{Seq: 2, Generation: 1, Kind: segfmt.KindData, Batch: b}})
		if fault.KindOf(err) != fault.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.PutEntries(context.Background(), []Entry{{Seq: 2, Generation: 1, Kind: segfmt.KindData, Batch: good}}); err != nil {
		t.Fatal(err)
	}
	if b := l.Bounds(); b.NextSeq != 3 || b.End != 2 {
		t.Errorf("bounds %+v", b)
	}
}
