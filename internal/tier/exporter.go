package tier

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/task"
)

// Bounds of the waits between attempts, and how often one partition's failures are logged.
const (
	firstRetry   = time.Second
	longRetry    = 15 * time.Second
	complaints   = time.Minute
	maxDoublings = 4
)

// Source is one partition as the Exporter sees it. Its methods are called by one goroutine at a time, end soon once their
// context does, and do not call Forget or Stop. Its identity (it must be comparable: a pointer) is what it is known by.
type Source interface {
	// Name returns topic and partition, for logs.
	Name() string
	// Place says where its objects belong.
	Place() Place
	// Next returns the oldest segment that is to be exported; nil where there is none now.
	Next(ctx context.Context) (*Segment, error)
	// Commit records the object durably. It may be called again for an object that it recorded before. An error of kind
	// fault.Fenced or fault.Deleted says that somebody else exports this partition, or nobody: it is given up until Wake.
	Commit(ctx context.Context, o Object) error
}

// ExporterConfig is what an Exporter needs to know. The zero value of a field means its default.
type ExporterConfig struct {
	Parallel    int          // exports at a time; default 4
	BytesPerSec int64        // of all exports together, as sent; 0: no limit
	Metrics     *Metrics     // nil: none
	Logger      *slog.Logger // nil: silent
}

func (c ExporterConfig) withDefaults() ExporterConfig {
	if c.Parallel == 0 {
		c.Parallel = 4
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	c.Logger = obs.Logger(c.Logger)
	return c
}

// Validate returns every setting that cannot be.
func (c ExporterConfig) Validate() error {
	var errs []error
	if c.Parallel < 0 {
		errs = append(errs, fault.New(fault.InvalidArgument, "exports at a time: %d", c.Parallel))
	}
	if c.BytesPerSec < 0 {
		errs = append(errs, fault.New(fault.InvalidArgument, "bytes a second of exports: %d", c.BytesPerSec))
	}
	return errors.Join(errs...)
}

// Exporter exports what its sources have, a segment at a time: a source that was served goes to the end of the line. One
// that fails is tried again for ever, after waits that grow from a second to a minute, and holds up no other one. It is
// safe for concurrent use.
type Exporter struct {
	cfg        ExporterConfig
	store      objstore.Store
	group      *task.Group
	pace       *pace
	complained obs.Throttle

	mu      sync.Mutex
	sources map[Source]*export // guarded by mu
	line    []*export          // guarded by mu; those in state queued, in order
	workers int                // guarded by mu
	stopped bool               // guarded by mu
	stats   Stats              // guarded by mu
}

// Stats are what an Exporter has done.
type Stats struct {
	Uploads    int64 // segments exported and recorded
	Bytes      int64 // of their objects
	Failures   map[fault.Kind]int64
	InProgress int
	Waiting    int // sources that wait after a failure
}

type state uint8

const (
	idle    state = iota
	queued        // in line
	running       // a worker is at it
	waiting       // for its timer, after a failure
)

// export is what an Exporter knows of a source. All but src and ctx is guarded by the Exporter's mu.
type export struct {
	src    Source
	ctx    context.Context // of its exports; ends when it is forgotten
	cancel context.CancelFunc

	state    state
	again    bool // told while it was running
	failures int  // in a row
	timer    *time.Timer
	began    time.Time     // when its newest export was begun, and
	ended    time.Time     // when it was over; whoever runs it has both
	gone     chan struct{} // closed when it was forgotten and nothing is under way; nil: not forgotten
}

// NewExporter returns one that exports to store until ctx ends or Stop is called.
func NewExporter(ctx context.Context, store objstore.Store, cfg ExporterConfig) (*Exporter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	x := &Exporter{cfg: cfg, store: store, group: task.NewGroup(ctx), pace: newPace(cfg.BytesPerSec), sources: map[Source]*export{}}
	x.complained.Every = complaints
	x.stats.Failures = map[fault.Kind]int64{}
	return x, nil
}

// Wake tells that src may have something to export. It is cheap, and does not shorten the wait after a failure.
func (x *Exporter) Wake(src Source) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stopped {
		return
	}
	e := x.sources[src]
	if e == nil {
		e = &export{src: src}
		e.ctx, e.cancel = context.WithCancel(x.group.Context())
		x.sources[src] = e
	}
	switch e.state {
	case idle:
		x.queueLocked(e)
	case running:
		e.again = true
	case queued, waiting:
	}
}

// queueLocked puts e in line, and sees to it that somebody serves the line.
func (x *Exporter) queueLocked(e *export) {
	if x.stopped {
		e.state = idle
		return
	}
	e.state = queued
	x.line = append(x.line, e)
	if x.workers < x.cfg.Parallel && x.group.Go("export", x.work) {
		x.workers++
	}
}

// work serves the line until it is empty.
func (x *Exporter) work(context.Context) error {
	for {
		e := x.take()
		if e == nil {
			return nil
		}
		done, more, err := x.once(e)
		x.settle(e, done, more, err)
	}
}

