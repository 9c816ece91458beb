package partition

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/tier"
)

// Config is what the partitions of a broker have in common. It is shared, since there may be very many of them: nobody may
// change it once New was called with it. Slots, Logger and Now may be nil.
type Config struct {
	// Log is how logs are opened. FS is required; Crash says how the run before this one ended. What tells one log from
	// another, its settings and Limit are each partition's own and must not be set.
	Log    seglog.Config
	Place  func(t *Topic, n int32) (data, salvage string) // the directories of a partition
	Meta   meta.Store
	Tasks  *task.Group // runs opening and reserving; outlives the partitions
	Tier   *Tier       // nil: sealed segments are copied nowhere
	Buffer *Buffer     // nil: what is acknowledged is in the log alone until it is exported
	// Unbuffered says that there is no write buffer now, and was one in an earlier run: it may be there, and lacks what comes.
	Unbuffered bool
	Slots      chan struct{} // bounds how many partitions open side by side; nil: no bound
	Logger     *slog.Logger
	Now        func() time.Time
}

func (c *Config) now() time.Time {
	if c.Now == nil {
		return time.Now()
	}
	return c.Now()
}

func (c *Config) logger() *slog.Logger { return obs.Logger(c.Logger) }

// Topic is one incarnation of a topic, as its partitions share it. It never changes.
type Topic struct {
	Name        meta.Name
	Full        string // namespace/name
	ID          meta.TopicID
	Incarnation uint64
}

// Settings are what can change while a partition is in use. Tightening the mode to on_commit must be applied before the
// metadata records it, so that a topic which says on_commit itself never has acknowledged data that was not flushed
// since; loosening it is applied afterwards.
type Settings struct {
	Mode          seglog.Mode
	ModeChosen    bool // by the topic itself; false: it follows the broker's defaults, which may differ from run to run
	FsyncInterval time.Duration
	SegmentBytes  int64
	Retention     seglog.Retention
	Objects       tier.Retention // of what is exported
}

// State is what a partition can be used for.
type State uint8

// The states.
const (
	Opening     State = iota // not tried yet, or being opened: uses wait for it
	Unloaded                 // closed until its next use, which opens it
	Serving                  // in use
	Unavailable              // cannot be used; Status says why
	Closed                   // over: this Partition never serves again
)

// String returns the state in words.
func (s State) String() string {
	return [...]string{"opening", "unloaded", "serving", "unavailable", "closed"}[s]
}

// Status is a partition's state and, unless it serves, why.
type Status struct {
	State State
	Err   error // Unavailable and Closed: why; Unavailable also where reads still work but a failed flush stopped appends
	// Settled: no crash of an earlier run can cost offsets their meaning any more, because the log was opened (or, under
	// a mode that may have lost records, a new generation was recorded) since the start.
	Settled bool
	// Waits says what an attempt to open it waits for; "": for nothing from outside.
	Waits string
	// Opened: the log was opened at least once since the start.
	Opened bool
}

// Partition is one partition of one incarnation of a topic. It is safe for concurrent use.
type Partition struct {
	cfg     *Config
	ledger  ledger
	limit   reservation
	expiry  expiry  // of objects
	merging merging // of objects
	// tidy is held by whoever replaces or forgets objects, or what describes them: what it has read of them stays so.
	tidy task.Turn

	life task.Life // ends when the partition closes; its cause is why. It is the partition's own run, not a caller's

	log   atomic.Pointer[seglog.Log] // the open log; nil while there is none
	cover atomic.Pointer[cover]      // joins it with the write buffer; nil where there is none
	turn  task.Turn                  // held by whoever opens, unloads, applies or closes

	mu struct {
		sync.Mutex
		status   Status
		settings Settings
		crash    seglog.Crash     // what the next open has to reckon with
		attempt  chan struct{}    // closed when the attempt to open that is under way ends; nil when none is
		closing  error            // what closing the log came to
		retryAt  time.Time        // an unavailable partition is tried again by the first use from then on; zero: never
		failures int              // attempts that failed in a row
		resting  []restingSegment // what is in the files while no log is open; nil: one is, or nobody has looked
		former   *Former          // what a lost broker left, for the next attempt; nil: nothing
	}
}

