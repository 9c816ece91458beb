package broker

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
)

// Drain stops the broker's work: it refuses new publishes and subscribers with kind unavailable, ends the subscribers
// there are with it, waits until what was submitted is answered, and flushes and closes every log. ctx bounds the wait for
// answers; the logs are closed, and answer what is queued, in any case. It may be called more than once; the report is
// that of the first.
func (b *Broker) Drain(ctx context.Context) DrainReport {
	b.mu.Lock()
	done := b.mu.report
	b.mu.Unlock()
	if done != nil {
		return *done
	}
	b.drain()
	b.end(errDraining())
	b.syncing.Lock()   // whoever was adding a topic has added it, and from now on nobody does
	b.syncing.Unlock() //nolint:staticcheck // nothing to do under it
	// Whoever holds the whole budget knows that nothing is unanswered. Publishers that wait for room behind it are
	// refused when they get it: see Publisher.Submit.
	if err := b.inFlight.acquire(ctx, b.inFlight.size); err == nil {
		b.inFlight.release(b.inFlight.size)
	}
	recovered := b.Recovered()
	all := b.topics.all()
	opened := b.cfg.Crash == seglog.CleanStop || allOpened(all)
	stopped := b.closeAll(all)
	b.closeAll(b.topics.allRetired()) // deleted: nobody will ask what they held
	if len(stopped) > 0 {
		b.cfg.Logger.Error("logs that cannot be vouched for: the stop is not clean", "partitions", stopped)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.report == nil {
		b.mu.report = &DrainReport{Clean: len(stopped) == 0 && opened, Stopped: stopped, Recovered: recovered}
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

// closeAll closes the logs of topics, as many side by side as are opened so, and returns which cannot be vouched for.
func (b *Broker) closeAll(topics []*topic) []string {
	type part struct {
		*partition.Partition
		where string
	}
	var parts []part
	for _, t := range topics {
		for i, p := range t.parts {
			parts = append(parts, part{p, fmt.Sprintf("%s/%d", t.full, i)})
		}
	}
	var next atomic.Int64
	workers := b.cfg.OpenParallel
	results := make(chan []string, workers)
	work := func(context.Context) error {
		var stopped []string
		for i := next.Add(1); i <= int64(len(parts)); i = next.Add(1) {
			p := parts[i-1]
			if err := p.Close(context.Background(), errDraining()); err != nil {
				stopped = append(stopped, p.where+": "+err.Error())
			}
		}
		results <- stopped
		return nil
	}
	for range workers {
		if !b.tasks.Go("close partitions", work) {
			_ = work(context.Background()) // the broker's run is over: do it here
		}
	}
	var stopped []string
	for range workers {
		stopped = append(stopped, <-results...)
	}
	slices.Sort(stopped)
	return stopped
}
