package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

const (
	reserveBytes = 1 << 20                // some thousand changes of the metadata
	reserveEvery = 5 * time.Second        // how often a reserve that is gone is tried to be made again
	reservePause = 100 * time.Millisecond // the same, while somebody waits for room
)

// reserve is a file that takes room on the disk in order to give it: while topics fill the disk, the metadata goes on
// in what the reserve took. While it is gone for want of room, topics get none, for they would take what is the
// metadata's. It is safe for concurrent use.
type reserve struct {
	fs     vfs.FS
	path   string
	log    *slog.Logger
	wanted chan struct{} // one slot: somebody was refused

	mu      sync.Mutex              // held by whoever makes or gives up the file
	missing atomic.Pointer[missing] // why there is no reserve; nil: it is held. Changed under mu
}

// missing says why there is no reserve.
type missing struct {
	err  error
	full bool // the disk has no room for it
}

// errNotTried is why there is no reserve before the start has come to it.
var errNotTried = errors.New("the reserve is not made yet")

func missingFor(err error) *missing { return &missing{err, errors.Is(err, vfs.ErrNoSpace)} }

// newReserve returns the reserve below dir, held where an earlier run left it.
func newReserve(fs vfs.FS, dir string, log *slog.Logger) *reserve {
	r := &reserve{fs: fs, path: dir + "/" + reserveFile, log: log, wanted: make(chan struct{}, 1)}
	if info, err := fs.Stat(r.path); err != nil || info.Size < reserveBytes {
		r.missing.Store(missingFor(errNotTried))
	}
	return r
}

// hold makes the reserve where it is not held. An error says that there is no room for it, or no way to make it.
func (r *reserve) hold() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isHeld() {
		return nil
	}
	if err := r.fill(); err != nil {
		_ = r.fs.Remove(r.path) // half a reserve would only make the disk fuller; what is left is taken up next time
		r.missing.Store(missingFor(err))
		return err
	}
	r.missing.Store(nil)
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

// release gives the room to whoever found the disk full, for a second try. Where there is none to give, somebody may have
// been trying to make the reserve, and what that took is free again by now.
func (r *reserve) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isHeld() {
		return
	}
	r.missing.Store(missingFor(vfs.ErrNoSpace)) // first: nobody else is to take the room
	if err := r.fs.Remove(r.path); err != nil {
		r.log.Error("the disk is full, and the reserve for the metadata could not be given up", "path", r.path, "err", err)
		return
	}
	r.log.Warn("the disk is full: the metadata goes on in the room of its reserve; topics take no records, and none is created, until there is room for a new one", "path", r.path, "bytes", reserveBytes)
}

func (r *reserve) isHeld() bool { return r.missing.Load() == nil }

// full reports whether the reserve is gone because the disk is full: topics must not take what little room there is. It
// costs a load of one word, and when true it has the reserve tried again soon, in the background.
func (r *reserve) full() bool {
	m := r.missing.Load()
	if m == nil || !m.full {
		return false
	}
	select {
	case r.wanted <- struct{}{}:
	default:
	}
	return true
}

// room says whether something new may be begun on this disk: not while the reserve is gone.
func (r *reserve) room() error {
	err := r.hold()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, vfs.ErrNoSpace):
		return fault.New(fault.NoSpace, "the disk is full: %w: nothing new is begun until there is room for the metadata's reserve of %d bytes again", err, reserveBytes)
	}
	return fault.New(fault.IO, "the metadata's reserve cannot be made: %w: nothing new is begun without it", err).With("file", r.path)
}

// problem says what is wrong with the reserve; "" where nothing is.
func (r *reserve) problem() string {
	m := r.missing.Load()
	switch {
	case m == nil || errors.Is(m.err, errNotTried):
		return ""
	case m.full:
		return "the disk is full: topics take no records until there is room, and no topic is created; make room, or delete topics"
	}
	return "the metadata's reserve on the disk cannot be made, and no topic is created without it: " + m.err.Error()
}

// keep makes the reserve again, once there is room: one attempt at a time, and no sooner than after a pause.
func (r *reserve) keep(ctx context.Context) error {
	tick := time.NewTicker(reserveEvery)
	defer tick.Stop()
	pause := time.NewTimer(reservePause)
	defer pause.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.wanted:
		case <-ctx.Done():
			return nil
		}
		if !r.isHeld() && r.hold() == nil {
			r.log.Info("there is room again: the metadata's reserve is back", "path", r.path, "bytes", reserveBytes)
		}
		pause.Reset(reservePause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// reserveFS is the file system of the metadata, and of what makes room: an operation that finds the disk full gets the
// reserve's room, and is tried once more. Nothing was done by the first try, or what a write had done is left out of the second.
type reserveFS struct {
	vfs.FS
	reserve *reserve
}

func (r *reserveFS) again(err error) bool {
	full := errors.Is(err, vfs.ErrNoSpace)
	if full {
		r.reserve.release()
	}
	return full
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
