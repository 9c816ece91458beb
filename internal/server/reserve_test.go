package server

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// TestMetadataGoesOnWhenTheDiskIsFull fills a disk: topics are refused, but the metadata can still change, so that a
// topic's settings can be lowered and a topic deleted; then there is room again, and everything is as before.
func TestMetadataGoesOnWhenTheDiskIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		if err := mem.MkdirAll("/data"); err != nil {
			t.Fatal(err)
		}
		r := newReserve(mem, "/data", obs.Logger(nil))
		if r.isHeld() {
			t.Fatal("a reserve that nobody made is held")
		}
		if err := r.room(); err != nil || !r.isHeld() {
			t.Fatal(err)
		}
		if again := newReserve(mem, "/data", obs.Logger(nil)); !again.isHeld() {
			t.Error("the reserve of an earlier run is not taken up")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.keep(ctx) }()
		defer func() {
			cancel()
			<-done
		}()
		f, err := (&reserveFS{mem, r}).Open("/data/log", true)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		mem.SetSpace(reserveBytes + 100)
		if n, err := f.WriteAt(make([]byte, 5000), 0); err != nil || n != 5000 || r.isHeld() {
			t.Fatalf("a write of the metadata on a full disk: %d, %v; reserve held: %v", n, err, r.isHeld())
		}
		if size, err := f.Size(); err != nil || size != 5000 {
			t.Fatal(size, err)
		}
		time.Sleep(2*reserveEvery + 1) // not at the moment at which it is tried
		if r.isHeld() {
			t.Error("the reserve is back, and there is no room for it")
		}
		if err := r.room(); fault.KindOf(err) != fault.NoSpace {
			t.Errorf("room on a full disk: %v", err)
		}
		if _, err := mem.Stat("/data/" + reserveFile); err == nil {
			t.Error("half a reserve is left on a full disk")
		}
		if _, err := f.WriteAt(make([]byte, 2<<20), 5000); !errors.Is(err, vfs.ErrNoSpace) {
			t.Errorf("a write of more than the reserve gave: %v", err)
		}
		mem.SetSpace(10 << 20)
		time.Sleep(2 * reserveEvery)
		if !r.isHeld() {
			t.Error("there is room, and the reserve is not back")
		}
	})
}

// roomy is a file system that can be full: it takes what is written where the reserve was, and nothing else.
type roomy struct {
	vfs.FS
	full  atomic.Bool
	freed atomic.Int64 // bytes that a removed reserve left
}

func (r *roomy) Remove(name string) error {
	if r.full.Load() && strings.HasSuffix(name, "/"+reserveFile) {
		r.freed.Add(reserveBytes)
	}
	return r.FS.Remove(name)
}

func (r *roomy) Open(name string, create bool) (vfs.File, error) {
	f, err := r.FS.Open(name, create)
	if err != nil {
		return nil, err
	}
	return &roomyFile{f, r, strings.HasSuffix(name, "/"+reserveFile)}, nil
}

type roomyFile struct {
	vfs.File
	fs      *roomy
	reserve bool
}

func (f *roomyFile) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.full.Load() && (f.reserve || f.fs.freed.Add(-int64(len(p))) < 0) {
		return 0, vfs.ErrNoSpace
	}
	return f.File.WriteAt(p, off)
}

// TestFullDiskStillDeletes fills the disk below a whole server with records: a topic can be deleted, which gives room,
// and none can be created before.
func TestFullDiskStillDeletes(t *testing.T) {
	disk := &roomy{FS: vfs.OS{}}
	r := upOn(t, settings(t, t.TempDir(), nil), disk, thisMachine())
	b := r.broker.Load()
	createTopic(t, b, "big", "on_commit")
	publish(t, b, "big", strings.Repeat("x", 1000))
	disk.full.Store(true)
	if err := b.DeleteTopic(t.Context(), "big"); err != nil {
		t.Fatalf("delete a topic on a full disk: %v", err)
	}
	if _, err := b.CreateTopic(t.Context(), broker.TopicSpec{Name: "late"}); fault.KindOf(err) != fault.NoSpace {
		t.Errorf("create a topic on a full disk: %v", err)
	}
	if _, h := readyz(t, r); len(h.Problems) != 1 || !strings.Contains(h.Problems[0], "the disk is full") {
		t.Errorf("problems are %q", h.Problems)
	}
	disk.full.Store(false)
	createTopic(t, b, "late", "on_commit")
	if _, h := readyz(t, r); len(h.Problems) != 0 {
		t.Errorf("problems are %q", h.Problems)
	}
}

