// Package dir owns object stores that are directories, of one machine or of a file system that several share. An object
// is a file of its key's name. It is written under another name, flushed, and then given its own by link(2), which fails
// where the name is taken: so of all processes that try one succeeds. A conditional replacement is compared and renamed
// under a lock that the kernel takes back from a dead process (flock). It never changes a file in place. Invariant: a file
// under a key's name is whole and on the device before it has that name.
package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path"
	"syscall"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/vfs"
)

// Names of our own. Keys cannot begin with a dot.
const (
	ownDir  = ".levee"
	tmpDir  = ownDir + "/tmp"
	lockDir = ownDir + "/locks"
)

const (
	stripes = 64      // locks for replacing and deleting
	copying = 1 << 20 // bytes written at once
	// Bytes that are flushed together. Who flushes to the same device meanwhile, as a log does, waits for them: a large object
	// at once would be a long time.
	flushing = 2 << 20
	stale    = 24 * time.Hour // a temporary file that old is nobody's
)

// Config says where the objects are.
type Config struct {
	Root string
	// Exists refuses a root that is not there, instead of making it: on a file system that may not be mounted.
	Exists bool

	// FS is what the root is in; nil: the operating system. Lock takes a lock by path and without waiting, as vfs.Lock does,
	// which is the default; another FS needs another.
	FS   vfs.FS
	Lock func(path string) (io.Closer, error)
}

// Store is a directory as an object store. It is safe for concurrent use, of any number of processes.
type Store struct {
	root  string
	fsys  vfs.FS
	lock  func(path string) (io.Closer, error)
	turns [stripes]chan struct{} // so that this process asks for each lock once at a time
}

var _ objstore.Store = (*Store)(nil)

// Open opens a directory as a store, makes it durably where it is not there, and removes what crashed writers left long ago.
func Open(cfg Config) (*Store, error) {
	s := &Store{root: path.Clean(cfg.Root), fsys: cfg.FS, lock: cfg.Lock}
	if cfg.Root == "" {
		return nil, fmt.Errorf("%w: no directory for objects", objstore.ErrInvalid)
	}
	if s.fsys == nil {
		s.fsys = vfs.OS{}
	}
	if s.lock == nil {
		s.lock = vfs.Lock
	}
	for i := range s.turns {
		s.turns[i] = make(chan struct{}, 1)
	}
	if cfg.Exists {
		info, err := s.fsys.Stat(s.root)
		if err == nil && !info.Dir {
			err = syscall.ENOTDIR
		}
		if err != nil {
			return nil, fmt.Errorf("open %s: %w: %w; is the file system mounted?", s.root, objstore.ErrUnavailable, err)
		}
	}
	for _, d := range []string{tmpDir, lockDir} {
		if err := vfs.MkdirSync(s.fsys, path.Join(s.root, d)); err != nil {
			return nil, failed("open", s.root, err)
		}
	}
	return s, s.sweep()
}

// sweep removes temporary files that no writer can be at any more. One that is slower than that finds its file gone and
// fails.
func (s *Store) sweep() error {
	list, err := s.fsys.List(path.Join(s.root, tmpDir))
	if err != nil {
		return failed("open", s.root, err)
	}
	for _, info := range list {
		if time.Since(info.ModTime) > stale {
			if err := s.fsys.Remove(s.path(tmpDir + "/" + info.Name)); err != nil && !errors.Is(err, vfs.ErrNotExist) {
				return failed("open", s.root, err)
			}
		}
	}
	return nil
}

func (s *Store) path(key string) string { return s.root + "/" + key }

// failed is an error of the file system that says of a write that it has not happened.
func failed(op, key string, err error) error {
	kind := objstore.ErrUnavailable
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, objstore.ErrSource),
		errors.Is(err, objstore.ErrInvalid):
		return fmt.Errorf("%s %s: %w", op, key, err)
	case errors.Is(err, vfs.ErrNoSpace):
		kind = objstore.ErrNoSpace
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EROFS):
		kind = objstore.ErrDenied
	case errors.Is(err, syscall.ENAMETOOLONG):
		kind = objstore.ErrInvalid
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EMLINK):
		kind = objstore.ErrUnsupported
	}
	return fmt.Errorf("%s %s: %w: %w", op, key, kind, err)
}

// doubt is an error after which it is not known what the device holds.
func doubt(op, key string, err error) error {
	return fmt.Errorf("%s %s: %w: %w", op, key, objstore.ErrOutcomeUnknown, err)
}

// open opens an object's file. A directory is no object, and neither is what would be below a file.
func (s *Store) open(key string) (vfs.File, trailer, error) {
	f, err := s.fsys.Open(s.path(key), false)
	if errors.Is(err, vfs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) {
		return nil, trailer{}, objstore.ErrNotFound
	}
	if err != nil {
		return nil, trailer{}, err
	}
	t, err := readTrailer(f, key)
	if err != nil {
		f.Close()
		return nil, trailer{}, err
	}
	return f, t, nil
}

func readTrailer(f vfs.File, key string) (trailer, error) {
	size, err := f.Size()
	if err != nil {
		return trailer{}, err
	}
	b, err := vfs.ReadPartOf(f, max(0, size-trailerSize), min(size, trailerSize))
	if err != nil {
		return trailer{}, err
	}
	t, err := decode(b, size)
	if err != nil && !errors.Is(err, errForeignFormat) {
		err = &objstore.CorruptError{Key: key, Off: max(0, size-trailerSize), Cause: err}
	}
	return t, err
}

// opened names what open could not do.
func opened(op objstore.Op, key string, err error) error {
	if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrCorrupt) || errors.Is(err, errForeignFormat) {
		return fmt.Errorf("%s %s: %w", op, key, err)
	}
	return failed(op.String(), key, err)
}

func (t trailer) info(key string, at time.Time) objstore.Info {
	return objstore.Info{Key: key, Size: t.size, Version: t.version(), CRC32C: t.crc, HasCRC: true, Modified: at}
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, off, n int64) (*objstore.Body, error) {
	if err := errors.Join(objstore.CheckRange(key, off), ctx.Err()); err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	f, t, err := s.open(key)
	if err != nil {
		return nil, opened(objstore.OpGet, key, err)
	}
	if n, err = objstore.Clamp(key, off, n, t.size); err != nil {
		f.Close()
		return nil, err
	}
	r := struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, off, n), f}
	return objstore.NewBody(ctx, t.info(key, time.Time{}), off, n, r), nil
}

// Head implements objstore.Store. What it reports is durable: a writer that died before it flushed the name is overtaken.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := errors.Join(objstore.CheckKey(key), ctx.Err()); err != nil {
		return objstore.Info{}, fmt.Errorf("head %s: %w", key, err)
	}
	f, t, err := s.open(key)
	if err != nil {
		return objstore.Info{}, opened(objstore.OpHead, key, err)
	}
	f.Close()
	if err := s.fsys.SyncDir(path.Dir(s.path(key))); err != nil {
		return objstore.Info{}, failed("head", key, err)
	}
	info := t.info(key, time.Time{})
	if stat, err := s.fsys.Stat(s.path(key)); err == nil {
		info.Modified = stat.ModTime
	}
	return info, nil
}

// Close implements objstore.Store.
func (s *Store) Close() error { return nil }

// randomID is a new content's.
func randomID() (id [16]byte) {
	_, _ = rand.Read(id[:]) // which never fails
	return id
}
