//go:build unix

package cli

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// cpuTime returns what this process has spent so far, user and system; 0 where the system does not tell.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// residentBytes returns the most memory this process had resident. Linux counts what the parent had before exec into
// getrusage's figure, so there it is read from the kernel's own page about the process.
func residentBytes() int64 {
	if runtime.GOOS == "linux" {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return 0
		}
		_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
		fields := bytes.Fields(rest[:min(len(rest), 64)])
		if len(fields) == 0 {
			return 0
		}
		kib, _ := strconv.ParseInt(string(fields[0]), 10, 64)
		return kib << 10
	}
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return u.Maxrss
	}
	return u.Maxrss << 10
}
