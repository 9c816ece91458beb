package cli

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/task"
)

type benchCmd struct {
	Log       benchLogCmd       `cmd:"" help:"Measure the log alone, without a broker, beside the device it is on."`
	Publish   benchPublishCmd   `cmd:"" help:"Measure publishing to a broker."`
	Consume   benchConsumeCmd   `cmd:"" help:"Measure reading a topic from its beginning."`
	Subscribe benchSubscribeCmd `cmd:"" help:"Measure consuming a subscription."`
	E2E       benchE2ECmd       `cmd:"" name:"e2e" help:"Measure how long records take from publisher to consumer."`
}

// benchFlags are the flags of every benchmark.
type benchFlags struct {
	Publishers int      `default:"1" placeholder:"N" help:"How many publish side by side."`
	Batch      int      `default:"1" placeholder:"N" help:"Records in a batch."`
	InFlight   int      `default:"1" placeholder:"N" help:"Batches a publisher has under way; 1 waits for each acknowledgement."`
	Size       byteSize `default:"128" placeholder:"SIZE" help:"Bytes of a record's value."`
	Duration   duration `default:"5s" placeholder:"D" help:"How long to measure."`
	Fsync      string   `placeholder:"on_commit|periodic|none" enum:"on_commit,periodic,none" default:"on_commit" help:"When an append counts as done; of a broker's topic, only where the benchmark creates it."`
}

func (f *benchFlags) validate() error {
	switch {
	case f.Publishers < 1 || f.Publishers > 10_000:
		return usagef("--publishers is %d: it is 1 to 10000", f.Publishers)
	case f.Size < 0 || f.Size > 32<<20:
		return usagef("--size is %s: it is 32MiB at most", f.Size)
	case f.Batch < 1 || f.Batch > 1_000_000:
		return usagef("--batch is %d: it is 1 to 1000000", f.Batch)
	case f.InFlight < 1 || f.InFlight > 1_000_000:
		return usagef("--in-flight is %d: it is 1 to 1000000", f.InFlight)
	case f.Duration <= 0 || time.Duration(f.Duration) > 24*time.Hour:
		return usagef("--duration is %s: it is more than nothing and at most 1d", f.Duration)
	case int64(f.Size)*int64(f.Batch) > 32<<20:
		return usagef("--size %s times --batch %d is more than one batch holds, 32MiB", f.Size, f.Batch)
	}
	return nil
}

// benchJSON is a benchmark's result.
type benchJSON struct {
	Bench            string       `json:"bench" doc:"log, publish, consume, subscribe or e2e"`
	RecordsPerSecond float64      `json:"records_per_second" doc:"acknowledged (consume, subscribe, e2e: received) over the time measured"`
	BytesPerSecond   float64      `json:"bytes_per_second" doc:"of their values"`
	LatencyUs        latencyJSON  `json:"latency_us" doc:"p50, p99, p999 and max in microseconds; what of is in the help of each benchmark"`
	CPUSeconds       float64      `json:"cpu_seconds" doc:"this process spent, user and system, while it measured"`
	RSSBytes         int64        `json:"rss_bytes" doc:"most memory this process had resident; 0 where the system does not tell"`
	Records          int64        `json:"records" doc:"acknowledged or received"`
	Errors           int64        `json:"errors" doc:"operations that failed"`
	Device           *deviceJSON  `json:"device,omitempty" doc:"log only: fdatasync_us {p50, p99} of 4 KiB into blocks written before, and pwrite_records_per_second of the same batches without a log"`
	Machine          machineJSON  `json:"machine" doc:"os, arch, cpus, go, version"`
	Settings         settingsJSON `json:"settings" doc:"the flags in effect, and the topic or directory"`
}

type machineJSON struct {
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	CPUs    int    `json:"cpus"`
	Go      string `json:"go"`
	Version string `json:"version"`
}

type settingsJSON struct {
	Topic       string  `json:"topic,omitempty"`
	Dir         string  `json:"dir,omitempty"`
	Fsync       string  `json:"fsync,omitempty"`
	Publishers  int     `json:"publishers,omitempty"`
	Consumers   int     `json:"consumers,omitempty"`
	Batch       int     `json:"batch,omitempty"`
	InFlight    int     `json:"in_flight,omitempty"`
	Size        int64   `json:"size,omitempty"`
	Rate        float64 `json:"rate,omitempty"`
	Compression string  `json:"compression,omitempty"`
	Idempotent  bool    `json:"idempotent,omitempty"`
	Type        string  `json:"type,omitempty"`
	AckEach     bool    `json:"ack_each,omitempty"`
	Duration    string  `json:"duration"`
}

func (f *benchFlags) settings() settingsJSON {
	return settingsJSON{Fsync: f.Fsync, Publishers: f.Publishers, Batch: f.Batch, InFlight: f.InFlight, Size: int64(f.Size), Duration: f.Duration.String()}
}

// maxTallies bounds the memory of histograms; with more workers some share one.
const maxTallies = 64

// tally is what workers counted. Its lock is taken once a batch and hardly ever contended.
type tally struct {
	mu      sync.Mutex
	latency histogram
	records int64
	bytes   int64
	errors  int64
	err     error // the first
}

