package partition

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/mirror"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/writebuf"
)

// cover joins an open log with the write buffer: nothing is acknowledged or read that the buffer has not confirmed, unless
// the operator chose to go on without it and the metadata says from where on.
//
// Invariant: bound never falls, and every record below it was confirmed by the buffer, or is at or above what the metadata
// has as uncovered, or was in the log before the buffer first held anything of it.
type cover struct {
	p          *Partition
	log        *seglog.Log
	generation uint32
	mirror     *mirror.Mirror

	limit atomic.Int64 // readers see offsets below it
	alone atomic.Bool  // the log alone counts: the metadata says from where on; set by setAlone
	fault atomic.Pointer[error]

	noting task.Turn // held while the metadata is told that the buffer is to be filled, or has everything: one may undo the other

	turn sync.Mutex // held while appends are answered, which happens in order
	mu   struct {
		sync.Mutex
		waiting []waiter
		wake    chan struct{} // closed at the next change; nil: nobody waits
		giveUp  error         // those that wait now are answered with it; once it is fenced or closed, those that come later, too
		asking  bool          // the metadata is being asked to change what is uncovered
		// uncovered: the metadata has it so. From through on, once the buffer has that frame, it is covered again.
		uncovered bool
		through   uint64
		closed    bool
		counted   bool // as one that is alone
	}

	seen uint64 // notice's own: the last Confirmed that it knows the offset of
}

// fillingLag is how many frames a buffer that is being filled may lack before publishes are refused instead of waiting.
const fillingLag = 4096

// waiter is an append that is in the log.
type waiter struct {
	a    *seglog.Append
	done func(*seglog.Append)
	last int64
}

// startCover begins to copy a log that was opened. from is where readers may read up to at once. away says that the buffer
// could not be asked what it has: it is gone on without it, which the metadata says.
func (p opening) startCover(l *seglog.Log, generation uint32, from int64, uncovered, away bool) (*cover, error) {
	c := &cover{p: p.Partition, log: l, generation: generation}
	c.limit.Store(from)
	c.setAlone(away)
	c.mu.uncovered, c.mu.through = uncovered, l.Bounds().NextSeq-1
	c.mirror = mirror.New(mirror.Config{
		Name: p.ledger.where(), Source: following{c, l.NewFrameReader()}, Buffer: p.cfg.Buffer.Store.Buffer(p.ledger.bufferID()), Generation: generation,
		Same: segfmt.SameFrame, Refill: c.refill, Patience: p.cfg.Buffer.Timeout, Tasks: p.cfg.Tasks, Notify: c.notice, Logger: p.cfg.Logger,
	})
	if !c.mirror.Start() {
		c.setAlone(false)
		return nil, fault.New(fault.Unavailable, "%s: the broker is stopping: connect again later", p.ledger.where())
	}
	return c, nil
}

// following is a cover's log as mirror.Source.
type following struct {
	*cover
	frames *seglog.FrameReader
}

// Frames implements mirror.Source.
func (f following) Frames(from uint64, maxBytes int, memory func(int) []byte) ([]writebuf.Entry, error) {
	frames, err := f.frames.Read(from, maxBytes, memory)
	entries := make([]writebuf.Entry, len(frames))
	for i, frame := range frames {
		entries[i] = writebuf.Entry{Seq: frame.Seq, Frame: frame.Bytes}
	}
	return entries, err
}

// First implements mirror.Source.
func (f following) First() uint64 { return f.log.Bounds().FirstSeq }

// Last implements mirror.Source.
func (f following) Last() uint64 { return f.log.Bounds().NextSeq - 1 }

// Changed implements mirror.Source.
func (f following) Changed() <-chan struct{} { return f.log.Changed() }

// Floor implements mirror.Source: what is in objects need not be in the buffer. Without them it is what the log has, or the
// segments that the operator chose to keep.
func (f following) Floor() uint64 {
	switch n := f.p.cfg.Buffer.KeepSegments; {
	case f.p.cfg.Tier != nil:
		return max(f.p.exported().NextSeq(), 1)
	case n > 0:
		return f.log.NewestSegments(n + 1) // and the active one
	}
	return f.log.Bounds().FirstSeq
}

