package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/datadir"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/record"
)

// Broker is one broker's topics and what is done with them. It is safe for concurrent use.
//
// size: a method for each thing that a listener may ask for
type Broker struct {
	*hub       // subscriptions and their consumers
	cfg        Config
	batches    record.Limits // of what publishers send
	metrics    *metrics
	layout     datadir.Layout
	topics     *registry
	remover    *remover
	inFlight   *task.Budget
	partitions *partition.Config
	producers  producerIDs
	seats      seats        // of subscribers and consumers
	quiet      obs.Throttle // of log lines that could come with every tick

	tasks    *task.Group
	closing  *task.Group     // closes logs, also once the tasks have to stop
	draining context.Context // done once a drain began
	drain    context.CancelFunc
	life     context.Context // done, with the cause that handles answer, when a drain ends subscribers
	end      context.CancelCauseFunc

	opened chan struct{} // closed once every partition was tried

	mu struct {
		sync.Mutex
		tried, total int          // of the partitions to open at the start
		unknown      []string     // data on disk that the metadata does not account for
		report       *DrainReport // of the drain that is over
	}
}

// New returns a broker for cfg. It does no I/O and serves nothing until Run.
func New(cfg Config) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fault.New(fault.InvalidArgument, "broker configuration: %w", err)
	}
	cfg = cfg.withDefaults()
	b := &Broker{
		cfg: cfg, topics: newRegistry(), inFlight: task.NewBudget(cfg.Limits.InFlightBytes),
		tasks: task.NewGroup(context.Background()), closing: task.NewGroup(context.Background()),
		layout: datadir.Layout{FS: cfg.FS, Root: cfg.DataDir}, opened: make(chan struct{}), quiet: obs.Throttle{Every: time.Minute},
		batches: record.Limits{
			RecordBytes: cfg.Limits.RecordBytes, BatchBytes: cfg.Limits.BatchBytes, DecompressedBytes: cfg.Limits.DecompressedBytes,
		},
	}
	b.draining, b.drain = context.WithCancel(context.Background())
	b.life, b.end = context.WithCancelCause(context.Background())
	b.partitions = partitionConfig(b)
	b.hub = newHub(b)
	b.producers.init(cfg.Meta)
	b.topics.schemas = newSchemas(b)
	b.metrics = newMetrics(cfg.Registerer, b.topics, b.inFlight)
	b.seats = seats{metrics: b.metrics, limit: cfg.Limits.Subscribers}
	b.remover = &remover{
		fs: cfg.Housekeeping, layout: b.layout, store: cfg.Meta, topics: b.topics, end: b.sync, tier: cfg.Tier, buffer: cfg.Buffer, metrics: b.metrics, logger: cfg.Logger, wake: make(chan struct{}, 1),
	}
	b.reconcile()
	return b, nil
}

// Run opens every partition and keeps retention and the removal of deleted topics going until ctx is done; then it drains
// what Drain has not, closes every log and returns, which takes as long as the disk does. It fails where the data directory cannot be read and, under
// StrictStart, where a partition cannot be served. It must be called once.
func (b *Broker) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, b.tasks.Stop)
	defer stop()
	b.tasks.Go("open topics", b.openAll)
	b.tasks.Go("follow the metadata", b.follow)
	b.tasks.Go("retain and retry", b.maintain)
	saving, saved := context.WithCancel(context.Background()) // until the last consumer has ended
	b.closing.Go("save cursors", func(context.Context) error {
		_ = b.hub.cfg.Saver.Run(saving)
		return nil
	})
	<-b.tasks.Context().Done()
	wait, cancel := context.WithTimeout(context.Background(), lastAnswers)
	defer cancel()
	b.Drain(wait)
	err := b.tasks.Wait()
	saved()
	return errors.Join(err, b.closing.Wait())
}

// lastAnswers is how long Run waits for what was submitted to be answered when nobody drained before it had to stop.
const lastAnswers = 10 * time.Second

// Draining is closed once the broker has begun to stop.
func (b *Broker) Draining() <-chan struct{} { return b.draining.Done() }

// Limits returns the limits in force.
func (b *Broker) Limits() Limits { return b.cfg.Limits }

// Counts returns how many topics and partitions there are.
func (b *Broker) Counts() (topics, partitions int) { return b.topics.counts() }

// State returns "starting", "ready" or "draining".
func (b *Broker) State() string {
	if b.draining.Err() != nil {
		return "draining"
	}
	select {
	case <-b.opened:
		return "ready"
	default:
		return "starting"
	}
}

// Ready returns nil once every partition was tried, whatever came of it, and while the broker is not draining.
func (b *Broker) Ready() error {
	switch b.State() {
	case "ready":
		return nil
	case "draining":
		return errDraining()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return fault.New(fault.Unavailable, "starting: opened %d of %d partitions", b.mu.tried, b.mu.total)
}

// Recovered reports that the way the previous run ended has been dealt with: every partition was opened with it in
// mind, or has on record that it may have lost records. Until then the next run must be told of it again, however this
// one ends.
func (b *Broker) Recovered() bool {
	select {
	case <-b.opened:
	default:
		return false
	}
	for _, t := range b.topics.all() {
		for _, p := range t.parts {
			if !p.Status().Settled {
				return false
			}
		}
	}
	return true
}

// maxProblems bounds what Problems lists; one damaged disk can make thousands.
const maxProblems = 100

// Problems returns what is not as it should be, in words, sorted: partitions that cannot be used, data that the metadata
// does not account for, data that could not be removed, topics that lack room.
func (b *Broker) Problems() []string {
	var problems, full []string
	for _, t := range b.topics.all() {
		if t.lacksRoom(b.cfg.Age()) {
			full = append(full, t.Full)
		}
		for i, p := range t.parts {
			if s := p.Status(); s.State == partition.Unavailable {
				problems = append(problems, fmt.Sprintf("partition %s/%d is unavailable: %s: %v", t.Full, i, fault.KindOf(s.Err), s.Err))
			}
		}
	}
	if len(full) > 0 {
		problems = append(problems, fmt.Sprintf("the disk is full, or a limit on it is reached: the last publishes to %d topics were refused, among them %s; make room, or delete topics",
			len(full), slices.Min(full)))
	}
	b.mu.Lock()
	problems = append(problems, b.mu.unknown...)
	b.mu.Unlock()
	if p := b.remover.Problem(); p != "" {
		problems = append(problems, p)
	}
	slices.Sort(problems)
	if more := len(problems) - maxProblems; more > 0 {
		problems = append(problems[:maxProblems], fmt.Sprintf("and %d more", more))
	}
	return problems
}
