//go:build !linux

package proc

import "syscall"

// DieWithParent can do nothing here: a test binary that crashes leaves its brokers behind.
func DieWithParent() *syscall.SysProcAttr { return nil }
