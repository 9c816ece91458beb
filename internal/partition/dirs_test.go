package partition

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/vfs"
)

const dirsRoot = "/data"

func made(t *testing.T, fs vfs.FS, dir string) bool {
	t.Helper()
	there, err := vfs.Exists(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	return there
}

// TestDirsAreDurable covers LOG-02: whatever ends the making of directories, and wherever, what Make answered for survives
// a power cut; and so does what a second attempt makes of what was left, in the same process and in the next.
func TestDirsAreDurable(t *testing.T) {
	dirs := []string{"/data/topics/ns/a@1/0", "/data/topics/ns/a@1/1", "/data/topics/ns/b@1/0", "/data/topics/other/a@1/0"}
	errCut := errors.New("cut")
	for at := 1; ; at++ {
		fs := vfs.NewMem()
		fs.SetHook(func(op vfs.Op) error {
			if op.Kind.Changes() && op.N >= at {
				return errCut
			}
			return nil
		})
		d := NewDirs(fs, dirsRoot, 2)
		answered := map[string]bool{}
		for _, dir := range dirs {
			err := d.Make(dir)
			if err != nil && !errors.Is(err, errCut) {
				t.Fatalf("operation %d: %v", at, err)
			}
			answered[dir] = err == nil
		}
		for seed := range uint64(20) {
			after := fs.Crash(vfs.Random(seed))
			for _, dir := range dirs {
				if answered[dir] && !made(t, after, dir) {
					t.Fatalf("cut at operation %d: %s is gone", at, dir)
				}
			}
		}
		fs.SetHook(nil)
		left := fs.Clone() // what a process that died leaves to the next
		for who, again := range map[string]struct {
			fs *vfs.Mem
			d  *Dirs
		}{"the same process": {fs, d}, "the next process": {left, NewDirs(left, dirsRoot, 2)}} {
			for _, dir := range slices.Backward(dirs) {
				if err := again.d.Make(dir); err != nil {
					t.Fatal(err)
				}
				if !made(t, again.fs.Crash(vfs.KeepNothing), dir) {
					t.Fatalf("cut at operation %d, made again by %s: %s is gone", at, who, dir)
				}
			}
		}
		if answered[dirs[len(dirs)-1]] {
			return
		}
	}
}

// TestDirsShareFlushes: those that come while the directory common to them is being flushed share the next flush.
func TestDirsShareFlushes(t *testing.T) {
	const n = 50
	fs := vfs.NewMem()
	d := NewDirs(fs, dirsRoot, 1)
	// Alone, so that it is certain whose flush it would be: one that runs is nobody's to share.
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSyncDir && op.Path == "/data/ns" {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.dir(op.Path).next != nil {
				t.Error("a flush that runs can still be shared")
			}
		}
		return nil
	})
	if err := d.Make("/data/ns/first/0"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	flushes, waiting := 0, 0
	hold, all := make(chan struct{}), make(chan struct{})
	fs.SetHook(func(op vfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case op.Kind == vfs.OpSyncDir && op.Path == "/data/ns":
			if flushes++; flushes == 1 {
				mu.Unlock()
				<-hold
				mu.Lock()
			}
		case op.Kind == vfs.OpMkdir && strings.HasSuffix(op.Path, "/0"):
			if waiting++; waiting == n {
				close(all)
			}
		}
		return nil
	})
	makers := task.NewGroup(context.Background())
	for i := range n {
		makers.Go("maker", func(context.Context) error {
			dir := "/data/ns/" + strconv.Itoa(i) + "/0"
			if err := d.Make(dir); err != nil {
				return err
			}
			if !made(t, fs.Crash(vfs.KeepNothing), dir) {
				t.Errorf("%s is gone", dir)
			}
			return nil
		})
	}
	<-all
	close(hold)
	if err := makers.Wait(); err != nil {
		t.Fatal(err)
	}
	if flushes < 2 || flushes >= n {
		t.Errorf("%d flushes for %d directories", flushes, n)
	}
}

// TestDirsFailTogether: a flush that fails has failed for everybody who shares it.
func TestDirsFailTogether(t *testing.T) {
	fs := vfs.NewMem()
	d := NewDirs(fs, dirsRoot, 1)
	if err := d.Make("/data/ns/first/0"); err != nil {
		t.Fatal(err)
	}
	fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSyncDir && op.Path == "/data/ns" {
			return vfs.ErrIO
		}
		return nil
	})
	makers := task.NewGroup(context.Background())
	for i := range 20 {
		makers.Go("maker", func(context.Context) error {
			if err := d.Make("/data/ns/" + strconv.Itoa(i) + "/0"); !errors.Is(err, vfs.ErrIO) {
				t.Errorf("directory %d: %v", i, err)
			}
			return nil
		})
	}
	if err := makers.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := d.Make("/elsewhere/0"); err == nil {
		t.Error("made a directory that is not below the root")
	}
}
