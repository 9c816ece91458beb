package seglog

import (
	"fmt"
	"testing"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// TestFailedWriteIsCutBack covers LOG-04: a write fails after any number of its bytes. The file ends where it did, on the
// device too; no offset is used up; the next append, a smaller one, stands just where the failed one would have.
func TestFailedWriteIsCutBack(t *testing.T) {
	for _, mode := range []Mode{OnCommit, Periodic, None} {
		failed := batch(t, noProducer, fmt.Sprintf("%060d", 1), fmt.Sprintf("%060d", 2))
		for n := range segfmt.FrameHeaderSize + len(failed) {
			fs := vfs.NewMem()
			cfg := testConfig(fs)
			cfg.Mode = mode
			refuseReservations := func(op vfs.Op) error {
				if op.Kind == vfs.OpReserve {
					return vfs.ErrNoSpace // so that the file's size is what is in it
				}
				return nil
			}
			fs.SetHook(refuseReservations)
			l := mustOpen(t, cfg)
			mustAppend(t, l, batch(t, noProducer, "before"))
			name := cfg.Dir + "/" + segfmt.FileName(0, segfmt.LogSuffix)
			before := string(contentOf(t, fs, name))
			fs.SetHook(func(op vfs.Op) error {
				if op.Kind == vfs.OpWrite && op.Path == name {
					return vfs.ShortWrite{N: n, Err: vfs.ErrNoSpace}
				}
				return refuseReservations(op)
			})
			if err := appendErr(l, failed); err == nil || l.Err() != nil {
				t.Fatalf("%v, %d bytes written: %v, stopped by %v", mode, n, err, l.Err())
			}
			fs.SetHook(refuseReservations)
			if now := string(contentOf(t, fs, name)); now != before || l.Bounds().End != 1 {
				t.Fatalf("%v, %d bytes written: the file holds %d bytes, and held %d; end %d", mode, n, len(now), len(before), l.Bounds().End)
			}
			for _, crash := range []Crash{ProcessCrash, MachineCrash} {
				after := cfg
				after.FS, after.Crash = fs.Crash(vfs.KeepAll), crash
				if crash == MachineCrash { // the power takes the cutting back, if it can, and leaves what was written
					after.FS = fs.Crash(vfs.ChooserFunc(func(u vfs.Unsynced) vfs.Fate {
						if u.Kind == vfs.OpTruncate {
							return vfs.Fate{How: vfs.Lost}
						}
						return vfs.Fate{How: vfs.Kept}
					}))
				}
				l2, rep, err := Open(after)
				if err != nil || rep.Truncated != 0 || l2.Bounds().End != 1 {
					t.Fatalf("%v, %d bytes written, %s: %+v, %v", mode, n, crash.name(), rep, err)
				}
				mustClose(t, l2)
			}
			if r := mustAppend(t, l, batch(t, noProducer, "x")); r.Offset != 1 {
				t.Fatalf("%v, %d bytes written: the next append went to %d", mode, n, r.Offset)
			}
			mustClose(t, l)
			cfg.Crash = CleanStop
			l, rep, err := Open(cfg)
			if err != nil || len(rep.Repairs) > 0 || len(readAll(t, l, 0)) != 2 {
				t.Fatalf("%v, %d bytes written: opened again: %v, %v", mode, n, rep.Repairs, err)
			}
			mustClose(t, l)
		}
	}
}
