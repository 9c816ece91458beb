//go:build !linux

package power

import "testing"

func TestPower(t *testing.T) {
	t.Skip("needs Linux: power is cut by ext4's own ioctl, and by a disk that is served through FUSE")
}
