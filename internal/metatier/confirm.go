package metatier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/mirror"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/writebuf"
	"github.com/prometheus/client_golang/prometheus"
)

// FrameLog is the metadata's log as the write buffer's copy of it sees it. See mirror.Source.
type FrameLog interface {
	Frames(from uint64, maxBytes int) ([]writebuf.Entry, error)
	First() uint64
	Last() uint64 // on the device
	Changed() <-chan struct{}
}

// ConfirmerConfig is what a Confirmer needs to know. The zero value of a number means its default.
type ConfirmerConfig struct {
	Buffers Buffers
	Dir     string
	Log     FrameLog
	Source  Source
	Timeout time.Duration // without an answer for that long the write buffer counts as away; default 5 s
	Degrade bool          // then go on without it
	// Mine, unless nil, asks whether the cluster's data is still this directory's: a FencedError says that it is not. It is
	// called where the write buffer has forgotten whose it is, before that is written again.
	Mine    func(ctx context.Context) error
	Entries uint64        // after so many a new snapshot is put; default 4096
	Poll    time.Duration // how often the snapshot is looked at; default 10 s

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// Confirmer keeps the metadata's log and a snapshot in a write buffer, and says what is there. While the write buffer is
// away, changes wait or go on without it, as the operator chose. It is safe for concurrent use.
//
// Invariant: the write buffer has a snapshot, or the log begins with its first entry; and every entry behind the snapshot
// through the one that was confirmed.
type Confirmer struct {
	cfg     ConfirmerConfig
	tasks   *task.Group
	began   time.Time
	mirror  *mirror.Mirror
	started chan struct{} // closed once mirror runs
	closing chan struct{}
	once    sync.Once
	fenced  chan struct{} // closed once another broker has taken over
	enabled atomic.Bool   // changes are confirmed from now on
	floor   atomic.Uint64 // the first entry that the write buffer has to hold
	alone   prometheus.Counter

	turn    chan struct{} // one token, for who puts a snapshot
	shelved uint64        // ordinal of the snapshot's last piece; 0: there is none. With the token
	index   uint64        // of the snapshot. With the token

	mu    sync.Mutex
	err   error // guarded by mu; of the last attempt to put a snapshot; nil after one that succeeded
	fence error // guarded by mu; set before fenced is closed
}

// NewConfirmer returns one that does nothing before Start.
func NewConfirmer(cfg ConfirmerConfig) *Confirmer {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Entries == 0 {
		cfg.Entries = 4096
	}
	if cfg.Poll <= 0 {
		cfg.Poll = 10 * time.Second
	}
	cfg.Logger = obs.Logger(cfg.Logger)
	c := &Confirmer{
		cfg: cfg, tasks: task.NewGroup(context.Background()), began: time.Now(), started: make(chan struct{}), closing: make(chan struct{}),
		fenced: make(chan struct{}), turn: make(chan struct{}, 1),
		alone: newUnconfirmed(cfg.Registerer),
	}
	c.turn <- struct{}{}
	c.floor.Store(1)
	c.mirror = mirror.New(mirror.Config{
		Name: "the metadata", Source: confirmed{c}, Buffer: cfg.Buffers.Log, Generation: cfg.Source.Term(), Refill: c.shelve, Patience: cfg.Timeout,
		Tasks: c.tasks, Notify: c.notice, Same: segfmt.SameFrame, Logger: cfg.Logger,
	})
	return c
}

// confirmed is the log as mirror.Source.
type confirmed struct{ *Confirmer }

// Frames implements mirror.Source.
func (c confirmed) Frames(from uint64, maxBytes int, _ func(int) []byte) ([]writebuf.Entry, error) {
	return c.cfg.Log.Frames(from, maxBytes)
}

// First implements mirror.Source.
func (c confirmed) First() uint64 { return c.cfg.Log.First() }

// Last implements mirror.Source.
func (c confirmed) Last() uint64 { return c.cfg.Log.Last() }

// Floor implements mirror.Source.
func (c confirmed) Floor() uint64 { return c.floor.Load() }

// Changed implements mirror.Source.
func (c confirmed) Changed() <-chan struct{} { return c.cfg.Log.Changed() }

// ShutOutError says that the metadata in the write buffer is another broker's.
type ShutOutError struct {
	Dir        string
	Generation uint32 // in the write buffer
	Term       uint32 // of the directory
}

// Error implements error.
func (e *ShutOutError) Error() string {
	return fmt.Sprintf("the metadata in the write buffer belongs to another broker, which took it over: it is of generation %d, and %s is of %d. What was acknowledged since is not in this directory. "+
		"Leave the cluster to that broker; to take it over from there, stop that broker and start this one with an empty data directory", e.Generation, e.Dir, e.Term)
}

// FaultKind classifies the error.
func (e *ShutOutError) FaultKind() fault.Kind { return fault.Fenced }

// Check looks at the write buffer, once. A ShutOutError says that another broker has it, a StaleError that the directory's
// metadata is older than what is there, an OtherClusterError that it is of a cluster of another name. After any other error it is not known, and Start goes on finding out.
func (c *Confirmer) Check(ctx context.Context) error {
	var other *OtherClusterError
	if err := c.cfg.Buffers.ours(ctx); errors.As(err, &other) {
		return c.stop(other)
	} else if err != nil {
		return err
	}
	term := c.cfg.Source.Term()
	log, err := c.cfg.Buffers.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	shelf, err := c.cfg.Buffers.Snapshots.Bounds(ctx)
	if err != nil {
		return err
	}
	if g := max(log.Generation, shelf.Generation); g > term {
		return c.stop(&ShutOutError{Dir: c.cfg.Dir, Generation: g, Term: term})
	}
	if log.Count == 0 || log.End <= c.cfg.Log.Last() {
		return nil
	}
	entries, err := c.cfg.Buffers.Log.Read(ctx, log.End, writebuf.Limit{Entries: 1})
	if err != nil || len(entries) == 0 {
		return err
	}
	f, err := segfmt.ParseFrame(entries[0].Frame)
	if err != nil || uint32(f.Batch.Generation) != term { //nolint:gosec // not negative
		return err // of somebody before; it is replaced
	}
	return c.stop(&StaleError{Dir: c.cfg.Dir, Index: c.cfg.Log.Last(), Term: term, Key: "in the write buffer", Copy: Snapshot{Index: log.End, Term: term}})
}

// stop notes why the broker has to stop.
func (c *Confirmer) stop(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fence == nil {
		c.fence = err
		close(c.fenced)
	}
	return err
}

// Start begins to copy.
func (c *Confirmer) Start() { c.tasks.Go("confirm the metadata", c.run) }

// Enable has Confirm wait from now on. What was appended before is confirmed by what follows.
func (c *Confirmer) Enable() { c.enabled.Store(true) }

// Fenced is closed when the broker has to stop because of Err.
func (c *Confirmer) Fenced() <-chan struct{} { return c.fenced }

// Err returns why the broker has to stop; nil while it need not.
func (c *Confirmer) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fence
}

