// Package vfs owns the broker's view of a file system: a port, the operating system behind it, a memory file system
// that can lose power, and a wrapper that injects faults. All file I/O of the broker goes through it. It never
// retries and never hides an error. Invariant: what was not synced may be lost, torn or reordered by a crash, and the
// memory file system does so.
package vfs

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// FS is a file system. Paths are slash-separated and, for OS, as the operating system takes them. It is safe for
// concurrent use. Creating, renaming, linking and removing are durable only after SyncDir of the directory that holds the
// name.
// Errors satisfy errors.Is with fs.ErrNotExist, fs.ErrExist and the ones below.
type FS interface {
	// Open opens a file for reading and writing at positions. With create it makes an empty one where there is none.
	Open(name string, create bool) (File, error)
	// Rename replaces newname by oldname in one step.
	Rename(oldname, newname string) error
	// Link gives a file a second name in one step. It fails with ErrExist where newname is taken: of several that link
	// to one name, in whichever processes, one succeeds.
	Link(oldname, newname string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// MkdirAll makes a directory and its parents. Each new name must be synced in its own parent by the caller:
	// see MkdirSync.
	MkdirAll(dir string) error
	// List returns the entries of a directory, sorted by name.
	List(dir string) ([]Info, error)
	// Stat returns what List would about one name.
	Stat(name string) (Info, error)
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
}

// File is an open file. Reads and writes name their position, so there is no shared cursor; it is safe for concurrent
// use, except that Close must be last. Slices are the caller's again when a call returns.
type File interface {
	// ReadAt reads like io.ReaderAt: a short read returns io.EOF.
	ReadAt(p []byte, off int64) (int, error)
	// WriteAt writes all of p or returns how much was written and why not more. A short write has happened.
	WriteAt(p []byte, off int64) (int, error)
	// Size returns the length in bytes.
	Size() (int64, error)
	// Truncate sets the length; a longer one reads as zeros. It also gives back space reserved beyond the length.
	Truncate(size int64) error
	// Sync makes content and length durable (fdatasync). After an error nothing is known about what was written since
	// the last success, and a second call proves nothing: never retry.
	Sync() error
	// Reserve reserves disk space for [off, off+n) without changing the length. It may do nothing.
	Reserve(off, n int64) error
	Close() error
}

// Advisor is implemented by files that can steer the page cache. Both calls are hints for [off, off+n); n = 0 means
// to the end.
type Advisor interface {
	// DropCache forgets clean cached pages, so that the next read comes from the device.
	DropCache(off, n int64) error
	// WillNeed starts reading ahead.
	WillNeed(off, n int64) error
}

// LargestPage is the largest piece in which the kernel caches a file: what one page of page table entries covers. What
// DropCache is to forget must not begin within one.
var LargestPage = int64(os.Getpagesize()) * int64(os.Getpagesize()) / 8

// Info is what a directory knows about a name.
type Info struct {
	Name    string // base name
	Size    int64
	Dir     bool
	ModTime time.Time
}

// Errors that callers act on. OS errors are mapped to them by Is.
var (
	// ErrNoSpace says the disk, a quota or a size limit is full (ENOSPC, EDQUOT, EFBIG).
	ErrNoSpace = errors.New("no space left")
	// ErrIO says the device failed (EIO).
	ErrIO = errors.New("input/output error")
	// ErrNotExist and ErrExist are fs's.
	ErrNotExist = fs.ErrNotExist
	ErrExist    = fs.ErrExist
)
