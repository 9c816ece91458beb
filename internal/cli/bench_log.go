package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

type benchLogCmd struct {
	Dir string `required:"" placeholder:"DIR" help:"Where to make the folder that the log is in; it is removed afterwards."`
	benchFlags
}

// Help describes the command.
func (benchLogCmd) Help() string {
	return manual{
		text: "Appends to one log in this process, as a broker would, and reports what it took, beside the same device without a log, " +
			"measured right before. Latency is from an append's submission to its completion. Rates of two runs compare only on the " +
			"same machine at the same time; the ratio to the device is what says something. Of what is written 1 GiB is kept at most.",
		example: "levee bench log --dir /var/lib/levee --publishers 64 --batch 16 --size 1KiB",
		rows:    "one object", row: benchJSON{},
	}.String()
}

// Run measures.
func (c *benchLogCmd) Run(a *app) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.Dir, "levee-bench-")
	if err != nil {
		return fmt.Errorf("make a folder in %s: %w", c.Dir, err)
	}
	defer func() {
		if rerr := os.RemoveAll(dir); rerr != nil && err == nil {
			err = fmt.Errorf("remove the benchmark's folder: %w", rerr)
		}
	}()
	batch, err := c.encode()
	if err != nil {
		return err
	}
	a.note("measuring the device in %s", dir)
	each := min(time.Second, time.Duration(c.Duration)/5)
	device, err := measureDevice(a.ctx, vfs.OS{}, dir, batch, c.Batch, each)
	if err != nil {
		return err
	}
	settings := c.settings()
	settings.Dir = c.Dir
	result, err := c.measure(a, dir, batch, settings)
	result.Device = device
	return a.reportBench(result, err)
}

// encode makes the one batch that is appended over and over: the log sets each copy's place itself.
func (c *benchLogCmd) encode() ([]byte, error) {
	b := record.NewBuilder(record.None)
	value := payload(int(c.Size))
	for range c.Batch {
		if err := b.Append(record.Record{Value: value, Timestamp: time.Now().UnixMilli()}); err != nil {
			return nil, err
		}
	}
	return b.Build(record.NoProducer)
}

func (c *benchLogCmd) measure(a *app, dir string, batch []byte, settings settingsJSON) (_ benchJSON, err error) {
	log, _, err := seglog.Open(seglog.Config{
		FS: vfs.OS{}, Dir: dir + "/log", SalvageDir: dir + "/salvage", Topic: "bench/log", Mode: fsyncMode(c.Fsync), MaxBatchBytes: max(16<<20, len(batch)),
		SegmentBytes: benchSegment, Retention: seglog.Retention{Bytes: benchKeep},
	})
	if err != nil {
		return benchJSON{}, err
	}
	defer func() {
		if cerr := log.Close(); cerr != nil && err == nil {
			err = cerr
		}
	}()
	trim := task.NewGroup(a.ctx)
	trim.Go("bench-retention", func(ctx context.Context) error { return keepSmall(ctx, log) })
	defer func() {
		trim.Stop()
		if terr := trim.Wait(); terr != nil && err == nil {
			err = terr
		}
	}()
	run := load{a: a, name: "log", duration: time.Duration(c.Duration), settings: settings, workers: c.Publishers}
	run.work = func(ctx context.Context, _ int, t *tally) error {
		// The log changes no byte of a batch, so all appends of a worker may share one.
		own := append([]byte(nil), batch...)
		if c.InFlight == 1 {
			return c.appendOneByOne(ctx, a.ctx, log, own, t)
		}
		return c.appendMany(ctx, a.ctx, log, own, t)
	}
	return run.run()
}

// What is written is kept within bounds, or a fast device would be full before the time is up.
const (
	benchSegment = 256 << 20
	benchKeep    = 1 << 30
)

func keepSmall(ctx context.Context, log *seglog.Log) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := log.Retain(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

func (c *benchLogCmd) appendOneByOne(stop, ctx context.Context, log *seglog.Log, batch []byte, t *tally) error {
	for stop.Err() == nil {
		start := time.Now()
		if _, err := log.Append(ctx, batch); err != nil {
			t.failed(err)
			return nil
		}
		t.done(int64(c.Batch), int64(c.Batch)*int64(c.Size), time.Since(start))
	}
	return nil
}

func (c *benchLogCmd) appendMany(stop, ctx context.Context, log *seglog.Log, batch []byte, t *tally) error {
	slots := make(chan struct{}, c.InFlight)
	for stop.Err() == nil {
		slots <- struct{}{}
		start := time.Now()
		err := log.Submit(ctx, &seglog.Append{Batch: batch, Done: func(done *seglog.Append) {
			if done.Err != nil {
				t.failed(done.Err)
			} else {
				t.done(int64(c.Batch), int64(c.Batch)*int64(c.Size), time.Since(start))
			}
			<-slots
		}})
		if err != nil {
			t.failed(err)
			<-slots
			break
		}
	}
	for range cap(slots) { // every answer is in
		slots <- struct{}{}
	}
	return nil
}

func fsyncMode(name string) seglog.Mode {
	for _, m := range []seglog.Mode{seglog.Periodic, seglog.None} {
		if m.String() == name {
			return m
		}
	}
	return seglog.OnCommit
}
