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
	Holder string // the process id that the holder wrote; "" when it has not yet
}

// Error implements error.
func (e *LockedError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("%s is locked by another process", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %s", e.Path, e.Holder)
}

// Lock takes the lock file at path, which is always on the real file system, creates it if needed and writes this
// process's id into it. It does not wait: if the lock is taken the error is a *LockedError. The lock ends with Close or
// with the process, however that ends; the file stays, for removing it would let two processes lock different files of
// one name.
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

func lock(f *os.File, path string) error {
	err := flock(f)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0) // only for the message
		return &LockedError{Path: path, Holder: strings.TrimSpace(string(holder[:n]))}
	}
	if err != nil {
		return osError(&os.PathError{Op: "lock", Path: path, Err: err})
	}
	if err := f.Truncate(0); err != nil {
		return osError(err)
	}
	_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return osError(err)
}

// flock tries to lock a file that nobody else can close meanwhile.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
