// Package raft owns the agreement on an order of commands and its durability: a log of entries, snapshots of the state
// machine above it, and the start from whatever mix of the two a crash left. So far a group has one member. It does not
// know what a command means, nor what keeps its log. Invariant: a command is applied, and answered, only when its
// entry is on the device; and what was applied is applied again, in the same order, by every later start.
package raft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/vfs"
)

// MaxCommandBytes is the longest command a group takes: a schema of 1 MiB that JSON writes with six bytes for one, and
// what goes with it.
const MaxCommandBytes = 8 << 20

// Machine is what commands act on. One goroutine at a time calls it.
type Machine interface {
	// Apply carries out a command. The same commands at the same indexes must give the same state. What it returns is
	// the answer to whoever proposed the command; a command that is refused is such an answer. An error says that the
	// command cannot be understood, and stops the group: to go on without it would lead to another state. The command's
	// slice is the group's and must not be kept.
	Apply(index uint64, command []byte) (any, error)
	// Snapshot takes hold of the state as it is, which must be cheap. The function it returns writes that state down; it
	// is called once, on another goroutine, while further commands are applied.
	Snapshot() func() ([]byte, error)
	// Restore replaces the state by one that Snapshot wrote down.
	Restore(snapshot []byte) error
}

// Config is what a group needs. Log, FS, SnapshotDir and Machine must be set; the zero value of the others means their
// default.
type Config struct {
	Log         Log
	FS          vfs.FS
	SnapshotDir string  // made where it is missing
	Machine     Machine // fresh: as it is before the first command
	ID          uint64  // of this member; default 1

	SnapshotEntries uint64 // a snapshot is taken after so many entries; default 10,000
	SnapshotBytes   int64  // or so many bytes of commands; default 8 MiB

	Logger     *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: no metrics
	Now        func() time.Time      // dates the entries, for people only; nil: time.Now
}

func (c Config) withDefaults() Config {
	if c.ID == 0 {
		c.ID = 1
	}
	if c.SnapshotEntries == 0 {
		c.SnapshotEntries = 10_000
	}
	if c.SnapshotBytes <= 0 {
		c.SnapshotBytes = 8 << 20
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Logger = obs.Logger(c.Logger)
	return c
}

// Validate returns all that is missing, at once.
func (c Config) Validate() error {
	var missing []error
	for _, f := range []struct {
		name string
		set  bool
	}{{"Log", c.Log != nil}, {"FS", c.FS != nil}, {"SnapshotDir", c.SnapshotDir != ""}, {"Machine", c.Machine != nil}} {
		if !f.set {
			missing = append(missing, fmt.Errorf("raft: Config.%s is not set", f.name))
		}
	}
	return errors.Join(missing...)
}

// Group is one member of a group, which is its only one. It is safe for concurrent use.
type Group struct {
	cfg     Config
	tasks   *task.Group
	metrics *metrics

	queue   chan *proposal
	done    chan struct{}         // closed when the owner has returned: what is queued then is never taken
	written chan snapshotResult   // from the task that writes a snapshot to the owner
	stopped atomic.Pointer[error] // why nothing is taken any more; nil while the group works
	applied atomic.Uint64         // seq of the newest entry that took effect

	owner owner
}

// owner is what only the goroutine of Group.run touches, and Open before it.
type owner struct {
	term     uint32
	last     uint64   // seq of the newest entry of the log
	kept     []uint64 // seqs of the snapshots that are known to be whole and durable, oldest first; at most two
	entries  uint64   // since the newest snapshot
	bytes    int64    // of commands since then
	retryAt  uint64   // after a snapshot that failed: not before so many entries
	writing  bool     // a task writes a snapshot
	captured owed     // what entries and bytes were when it began
}

type owed struct {
	entries uint64
	bytes   int64
}

// queued is how many proposals may wait for the owner; whoever comes then waits for room.
const queued = 256

// Open starts a group from its newest snapshot and the entries behind it. It refuses with kind corrupt, and names the
// file, where snapshot and log together do not tell the whole story, and with unsupported what a newer program wrote.
// The log stays the caller's, who closes it after Close. After an error nothing runs.
func Open(cfg Config) (*Group, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	g := &Group{
		cfg: cfg, tasks: task.NewGroup(context.Background()), metrics: newMetrics(),
		queue: make(chan *proposal, queued), done: make(chan struct{}), written: make(chan snapshotResult, 1),
	}
	if err := g.recover(); err != nil {
		return nil, err
	}
	g.metrics.register(cfg.Registerer)
	g.tasks.Go("raft", g.run)
	return g, nil
}

// Applied returns the seq of the newest entry that took effect.
func (g *Group) Applied() uint64 { return g.applied.Load() }

// Err returns why the group takes no commands any more, with kind stopped; nil while it does. Only a new Open, which
// reads the log again, helps.
func (g *Group) Err() error {
	if err := g.stopped.Load(); err != nil {
		return *err
	}
	return nil
}

// stop makes every later Propose fail.
func (g *Group) stop(cause error) {
	var err error = fault.New(fault.Stopped, "the metadata takes no changes since its log failed; restart the broker, which reads the log again: %w", cause)
	if g.stopped.CompareAndSwap(nil, &err) {
		g.metrics.stopped.Set(1)
		g.cfg.Logger.Error("metadata stopped: no change is taken until the broker restarts and has read the log again", "error", cause)
	}
}

// Close answers what was begun, refuses what waits with kind unavailable, and ends the group's goroutines. It may be
// called more than once.
func (g *Group) Close() error {
	g.tasks.Stop()
	if err := g.tasks.Wait(); err != nil {
		return fmt.Errorf("close raft group: %w", err)
	}
	return nil
}
