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
