package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
)

// OpKind names an operation that a hook sees.
type OpKind uint8

// The first group only looks; the second changes something or makes it durable.
const (
	OpOpen OpKind = iota
	OpRead
	OpList
	OpStat
	OpDropCache

	OpCreate // Open with create, also where the file is there already
	OpWrite
	OpTruncate
	OpReserve
	OpSync
	OpRename
	OpLink
	OpRemove
	OpMkdir
	OpSyncDir
)

var opNames = [...]string{"open", "read", "list", "stat", "drop cache",
	"create", "write", "truncate", "reserve", "sync", "rename", "link", "remove", "mkdir", "sync dir"}

// String returns the name that errors show.
func (k OpKind) String() string { return opNames[k] }

// Changes reports whether the operation changes the file system or makes a change durable. A crash at any other
// operation is a crash at the next one that does.
func (k OpKind) Changes() bool { return k >= OpCreate }

// Op is one operation, as a hook sees it before it happens.
type Op struct {
	Kind OpKind
	Path string // of a file: the name it was opened by
	To   string // new name of a rename or link
	N    int    // ordinal since the hook was set, from 1; operations with Changes and the others count separately
	Off  int64  // position, or new size of a truncation
	Len  int64  // bytes
}

// String says what would happen where, for test logs.
func (o Op) String() string {
	switch o.Kind {
	case OpRead, OpWrite, OpReserve, OpDropCache:
		return fmt.Sprintf("#%d %s %s [%d,+%d)", o.N, o.Kind, o.Path, o.Off, o.Len)
	case OpTruncate:
		return fmt.Sprintf("#%d %s %s to %d", o.N, o.Kind, o.Path, o.Off)
	case OpRename, OpLink:
		return fmt.Sprintf("#%d %s %s to %s", o.N, o.Kind, o.Path, o.To)
	default:
		return fmt.Sprintf("#%d %s %s", o.N, o.Kind, o.Path)
	}
}

// ShortWrite is what a hook returns for an OpWrite that shall write N bytes and then fail with Err.
type ShortWrite struct {
	N   int
	Err error
}

// Error implements error.
func (s ShortWrite) Error() string { return fmt.Sprintf("short write of %d bytes: %v", s.N, s.Err) }

// Unwrap returns Err.
func (s ShortWrite) Unwrap() error { return s.Err }

// hooks numbers operations and shows them to a hook. The zero value only counts.
type hooks struct {
	fn             atomic.Pointer[func(Op) error]
	changes, looks atomic.Int64
}

// set installs fn (nil: none) and numbers from 1 again.
func (h *hooks) set(fn func(Op) error) {
	if fn == nil {
		h.fn.Store(nil)
	} else {
		h.fn.Store(&fn)
	}
	h.changes.Store(0)
	h.looks.Store(0)
}

// before numbers op and asks the hook. No lock may be held: a hook may block, or copy the file system it watches.
func (h *hooks) before(op Op) error {
	if op.Kind.Changes() {
		op.N = int(h.changes.Add(1))
	} else {
		op.N = int(h.looks.Add(1))
	}
	fn := h.fn.Load()
	if fn == nil {
		return nil
	}
	if err := (*fn)(op); err != nil {
		return &fs.PathError{Op: op.Kind.String(), Path: op.Path, Err: err}
	}
	return nil
}

// beforeWrite is before for an OpWrite of p: what is left to write, and the error to return after that.
func (h *hooks) beforeWrite(name string, p []byte, off int64) ([]byte, error) {
	err := h.before(Op{Kind: OpWrite, Path: name, Off: off, Len: int64(len(p))})
	if err == nil {
		return p, nil
	}
	var short ShortWrite
	if !errors.As(err, &short) {
		return nil, err
	}
	if short.Err != nil {
		err = &fs.PathError{Op: OpWrite.String(), Path: name, Err: short.Err}
	}
	return p[:min(max(short.N, 0), len(p))], err
}
