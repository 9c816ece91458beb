package partition

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/task"
)

// How many offsets one reservation adds. A block that lasted less than fastBlock is followed by one twice as large, one
// that lasted longer than slowBlock by one half as large: so a busy log asks the metadata every few seconds, and a slow
// one declares few offsets lost after a crash.
const (
	minBlock  = 1 << 14
	maxBlock  = 1 << 26
	fastBlock = 10 * time.Second
	slowBlock = 5 * time.Minute

	// durableStep is how far the limit of a log that acknowledges only what the device has is raised at a time. That costs
	// nothing, since it is recorded nowhere, but it bounds what has to be reserved when the topic's mode is loosened: the
	// limit of an open log may only rise.
	durableStep = minBlock
)

// reservation is the seglog.OffsetLimit of one partition. It has two ways of rising: by asking the metadata (volatile:
// the log may acknowledge what the device does not have) and in memory alone (the log acknowledges after its flush, so
// its own contents say which offsets were used).
//
// Once volatile it stays so for as long as the log is open, also when the topic's mode is tightened meanwhile: a
// reservation too many costs one metadata command, one too few costs two records under one offset.
type reservation struct {
	ledger *ledger
	cfg    *Config
	life   *task.Life // the partition's own lifetime: Extend has no caller whose context it could use

	limit   atomic.Int64 // first offset that may not be assigned
	ahead   atomic.Int64 // an assigned offset from here on starts the next extension
	turn    task.Turn
	started time.Time // when the newest block was reserved; zero before the first; owned by turn
	block   int64     // size of the newest block; owned by turn

	volatile   bool   // owned by turn
	generation uint32 // the reservation is asked for under it; owned by turn
}

// Offset returns the first offset that may not be assigned yet.
func (r *reservation) Offset() int64 { return r.limit.Load() }

// Extend raises Offset above need. It blocks while the metadata is asked.
func (r *reservation) Extend(need int64) error { return r.extend(r.life, need, false) }

// Assigned tells that last was assigned. When less than half of the newest block is left it starts the next extension
// in a task; it never blocks.
func (r *reservation) Assigned(last int64) {
	ahead := r.ahead.Load()
	if last < ahead || !r.ahead.CompareAndSwap(ahead, math.MaxInt64) {
		return
	}
	r.cfg.Tasks.Go("reserve offsets", func(ctx context.Context) error {
		limit := r.limit.Load()
		if err := r.extend(ctx, limit, true); err != nil {
			// Appends go on within what is left, so the next attempt waits until half of that is used, too.
			r.ahead.CompareAndSwap(math.MaxInt64, last+1+(limit-last)/2)
			r.cfg.logger().Warn("could not reserve offsets ahead", "topic", r.ledger.where(), "left", limit-last-1, "err", err)
		}
		return nil
	})
}

// reset makes limit the reservation of a log that is about to be used, under a generation.
func (r *reservation) reset(limit int64, volatile bool, generation uint32) {
	r.turn.Take(nil)
	defer r.turn.Give()
	r.volatile, r.generation, r.started = volatile, generation, time.Time{}
	r.block = max(r.block, minBlock)
	r.limit.Store(limit)
	r.ahead.Store(math.MaxInt64)
	if volatile {
		r.ahead.Store(limit - r.block/2)
	}
}

// loosen prepares for a mode that acknowledges before the flush: what the log may have assigned by now gets reserved.
func (r *reservation) loosen(ctx context.Context) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	defer r.turn.Give()
	if r.volatile {
		return nil
	}
	limit := r.limit.Load()
	if err := r.ledger.reserve(ctx, r.generation, limit); err != nil {
		return err
	}
	r.volatile = true
	r.ahead.Store(limit - r.block/2)
	return nil
}

func (r *reservation) take(ctx context.Context) error {
	for !r.turn.Try() {
		select {
		case <-r.turn.Freed():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// extend raises the limit above need. Several callers at once share one command.
func (r *reservation) extend(ctx context.Context, need int64, background bool) error {
	if err := r.take(ctx); err != nil {
		return fmt.Errorf("reserve offsets of %s: %w", r.ledger.where(), err)
	}
	defer r.turn.Give()
	limit := r.limit.Load()
	if limit > need {
		return nil
	}
	if !r.volatile {
		r.limit.Store(need + durableStep)
		return nil
	}
	now := r.cfg.now()
	r.block = nextBlock(r.block, r.started, now)
	next := max(limit, need+1) + r.block
	if err := r.ledger.reserve(ctx, r.generation, next); err != nil {
		return err
	}
	r.started = now
	r.limit.Store(next)
	r.ahead.Store(next - r.block/2)
	if !background {
		r.cfg.logger().Debug("appends waited for offsets to be reserved", "topic", r.ledger.where(), "through", next-1)
	}
	return nil
}

// nextBlock sizes the block that follows one of size, reserved at started (zero: none was).
func nextBlock(size int64, started, now time.Time) int64 {
	size = max(size, minBlock)
	if started.IsZero() {
		return size
	}
	switch lasted := now.Sub(started); {
	case lasted < fastBlock:
		size *= 2
	case lasted > slowBlock:
		size /= 2
	}
	return min(max(size, minBlock), maxBlock)
}
