package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Sync implements File with fdatasync: content and length, but not the times, which nobody needs after a crash.
func (o *osFile) Sync() error { return o.call("fdatasync", unix.Fdatasync) }

// Reserve implements File. A file system that cannot reserve is not an error: writes then find out about space.
func (o *osFile) Reserve(off, n int64) error {
	if n <= 0 {
		return nil
	}
	err := o.call("fallocate", func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// DropCache implements Advisor. The kernel keeps whatever it caches in one piece with something outside the range, so
// the range is widened to whole pages. But a piece can be far larger: measured on ext4 with Linux 6.18, which
// caches in large folios, dropping a part of a file of 1 MiB dropped nothing. Only off = 0, n = 0 reaches every page.
func (o *osFile) DropCache(off, n int64) error {
	page := int64(os.Getpagesize())
	start := off - off%page
	if n > 0 {
		end := off + n + page - 1
		n = end - end%page - start
	}
	return o.call("fadvise", func(fd int) error {
		return unix.Fadvise(fd, start, n, unix.FADV_DONTNEED)
	})
}

// WillNeed implements Advisor.
func (o *osFile) WillNeed(off, n int64) error {
	return o.call("fadvise", func(fd int) error {
		return unix.Fadvise(fd, off, n, unix.FADV_WILLNEED)
	})
}
