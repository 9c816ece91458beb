package broker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/vfs"
)

// openAll opens every partition there is, a bounded number side by side, and says each second how far it is. A topic
// made meanwhile is opened by whoever made it, and a partition that somebody needs now is opened ahead of its turn.
func (b *Broker) openAll(ctx context.Context) error {
	found, refused, err := b.layout.Inspect(b.cfg.Meta.View)
	if err != nil {
		return fault.New(fault.IO, "look through the data directory %s: %w", b.cfg.DataDir, err)
	}
	for _, problem := range found {
		b.cfg.Logger.Warn("found data that the metadata does not account for", "problem", problem)
	}
	b.metrics.incarnationRefused.Add(float64(refused))
	// Made before it is needed: when the disk is full, a deletion may not find the room for it.
	if err := vfs.MkdirSync(b.cfg.Housekeeping, b.layout.Deleted()); err != nil {
		b.cfg.Logger.Warn("could not make the directory for deleted topics; the next deletion tries again", "err", err)
	}
	b.tasks.Go("remove deleted topics", b.remover.Run) // only now: see datadir.Layout.Inspect
	var all []*partition.Partition
	for _, t := range b.topics.all() {
		all = append(all, t.parts...)
	}
	b.mu.Lock()
	b.mu.unknown, b.mu.total = found, len(all)
	b.mu.Unlock()

	start := time.Now()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	finished := make(chan struct{}, b.cfg.OpenParallel)
	for range b.cfg.OpenParallel {
		if !b.tasks.Go("open partitions", func(ctx context.Context) error {
			defer func() { finished <- struct{}{} }()
			for i := next.Add(1); i <= int64(len(all)) && ctx.Err() == nil; i = next.Add(1) {
				p := all[i-1]
				if err := p.Ready(ctx); err != nil && fault.KindOf(err) != fault.Deleted && b.cfg.StrictStart && b.draining.Err() == nil {
					failed.CompareAndSwap(nil, &err)
				}
				b.mu.Lock()
				b.mu.tried++
				b.mu.Unlock()
			}
			return nil
		}) {
			finished <- struct{}{}
		}
	}
	reportUntil(finished, b.cfg.OpenParallel, func() {
		b.mu.Lock()
		tried := b.mu.tried
		b.mu.Unlock()
		b.cfg.Logger.Info("opening partitions", "done", tried, "of", len(all))
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := failed.Load(); err != nil {
		return fmt.Errorf("a partition cannot be served, and the broker is set to start only with all of them: %w", *err)
	}
	_, states := b.topics.census()
	b.cfg.Logger.Info("partitions opened", "partitions", len(all), "unavailable", states[partition.Unavailable],
		"duration", time.Since(start).Round(time.Millisecond))
	close(b.opened)
	return nil
}

// reportUntil calls report each second until as many workers as there are have finished.
func reportUntil(finished <-chan struct{}, workers int, report func()) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for done := 0; done < workers; {
		select {
		case <-finished:
			done++
		case <-tick.C:
			report()
		}
	}
}

// follow brings the registry to what the metadata says whenever that moved without this broker having asked for it, or
// without its having heard the answer. Every reservation of offsets moves the metadata, so it looks once a second at
// most.
func (b *Broker) follow(ctx context.Context) error {
	for {
		changed := b.cfg.Meta.Changed()
		for _, t := range b.reconcile() {
			b.applySettings(ctx, t)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// maintain applies retention to every log that has one, and gives partitions that failed to open for a passing reason
// another try.
func (b *Broker) maintain(ctx context.Context) error {
	tick := time.NewTicker(b.cfg.RetentionEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		b.sweep()
		b.expire(ctx)
		var backlog partition.Backlog
		for _, t := range b.topics.all() {
			for i, p := range t.parts {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				maintainPartition(ctx, b, t, i, p)
				backlog.Add(p)
			}
		}
		b.cfg.Tier.Report(backlog, b.cfg.Logger)
	}
}

func maintainPartition(ctx context.Context, b *Broker, t *topic, i int, p *partition.Partition) {
	n, err := p.Maintain(ctx)
	switch {
	case err != nil && ctx.Err() == nil && t.ended() == nil:
		if held, ok := b.quiet.Allow("maintain "+t.Full, b.cfg.Now()); ok {
			b.cfg.Logger.Warn("retention or sealing failed", "topic", t.Full, "partition", i, "err", err, "held_back", held)
		}
	case n > 0:
		b.cfg.Logger.Info("retention removed segments", "topic", t.Full, "partition", i, "bytes", n)
	}
}
