package server

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// watchedFS tells when a flush failed, and which flushes are under way. Whoever asked for the flush learns of its failure
// from the error; the run file has to learn of it, too, whoever that was: the kernel forgets what it could not write, so
// what this machine has in memory is not to be trusted at the next start.
type watchedFS struct {
	vfs.FS
	failed  func(path string, err error) // called from whichever goroutine flushes; must not block
	flushes flushes
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
	n := w.flushes.begin(dir)
	err := w.FS.SyncDir(dir)
	w.flushes.end(n)
	if err != nil && !notFlushed(err) {
		w.failed(dir, err)
	}
	return err
}

// notFlushed reports whether a SyncDir failed before it flushed anything: that a directory is not there, or cannot be
// opened because it may not or there are too many open files, says nothing about what was written.
func notFlushed(err error) bool {
	var p *fs.PathError
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.As(err, &p) && p.Op == "open"
}

type watchedFile struct {
	vfs.File
	fs   *watchedFS
	name string
}

// Sync makes the file durable.
func (f *watchedFile) Sync() error {
	n := f.fs.flushes.begin(f.name)
	err := f.File.Sync()
	f.fs.flushes.end(n)
	if err != nil && !errors.Is(err, fs.ErrClosed) {
		f.fs.failed(f.name, err)
	}
	return err
}

// flushes are those under way. A flush costs a device's round trip, so a lock and an entry of a map are nothing beside
// it. The zero value is ready, and safe for concurrent use.
type flushes struct {
	mu   sync.Mutex
	last uint64
	now  map[uint64]flush // by number
}

type flush struct {
	path  string
	began time.Time
}

func (f *flushes) begin(path string) (number uint64) {
	began := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil {
		f.now = map[uint64]flush{}
	}
	f.last++
	f.now[f.last] = flush{path, began}
	return f.last
}

func (f *flushes) end(number uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.now, number)
}

// hanging returns the flushes that have been under way for so long, the oldest first.
func (f *flushes) hanging(since time.Duration) (list []flush) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.now {
		if time.Since(one.began) >= since {
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b flush) int { return a.began.Compare(b.began) })
	return list
}
