//go:build unix

package cli

import (
	"context"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hangupEvery bounds how long the end of a waiting command may take to be noticed, either way.
const hangupEvery = 200 * time.Millisecond

// watchHangup waits until nobody reads from f any more, which it returns as EPIPE, or until ctx is done. Without it a
// command that waits for its next record would not notice that what it is piped into has ended: only a write tells.
func watchHangup(ctx context.Context, f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		<-ctx.Done()
		return nil
	}
	fds := []unix.PollFd{{Fd: int32(f.Fd())}} //nolint:gosec // file descriptors are small
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, int(hangupEvery/time.Millisecond))
		if n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 {
			return syscall.EPIPE
		}
		if err != nil && err != unix.EINTR {
			return nil // then a write will tell
		}
	}
	return nil
}
