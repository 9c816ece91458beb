package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Files hold users' data, so nobody but the broker's user may read them.
const (
	fileMode = 0o600
	dirMode  = 0o700
)

// OS is the operating system's file system. Files are opened close-on-exec; new ones are private to the user. Stat
// follows symbolic links; List does not (a link in it is not a directory), so that RemoveAll never leaves the tree it
// was given. Errors carry the path.
type OS struct{}

var _ FS = OS{}

// Open implements FS.
func (OS) Open(name string, create bool) (File, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(name, flags, fileMode)
	if err != nil {
		return nil, osError(err)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, osError(err)
	}
	return &osFile{f: f, raw: raw}, nil
}

// Rename implements FS.
func (OS) Rename(oldname, newname string) error { return osError(os.Rename(oldname, newname)) }

// Link implements FS. Where the file system has no hard links it fails.
func (OS) Link(oldname, newname string) error { return osError(os.Link(oldname, newname)) }

// Remove implements FS.
func (OS) Remove(name string) error { return osError(os.Remove(name)) }

// MkdirAll implements FS.
func (OS) MkdirAll(dir string) error { return osError(os.MkdirAll(dir, dirMode)) }

// List implements FS. Names that go away meanwhile are left out.
func (OS) List(dir string) ([]Info, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, osError(err)
	}
	list := make([]Info, 0, len(entries))
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, osError(err)
		}
		list = append(list, infoOf(info))
	}
	return list, nil
}

// Stat implements FS.
func (OS) Stat(name string) (Info, error) {
	info, err := os.Stat(name)
	if err != nil {
		return Info{}, osError(err)
	}
	return infoOf(info), nil
}

// SyncDir implements FS. A file system that cannot sync directories fails here rather than pretending. Where the
// directory could not even be opened, the error is an fs.PathError with Op "open".
func (OS) SyncDir(dir string) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return osError(err)
	}
	return osError(errors.Join(d.Sync(), d.Close()))
}

func infoOf(info fs.FileInfo) Info {
	return Info{Name: info.Name(), Size: info.Size(), Dir: info.IsDir(), ModTime: info.ModTime()}
}

// osFile is an open file. What the platforms do differently (Sync, Reserve, the page cache) is in os_linux.go and
// os_other.go.
type osFile struct {
	f   *os.File
	raw syscall.RawConn
}

var (
	_ File    = (*osFile)(nil)
	_ Advisor = (*osFile)(nil)
)

func (o *osFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := o.f.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF is promised bare, by io.ReaderAt too
		err = osError(err)
	}
	return n, err
}

func (o *osFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := o.f.WriteAt(p, off)
	return n, osError(err)
}

func (o *osFile) Size() (int64, error) {
	info, err := o.f.Stat()
	if err != nil {
		return 0, osError(err)
	}
	return info.Size(), nil
}

func (o *osFile) Truncate(size int64) error { return osError(o.f.Truncate(size)) }

func (o *osFile) Close() error { return osError(o.f.Close()) }

// call runs fn with the descriptor, which cannot be closed meanwhile. It repeats fn on EINTR, which is an interrupted
// wait and never the report of a failed write-back: the only error after which a sync may be repeated.
func (o *osFile) call(op string, fn func(fd int) error) error {
	var err error
	ctl := o.raw.Control(func(fd uintptr) {
		for {
			if err = fn(int(fd)); !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	})
	if err = errors.Join(ctl, err); err != nil {
		return &systemError{&fs.PathError{Op: op, Path: o.f.Name(), Err: err}}
	}
	return nil
}

// systemError is an error of the operating system that also answers to this package's sentinels.
type systemError struct{ err error }

func osError(err error) error {
	if err == nil {
		return nil
	}
	return &systemError{err}
}

func (e *systemError) Error() string { return e.err.Error() }
func (e *systemError) Unwrap() error { return e.err }

// Is maps errno values to ErrNoSpace and ErrIO.
func (e *systemError) Is(target error) bool {
	var errno syscall.Errno
	if !errors.As(e.err, &errno) {
		return false
	}
	switch target {
	case ErrNoSpace:
		return errno == syscall.ENOSPC || errno == syscall.EDQUOT || errno == syscall.EFBIG
	case ErrIO:
		return errno == syscall.EIO
	default:
		return false
	}
}
