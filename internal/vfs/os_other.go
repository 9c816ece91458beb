//go:build !linux

package vfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Sync implements File.
func (o *osFile) Sync() error { return osError(o.f.Sync()) }

// Reserve implements File: only Linux reserves.
func (o *osFile) Reserve(int64, int64) error { return nil }

// DropCache implements Advisor: only Linux can.
func (o *osFile) DropCache(int64, int64) error { return nil }

// WillNeed implements Advisor: only Linux can.
func (o *osFile) WillNeed(int64, int64) error { return nil }

// SyncFilesystems needs a kernel that reports what syncing a whole file system met: Linux.
func SyncFilesystems(root string) error {
	return fmt.Errorf("sync filesystems below %s: %w", root, errors.ErrUnsupported)
}

// BootID is known only on Linux.
func BootID() (string, error) { return "", fmt.Errorf("read boot id: %w", errors.ErrUnsupported) }

// freeBlocks returns how many blocks are free and their size.
func freeBlocks(st *unix.Statfs_t) (blocks, size uint64) {
	return uint64(max(st.Bavail, 0)), uint64(st.Bsize)
}