func (x *Exporter) take() *export {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.line) == 0 || x.stopped {
		x.workers--
		return nil
	}
	e := x.line[0]
	x.line[0] = nil
	x.line = x.line[1:]
	e.state, e.again = running, false
	x.stats.InProgress++
	x.cfg.Metrics.InProgress.Inc()
	return e
}

// once exports one segment of e, where there is one.
func (x *Exporter) once(e *export) (done Object, more bool, err error) {
	seg, err := e.src.Next(e.ctx)
	if err != nil || seg == nil {
		return Object{}, false, err
	}
	if seg.Release != nil {
		defer seg.Release()
	}
	start := time.Now()
	soft := gentle(seg.Size, start.Sub(e.began), start.Sub(e.ended))
	e.began = start
	defer func() { e.ended = time.Now() }()
	file := seg.Reader
	seg.Reader = soft.reader(e.ctx, file)
	o, err := upload(e.ctx, x.store, e.src.Place(), *seg, x.pace.reader(e.ctx, soft.reader(e.ctx, file)), soft)
	if err != nil {
		return Object{}, true, err
	}
	if err := e.src.Commit(e.ctx, o); err != nil {
		return Object{}, true, err
	}
	x.cfg.Metrics.Duration.Observe(time.Since(start).Seconds())
	return o, true, nil
}

// settle notes what became of one export, and what comes next for its source.
func (x *Exporter) settle(e *export, done Object, more bool, err error) {
	kind := fault.KindOf(err)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stats.InProgress--
	x.cfg.Metrics.InProgress.Dec()
	if done.Size > 0 { // recorded, whatever becomes of its source
		x.stats.Uploads++
		x.stats.Bytes += done.Size
		x.cfg.Metrics.Exports.Inc()
		x.cfg.Metrics.ExportedBytes.Add(float64(done.Size))
	}
	switch {
	case e.gone != nil:
		e.state = idle
		delete(x.sources, e.src)
		close(e.gone)
	case e.ctx.Err() != nil: // stopped
		e.state = idle
	case err == nil:
		e.failures = 0
		if e.state = idle; more || e.again {
			x.queueLocked(e)
		}
	default:
		x.stats.Failures[kind]++
		x.cfg.Metrics.Failures.WithLabelValues(kind.String()).Inc()
		x.failedLocked(e, kind, err)
	}
}

// failedLocked lets a source wait, or gives it up where another broker has it.
func (x *Exporter) failedLocked(e *export, kind fault.Kind, err error) {
	if kind == fault.Fenced || kind == fault.Deleted {
		e.failures, e.state = 0, idle
		x.cfg.Logger.Info("not exported any more: the partition is another one's, or deleted", "partition", e.src.Name(), "reason", err)
		if e.again {
			x.queueLocked(e)
		}
		return
	}
	wait := min(firstRetry<<min(e.failures, maxDoublings), longRetry)
	wait = wait/2 + rand.N(wait/2)
	e.failures++
	e.state = waiting
	e.timer = time.AfterFunc(wait, func() { x.due(e) })
	if held, ok := x.complained.Allow(e.src.Name(), time.Now()); ok {
		x.cfg.Logger.Warn("export failed; it is tried again", "partition", e.src.Name(), "kind", kind, "error", err,
			"in_a_row", e.failures, "next_in", wait.Round(time.Millisecond), "not_logged", held)
	}
}

// due puts e in line again when its wait is over.
func (x *Exporter) due(e *export) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e.state == waiting {
		x.queueLocked(e)
	}
}

// Forget ends what is under way for src, waits until it has ended or ctx has, and knows it no more. Nothing may wake it
// meanwhile. After an error something may be under way still: ask again.
func (x *Exporter) Forget(ctx context.Context, src Source) error {
	x.mu.Lock()
	e := x.sources[src]
	if e == nil {
		x.mu.Unlock()
		return nil
	}
	e.cancel()
	if e.gone == nil {
		e.gone = make(chan struct{})
		if e.timer != nil {
			e.timer.Stop()
		}
		if e.state == queued {
			for i := range x.line {
				if x.line[i] == e {
					x.line = append(x.line[:i], x.line[i+1:]...)
					break
				}
			}
		}
		if e.state != running {
			e.state = idle
			delete(x.sources, src)
			close(e.gone)
		}
	}
	gone := e.gone
	x.mu.Unlock()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fault.New(fault.KindOf(context.Cause(ctx)), "an export of %s does not end: %w", src.Name(), context.Cause(ctx))
	}
}

// Stop ends everything and waits for it. What was not recorded is exported by the next Exporter.
func (x *Exporter) Stop() error {
	x.mu.Lock()
	x.stopped = true
	x.line = nil
	for _, e := range x.sources {
		e.cancel()
		if e.timer != nil {
			e.timer.Stop()
		}
	}
	x.mu.Unlock()
	x.group.Stop()
	return x.group.Wait()
}

// Stats returns what was done so far.
func (x *Exporter) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	s.Failures = make(map[fault.Kind]int64, len(x.stats.Failures))
	for k, n := range x.stats.Failures {
		s.Failures[k] = n
	}
	for _, e := range x.sources {
		if e.state == waiting {
			s.Waiting++
		}
	}
	return s
}