// Failed attempts to open are repeated, where that can help, after firstRetry and then twice as long each time.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// New returns partition n of a topic, with settings until Apply changes them. It is opened by its first use, or by Ready.
// New does no I/O.
func New(cfg *Config, t *Topic, n int32, s Settings) *Partition {
	p := &Partition{cfg: cfg, ledger: ledger{store: cfg.Meta, topic: t, partition: n}}
	p.limit.cfg, p.limit.ledger, p.limit.life = cfg, &p.ledger, &p.life
	p.mu.crash = cfg.Log.Crash
	p.mu.settings = s
	return p
}

// logConfig returns how the partition's log is opened.
func (p *Partition) logConfig() seglog.Config {
	c, t := p.cfg.Log, p.ledger.topic
	c.Dir, c.SalvageDir = p.cfg.Place(t, p.ledger.partition)
	c.Topic, c.TopicID, c.Partition = t.Full, t.ID, p.ledger.partition
	return c
}

// Status returns where the partition stands.
func (p *Partition) Status() Status {
	p.mu.Lock()
	s := p.mu.status
	p.mu.Unlock()
	if l := p.log.Load(); l != nil && s.State == Serving {
		if err := l.Err(); err != nil {
			s.State, s.Err = Unavailable, err
		}
		if c := p.cover.Load(); c != nil && fault.KindOf(c.refused()) == fault.Fenced {
			s.State, s.Err = Unavailable, c.refused()
		}
	}
	return s
}

// Ready waits until the partition serves, opening it if need be, or returns why it does not. ctx bounds the wait, not
// the attempt: that goes on for the next caller.
func (p *Partition) Ready(ctx context.Context) error {
	_, err := p.use(ctx)
	return err
}

// Prepare has the partition opened ahead of its turn where nobody has tried yet or, with again, where it was unloaded. It
// returns at once.
func (p *Partition) Prepare(again bool) {
	if s := p.Status().State; p.log.Load() == nil && (s == Opening || s == Unloaded && again) {
		_, _ = p.begin(true) // the outcome shows in Status
	}
}

// use returns the open log.
func (p *Partition) use(ctx context.Context) (*seglog.Log, error) {
	if l := p.log.Load(); l != nil {
		return l, nil
	}
	for tried := false; ; tried = true {
		attempt, err := p.begin(tried)
		if attempt == nil {
			if l := p.log.Load(); l != nil || err != nil {
				return l, err
			}
			continue // unloaded between two steps
		}
		select {
		case <-attempt:
		case <-ctx.Done():
			return nil, fault.New(fault.KindOf(context.Cause(ctx)), "%s: waiting for it to open: %w", p.ledger.where(), context.Cause(ctx))
		}
	}
}

// begin returns the attempt to wait for, starting one where that can help; or nil and why there is none.
func (p *Partition) begin(tried bool) (chan struct{}, error) {
	p.mu.Lock()
	s := &p.mu.status
	switch {
	case s.State == Closed:
		defer p.mu.Unlock()
		return nil, s.Err
	case s.State == Serving:
		p.mu.Unlock()
		return nil, nil
	case p.mu.attempt != nil:
		defer p.mu.Unlock()
		return p.mu.attempt, nil
	case s.State == Unavailable && (tried || p.mu.retryAt.IsZero() || p.cfg.now().Before(p.mu.retryAt)):
		defer p.mu.Unlock()
		return nil, s.Err
	}
	attempt := make(chan struct{})
	p.mu.attempt = attempt
	if s.State == Unloaded {
		s.State = Opening
	}
	p.mu.Unlock()
	if !p.cfg.Tasks.Go("open partition", func(ctx context.Context) error { p.open(ctx, attempt); return nil }) {
		p.settle(attempt, nil, fault.New(fault.Unavailable, "%s: the broker is stopping: connect again later", p.ledger.where()))
	}
	return attempt, nil
}

// RetryDue makes a fresh attempt where an earlier one failed for a reason that may have gone away and its pause is over.
// It returns at once.
func (p *Partition) RetryDue() {
	p.mu.Lock()
	due := p.mu.status.State == Unavailable && !p.mu.retryAt.IsZero() && !p.cfg.now().Before(p.mu.retryAt)
	p.mu.Unlock()
	if due {
		_, _ = p.begin(false) // the outcome shows in Status
	}
}