// TestReserveComesBackWhenSomebodyIsRefused has room come while publishes are refused for want of it: they go on long
// before the next of the regular attempts, and refusals alone make no more attempts than one in each pause.
func TestReserveComesBackWhenSomebodyIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full atomic.Bool
		var attempts atomic.Int64
		mem := vfs.NewMem()
		if err := mem.MkdirAll("/data"); err != nil {
			t.Fatal(err)
		}
		disk := vfs.Inject(mem, func(op vfs.Op) error {
			if op.Kind == vfs.OpWrite && full.Load() {
				attempts.Add(1)
				return vfs.ErrNoSpace
			}
			return nil
		})
		r := newReserve(disk, "/data", obs.Logger(nil))
		if r.full() || r.problem() != "" {
			t.Error("a reserve that was not tried yet says that the disk is full")
		}
		if err := r.hold(); err != nil || r.full() {
			t.Fatal(err, r.full())
		}
		done := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- r.keep(ctx) }()
		defer func() {
			cancel()
			<-done
		}()
		full.Store(true)
		r.release()
		for range 1000 {
			if !r.full() {
				t.Fatal("the reserve is gone, and topics may go on")
			}
			time.Sleep(time.Millisecond)
		}
		if most := int64(time.Second/reservePause) + 1; attempts.Load() > most || attempts.Load() < most/2 {
			t.Errorf("%d attempts in a second, want %d at most", attempts.Load(), most)
		}
		full.Store(false)
		began := time.Now()
		for r.full() {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > 2*reservePause {
			t.Errorf("the reserve came back after %v", took)
		}
	})
}

// TestReserveThatCannotBeMade fails the reserve for another reason than want of room: that is said, and topics go on.
func TestReserveThatCannotBeMade(t *testing.T) {
	mem := vfs.NewMem()
	if err := mem.MkdirAll("/data"); err != nil {
		t.Fatal(err)
	}
	r := newReserve(vfs.Inject(mem, func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite {
			return vfs.ErrIO
		}
		return nil
	}), "/data", obs.Logger(nil))
	if err := r.room(); fault.KindOf(err) != fault.IO || strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("room on a disk that fails: %v", err)
	}
	if p := r.problem(); r.full() || r.isHeld() || strings.Contains(p, "the disk is full") || !strings.Contains(p, vfs.ErrIO.Error()) {
		t.Errorf("full: %v; problem: %q", r.full(), p)
	}
}

// TestMetadataWaitsForAnAttempt has the metadata find no room because an attempt to make the reserve took it for a moment.
func TestMetadataWaitsForAnAttempt(t *testing.T) {
	mem := vfs.NewMem()
	if err := mem.MkdirAll("/data"); err != nil {
		t.Fatal(err)
	}
	r := newReserve(mem, "/data", obs.Logger(nil))
	refused := false
	f, err := (&reserveFS{vfs.Inject(mem, func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite && !refused {
			refused = true
			return vfs.ErrNoSpace
		}
		return nil
	}), r}).Open("/data/log", true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := f.WriteAt([]byte("metadata"), 0); n != 8 || err != nil || !refused {
		t.Errorf("a write that had room a moment later: %d, %v", n, err)
	}
}

// TestTopicsLeaveTheReserve fills the disk below a whole server: once the metadata has had to give up its reserve, no
// topic writes into what is left, the metadata and the stop can, and with room everything goes on by itself.
func TestTopicsLeaveTheReserve(t *testing.T) {
	disk := &roomy{FS: vfs.OS{}}
	dir := t.TempDir()
	r := upOn(t, settings(t, dir, nil), disk, thisMachine())
	b := r.broker.Load()
	createTopic(t, b, "orders", "on_commit")
	createTopic(t, b, "gone", "on_commit")
	publish(t, b, "orders", "kept")
	disk.full.Store(true)
	if err := b.DeleteTopic(t.Context(), "gone"); err != nil { // takes the reserve
		t.Fatal(err)
	}
	left := disk.freed.Load()
	for range 3 {
		_, _, err := b.Publish(t.Context(), "orders", 0, []record.Record{{Value: make([]byte, 1000)}})
		if fault.KindOf(err) != fault.NoSpace || !strings.Contains(err.Error(), "default/orders") {
			t.Errorf("a publish while the metadata has no reserve: %v", err)
		}
	}
	if now := disk.freed.Load(); left <= 0 || left-now > 1000 { // the deletion may still be recorded as done
		t.Errorf("publishes took the metadata's room: %d bytes of %d are left", now, left)
	}
	disk.full.Store(false)
	if !until(func() bool { return !r.reserve.full() }) {
		t.Fatal("there is room, and nobody tries again")
	}
	publish(t, b, "orders", "with room")
}
