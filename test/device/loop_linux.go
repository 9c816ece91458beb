package device

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// attach puts a file under a free loop device, which lets go of it with its last user. The caller must close what it
// returns, after it has mounted the device. Flushes of the device become an fsync of the file.
func attach(file string) (*os.File, error) {
	back, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close() // the device has its own
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(back.Fd())}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			return dev, nil
		}
		_ = dev.Close()
		if !errors.Is(err, unix.EBUSY) { // busy: another process was faster
			return nil, fmt.Errorf("put %s under %s: %w", file, dev.Name(), err)
		}
	}
}
