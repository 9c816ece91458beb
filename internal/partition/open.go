package partition

import (
	"context"
	"fmt"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

// FirstReservation is how many offsets CreateTopic reserves for each partition of a topic that acknowledges before the
// flush. An empty log with exactly this reservation, or none, is one that nothing was ever lost from.
const FirstReservation = minBlock

// open makes one attempt to open the log.
func (p *Partition) open(ctx context.Context, attempt chan struct{}) {
	if err := p.takeTurn(ctx); err != nil {
		p.settle(attempt, nil, err)
		return
	}
	defer p.turn.Give()
	if p.cfg.Slots != nil {
		if err := p.takeSlot(ctx); err != nil {
			p.settle(attempt, nil, err)
			return
		}
		defer func() { <-p.cfg.Slots }()
	}
	l, err := opening{p}.openLog(ctx)
	p.settle(attempt, l, err)
}

// takeSlot waits until fewer partitions open than may do so side by side.
func (p *Partition) takeSlot(ctx context.Context) error {
	select {
	case p.cfg.Slots <- struct{}{}:
		return nil
	default: // to wait for the end of a life costs memory that is kept
	}
	select {
	case p.cfg.Slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return p.stopping(ctx)
	case <-p.life.Done():
		return context.Cause(&p.life)
	}
}

// settle ends an attempt.
func (p *Partition) settle(attempt chan struct{}, l *seglog.Log, err error) {
	defer close(attempt)
	if err != nil {
		p.setResting(p.rest())
	}
	p.mu.Lock()
	p.mu.attempt = nil
	s := &p.mu.status
	switch {
	case s.State == Closed:
		p.mu.Unlock()
		if l != nil {
			p.closeLog(l)
		}
		return
	case err != nil:
		s.State, s.Err = Unavailable, err
		if fault.KindOf(err) == fault.Stopped && p.mu.crash != seglog.CleanStop {
			p.mu.crash, s.Settled = seglog.MachineCrash, false // what a dead process had left in memory may be gone now
		}
		p.mu.retryAt = time.Time{}
		if mayPass(err) {
			pause := lastRetry
			if p.mu.failures < 6 {
				pause = firstRetry << p.mu.failures
			}
			p.mu.retryAt = p.cfg.now().Add(pause)
			p.mu.failures++
		}
	default:
		s.State, s.Err, s.Settled, s.Opened = Serving, nil, true, true
		p.mu.crash, p.mu.failures, p.mu.retryAt = seglog.CleanStop, 0, time.Time{}
		p.mu.resting = nil
		p.log.Store(l)
	}
	p.mu.Unlock()
	if err != nil {
		p.cfg.logger().Error("partition is unavailable", "partition", p.ledger.where(), "err", err)
	}
}

// mayPass reports whether the same attempt may succeed later without anybody repairing the data: not where it is
// damaged, of a format this program does not know, or not this partition's to use.
func mayPass(err error) bool {
	switch fault.KindOf(err) {
	case fault.Corrupt, fault.Unsupported, fault.Deleted, fault.Fenced, fault.InvalidArgument:
		return false
	}
	return true
}

// openLog opens the log and brings it to the generation that the metadata has.
func (p opening) openLog(ctx context.Context) (_ *seglog.Log, err error) {
	p.mu.Lock()
	s, crash, status := p.mu.settings, p.mu.crash, p.mu.status
	p.mu.Unlock()
	if status.State == Closed {
		return nil, status.Err
	}
	entry, err := p.ledger.read()
	if err != nil {
		return nil, err
	}
	volatile := s.Mode != seglog.OnCommit
	// Where the broker's defaults made the topic on_commit only now, the run that crashed may have used it otherwise.
	doubtful := !volatile && !s.ModeChosen && crash == seglog.MachineCrash && entry.Reserved > 0
	if p.cfg.Tier == nil && p.cfg.Meta.View().Export(p.ledger.topic.ID, p.ledger.partition) != nil {
		return nil, fault.New(fault.Unsupported, "%s: parts of it are in an object store only, and this broker has none: set storage.mode and what belongs to it to what they were", p.ledger.where())
	}
	cfg := p.logConfig()
	fresh, err := p.fresh(entry, cfg.Dir)
	if err != nil {
		return nil, err
	}
	found, err := p.look(ctx, entry.Generation, fresh)
	if err != nil {
		return nil, err
	}
	cfg.Mode, cfg.FsyncInterval, cfg.SegmentBytes, cfg.Retention = s.Mode, s.FsyncInterval, s.SegmentBytes, s.Retention
	cfg.Crash, cfg.Limit, cfg.Generation = crash, &p.limit, entry.Generation
	if p.cfg.Tier != nil {
		cfg.Copied = p.copied
	}
	p.limit.reset(entry.Reserved, volatile, entry.Generation)
	l, report, err := seglog.Open(cfg)
	if err != nil {
		if crash == seglog.MachineCrash && !fresh && (volatile || doubtful) {
			p.suspect(ctx, entry)
		} else {
			p.settled()
		}
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = l.Close() // why it cannot be used is the error that counts
		}
	}()
	lossy := !fresh && (report.Lossy || doubtful && l.Bounds().End < entry.Reserved)
	if found.pending() != nil {
		if err = p.takeOver(ctx, l, entry, found); err != nil {
			return nil, err
		}
		if entry, err = p.ledger.read(); err != nil {
			return nil, err
		}
		lossy = false
	} else if had, err := p.catchUp(ctx, l, found); err != nil {
		return nil, err
	} else if had && l.Bounds().End >= report.ClaimedEnd {
		lossy = false // nothing was acknowledged or delivered that the buffer did not have
	}
	if err = p.adopt(ctx, l, entry, volatile, lossy, report.ClaimedEnd); err != nil {
		return nil, err
	}
	return l, p.join(ctx, l, found)
}

