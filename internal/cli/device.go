package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// deviceJSON is what the device does without a log, measured in the same folder right before the log is.
type deviceJSON struct {
	FdatasyncUs            deviceLatency `json:"fdatasync_us"`
	PwriteRecordsPerSecond float64       `json:"pwrite_records_per_second"`
}

type deviceLatency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

const (
	deviceBlock   = 4 << 10
	deviceArea    = 8 << 20  // file that flushes go to
	deviceWrites  = 64 << 20 // file that plain writes go to, over and over
	deviceFlushes = 2000     // at most
)

// measureDevice takes at most twice the time given. batch is what the log will write, of records records.
func measureDevice(ctx context.Context, disk vfs.FS, dir string, batch []byte, records int, each time.Duration) (*deviceJSON, error) {
	out := &deviceJSON{}
	flushes, err := measureFlushes(ctx, disk, filepath.Join(dir, "flushes"), each)
	if err != nil {
		return nil, fmt.Errorf("measure the device's flushes: %w", err)
	}
	out.FdatasyncUs = deviceLatency{microseconds(flushes.percentile(0.5)), microseconds(flushes.percentile(0.99))}
	writes, err := measureWrites(ctx, disk, filepath.Join(dir, "writes"), batch, each)
	if err != nil {
		return nil, fmt.Errorf("measure the device's writes: %w", err)
	}
	out.PwriteRecordsPerSecond = round(writes * float64(records))
	return out, nil
}

// measureFlushes writes 4 KiB and flushes, into blocks that were written before: the least a durable append can cost.
func measureFlushes(ctx context.Context, disk vfs.FS, name string, each time.Duration) (*histogram, error) {
	f, err := disk.Open(name, true)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	block := payload(deviceArea)
	if _, err := f.WriteAt(block, 0); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	h := &histogram{}
	end := time.Now().Add(each)
	for i := int64(0); i < deviceFlushes && time.Now().Before(end); i++ {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		start := time.Now()
		if _, err := f.WriteAt(block[:deviceBlock], i*deviceBlock%deviceArea); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		h.add(time.Since(start), 1)
	}
	return h, disk.Remove(name)
}

// measureWrites returns how many times a second batch can be written behind itself, without a flush.
func measureWrites(ctx context.Context, disk vfs.FS, name string, batch []byte, each time.Duration) (float64, error) {
	f, err := disk.Open(name, true)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	start := time.Now()
	n, at := 0, int64(0)
	for time.Since(start) < each {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if at+int64(len(batch)) > deviceWrites {
			at = 0
		}
		if _, err := f.WriteAt(batch, at); err != nil {
			return 0, err
		}
		at += int64(len(batch))
		n++
	}
	return float64(n) / time.Since(start).Seconds(), disk.Remove(name)
}
