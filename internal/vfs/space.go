package vfs

import (
	"io/fs"
	"math"

	"golang.org/x/sys/unix"
)

// Free returns how many bytes an unprivileged process may still write to the file system that path is on. Quotas are
// not considered.
func Free(path string) (bytes int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, osError(&fs.PathError{Op: "statfs", Path: path, Err: err})
	}
	blocks, size := freeBlocks(&st)
	if size > 0 && blocks > math.MaxInt64/size {
		return math.MaxInt64, nil
	}
	return int64(blocks * size), nil
}
