//go:build !linux

package device

import "testing"

func TestDevices(t *testing.T) {
	t.Skip("needs Linux: loop devices, mount namespaces and FUSE are made by its system calls")
}
