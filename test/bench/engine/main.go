// Command engine measures the broker's log in this process: workers append batches side by side, and one JSON line says
// what it took. It owns throw-away logs, one or, with -logs, as many as a broker has busy partitions; walbench starts it
// among the other engines, so that all are measured on the same device at the same time. With -bucket it reads what a broker
// has put into an object store, by the broker's own reader of that. It never measures a broker, and it prepares each worker's batch once: the log itself
// checks every one, as it does when a broker passes it on. Invariant: what it counts was acknowledged by the log.
//
//	go run ./test/bench/engine -dir DIR -mode on_commit -batch 16 -conc 64 -size 128 -secs 1
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// config is what is measured.
type config struct {
	dir, mode, label        string
	batch, conc, size, logs int
	length                  time.Duration
}

// row is the result, with the names that all rows of the harness have.
type row struct {
	Label, Mode, Style        string
	Size, Conc, Batch         int
	Partitions                int // as a broker calls its logs
	Msgs                      int64
	Secs, MsgsPerS, MBPerS    float64
	P50, P99, P999            float64 // microseconds
	SrvCPUPerM                float64 // CPU seconds a million records
	FlushesPerS, RecsPerFlush float64 // of all logs
}

func main() {
	var c config
	flag.StringVar(&c.dir, "dir", ".", "where to make the log's folder; it is removed afterwards")
	flag.StringVar(&c.mode, "mode", "on_commit", "fsync mode: on_commit, periodic or none")
	flag.StringVar(&c.label, "label", "engine-levee", "copied to the row")
	flag.IntVar(&c.batch, "batch", 1, "records in a batch")
	flag.IntVar(&c.conc, "conc", 1, "workers that append")
	flag.IntVar(&c.logs, "logs", 1, "logs that the workers are spread over")
	flag.IntVar(&c.size, "size", 128, "bytes of a record")
	secs := flag.Float64("secs", 1, "how long to measure")
	bucket := flag.String("bucket", "", "instead: read the segments in this bucket once")
	endpoint := flag.String("s3", "", "where the bucket is")
	flag.Parse()
	c.length = time.Duration(*secs * float64(time.Second))
	var r row
	var err error
	if *bucket != "" {
		r, err = ofBucket(*endpoint, *bucket, c.label)
	} else {
		r, err = measure(c)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
}

func ofBucket(endpoint, bucket, label string) (r row, err error) {
	store, err := openBucket(endpoint, bucket)
	if err != nil {
		return row{}, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return measureCold(context.Background(), store, label)
}

// What is written is kept within bounds, or a fast device would be full before the time is up.
const (
	segmentBytes = 256 << 20
	keepBytes    = 1 << 30
	retainEvery  = 250 * time.Millisecond
)

func measure(c config) (r row, err error) {
	mode, err := modeOf(c.mode)
	if err != nil {
		return row{}, err
	}
	if c.logs < 1 || c.conc < c.logs {
		return row{}, fmt.Errorf("%d workers cannot keep %d logs busy", c.conc, c.logs)
	}
	dir, err := os.MkdirTemp(c.dir, "levee-engine-")
	if err != nil {
		return row{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var syncs atomic.Int64
	logs := make([]*seglog.Log, 0, c.logs)
	defer func() {
		for _, log := range logs {
			err = errors.Join(err, log.Close())
		}
	}()
	files := seglog.NewFiles(0) // shared, as a broker's logs share it
	for i := range c.logs {
		log, err := open(fmt.Sprintf("%s/%d", dir, i), files, mode, keepBytes/int64(c.logs), &syncs)
		if err != nil {
			return row{}, err
		}
		logs = append(logs, log)
	}
	stop := retain(logs)
	defer func() { err = errors.Join(err, stop()) }()
	return load(c, logs, &syncs)
}

// open makes a log that has its files: the first append, which makes them, is not what is measured.
func open(dir string, files *seglog.Files, mode seglog.Mode, keep int64, syncs *atomic.Int64) (*seglog.Log, error) {
	log, _, err := seglog.Open(seglog.Config{
		FS: countingFS{syncs: syncs}, Dir: dir + "/log", SalvageDir: dir + "/salvage", Topic: "bench/engine", Mode: mode, Files: files,
		SegmentBytes: min(segmentBytes, keep), Retention: seglog.Retention{Bytes: keep},
	})
	if err != nil {
		return nil, err
	}
	first, err := encode(0, 1, 1)
	if err == nil {
		_, err = log.Append(context.Background(), first)
	}
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return log, nil
}

func modeOf(name string) (seglog.Mode, error) {
	for _, m := range []seglog.Mode{seglog.OnCommit, seglog.Periodic, seglog.None} {
		if m.String() == name {
			return m, nil
		}
	}
	return 0, fmt.Errorf("mode %q is none of on_commit, periodic and none", name)
}

// retain removes old segments until the function it returns is called.
func retain(logs []*seglog.Log) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		tick := time.NewTicker(retainEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-tick.C:
				for _, log := range logs {
					if _, err := log.Retain(ctx); err != nil && ctx.Err() == nil {
						done <- err
						return
					}
				}
			}
		}
	}()
	return func() error { cancel(); return <-done }
}

// load appends for the time and reports.
func load(c config, logs []*seglog.Log, syncs *atomic.Int64) (row, error) {
	batches := make([][]byte, c.conc)
	for w := range batches {
		var err error
		if batches[w], err = encode(w, c.batch, c.size); err != nil {
			return row{}, err
		}
	}
	var wg sync.WaitGroup
	var appended atomic.Int64
	latencies, errs := make([][]time.Duration, c.conc), make([]error, c.conc)
	flushed, cpu, start := syncs.Load(), cpuSeconds(), time.Now()
	end := start.Add(c.length)
	for w := range c.conc {
		wg.Go(func() {
			var n int64
			latencies[w], n, errs[w] = appendUntil(end, logs[w%len(logs)], batches[w])
			appended.Add(n)
		})
	}
	wg.Wait()
	took := time.Since(start).Seconds()
	cpu, flushed = cpuSeconds()-cpu, syncs.Load()-flushed
	if err := errors.Join(errs...); err != nil {
		return row{}, err
	}
	records := float64(appended.Load()) * float64(c.batch)
	r := row{
		Label: c.label, Mode: c.mode, Style: "append", Size: c.size, Conc: c.conc, Batch: c.batch, Partitions: c.logs, Msgs: int64(records), Secs: took,
		MsgsPerS: records / took, MBPerS: records * float64(c.size) / 1e6 / took, SrvCPUPerM: cpu / max(records, 1) * 1e6,
		FlushesPerS: float64(flushed) / took,
	}
	if flushed > 0 {
		r.RecsPerFlush = records / float64(flushed)
	}
	all := slices.Concat(latencies...)
	slices.Sort(all)
	r.P50, r.P99, r.P999 = quantile(all, .5), quantile(all, .99), quantile(all, .999)
	return r, nil
}

// samples bounds the latencies that one worker keeps.
const samples = 200_000

// appendUntil appends at least once, however busy the machine is.
func appendUntil(end time.Time, log *seglog.Log, batch []byte) (latencies []time.Duration, n int64, err error) {
	ctx := context.Background()
	for start := time.Now(); n == 0 || start.Before(end); start = time.Now() {
		if _, err := log.Append(ctx, batch); err != nil {
			return latencies, n, err
		}
		if n++; len(latencies) < samples {
			latencies = append(latencies, time.Since(start))
		}
	}
	return latencies, n, nil
}

// encode makes a worker's batch. The log changes none of its bytes.
func encode(worker, records, size int) ([]byte, error) {
	b := record.NewBuilder(record.None)
	for i := range records {
		value := make([]byte, size)
		for j := range value {
			value[j] = byte(j*31 + i + worker)
		}
		if err := b.Append(record.Record{Value: value, Timestamp: time.Now().UnixMilli()}); err != nil {
			return nil, err
		}
	}
	return b.Build(record.NoProducer)
}

func quantile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[int(p*float64(len(sorted)-1))].Nanoseconds()) / 1e3
}

func cpuSeconds() float64 {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return 0
	}
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}

// countingFS is the operating system's file system that counts flushes.
type countingFS struct {
	vfs.OS
	syncs *atomic.Int64
}

// Open implements vfs.FS.
func (c countingFS) Open(name string, create bool) (vfs.File, error) {
	f, err := c.OS.Open(name, create)
	if err != nil {
		return nil, err
	}
	return countingFile{File: f, syncs: c.syncs}, nil
}

type countingFile struct {
	vfs.File
	syncs *atomic.Int64
}

// Sync implements vfs.File.
func (f countingFile) Sync() error {
	f.syncs.Add(1)
	return f.File.Sync()
}
