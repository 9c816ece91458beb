package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/leveemq/levee/internal/vfs"
)

// readOnly is the operating system's file system for commands that look at somebody's data: it opens files for reading
// only and refuses everything that changes something, so that such a command cannot, whatever it calls.
type readOnly struct{ vfs.OS }

var (
	_ vfs.FS = readOnly{}

	errReadOnly = errors.New("this command changes nothing on disk")
)

// Open opens a file for reading.
func (readOnly) Open(name string, create bool) (vfs.File, error) {
	if create {
		return nil, refuseWrite("create", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return readOnlyFile{f}, nil
}

// Rename refuses.
func (readOnly) Rename(oldname, _ string) error { return refuseWrite("rename", oldname) }

// Remove refuses.
func (readOnly) Remove(name string) error { return refuseWrite("remove", name) }

// MkdirAll refuses.
func (readOnly) MkdirAll(dir string) error { return refuseWrite("make", dir) }

// SyncDir refuses: what is not written needs no flush.
func (readOnly) SyncDir(dir string) error { return refuseWrite("sync", dir) }

func refuseWrite(op, name string) error { return fmt.Errorf("%s %s: %w", op, name, errReadOnly) }

type readOnlyFile struct{ f *os.File }

func (r readOnlyFile) ReadAt(p []byte, off int64) (int, error) { return r.f.ReadAt(p, off) }
func (r readOnlyFile) Close() error                            { return r.f.Close() }

func (r readOnlyFile) Size() (int64, error) {
	info, err := r.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (r readOnlyFile) WriteAt([]byte, int64) (int, error) {
	return 0, refuseWrite("write", r.f.Name())
}
func (r readOnlyFile) Truncate(int64) error     { return refuseWrite("truncate", r.f.Name()) }
func (r readOnlyFile) Sync() error              { return refuseWrite("sync", r.f.Name()) }
func (r readOnlyFile) Reserve(_, _ int64) error { return refuseWrite("reserve", r.f.Name()) }
