package vfs

import (
	"context"
	"errors"
	"path"
	"time"
)

// Discard removes a directory with all that is in it, in any order and without making each step durable. It is for what
// nobody needs any more and whose removal is begun again after a crash. ctx ends it in the middle.
func Discard(ctx context.Context, fsys FS, name string) error {
	return discard(ctx, fsys, name, Info{Dir: true})
}

func discard(ctx context.Context, fsys FS, name string, is Info) error {
	switch {
	case is.Dir:
		list, err := fsys.List(name)
		if err != nil {
			return err
		}
		for _, child := range list {
			if err := discard(ctx, fsys, path.Join(name, child.Name), child); err != nil {
				return err
			}
		}
	case is.Size > freedAtOnce:
		if err := shrink(ctx, fsys, name, is.Size); err != nil {
			return err
		}
	}
	return fsys.Remove(name)
}

// A file system that tells the device what it no longer uses lets every flush wait while the device takes note: for
// 250 MiB, 50 ms. So large files are freed from their end, bit by bit, with pauses in which others flush.
const (
	freedAtOnce = 4 << 20
	freePause   = 10 * time.Millisecond
)

// shrink frees a file that is to be removed, but for its first few MiB.
func shrink(ctx context.Context, fsys FS, name string, size int64) error {
	f, err := fsys.Open(name, false)
	if err != nil {
		return err
	}
	for size = (size - 1) / freedAtOnce * freedAtOnce; size > 0 && err == nil; size -= freedAtOnce {
		if err = f.Truncate(size); err == nil {
			err = f.Sync() // the next bit is the next commit's
		}
		select {
		case <-time.After(freePause):
		case <-ctx.Done():
			err = errors.Join(err, context.Cause(ctx))
		}
	}
	return errors.Join(err, f.Close())
}