// bound is the offset that nothing at or above is read of.
func (c *cover) bound() int64 {
	if c.alone.Load() {
		return c.log.Bounds().End
	}
	return c.limit.Load()
}

// visible returns where the log stands as readers may see it; as it is where c is nil.
func (c *cover) visible(b seglog.Bounds) seglog.Bounds {
	if c != nil {
		b.End = min(b.End, max(c.bound(), b.First))
	}
	return b
}

// coverOf returns the cover of a log that was p's a moment ago; nil where there is no write buffer. It fails where that log
// is being closed, and has none any more: nobody may use it as if there were no write buffer.
func coverOf(p *Partition, l *seglog.Log) (*cover, error) {
	if p.cfg.Buffer == nil {
		return nil, nil
	}
	if c := p.cover.Load(); c != nil && c.log == l {
		return c, nil
	}
	return nil, fault.New(fault.Unavailable, "%s is being closed: try again, which opens it", p.ledger.where())
}

// setAlone says whether the log alone counts from now on.
func (c *cover) setAlone(alone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alone.Store(alone)
	c.countLocked()
}

// countLocked has the metrics count it as one that is alone, while it is.
func (c *cover) countLocked() {
	now := c.alone.Load() && !c.mu.closed
	switch was := c.mu.counted; {
	case now && !was:
		c.p.cfg.Buffer.Metrics.goesAlone(1)
	case was && !now:
		c.p.cfg.Buffer.Metrics.goesAlone(-1)
	}
	c.mu.counted = now
}

// refused returns why nothing can be published now; nil where it can.
func (c *cover) refused() error {
	if e := c.fault.Load(); e != nil {
		return *e
	}
	return nil
}

// submit is Log.Submit, and answers once the buffer has it too.
func (c *cover) submit(ctx context.Context, a *seglog.Append) error {
	if err := c.refused(); err != nil {
		return err
	}
	done := a.Done
	a.Done = func(a *seglog.Append) { c.written(a, done) }
	err := c.log.Submit(ctx, a)
	if err != nil {
		a.Done = done
	}
	return err
}

// append is Log.Append.
func (c *cover) append(ctx context.Context, batch []byte) (seglog.Result, error) {
	done := make(chan struct{})
	a := &seglog.Append{Batch: batch, Done: func(*seglog.Append) { close(done) }}
	if err := c.submit(ctx, a); err != nil {
		return seglog.Result{}, err
	}
	select {
	case <-done:
		return a.Result, a.Err
	case <-ctx.Done():
		return seglog.Result{}, fault.New(fault.OutcomeUnknown, "%s: append: %w: the batch may still be written", c.p.ledger.where(), ctx.Err())
	}
}

// written takes in an append that the log is done with.
func (c *cover) written(a *seglog.Append, done func(*seglog.Append)) {
	a.Done = done
	w := waiter{a: a, done: done, last: -1}
	if a.Err == nil {
		w.last = a.LastOffset
		for _, r := range a.Ranges {
			w.last = max(w.last, r.To)
		}
	}
	c.mu.Lock()
	c.mu.waiting = append(c.mu.waiting, w)
	c.mu.Unlock()
	c.answer()
}

// answer answers those appends that the buffer has, in order, and all that wait where they were given up.
func (c *cover) answer() {
	c.turn.Lock()
	defer c.turn.Unlock()
	for {
		bound := c.bound()
		c.mu.Lock()
		n, giveUp := 0, c.mu.giveUp
		for n < len(c.mu.waiting) && (giveUp != nil || c.mu.waiting[n].last < bound) {
			n++
		}
		now := c.mu.waiting[:n:n]
		if c.mu.waiting = c.mu.waiting[n:]; len(c.mu.waiting) == 0 {
			c.mu.waiting = nil
		}
		c.mu.Unlock()
		if n == 0 {
			return
		}
		for _, w := range now {
			if giveUp != nil && w.a.Err == nil && w.last >= bound {
				w.a.Err = giveUp
			}
			w.done(w.a)
		}
	}
}