// Stop ends it. Whoever waits for a confirmation hears that there will be none.
func (c *Confirmer) Stop() error {
	c.once.Do(func() { close(c.closing) })
	c.tasks.Stop()
	return c.tasks.Wait()
}

// run puts a snapshot, then follows the log, and looks after the snapshot.
func (c *Confirmer) run(ctx context.Context) error {
	for wait := firstWait; ; wait = min(2*wait, time.Second) {
		if err := c.shelve(ctx); err == nil {
			break
		}
		if c.Err() != nil || !c.pause(ctx, wait/2+rand.N(wait/2)) {
			return nil
		}
	}
	if !c.mirror.Start() {
		return nil
	}
	defer c.mirror.Stop()
	close(c.started)
	for c.pause(ctx, c.cfg.Poll) {
		if err := c.look(ctx); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("the snapshot of the metadata in the write buffer could not be looked at, or replaced; it is tried again", "err", err)
		}
	}
	return nil
}

func (c *Confirmer) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.closing:
	case <-c.fenced:
	case <-ctx.Done():
	}
	return false
}

// mine fails where the write buffer has forgotten whose the metadata is, and it is not known to be this directory's: a broker
// that was taken over and has not noticed must not make it its own again.
func (c *Confirmer) mine(ctx context.Context) error {
	if c.cfg.Mine == nil {
		return nil
	}
	for _, buf := range []writebuf.Buffer{c.cfg.Buffers.Log, c.cfg.Buffers.Snapshots} {
		if _, err := buf.Bounds(ctx); !errors.Is(err, writebuf.ErrForgotten) {
			continue // what else is wrong shows with what follows
		}
		limited, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
		err := c.cfg.Mine(limited)
		if fault.KindOf(err) == fault.Fenced {
			return c.stop(err)
		}
		if err != nil {
			return fmt.Errorf("the write buffer has forgotten whose the metadata is, and nobody says that it still is this broker's: %w", err)
		}
		return nil
	}
	return nil
}

// look puts a new snapshot where the one there is gone, or far behind.
func (c *Confirmer) look(ctx context.Context) error {
	if err := c.mine(ctx); err != nil {
		return err
	}
	if _, err := c.cfg.Buffers.Snapshots.Fence(ctx, c.cfg.Source.Term()); err != nil && !errors.Is(err, writebuf.ErrFenced) {
		return err
	}
	st, err := c.cfg.Buffers.Snapshots.Bounds(ctx)
	if err != nil {
		return err
	}
	<-c.turn
	gone := c.shelved > 0 && !(st.Known && st.Whole() && st.Last == c.shelved)
	behind := c.cfg.Source.View().Index() >= c.index+c.cfg.Entries
	c.turn <- struct{}{}
	if !gone && !behind {
		return nil
	}
	if gone {
		c.cfg.Logger.Warn("the write buffer has lost the snapshot of the metadata: it gets another")
	}
	if err := c.shelve(ctx); err != nil {
		return err
	}
	c.mirror.Poke()
	return nil
}