// Submit queues a batch; see seglog.Log.Submit. It waits for a partition that is being opened. A Done that reports
// success must be passed on to Assigned.
func (p *Partition) Submit(ctx context.Context, a *seglog.Append) error {
	for {
		l, err := p.use(ctx)
		if err != nil {
			return err
		}
		c, err := coverOf(p, l)
		switch {
		case err != nil:
		case c != nil:
			err = c.submit(ctx, a)
		default:
			err = l.Submit(ctx, a)
		}
		if err == nil || !p.unloaded(l, err) {
			return p.explain(err)
		}
	}
}

// Append commits one batch and returns where it went.
func (p *Partition) Append(ctx context.Context, batch []byte) (seglog.Result, error) {
	l, err := p.use(ctx)
	if err != nil {
		return seglog.Result{}, err
	}
	var r seglog.Result
	c, err := coverOf(p, l)
	switch {
	case err != nil:
	case c != nil:
		r, err = c.append(ctx, batch)
	default:
		r, err = l.Append(ctx, batch)
	}
	if err != nil {
		return r, p.explain(err)
	}
	p.Assigned(r.LastOffset)
	return r, nil
}

// unloaded reports whether err only says that l was unloaded under its user, so that the next log will do.
func (p *Partition) unloaded(l *seglog.Log, err error) bool {
	return fault.KindOf(err) == fault.Unavailable && p.log.Load() != l
}

// Assigned tells that a batch whose last offset is last was taken. It never blocks, so it may be called from
// seglog.Append.Done; the next offsets are then reserved before appends have to wait for them.
func (p *Partition) Assigned(last int64) { p.limit.Assigned(last) }

// NewReader returns a sequential reader at from. It works until the log is unloaded or closed.
func (p *Partition) NewReader(ctx context.Context, from int64) (*Reader, error) {
	l, err := p.use(ctx)
	if err != nil {
		return nil, err
	}
	c, err := coverOf(p, l)
	if err != nil {
		return nil, p.explain(err)
	}
	r := &Reader{p: p, log: l, cover: c, offset: from}
	r.reader = r.ofLog(from)
	return r, nil
}

// Bounds returns where the log stands, with the oldest offset that can be read, be it in an object; ok is false while no log
// is open.
func (p *Partition) Bounds() (b seglog.Bounds, ok bool) {
	l := p.log.Load()
	if l == nil {
		return b, false
	}
	c, err := coverOf(p, l)
	if err != nil {
		return b, false
	}
	b = c.visible(l.Bounds())
	if first, stored := p.exported().First(); stored {
		b.First = min(b.First, first)
	}
	return b, true
}

// OffsetForTime returns the offset of the first record at or after ms; the end where there is none.
func (p *Partition) OffsetForTime(ctx context.Context, ms int64) (int64, error) {
	l, err := p.use(ctx)
	if err != nil {
		return 0, err
	}
	e := p.exported()
	if first, stored := e.First(); stored && first < l.Bounds().First {
		older, err := (*exporting)(p).older(ctx, first)
		if err != nil {
			return 0, p.explain(err)
		}
		offset, found, err := p.cfg.Tier.Cold.OffsetForTime(ctx, (*exporting)(p).Place(), (*exporting)(p).holding(e, &older), first, ms)
		if found || err != nil {
			return offset, p.explain(err)
		}
	}
	c, err := coverOf(p, l)
	if err != nil {
		return 0, p.explain(err)
	}
	offset, err := l.OffsetForTime(ctx, ms)
	if c != nil {
		offset = min(offset, c.visible(l.Bounds()).End)
	}
	return offset, p.explain(err)
}

// Retain applies the retention now and returns the bytes deleted. It does nothing while no log is open.
func (p *Partition) Retain(ctx context.Context) (int64, error) {
	l := p.log.Load()
	if l == nil {
		return 0, nil
	}
	n, err := l.Retain(ctx)
	return n, p.explain(err)
}

// Retention returns the retention in force.
func (p *Partition) Retention() seglog.Retention {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.settings.Retention
}

// explain says why an operation failed in the partition's terms: what a log answers because it was closed under the
// operation is told as the reason it was closed for.
func (p *Partition) explain(err error) error {
	if err == nil {
		return nil
	}
	p.mu.Lock()
	s := p.mu.status
	p.mu.Unlock()
	if fault.KindOf(err) == fault.Canceled || fault.KindOf(err) == fault.Timeout {
		return err
	}
	switch s.State {
	case Closed:
		return s.Err
	case Unloaded, Opening:
		return fault.New(fault.Unavailable, "%s was unloaded: try again, which opens it: %w", p.ledger.where(), err)
	}
	return err
}
