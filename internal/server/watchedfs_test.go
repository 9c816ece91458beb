package server

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// failsSyncDir answers each sync of a directory with an error.
type failsSyncDir struct {
	vfs.FS
	err error
}

func (f failsSyncDir) SyncDir(string) error { return f.err }

// TestOnlyAFlushCountsAsOne fails the sync of a directory before and while it flushes: only the latter says anything about
// what was written.
func TestOnlyAFlushCountsAsOne(t *testing.T) {
	for _, c := range []struct {
		err     error
		counted bool
	}{
		{&fs.PathError{Op: "open", Path: "/data", Err: syscall.EMFILE}, false},
		{&fs.PathError{Op: "open", Path: "/data", Err: syscall.ENOMEM}, false},
		{&fs.PathError{Op: "open", Path: "/data", Err: syscall.EACCES}, false},
		{&fs.PathError{Op: "open", Path: "/data", Err: syscall.ENOENT}, false},
		{&fs.PathError{Op: "sync", Path: "/data", Err: syscall.EIO}, true},
		{vfs.ErrIO, true},
		{nil, false},
	} {
		failed := 0
		w := &watchedFS{
			FS:     failsSyncDir{vfs.NewMem(), c.err},
			failed: func(string, error) { failed++ },
		}
		if err := w.SyncDir("/"); !errors.Is(err, c.err) {
			t.Errorf("%v became %v", c.err, err)
		}
		if (failed == 1) != c.counted {
			t.Errorf("%v: counted %d times as a failed flush", c.err, failed)
		}
	}
}

// TestHungFlushIsAProblem has flushes take long: health names what they are of, and the file, until they are over.
func TestHungFlushIsAProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		disk := vfs.Inject(vfs.NewMem(), func(op vfs.Op) error {
			if op.Kind == vfs.OpSync || op.Kind == vfs.OpSyncDir {
				<-release
			}
			return nil
		})
		s := newServer(settings(t, "/data", nil), Options{}, disk, thisMachine())
		s.dir = "/data"
		dir := "/data/topics/ns/slow@3/7"
		if err := s.fs.MkdirAll(dir); err != nil {
			t.Fatal(err)
		}
		f, err := s.fs.Open(dir+"/x.log", true)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		done := make(chan error)
		for range maxHanging {
			go func() { done <- f.Sync() }()
		}
		time.Sleep(hangingFor / 2)
		go func() { done <- s.fs.SyncDir("/data/topics") }()
		synctest.Wait()
		if p := s.problems(nil); len(p) > 0 {
			t.Errorf("flushes that take %v are problems: %q", hangingFor/2, p)
		}
		time.Sleep(hangingFor)
		p := s.problems(nil)
		if len(p) != maxHanging+1 || !strings.Contains(p[0], "ns/slow/7 ("+dir+"/x.log) has been under way for 8s") || !strings.HasPrefix(p[maxHanging], "and 1 more") {
			t.Errorf("problems are %q", p)
		}
		close(release)
		for range maxHanging + 1 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if p := s.problems(nil); len(p) > 0 {
			t.Errorf("nothing hangs any more: %q", p)
		}
	})
}
