package seglog

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// TestOneFlushServesAllWaiting covers LOG-08: whatever is queued while a flush runs shares the next one, and all of it
// is answered together.
func TestOneFlushServesAllWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		cfg.SegmentBytes = 1 << 20
		l := mustOpen(t, cfg)
		mustAppend(t, l, batch(t, noProducer, "makes the file"))
		synctest.Wait()
		gate, syncs, writes := make(chan struct{}), 0, 0
		fs.SetHook(func(op vfs.Op) error {
			switch op.Kind {
			case vfs.OpSync:
				syncs++
				<-gate
			case vfs.OpWrite:
				writes++
			}
			return nil
		})
		var answered atomic.Int32
		start := func() {
			go func() {
				if _, err := l.Append(context.Background(), batch(t, noProducer, "x")); err != nil {
					t.Error(err)
				}
				answered.Add(1)
			}()
		}
		start()
		synctest.Wait() // the first is inside its flush
		for range 64 {
			start()
		}
		synctest.Wait()
		if answered.Load() != 0 || l.Bounds().End != 1 {
			t.Fatalf("%d answered and end %d before any flush came back", answered.Load(), l.Bounds().End)
		}
		gate <- struct{}{}
		synctest.Wait()
		if answered.Load() != 1 {
			t.Fatalf("%d answered by the first flush", answered.Load())
		}
		gate <- struct{}{}
		synctest.Wait()
		if answered.Load() != 65 || syncs != 2 || writes != 2 {
			t.Fatalf("%d answered, %d flushes, %d writes", answered.Load(), syncs, writes)
		}
		fs.SetHook(nil)
		mustClose(t, l)
	})
}

// TestReadersDoNotWaitForTheDevice covers LOG-09: behind a flush that hangs, reads, bounds and other logs go on.
func TestReadersDoNotWaitForTheDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		l := mustOpen(t, cfg)
		other := cfg
		other.Dir = "/data/other"
		l2 := mustOpen(t, other)
		for i := range 100 {
			mustAppend(t, l, batch(t, noProducer, fmt.Sprintf("%0100d", i)))
		}
		mustAppend(t, l2, batch(t, noProducer, "x"))
		for _, stuck := range []vfs.OpKind{vfs.OpSync, vfs.OpWrite} {
			gate := make(chan struct{})
			fs.SetHook(func(op vfs.Op) error {
				if op.Kind == stuck && strings.HasPrefix(op.Path, "/data/p/") {
					<-gate
				}
				return nil
			})
			before := l.Bounds().End
			done := make(chan error)
			go func() { done <- appendErr(l, batch(t, noProducer, "stuck")) }()
			synctest.Wait()
			if got := readAll(t, l, 0); int64(len(got)) != before {
				t.Fatalf("%d records read, %d were there", len(got), before)
			}
			mustAppend(t, l2, batch(t, noProducer, "y"))
			close(gate)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			fs.SetHook(nil)
		}
		mustClose(t, l)
		mustClose(t, l2)
	})
}

// TestRolloverIsDecidedBeforeTheWrite covers LOG-10 and LOG-11.
func TestRolloverIsDecidedBeforeTheWrite(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	l := mustOpen(t, cfg)
	writes := map[string]int{}
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite && strings.HasSuffix(op.Path, segfmt.LogSuffix) && op.Off > 0 {
			writes[fmt.Sprint(op.Path, op.Off)]++
		}
		return nil
	})
	appends := 0
	add := func(size int) {
		appends++
		mustAppend(t, l, batch(t, noProducer, strings.Repeat("x", size)))
	}
	for i := range 60 {
		add(100 + 37*(i%11))
	}
	add(20_000) // five times a segment: gets one to itself
	add(10)
	fs.SetHook(nil)
	if len(writes) != appends {
		t.Fatalf("%d appends took %d writes", appends, len(writes))
	}
	v := l.view.Load()
	alone := 0
	for i, s := range v.segs[:len(v.segs)-1] {
		info, err := fs.Stat(s.path)
		if err != nil || info.Size != s.end {
			t.Fatalf("sealed %s is %d bytes long, its frames end at %d (%v)", s.path, info.Size, s.end, err)
		}
		if s.end > cfg.SegmentBytes {
			alone++
			if s.next-s.BaseOffset != 1 {
				t.Fatalf("segment %d is over its size and holds %d batches", i, s.next-s.BaseOffset)
			}
		}
	}
	if alone != 1 {
		t.Fatalf("%d segments hold one large batch alone", alone)
	}
	mustClose(t, l)
}

// TestReservationGrowsAndIsGivenBack covers LOG-12.
func TestReservationGrowsAndIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		cfg.SegmentBytes, cfg.Mode = 16<<20, None
		reserved := int64(0)
		refuse := false
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpReserve {
				if refuse {
					return vfs.ErrNoSpace
				}
				reserved = op.Off + op.Len
			}
			if op.Kind == vfs.OpTruncate {
				reserved = op.Off
			}
			return nil
		})
		l := mustOpen(t, cfg)
		if _, err := fs.Stat(cfg.Dir); err == nil {
			t.Fatal("an empty log has files")
		}
		grow := func(to int64) {
			for l.Bounds().Bytes < to {
				mustAppend(t, l, batch(t, noProducer, strings.Repeat("x", 16<<10)))
				synctest.Wait()
			}
		}
		for _, c := range []struct{ written, reserved int64 }{{1, 64 << 10}, {70 << 10, 1 << 20}, {1100 << 10, 2 << 20}} {
			grow(c.written)
			if reserved < c.reserved || reserved > 2*c.reserved+(64<<10) {
				t.Errorf("%d bytes written: %d reserved, want about %d", c.written, reserved, c.reserved)
			}
		}
		for range 2 { // the second call finds it idle
			if _, err := l.Retain(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if end := l.tail.end; reserved != end {
			t.Errorf("idle at %d bytes, still %d reserved", end, reserved)
		}
		refuse = true
		grow(5 << 20) // a refused reservation is harmless
		mustClose(t, l)
	})
}
