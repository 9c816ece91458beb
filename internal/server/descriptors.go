package server

import (
	"math"

	"golang.org/x/sys/unix"
)

// maxDescriptors returns how many files and connections this process may have open; false where it cannot be told.
func maxDescriptors() (int64, bool) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0, false
	}
	// Signed on some systems, and "no limit" is the largest number on all.
	return int64(min(uint64(limit.Cur), math.MaxInt64)), true //nolint:unconvert,gosec // differs by system; in range by the min
}
