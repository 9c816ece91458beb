package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/leveemq/levee/internal/datadir"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

// Waiting is a partition that is not served because records that a lost broker acknowledged may be nowhere else.
type Waiting struct {
	Partition int32
	Broker    string // the lost one, in words
	Since     time.Time
	Report    *TakenOver // what came of it, where it waits no more; nil: it does, or nothing has come of it yet
}

// Former is a lost broker's data directory, which somebody has found again.
type Former struct {
	FS      vfs.FS // nothing in it is changed
	Dir     string
	Crash   seglog.Crash // how that broker's last run ended
	View    *meta.View   // its metadata
	Release func() error // called once nothing is read any more
}

// Recover returns the partitions of a topic that wait for a lost broker; partition is one of them, or -1 for all. With
// acceptLoss, what only that broker had is given up, and they are opened.
func (b *Broker) Recover(ctx context.Context, name string, partition int32, acceptLoss bool) (waiting []Waiting, err error) {
	t, err := b.lookup(name, nil)
	if err != nil {
		return nil, err
	}
	if int(partition) >= len(t.parts) || partition < -1 {
		return nil, fault.New(fault.NotFound, "%s has no partition %d", t.Full, partition)
	}
	view := b.cfg.Meta.View()
	for i, p := range t.parts {
		at := int32(i) //nolint:gosec // bounded by meta
		c := view.Custody(t.ID, at)
		if c == nil || c.Pending == nil || partition >= 0 && partition != at {
			continue
		}
		waiting = append(waiting, Waiting{Partition: at, Broker: c.Pending.From, Since: time.UnixMilli(c.Pending.AtMs)})
		if !acceptLoss {
			continue
		}
		if _, err := b.propose(ctx, meta.AcceptLoss{Name: t.Name, ID: t.ID, Partition: at}); err != nil {
			return nil, fmt.Errorf("accept the loss of what only %s had of %s/%d: %w", c.Pending.From, t.Full, at, err)
		}
		b.cfg.Logger.Warn("the loss of what only a lost broker had is accepted", "topic", t.Full, "partition", at, "broker", c.Pending.From)
		if err := p.Unload(ctx); err != nil {
			return nil, fmt.Errorf("open %s/%d again: %w", t.Full, at, err)
		}
		p.Prepare(true)
	}
	return waiting, nil
}

// Return makes partitions of a topic again that wait for a lost broker, with what that broker's data directory has; partition
// is one of them, or -1 for all. It returns those that waited, and what came of it. The first that cannot be made again ends
// it. Where what the broker had was given up before, that is an error.
func (b *Broker) Return(ctx context.Context, name string, number int32, dir string) (back []Waiting, err error) {
	waiting, err := b.Recover(ctx, name, number, false)
	if err != nil {
		return nil, err
	}
	if b.cfg.Former == nil {
		return nil, fault.New(fault.Unsupported, "this broker reads no directory but its own")
	}
	t, err := b.lookup(name, nil)
	if err != nil {
		return nil, err
	}
	if len(waiting) == 0 {
		return nil, b.givenUp(t, number, dir)
	}
	for _, w := range waiting {
		if err := b.comeBack(ctx, t, w.Partition, dir); err != nil {
			return back, err
		}
		if c := b.cfg.Meta.View().Custody(t.ID, w.Partition); c != nil && c.Pending == nil {
			w.Report = c.Report
		}
		back = append(back, w)
	}
	return back, nil
}

// comeBack makes one partition again. Each opens the directory by itself: what it holds of it goes with its own attempt.
func (b *Broker) comeBack(ctx context.Context, t *topic, n int32, dir string) error {
	f, err := b.cfg.Former(dir)
	if err != nil {
		return err
	}
	was, ok := f.View.TopicByID(t.ID)
	switch c := f.View.Custody(t.ID, n); {
	case !ok || int(n) >= len(was.Partitions):
		err = fault.New(fault.Conflict, "%s is not what %s/%d waits for: the broker that had it knew no such topic", dir, t.Full, n)
	case c != nil && c.Pending != nil:
		err = fault.New(fault.Conflict, "%s is not what %s/%d waits for: the broker that had it was waiting for %s itself", dir, t.Full, n, c.Pending.From)
	}
	if err != nil {
		if rerr := f.Release(); rerr != nil {
			b.cfg.Logger.Warn("could not let go of a directory", "directory", dir, "err", rerr)
		}
		return err
	}
	at := was.Partitions[n]
	left := partition.Former{
		FS: f.FS, Directory: dir, Log: datadir.LogDir(f.Dir, was, n), Crash: f.Crash, Generation: at.Generation, Reserved: at.Reserved, Release: f.Release,
	}
	return left.Return(ctx, t.parts[n])
}

// givenUp is why a directory comes too late: nil where nothing was given up.
func (b *Broker) givenUp(t *topic, number int32, dir string) error {
	for i := range t.parts {
		n := int32(i) //nolint:gosec // bounded by meta
		c := b.cfg.Meta.View().Custody(t.ID, n)
		if number >= 0 && number != n || c == nil || c.Report == nil || c.Report.Lost == nil || c.Report.Directory != "" {
			continue
		}
		return fault.New(fault.Conflict, "%s/%d waits no more: what only %s had was given up, and offsets %d to %d are declared lost to readers: what %s has of it can be read with `levee inspect dump`, and published again",
			t.Full, n, c.Report.From, c.Report.Lost.From, c.Report.Lost.To, dir)
	}
	return nil
}
