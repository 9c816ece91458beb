package server

import (
	"errors"
	"io/fs"

	"github.com/leveemq/levee/internal/vfs"
)

// watchedFS tells when a flush failed. Whoever asked for the flush learns of it from the error; the run file has to
// learn of it, too, whoever that was: the kernel forgets what it could not write, so what this machine has in memory is
// not to be trusted at the next start.
type watchedFS struct {
	vfs.FS
	failed func(path string, err error) // called from whichever goroutine flushes; must not block
}

// Open opens a file whose flushes are watched.
func (w *watchedFS) Open(name string, create bool) (vfs.File, error) {
	f, err := w.FS.Open(name, create)
	if err != nil {
		return nil, err
	}
	watched := &watchedFile{File: f, fs: w, name: name}
	if a, ok := f.(vfs.Advisor); ok {
		return struct {
			*watchedFile
			vfs.Advisor
		}{watched, a}, nil
	}
	return watched, nil
}

// SyncDir makes the names in dir durable.
func (w *watchedFS) SyncDir(dir string) error {
	err := w.FS.SyncDir(dir)
	// That a directory is not there or may not be opened says nothing about what was written.
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		w.failed(dir, err)
	}
	return err
}

type watchedFile struct {
	vfs.File
	fs   *watchedFS
	name string
}

// Sync makes the file durable.
func (f *watchedFile) Sync() error {
	err := f.File.Sync()
	if err != nil && !errors.Is(err, fs.ErrClosed) {
		f.fs.failed(f.name, err)
	}
	return err
}
