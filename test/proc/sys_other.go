//go:build !linux

package proc

import "syscall"

// dieWithParent can do nothing here: a test binary that crashes leaves its brokers behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
