package vfs

import (
	"errors"
	"fmt"
	"os"
)

// ReadOnly is the operating system's file system for whoever looks at somebody's data: it opens files for reading only and
// refuses everything that changes something, so that nothing can, whatever it calls.
type ReadOnly struct{ OS }

var (
	_ FS = ReadOnly{}

	errReadOnly = errors.New("it is opened for reading only: nothing on disk is changed")
)

// Open opens a file for reading.
func (ReadOnly) Open(name string, create bool) (File, error) {
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
func (ReadOnly) Rename(oldname, _ string) error { return refuseWrite("rename", oldname) }

// Link refuses.
func (ReadOnly) Link(oldname, _ string) error { return refuseWrite("link", oldname) }

// Remove refuses.
func (ReadOnly) Remove(name string) error { return refuseWrite("remove", name) }

// MkdirAll refuses.
func (ReadOnly) MkdirAll(dir string) error { return refuseWrite("make", dir) }

// SyncDir refuses: what is not written needs no flush.
func (ReadOnly) SyncDir(dir string) error { return refuseWrite("sync", dir) }

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