// fresh reports whether nothing was ever appended: the log makes its directory, durably, before its first append, and
// suspect has not marked the reservation.
func (p opening) fresh(entry meta.Partition, dir string) (bool, error) {
	if entry.Reserved != 0 && entry.Reserved != FirstReservation {
		return false, nil
	}
	there, err := vfs.Exists(p.cfg.Log.FS, dir)
	if err != nil {
		return false, fault.New(fault.IO, "%s: look for %s: %w", p.ledger.where(), dir, err).With("file", dir)
	}
	return !there, nil
}

// suspect records that this partition's log may have lost records in the machine's crash, for when it can be opened: by
// then other runs may have started and ended, and how the crashed one ended is forgotten. The log will be found at an
// older generation than the metadata's.
func (p opening) suspect(ctx context.Context, entry meta.Partition) {
	p.mu.Lock()
	done := p.mu.status.Settled
	p.mu.Unlock()
	if done {
		return
	}
	// The added offsets tell an empty log that lost all it had from one that never had anything.
	if _, err := p.ledger.raise(ctx, entry, entry.Reserved+minBlock); err != nil {
		p.cfg.logger().Error("could not record that records may be lost; it is tried again with the next attempt to open",
			"partition", p.ledger.where(), "err", err)
		return
	}
	p.settled()
}

func (p *Partition) settled() {
	p.mu.Lock()
	p.mu.status.Settled = true
	p.mu.Unlock()
}

// adopt starts a generation where the log may have lost records, now or at an earlier open that did not get this far.
// claimed is above the log's end where durable records were cut off at an operator's word.
//
// The order matters. The metadata moves first: a crash right after leaves a log of an older generation, for which the next
// open does the rest. Then the log declares what is lost, up to the reservation.
func (p opening) adopt(ctx context.Context, l *seglog.Log, entry meta.Partition, volatile, lossy bool, claimed int64) error {
	b := l.Bounds()
	empty := b.NextSeq <= 1
	if b.Generation > entry.Generation {
		return fault.New(fault.Fenced,
			"%s: its log is at generation %d, the metadata knows %d: the metadata is older than the log; restore the newer metadata",
			p.ledger.where(), b.Generation, entry.Generation).With("generation", b.Generation)
	}
	used := max(entry.Reserved, claimed) // offsets below it may have been given out, no others
	behind := b.Generation < entry.Generation
	if empty {
		behind = entry.Reserved != 0 && entry.Reserved != FirstReservation // see suspect
	}
	if lossy {
		if empty {
			used += minBlock // see suspect
		}
		raised, err := p.ledger.raise(ctx, entry, used)
		if err != nil {
			return err
		}
		entry, behind = raised, true
	}
	if behind {
		if err := p.startGeneration(ctx, l, entry, b.End, used, volatile); err != nil {
			return err
		}
	}
	end := l.Bounds().End
	limit := entry.Reserved
	if !volatile {
		limit = max(limit, end) + durableStep
	}
	p.limit.reset(limit, volatile, entry.Generation)
	if volatile && end > 0 {
		p.limit.Assigned(end - 1) // reserve ahead now if little is left
	}
	return nil
}

// startGeneration brings the log to entry's generation and declares lost what may have been used from end to used.
func (p opening) startGeneration(ctx context.Context, l *seglog.Log, entry meta.Partition, end, used int64, volatile bool) error {
	var lost *seglog.Range
	if end < used {
		lost = &seglog.Range{From: end, To: used - 1}
	}
	p.limit.reset(max(entry.Reserved, used), volatile, entry.Generation)
	if err := l.StartGeneration(ctx, entry.Generation, lost); err != nil {
		return fmt.Errorf("start generation %d of %s: %w", entry.Generation, p.ledger.where(), err)
	}
	if lost != nil {
		p.cfg.logger().Warn("records may have been lost in the crash: their offsets are declared lost",
			"partition", p.ledger.where(), "from", lost.From, "to", lost.To, "generation", entry.Generation)
	}
	return nil
}
