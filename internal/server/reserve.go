package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

const (
	reserveBytes = 1 << 20         // some thousand changes of the metadata
	reserveEvery = 5 * time.Second // how often a reserve that is gone is tried to be made again
)

// reserve is a file that takes room on the disk in order to give it: while topics fill the disk, the metadata goes on
// in what the reserve took. It is safe for concurrent use.
type reserve struct {
	fs   vfs.FS
	path string
	log  *slog.Logger

	mu   sync.Mutex
	held bool // guarded by mu
}

// newReserve returns the reserve below dir, held where an earlier run left it.
func newReserve(fs vfs.FS, dir string, log *slog.Logger) *reserve {
	r := &reserve{fs: fs, path: dir + "/" + reserveFile, log: log}
	if info, err := fs.Stat(r.path); err == nil {
		r.held = info.Size >= reserveBytes
	}
	return r
}

// hold makes the reserve where it is not held. An error says that there is no room for it, or no way to make it.
func (r *reserve) hold() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held {
		return nil
	}
	if err := r.fill(); err != nil {
		_ = r.fs.Remove(r.path) // half a reserve would only make the disk fuller; what is left is taken up next time
		return err
	}
	r.held = true
	return nil
}

// fill writes the file: room that was only asked for may not be there when it is needed. It is not flushed, because
// losing it loses nothing.
func (r *reserve) fill() (err error) {
	f, err := r.fs.Open(r.path, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	have, err := f.Size()
	if err != nil || have >= reserveBytes {
		return err
	}
	_, err = f.WriteAt(make([]byte, reserveBytes-have), have)
	return err
}

// release gives the room to whoever finds the disk full, and reports whether there was any.
func (r *reserve) release() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.held {
		return false
	}
	r.held = false
	if err := r.fs.Remove(r.path); err != nil {
		r.log.Error("the disk is full, and the reserve for the metadata could not be given up", "path", r.path, "err", err)
		return false
	}
	r.log.Warn("the disk is full: the metadata goes on in the room of its reserve, and no topic is created until there is room for a new one", "path", r.path, "bytes", reserveBytes)
	return true
}

func (r *reserve) isHeld() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// room says whether something new may be begun on this disk: not while the reserve is gone.
func (r *reserve) room() error {
	if err := r.hold(); err != nil {
		return fault.New(fault.NoSpace, "the disk is full: %w: nothing new is begun until there is room for the metadata's reserve of %d bytes again", err, reserveBytes)
	}
	return nil
}

// keep makes the reserve again, once there is room.
func (r *reserve) keep(ctx context.Context) error {
	tick := time.NewTicker(reserveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if !r.isHeld() && r.hold() == nil {
			r.log.Info("there is room again: the metadata's reserve is back", "path", r.path, "bytes", reserveBytes)
		}
	}
}

// reserveFS is the file system of the metadata: an operation that finds the disk full gets the reserve's room, and is
// tried once more. Nothing was done by the first try, or what a write had done is left out of the second.
type reserveFS struct {
	vfs.FS
	reserve *reserve
}

func (r *reserveFS) again(err error) bool {
	return errors.Is(err, vfs.ErrNoSpace) && r.reserve.release()
}

// Open opens a file, in the reserve's room if it must.
func (r *reserveFS) Open(name string, create bool) (vfs.File, error) {
	f, err := r.FS.Open(name, create)
	if create && r.again(err) {
		f, err = r.FS.Open(name, create)
	}
	if err != nil {
		return nil, err
	}
	file := &reserveFSFile{File: f, fs: r}
	if a, ok := f.(vfs.Advisor); ok {
		return struct {
			*reserveFSFile
			vfs.Advisor
		}{file, a}, nil
	}
	return file, nil
}

// MkdirAll makes directories, in the reserve's room if it must.
func (r *reserveFS) MkdirAll(dir string) error {
	err := r.FS.MkdirAll(dir)
	if r.again(err) {
		err = r.FS.MkdirAll(dir)
	}
	return err
}

// Rename replaces a file, in the reserve's room if it must: the directory may have to grow.
func (r *reserveFS) Rename(oldname, newname string) error {
	err := r.FS.Rename(oldname, newname)
	if r.again(err) {
		err = r.FS.Rename(oldname, newname)
	}
	return err
}

type reserveFSFile struct {
	vfs.File
	fs *reserveFS
}

// WriteAt writes, in the reserve's room if it must.
func (f *reserveFSFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	if f.fs.again(err) {
		var more int
		more, err = f.File.WriteAt(p[n:], off+int64(n))
		n += more
	}
	return n, err
}