func (t *tally) done(records, bytes int64, took time.Duration) {
	t.mu.Lock()
	t.latency.add(took, 1)
	t.records += records
	t.bytes += bytes
	t.mu.Unlock()
}

func (t *tally) failed(err error) {
	t.mu.Lock()
	t.errors++
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
}

// broken reports that an operation failed: a benchmark of errors says nothing.
func (t *tally) broken() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err != nil
}

// load runs workers side by side and adds up what they counted.
type load struct {
	a        *app
	name     string
	duration time.Duration
	settings settingsJSON
	// work does one worker's part until ctx is done or there is nothing left to do, and counts into t. Operations are
	// finished, with the app's own context, so that none is cut off by the end of the time.
	work    func(ctx context.Context, worker int, t *tally) error
	workers int
}

// run measures. Failed operations are counted and reported after the result; an error of work itself ends the run.
func (l *load) run() (benchJSON, error) {
	ctx, cancel := context.WithTimeout(l.a.ctx, l.duration)
	defer cancel()
	tallies := make([]tally, min(l.workers, maxTallies))
	cpu := cpuTime()
	start := time.Now()
	bar := task.NewGroup(context.WithoutCancel(ctx))
	if isTerminal(l.a.stderr) {
		bar.Go("progress", progress{out: l.a.stderr, state: func() (int64, int64, string) {
			return int64(time.Since(start)), int64(l.duration), "measuring"
		}}.run)
	}
	group := task.NewGroup(ctx)
	for i := range l.workers {
		group.Go(fmt.Sprintf("bench-%d", i), func(ctx context.Context) error {
			return l.work(ctx, i, &tallies[i%len(tallies)])
		})
	}
	err := group.Wait()
	elapsed := time.Since(start)
	bar.Stop()
	_ = bar.Wait()
	if err != nil {
		return benchJSON{}, err
	}
	total := tally{}
	for i := range tallies {
		t := &tallies[i]
		total.latency.merge(&t.latency)
		total.records += t.records
		total.bytes += t.bytes
		total.errors += t.errors
		if total.err == nil {
			total.err = t.err
		}
	}
	out := benchJSON{
		Bench: l.name, LatencyUs: total.latency.json(), CPUSeconds: (cpuTime() - cpu).Seconds(), RSSBytes: residentBytes(),
		Records: total.records, Errors: total.errors, Settings: l.settings,
		RecordsPerSecond: round(float64(total.records) / elapsed.Seconds()), BytesPerSecond: round(float64(total.bytes) / elapsed.Seconds()),
		Machine: machineJSON{runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), buildVersion().Version},
	}
	if l.a.ctx.Err() != nil {
		return out, errInterrupted
	}
	if total.err != nil {
		return out, fmt.Errorf("%s failed; the first: %w", plural(total.errors, "operation"), total.err)
	}
	return out, nil
}

// round keeps one decimal.
func round(f float64) float64 { return float64(int64(f*10+0.5)) / 10 }

// report prints a result, and passes on what went wrong besides.
func (a *app) reportBench(r benchJSON, err error) error {
	if err != nil && r.Bench == "" {
		return err
	}
	if a.json {
		if werr := writeJSON(a.stdout, r); werr != nil {
			return werr
		}
		return err
	}
	text := fmt.Sprintf("%s: %s records/s, %s/s, %s records, %s errors\n", r.Bench, count(int64(r.RecordsPerSecond)), humanBytes(r.BytesPerSecond), count(r.Records), count(r.Errors))
	text += fmt.Sprintf("  latency  p50 %.1f us, p99 %.1f us, p999 %.1f us, max %.1f us\n", r.LatencyUs.P50, r.LatencyUs.P99, r.LatencyUs.P999, r.LatencyUs.Max)
	text += fmt.Sprintf("  this process  %.2f s of CPU, %s resident at most\n", r.CPUSeconds, humanBytes(float64(r.RSSBytes)))
	if d := r.Device; d != nil {
		text += fmt.Sprintf("  the device alone  fdatasync p50 %.1f us, p99 %.1f us; pwrite %s records/s\n", d.FdatasyncUs.P50, d.FdatasyncUs.P99, count(int64(d.PwriteRecordsPerSecond)))
	}
	if _, werr := fmt.Fprint(a.stdout, text); werr != nil {
		return werr
	}
	return err
}

// humanBytes prints bytes with two or three digits.
func humanBytes(n float64) string {
	unit := "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n < 1024 {
			break
		}
		n, unit = n/1024, u
	}
	if n < 10 && unit != "B" {
		return fmt.Sprintf("%.1f %s", n, unit)
	}
	return fmt.Sprintf("%.0f %s", n, unit)
}

// payload makes a value of n bytes that does not compress to nothing but is the same in every run: half of it random
// from a fixed seed, half a fixed text.
func payload(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // not for secrets
	const text = "levee carries records from where they arise to where they are needed; "
	for i := range b {
		if i%2 == 0 {
			b[i] = byte(r.Uint32())
		} else {
			b[i] = text[i%len(text)]
		}
	}
	return b
}
