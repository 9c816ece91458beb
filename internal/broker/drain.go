package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
)

// Drain stops the broker's work: it refuses new publishes and subscribers with kind unavailable, ends the subscribers
// there are with it, waits until what was submitted is answered, and flushes and closes every log. ctx bounds the wait for
// answers; the logs are closed, and answer what is queued, in any case but one: once ctx is done, logs of which none got
// done for a while are given up; see DrainReport.Hung. It may be called more than once; the report is that of the first.
func (b *Broker) Drain(ctx context.Context) DrainReport {
	b.mu.Lock()
	done := b.mu.report
	b.mu.Unlock()
	if done != nil {
		return *done
	}
	b.drain()
	b.end(errDraining())
	b.endConsumers(ctx)
	b.topics.syncing.Lock()   // whoever was adding a topic has added it, and from now on nobody does
	b.topics.syncing.Unlock() //nolint:staticcheck // nothing to do under it
	// Whoever holds the whole budget knows that nothing is unanswered. Publishers that wait for room behind it are
	// refused when they get it: see Publisher.Submit.
	if err := b.inFlight.Acquire(ctx, b.inFlight.Size()); err == nil {
		b.inFlight.Release(b.inFlight.Size())
	}
	recovered := b.Recovered()
	all := b.topics.all()
	opened := b.cfg.Crash == seglog.CleanStop || allOpened(all)
	stopped, hung := b.closeAll(ctx, all)
	_, more := b.closeAll(ctx, b.topics.allRetired()) // deleted: nobody will ask what they held
	hung = append(hung, more...)
	if len(stopped) > 0 {
		b.cfg.Logger.Error("logs that cannot be vouched for: the stop is not clean", "partitions", stopped)
	}
	if len(hung) > 0 {
		b.cfg.Logger.Error("logs that wait for the disk are given up: the stop is not clean", "partitions", hung)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.report == nil {
		clean := len(stopped) == 0 && len(hung) == 0 && opened
		b.mu.report = &DrainReport{Clean: clean, Stopped: stopped, Hung: hung, Recovered: recovered}
	}
	return *b.mu.report
}

// allOpened reports whether every log was opened in this run. After a crash, one that was not has yet to be recovered,
// which a clean stop would make the next run skip.
func allOpened(all []*topic) bool {
	for _, t := range all {
		for _, p := range t.parts {
			if !p.Status().Opened {
				return false
			}
		}
	}
	return true
}

// closeStall is how long a drain whose time is over waits on while not one more log gets closed: a disk that is only slow
// gets done with some in that time.
const closeStall = 5 * time.Second

// closeAll closes the logs of topics, as many side by side as are opened so, and returns which cannot be vouched for, and
// of which the closing does not end.
func (b *Broker) closeAll(ctx context.Context, topics []*topic) (stopped, hung []string) {
	type part struct {
		*partition.Partition
		where string
	}
	var parts []part
	for _, t := range topics {
		for i, p := range t.parts {
			parts = append(parts, part{p, fmt.Sprintf("%s/%d", t.Full, i)})
		}
	}
	type result struct {
		part int64
		err  error
	}
	results := make(chan result, len(parts)) // has room for all, though nobody may be left to read them
	waiting := map[int64]string{}
	for i, p := range parts {
		waiting[int64(i)] = p.where
	}
	var next atomic.Int64
	work := func(context.Context) error {
		for i := next.Add(1) - 1; i < int64(len(parts)); i = next.Add(1) - 1 {
			results <- result{i, parts[i].Close(context.Background(), errDraining())}
		}
		return nil
	}
	for range min(b.cfg.OpenParallel, len(parts)) {
		if !b.closing.Go("close partitions", work) {
			_ = work(ctx) // another drain is through with all of them, and this only hears how it went
		}
	}
	over := ctx.Done()
	var stalled <-chan time.Time
	for len(waiting) > 0 && len(hung) == 0 {
		select {
		case r := <-results:
			if r.err != nil {
				stopped = append(stopped, waiting[r.part]+": "+r.err.Error())
			}
			delete(waiting, r.part)
			if over == nil {
				stalled = time.After(closeStall)
			}
		case <-over:
			over, stalled = nil, time.After(closeStall)
		case <-stalled:
			hung = slices.Sorted(maps.Values(waiting))
		}
	}
	slices.Sort(stopped)
	return stopped, hung
}
