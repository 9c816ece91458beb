//go:build !unix

package cli

import "time"

func cpuTime() time.Duration { return 0 }
func residentBytes() int64   { return 0 }