// notice takes in what the mirror says, one call at a time.
func (c *cover) notice(s mirror.State) {
	if s.Confirmed != c.seen {
		if next, ok := c.behind(s); ok {
			c.seen = s.Confirmed
			if next > c.limit.Load() {
				c.limit.Store(next)
			}
		}
	}
	c.decide(s)
	c.notify()
	c.answer()
	if s.Fenced { // for good: no later notice would answer what the log is done with only now
		return
	}
	c.mu.Lock()
	c.mu.giveUp = nil
	c.mu.Unlock()
}

// behind returns the offset behind what is confirmed.
func (c *cover) behind(s mirror.State) (int64, bool) {
	if f, err := segfmt.ParseFrame(s.Head); err == nil && f.Seq == s.Confirmed {
		return f.NextOffset(), true
	}
	if b := c.log.Bounds(); s.Confirmed < b.FirstSeq {
		return b.First, s.Confirmed+1 == b.FirstSeq
	}
	frames, err := c.log.ReadFrames(s.Confirmed, 1)
	if err != nil || len(frames) == 0 {
		return 0, false // the next page tells
	}
	return frames[0].Next, true
}

// decide says what the mirror's state means for who publishes.
func (c *cover) decide(s mirror.State) {
	where := c.p.ledger.where()
	var refuse error
	switch degrade := c.p.cfg.Buffer.Degrade; {
	case s.Fenced:
		refuse = s.Err
		c.setAlone(false)
	case c.alone.Load():
		if s.Ready && !s.Stalled && s.Err == nil {
			c.rejoin()
		}
	case s.Stalled && degrade:
		c.change(func(ctx context.Context) error { return c.goAlone(ctx) })
		refuse = c.refused()
	case s.Stalled:
		refuse = fault.New(fault.Unavailable, "%s: the write buffer does not confirm what is published, and on_failure is reject: nothing was written; try again later: %w", where, cause(s.Err))
	case !s.Ready && s.Lag > fillingLag:
		refuse = fault.New(fault.Unavailable, "%s: the write buffer is being filled from the log, up to frame %d so far: nothing was written; try again later: %w", where, s.Confirmed, cause(s.Err))
	}
	if refuse == nil {
		c.fault.Store(nil)
	} else {
		c.fault.Store(&refuse)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Fenced || s.Stalled && !c.p.cfg.Buffer.Degrade {
		c.mu.giveUp = fault.New(fault.OutcomeUnknown, "%s: it is in the log, and the write buffer has not confirmed it in time: it may be delivered later; send it again with the same sequence to find out: %w", where, cause(s.Err))
	}
	if c.mu.uncovered && !c.mu.asking && !c.alone.Load() && s.Ready && s.Confirmed >= c.mu.through {
		c.changeLocked(c.covered)
	}
}

// cause is a reason that may be missing.
func cause(err error) error {
	if err == nil {
		return fault.New(fault.Timeout, "no answer yet")
	}
	return err
}

// change has the metadata asked in the background, once at a time.
func (c *cover) change(ask func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changeLocked(ask)
}

func (c *cover) changeLocked(ask func(context.Context) error) {
	if c.mu.asking || c.mu.closed {
		return
	}
	c.mu.asking = c.p.cfg.Tasks.Go("note what the write buffer has", func(ctx context.Context) error {
		err := ask(ctx)
		c.mu.Lock()
		c.mu.asking = false
		if err != nil {
			c.p.cfg.logger().Warn("could not note what the write buffer lacks; it is tried again", "partition", c.p.ledger.where(), "err", err)
			c.mu.giveUp = fault.New(fault.OutcomeUnknown, "%s: it is in the log, the write buffer has not confirmed it, and that could not be noted in the metadata: %w", c.p.ledger.where(), err)
		}
		c.mu.Unlock()
		c.notify()
		c.answer()
		c.mirror.Poke() // which looks again
		return nil
	})
}

// goAlone notes what the buffer may lack, and then goes on without it.
func (c *cover) goAlone(ctx context.Context) error {
	from := c.limit.Load()
	if err := c.p.ledger.setUncovered(ctx, c.generation, from); err != nil {
		return err
	}
	c.mu.Lock()
	c.mu.uncovered = true
	c.mu.Unlock()
	c.setAlone(true)
	c.fault.Store(nil)
	c.p.cfg.logger().Warn("the write buffer does not confirm: going on without it, as on_failure says; what is acknowledged now is lost with this disk",
		"partition", c.p.ledger.where(), "uncovered_from", from)
	return nil
}

// refill notes that the buffer may lack what was acknowledged, before it is filled: who finds it half filled must not take
// that for all there was.
func (c *cover) refill(ctx context.Context) error {
	if !c.noting.Take(ctx.Done()) {
		return context.Cause(ctx)
	}
	defer c.noting.Give()
	if err := c.p.ledger.setUncovered(ctx, c.generation, c.p.exported().Frontier()); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.uncovered, c.mu.through = true, c.log.Bounds().NextSeq-1
	return nil
}

// rejoin has the buffer count again, since it has caught up. What was acknowledged without it stays visible, and counts as
// covered once the buffer has that, too.
func (c *cover) rejoin() {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.setAlone(false) // before: what readers saw until now is below the end
	b := c.log.Bounds()
	c.limit.Store(max(c.limit.Load(), b.End))
	c.mu.Lock()
	c.mu.through = b.NextSeq - 1
	c.mu.Unlock()
}

// covered notes that the buffer has everything again, unless it has lost that meanwhile.
func (c *cover) covered(ctx context.Context) error {
	if !c.noting.Take(ctx.Done()) {
		return context.Cause(ctx)
	}
	defer c.noting.Give()
	s := c.mirror.State()
	c.mu.Lock()
	has := c.mu.uncovered && s.Ready && s.Confirmed >= c.mu.through
	c.mu.Unlock()
	if !has {
		return nil
	}
	if err := c.p.ledger.setUncovered(ctx, c.generation, -1); err != nil {
		return err
	}
	c.mu.Lock()
	c.mu.uncovered = false
	c.mu.Unlock()
	c.p.cfg.logger().Info("the write buffer has everything again", "partition", c.p.ledger.where())
	return nil
}

// changed is Log.Changed for what readers see. The mirror calls notice after every change of the log, too.
func (c *cover) changed() <-chan struct{} {
	if c.alone.Load() {
		return c.log.Changed()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.wake == nil {
		c.mu.wake = make(chan struct{})
		if c.mu.closed {
			close(c.mu.wake)
		}
	}
	return c.mu.wake
}

// notify wakes who waits for changed.
func (c *cover) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.wake != nil && !c.mu.closed {
		close(c.mu.wake)
		c.mu.wake = nil
	}
}

// wait is Log.Wait for what readers see.
func (c *cover) wait(ctx context.Context, offset int64) error {
	for {
		changed := c.changed()
		if err := c.log.Err(); err != nil {
			return err
		}
		if c.bound() > offset {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stop ends the copying, before the log is closed. What still waits is answered: it is in the log.
func (c *cover) stop() {
	c.mirror.Stop()
	c.mu.Lock()
	c.mu.closed = true
	c.countLocked()
	c.mu.giveUp = fault.New(fault.OutcomeUnknown, "%s: it is in the log, and was closed before the write buffer had confirmed it", c.p.ledger.where())
	if c.mu.wake != nil {
		close(c.mu.wake)
		c.mu.wake = nil
	}
	c.mu.Unlock()
	c.answer()
}

// Covered is what the write buffer has of a partition.
type Covered struct {
	Below     int64  // it has confirmed everything below this offset, from what objects cover on
	Uncovered *int64 // from this offset on it may lack what was acknowledged, as the operator chose; nil: nothing
	Err       error  // why it does not confirm now; nil while it does
}

// Covered returns what the write buffer has; ok is false where there is none, or no log is open.
func (p *Partition) Covered() (v Covered, ok bool) {
	c := p.cover.Load()
	if c == nil {
		return v, false
	}
	v.Below, v.Err = c.limit.Load(), c.mirror.State().Err
	if v.Err == nil {
		v.Err = c.refused()
	}
	if k := p.custody(); k != nil {
		v.Uncovered = k.Uncovered
	}
	return v, true
}

func (p *Partition) custody() *meta.Custody {
	return p.cfg.Meta.View().Custody(p.ledger.topic.ID, p.ledger.partition)
}
