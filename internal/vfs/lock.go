package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// LockedError says that another process (or another Lock of this one) holds a lock file.
type LockedError struct {
	Path   string
	Holder string // the process id that the holder wrote; "" when it has not yet, or could not
}

// Error implements error.
func (e *LockedError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("%s is locked by another process", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %s", e.Path, e.Holder)
}

// Lock takes the lock file at path, which is always on the real file system, creates it if needed and writes this
// process's id into it as far as the disk takes that. It does not wait: if the lock is taken the error is a
// *LockedError. The lock ends with Close or with the process, however that ends; the file stays, for removing it would let
// two processes lock different files of one name.
func Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, osError(err)
	}
	if err := lock(f, path); err != nil {
		return nil, errors.Join(err, osError(f.Close()))
	}
	return f, nil
}

// Hold keeps everybody from taking the lock file at path, as Lock does, but changes nothing: it shares the lock with others
// that hold it so, and where there is no such file there is nothing to hold.
func Hold(path string) (io.Closer, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	if err != nil {
		return nil, osError(err)
	}
	if err := flock(f, syscall.LOCK_SH); err != nil {
		return nil, errors.Join(refused(f, path, err), osError(f.Close()))
	}
	return f, nil
}

func lock(f *os.File, path string) error {
	if err := flock(f, syscall.LOCK_EX); err != nil {
		return refused(f, path, err)
	}
	introduce(f)
	return nil
}

func refused(f *os.File, path string, err error) error {
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return &LockedError{Path: path, Holder: holder(f)}
	}
	return osError(&os.PathError{Op: "lock", Path: path, Err: err})
}

// introduce writes this process's id into a lock file. Holding the lock is what counts, and the id is for a message only:
// where the disk takes nothing, the file says nobody rather than an earlier holder. What is there is overwritten before
// it is cut off, because that needs no room on a full disk.
func introduce(f *os.File) {
	line := []byte(strconv.Itoa(os.Getpid()) + "\n")
	n, err := f.WriteAt(line, 0)
	if err != nil {
		n = 0
	}
	_ = f.Truncate(int64(n))
}

// holder returns the process id in a lock file; "" where there is none.
func holder(f *os.File) string {
	text := make([]byte, 32)
	n, _ := f.ReadAt(text, 0)
	line, _, _ := strings.Cut(string(text[:n]), "\n")
	if _, err := strconv.ParseUint(line, 10, 64); err != nil {
		return ""
	}
	return line
}

// flock tries to lock a file that nobody else can close meanwhile.
func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