// shelve puts a snapshot of the metadata as it is, and has the log's copy begin with its last entry: as long as that one
// is there, that the write buffer forgot everything shows with the next.
func (c *Confirmer) shelve(ctx context.Context) error {
	<-c.turn
	defer func() { c.turn <- struct{}{} }()
	err := c.mine(ctx)
	if err == nil {
		err = c.putSnapshot(ctx)
	}
	var other *OtherClusterError
	c.mu.Lock()
	told := c.err != nil
	c.err = err
	c.mu.Unlock()
	switch {
	case err == nil || c.Err() != nil:
	case errors.As(err, &other):
		return c.stop(other)
	case errors.Is(err, writebuf.ErrFenced):
		st, berr := c.cfg.Buffers.Snapshots.Bounds(ctx)
		return c.stop(errors.Join(&ShutOutError{Dir: c.cfg.Dir, Generation: st.Generation, Term: c.cfg.Source.Term()}, berr))
	case !told && ctx.Err() == nil:
		c.cfg.Logger.Warn("the write buffer does not take a snapshot of the metadata; it is tried again until it does", "err", err)
	}
	return err
}

func (c *Confirmer) putSnapshot(ctx context.Context) error {
	view, term := c.cfg.Source.View(), c.cfg.Source.Term()
	index := view.Index()
	if index == 0 { // the log begins with its first entry
		last, err := c.cfg.Buffers.shelve(ctx, term, nil, 0, 0)
		if err != nil {
			return err
		}
		c.shelved, c.index = last, 0
		_, err = c.cfg.Buffers.Log.Fence(ctx, term)
		return err
	}
	payload, err := view.Snapshot()
	if err != nil {
		return err
	}
	last, err := c.cfg.Buffers.shelve(ctx, term, raft.Copy{Seq: index, Term: term, Payload: payload}.Encode(), index, term)
	if err != nil {
		return err
	}
	c.shelved, c.index = last, index
	if c.cfg.Log.First() > index {
		index++
	}
	c.floor.Store(max(c.floor.Load(), index))
	return nil
}

// notice is told what becomes of the log's copy.
func (c *Confirmer) notice(s mirror.State) {
	if s.Fenced {
		_ = c.stop(&ShutOutError{Dir: c.cfg.Dir, Generation: c.cfg.Source.Term() + 1, Term: c.cfg.Source.Term()}) // at least
	}
}

// away returns since when the write buffer does not answer, in words; nil while it does.
func (c *Confirmer) away() error {
	select {
	case <-c.started:
		if s := c.mirror.State(); s.Stalled {
			return fault.New(fault.Unavailable, "the write buffer does not confirm what is written to the metadata: %w", orNone(s.Err))
		}
		return nil
	default:
	}
	if time.Since(c.began) < c.cfg.Timeout {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return fault.New(fault.Unavailable, "the write buffer does not take a snapshot of the metadata: %w", orNone(c.err))
}

var errNoAnswer = errors.New("it does not answer")

func orNone(err error) error {
	if err == nil {
		return errNoAnswer
	}
	return err
}

// Refused returns why no change may be begun now; nil where one may.
func (c *Confirmer) Refused() error {
	if err := c.Err(); err != nil {
		return err
	}
	if !c.enabled.Load() || c.cfg.Degrade {
		return nil
	}
	return c.away()
}

// Patience is how long a change may take, with the waiting for its turn.
func (c *Confirmer) Patience() time.Duration { return c.cfg.Timeout + time.Second }

// Problem says what is wrong with the copy; "" where nothing is.
func (c *Confirmer) Problem() string {
	err := c.away()
	switch {
	case err == nil:
		return ""
	case c.cfg.Degrade:
		return fmt.Sprintf("changes of the metadata are acknowledged by the log alone (valkey.on_failure is degrade): %v", err)
	}
	return fmt.Sprintf("no change of the metadata is acknowledged (valkey.on_failure is reject): %v", err)
}

// Confirm returns once the write buffer has the log through an entry; or, where the operator chose so, once it counts as
// away. An error, of kind outcome unknown, says that there will be no confirmation in this run.
func (c *Confirmer) Confirm(seq uint64) error {
	if !c.enabled.Load() {
		return nil
	}
	ctx := c.tasks.Context()
	if c.cfg.Degrade {
		if c.away() != nil {
			c.alone.Inc()
			return nil
		}
		limited, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
		ctx = limited
	}
	err := c.wait(ctx, seq)
	if err == nil {
		return nil
	}
	if c.cfg.Degrade && c.Err() == nil && c.tasks.Context().Err() == nil {
		c.alone.Inc()
		return nil
	}
	return fault.New(fault.OutcomeUnknown, "entry %d of the metadata is in the log, and the write buffer has not confirmed it: %w", seq, err)
}

func (c *Confirmer) wait(ctx context.Context, seq uint64) error {
	select {
	case <-c.started:
		return c.mirror.Wait(ctx, seq)
	case <-c.fenced:
		return c.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
