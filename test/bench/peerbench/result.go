package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
)

// result is a row. All rows of a run, also those of the other programs, have these names.
type result struct {
	Label, Target, Mode, Style string
	Size, Conc, Window, Batch  int
	Partitions                 int // of the topic
	Msgs                       int64
	Secs, MsgsPerS, MBPerS     float64
	P50, P99, P999, Max        float64 // microseconds
	SrvCPUPerM, CliCPUPerM     float64 // CPU seconds a million messages
	SrvCPUs                    float64 // cores the server used
	RSSMB, HWMMB               float64 // the server's memory, and the most it ever had
	Errors, Dropped            int64
	StreamKiB, StreamDiskKiB   float64
	OpenFiles                  int
	AckMsgs                    int64    // messages with acknowledgements that the broker took
	FlushesPerAck              float64  // flushes to the device by what was acknowledged, while it was
	Offered                    float64  // messages a second that -mode paced was to publish
	Lag                        *lag     `json:",omitempty"` // of export, during -mode paced
	LagGrowth                  *float64 `json:",omitempty"` // of what is published in the second half of a run, the part that its lag grew by
	Trips, Requests            int64    // -mode first: to the object store, one behind the other, and all together
	Note                       string
}

var (
	dropped   atomic.Int64 // what a non-reliable broker said it dropped
	readBytes int64        // of what was read, where -size does not tell
	refused   atomic.Int64 // what a broker did not acknowledge, in the modes that do not wait for each answer
)

func row(msgs, errs int64, took float64, h *hist, cli, srv float64) *result {
	r := &result{
		Label: *label, Target: *target, Mode: *mode, Style: *style, Size: *size, Conc: *conc, Msgs: msgs, Secs: took, Errors: errs,
	}
	if *target == "levee" {
		r.Partitions = *parts
	}
	if *style != "sync" {
		r.Window, r.Batch = *window, *batch
	}
	if m := float64(msgs); m > 0 && took > 0 {
		r.MsgsPerS, r.MBPerS = m/took, m*float64(*size)/1e6/took
		if readBytes > 0 { // messages of other sizes
			r.MBPerS = float64(readBytes) / 1e6 / took
		}
		r.SrvCPUPerM, r.CliCPUPerM = srv/m*1e6, cli/m*1e6
		r.SrvCPUs = srv / took
		r.AckMsgs, r.FlushesPerAck = ackMessages, float64(flushes)/m
	}
	r.P50, r.P99, r.P999, r.Max = h.quantile(.5), h.quantile(.99), h.quantile(.999), float64(h.max)/1e3
	r.RSSMB, r.HWMMB = memOf(*pid)
	return r
}

func cpuSelf() float64 {
	var ru syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &ru))
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}

// cpuOf returns a process's CPU seconds, to the hundredth of a second that the kernel tells.
func cpuOf(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	s := string(stat)
	f := strings.Fields(s[strings.LastIndex(s, ")")+2:]) // the name before may hold anything
	var user, system float64
	fmt.Sscan(f[11], &user)
	fmt.Sscan(f[12], &system)
	return (user + system) / 100
}

func memOf(pid int) (rss, hwm float64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			fmt.Sscan(rest, &kib)
			rss = kib / 1024
		}
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			fmt.Sscan(rest, &kib)
			hwm = kib / 1024
		}
	}
	return rss, hwm
}

func openFiles(pid int) int {
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(names)
}

// diskUsage returns the bytes of the blocks below dir; 0 without one.
func diskUsage(dir string) int64 {
	if dir == "" {
		return 0
	}
	var sum int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a server renames and removes while we look
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += st.Blocks * 512
			}
		}
		return nil
	})
	return sum
}
