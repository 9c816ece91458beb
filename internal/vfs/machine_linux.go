package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	mountInfo = "/proc/self/mountinfo"
	bootID    = "/proc/sys/kernel/random/boot_id"
)

// SyncFilesystems writes back every file system that root or a mount point below it is on, and returns all errors that
// the kernel has met in doing so, now or since anybody last asked. Symbolic links below root are not followed. If it
// cannot be known what is mounted, that is an error too.
func SyncFilesystems(root string) error {
	root, err := filepath.Abs(root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return fmt.Errorf("sync filesystems: %w", osError(err))
	}
	table, err := os.ReadFile(mountInfo)
	if err != nil {
		return fmt.Errorf("sync filesystems below %s: %w", root, osError(err))
	}
	var errs []error
	seen := map[uint64]bool{}
	for _, at := range append([]string{root}, mountsBelow(root, table)...) {
		err := syncFilesystem(at, seen)
		if at != root && errors.Is(err, fs.ErrNotExist) {
			continue // unmounted meanwhile, or hidden by another mount: the data directory does not reach it
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func syncFilesystem(at string, seen map[uint64]bool) error {
	// Non-blocking because a file can be a mount point, too, and might be a pipe.
	fd, err := unix.Open(at, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return osError(&fs.PathError{Op: "open", Path: at, Err: err})
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return osError(&fs.PathError{Op: "stat", Path: at, Err: err})
	}
	if seen[st.Dev] {
		return nil
	}
	seen[st.Dev] = true
	if err := unix.Syncfs(fd); err != nil {
		return osError(&fs.PathError{Op: "syncfs", Path: at, Err: err})
	}
	return nil
}

// mountsBelow returns the mount points strictly below root that the table (see proc_pid_mountinfo(5)) names.
func mountsBelow(root string, table []byte) []string {
	prefix := strings.TrimSuffix(root, "/") + "/"
	var below []string
	for line := range bytes.Lines(table) {
		fields := bytes.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if at := unescapeMount(string(fields[4])); at != prefix && strings.HasPrefix(at, prefix) {
			below = append(below, at)
		}
	}
	return below
}

// unescapeMount undoes the kernel's three-digit octal escapes of blanks and backslashes.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1:i+4]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func isOctal(s string) bool { return strings.Trim(s, "01234567") == "" }

// BootID returns the identity of the running system's boot, which no other boot has.
func BootID() (string, error) {
	b, err := os.ReadFile(bootID)
	if err != nil {
		return "", osError(err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("read boot id: %s is empty", bootID)
	}
	return id, nil
}

// freeBlocks returns how many blocks are free and their size.
func freeBlocks(st *unix.Statfs_t) (blocks, size uint64) {
	if st.Frsize > 0 { // the unit, where there is one apart from the preferred size of transfers
		return st.Bavail, uint64(st.Frsize)
	}
	return st.Bavail, uint64(st.Bsize)
}
