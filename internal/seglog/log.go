package seglog

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/invariants"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/vfs"
)

const (
	defaultSegmentBytes  = 256 << 20
	defaultIndexInterval = 4 << 10
	defaultFsyncInterval = 250 * time.Millisecond
	defaultMaxBatch      = 16 << 20
	defaultQueueBytes    = 32 << 20
	defaultExpiry        = 7 * 24 * time.Hour
	markInterval         = time.Second
	keptBuffer           = 128 << 10 // a group's larger buffer is shared by all logs
	maxGroupBytes        = 1 << 20   // one write call; more is the next group's, and takes a device no less time a byte
)

func (c Config) withDefaults() Config {
	set := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&c.SegmentBytes, defaultSegmentBytes)
	set(&c.IndexInterval, defaultIndexInterval)
	set(&c.QueueBytes, defaultQueueBytes)
	if c.FsyncInterval <= 0 {
		c.FsyncInterval = defaultFsyncInterval
	}
	if c.MaxBatchBytes <= 0 || c.MaxBatchBytes > segfmt.MaxFrame-segfmt.FrameHeaderSize {
		c.MaxBatchBytes = defaultMaxBatch
	}
	if c.ProducerExpiry <= 0 {
		c.ProducerExpiry = defaultExpiry
	}
	if c.ahead.most == 0 {
		c.ahead = busyLog
	}
	if c.Generation == 0 {
		c.Generation = 1
	}
	if c.Files == nil {
		c.Files = NewFiles(16)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// log returns the logger with the log's name on it. It is made where it is used: a name for each of very many logs, of
// which hardly any ever says something, would take more memory than what they hold.
func (c *Config) log() *slog.Logger {
	return obs.Logger(c.Logger).With("topic", c.Topic, "partition", c.Partition)
}

// Log is one partition's log. It is safe for concurrent use.
//
// size: its methods are the steps of one queue, in files by step; splitting the type would only hide who owns the tail
type Log struct {
	cfg   Config // but for the settings that change while the log is open, which are live
	live  atomic.Pointer[settings]
	tasks task.Group

	view    atomic.Pointer[view]
	wake    atomic.Pointer[chan struct{}] // closed, and forgotten, when the view or the state changes
	failure atomic.Pointer[error]         // why the log takes nothing any more; nil while it works
	waiting atomic.Int64                  // requests in the queue

	durable atomic.Pointer[position] // everything below it is on the device
	syncing chan struct{}            // one slot: whoever holds it flushes (an error is reported to one flush only)
	marking task.Turn                // whoever holds it writes the durable mark; guards mark
	mark    segfmt.Mark
	share   share // of the gauges of all logs

	mu struct {
		sync.Mutex
		queue  []*request
		bytes  int64         // of queued batches
		busy   bool          // somebody is the committer
		closed bool          // nothing may be queued
		room   chan struct{} // closed when the queue shrank; nil when nobody waits
		timers *timer        // those that run; an idle log has none
	}

	tail     tail                      // owned by the committer
	requests atomic.Pointer[sync.Pool] // of *request; see pool
}

// settings change while the log is open; see Log.change.
type settings struct {
	mode          Mode
	fsyncInterval time.Duration
	retention     Retention
	segmentBytes  int64
}

// position is a point in the log.
type position struct {
	seq    uint64 // newest frame before it
	offset int64  // of the next record
	file   int64  // base offset of the segment it is in
	pos    int64  // byte position in that file
	// records were written before it since the log was opened.
	records int64
}

// tail is what the committer owns.
type tail struct {
	chain     chain  // what the next frame must be; chain.generation is what it will carry
	lastGen   uint32 // of the newest frame
	active    *segment
	end       int64 // where the next frame goes in the active file
	index     segfmt.IndexBuilder
	reserved  int64   // disk space is reserved up to here in the active file
	ahead     int64   // the active file holds unwritten space up to here, where that is behind end; see Log.writeAhead
	dirty     *handle // the active file, held open, while it has writes that are not flushed; see Log.holdDirty
	buf       []byte
	records   int64 // written since the log was opened
	producers *producers
	snapshot  int64    // a snapshot on the device says what producers had sent before this offset
	leaving   *segment // retention has taken it from readers, and its file may be there still
	idleSince int64    // end at the last retention check, to notice idleness
}

// Report says what opening a log found and did.
type Report struct {
	Truncated    int64 // bytes cut off the tail
	Salvaged     []string
	Repairs      []Repair
	RebuiltIndex int
	Duration     time.Duration
	// Lossy says that the log may have delivered records that are gone: it acknowledged before the device had them, and
	// its machine crashed. Its owner must start a new generation above every offset that may have been given out.
	Lossy bool
	// ClaimedEnd is above the log's end when an operator had durable records cut off: offsets below it were given out.
	ClaimedEnd int64
}

// Open opens the log in cfg.Dir, making whatever repairs its plan calls for. A directory that does not exist is an
// empty log; it is made with the first append. The error is a *CorruptionError when the bytes are not what was written,
// and then nothing was changed.
func Open(cfg Config) (*Log, Report, error) {
	cfg = cfg.withDefaults()
	start := time.Now()
	var report Report
	if err := settle(&cfg); err != nil {
		return nil, report, err
	}
	p := MakePlan(cfg.FS, cfg.Dir, PlanOptions{
		Topic: cfg.Topic, TopicID: cfg.TopicID, Partition: cfg.Partition, Crash: cfg.Crash, VerifyAll: cfg.VerifyAllOnOpen,
		RepairChecksumTail: cfg.RepairChecksumTail, IndexInterval: cfg.IndexInterval, NowMs: cfg.Now().UnixMilli(),
	})
	if p.Err != nil {
		return nil, report, p.Err
	}
	salvaged, err := p.apply(cfg.SalvageDir, cfg.log(), cfg.Metrics)
	if err != nil {
		return nil, report, err
	}
	l := &Log{cfg: cfg, syncing: make(chan struct{}, 1),
		share: share{metrics: cfg.Metrics}}
	l.live.Store(&settings{cfg.Mode, cfg.FsyncInterval, cfg.Retention, cfg.SegmentBytes})
	l.adopt(p)
	l.mark = p.mark
	v := l.view.Load()
	l.share.set(int64(len(v.segs)), v.bytes(), 0)
	report = Report{Truncated: p.Truncated, Salvaged: salvaged, Repairs: p.Repairs, Duration: time.Since(start), ClaimedEnd: p.ClaimedEnd,
		Lossy: p.ClaimedEnd > 0 || cfg.Crash == MachineCrash && cfg.Mode != OnCommit}
	for _, r := range p.Repairs {
		if r.Op == "write" {
			report.RebuiltIndex++
		}
	}
	cfg.Metrics.opened(report.Duration, p.ProducersRebuilt)
	return l, report, nil
}

// settle makes sure that what the log is about to read is what the device holds: it flushes the newest file, and after a
// crash the names and the mark, too; then it drops what the page cache has of them, since after a failed flush the cache
// shows bytes that the device never got. A clean stop saw every flush succeed.
func settle(cfg *Config) error {
	infos, err := cfg.FS.List(cfg.Dir)
	if errors.Is(err, vfs.ErrNotExist) {
		return nil
	} else if err != nil {
		return ioError(cfg.Topic, cfg.Partition, "list", cfg.Dir, err)
	}
	newest, mark := int64(-1), false
	for _, info := range infos {
		mark = mark || info.Name == segfmt.MarkName
		if n, kind, ok := segfmt.ParseName(info.Name); ok && kind == segfmt.LogSuffix {
			newest = max(newest, n)
		}
	}
	if newest < 0 {
		return nil
	}
	from := int64(0)
	if cfg.Crash != CleanStop {
		// What a process wrote that died is what this one sees, and builds on: names, and what the mark claims.
		if err := cfg.FS.SyncDir(cfg.Dir); err != nil {
			return unsettled(cfg, cfg.Dir, err)
		}
		if mark {
			name := path.Join(cfg.Dir, segfmt.MarkName)
			if err := settleFile(cfg, name, 0); err != nil {
				return err
			}
			from = flushedBefore(cfg.FS, name, newest)
		}
	}
	return settleFile(cfg, path.Join(cfg.Dir, segfmt.FileName(newest, segfmt.LogSuffix)), from)
}

// flushedBefore returns a position in the segment that starts at base before which, as the durable mark says, all was
// flushed and nothing was written since: there the cache holds what the device does. 0 where the mark does not say.
func flushedBefore(fs vfs.FS, mark string, base int64) int64 {
	b, _ := vfs.ReadPart(fs, mark, 0, segfmt.MarkFileSize) // none says nothing
	if m, ok, err := segfmt.ParseMark(b); err == nil && ok && m.File == base {
		return m.Position / vfs.LargestPage * vfs.LargestPage
	}
	return 0
}

// settleFile makes a file's content what the device holds, and re-reads it from there, from a position on.
func settleFile(cfg *Config, name string, from int64) error {
	f, err := cfg.FS.Open(name, false)
	if err != nil {
		return ioError(cfg.Topic, cfg.Partition, "open", name, err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return unsettled(cfg, name, err)
	}
	if a, ok := f.(vfs.Advisor); ok && cfg.Crash != CleanStop {
		if err := a.DropCache(from, 0); err != nil {
			return ioError(cfg.Topic, cfg.Partition, "re-read", name, err)
		}
	}
	return nil
}

// unsettled is of kind stopped: what the last run left in memory only may be gone, and the next attempt to open the log
// has to reckon with that.
func unsettled(cfg *Config, name string, err error) error {
	return fault.New(fault.Stopped, "%s/%d: flush %s: %w: what the last run left unflushed may be lost", cfg.Topic, cfg.Partition, name, err).With("file", name)
}

// adopt makes the plan's state the log's. Only Open, and the committer after a truncation, call it.
func (l *Log) adopt(p *Plan) {
	l.tail.chain = chain{p.NextSeq, p.Next, max(p.Generation, l.cfg.Generation)}
	l.tail.lastGen = p.Generation
	l.tail.index, l.tail.end, l.tail.producers = p.active, p.activeEnd, p.producers
	l.tail.active, l.tail.reserved, l.tail.ahead, l.tail.snapshot = nil, 0, 0, p.snapshot
	file := int64(0)
	if n := len(p.segs); n > 0 {
		l.tail.active = p.segs[n-1]
		file = l.tail.active.BaseOffset
	}
	l.durable.Store(&position{p.NextSeq - 1, p.Next, file, p.activeEnd, l.tail.records})
	epoch := uint64(0)
	if old := l.view.Load(); old != nil {
		epoch = old.epoch + 1
	}
	l.view.Store(&view{segs: p.segs, first: p.First, epoch: epoch})
	l.publish()
}

// publish makes a view of the tail as it stands and wakes whoever waits for one.
func (l *Log) publish() {
	old := l.view.Load()
	if invariants.Enabled && (l.tail.chain.offset < old.end || l.tail.chain.seq < old.nextSeq || l.mode() == OnCommit && l.durable.Load().seq+1 < l.tail.chain.seq) {
		panic("seglog: BUG: a bound went back, or readers would see what the device does not have")
	}
	l.view.Store(&view{
		segs: old.segs, first: old.first, epoch: old.epoch,
		end: l.tail.chain.offset, nextSeq: l.tail.chain.seq, gen: l.tail.lastGen, records: l.tail.records,
		endPos: l.tail.end, index: l.tail.index.Entries, times: l.tail.index.Times, maxTim: l.tail.index.MaxTime,
	})
	l.notify()
}

func (l *Log) notify() {
	if ch := l.wake.Swap(nil); ch != nil {
		close(*ch)
	}
}

// Changed returns a channel that closes at the next change. Look at the state after the call, then wait.
func (l *Log) Changed() <-chan struct{} {
	for {
		if ch := l.wake.Load(); ch != nil {
			return *ch
		}
		ch := make(chan struct{})
		if l.wake.CompareAndSwap(nil, &ch) {
			return ch
		}
	}
}

// stop makes the log refuse everything from now on. Readers may go on below the durable bound.
func (l *Log) stop(err error) {
	if l.failure.CompareAndSwap(nil, &err) {
		l.cfg.log().Error("log stopped: nothing is acknowledged until the broker restarts and has re-read the device", "error", err)
	}
	l.notify()
}

// stopAt stops the log because of what happened to a file, and returns why.
func (l *Log) stopAt(file, format string, args ...any) error {
	args = append([]any{l.cfg.Topic, l.cfg.Partition}, args...)
	stopped := fault.New(fault.Stopped, "%s/%d: "+format, args...).With("file", file)
	l.stop(stopped)
	return stopped
}

// Err returns why the log is stopped; nil while it works.
func (l *Log) Err() error {
	if p := l.failure.Load(); p != nil {
		return *p
	}
	return nil
}

var errClosed = fault.New(fault.Unavailable, "the partition is closed here: reconnect")

// Bounds returns a consistent view of where the log stands.
func (l *Log) Bounds() Bounds {
	d, v := l.durable.Load(), l.view.Load() // in this order: Durable never exceeds End
	b := Bounds{First: v.first, End: v.end, Written: v.end, Durable: min(d.offset, v.end), FirstSeq: v.firstSeq(), NextSeq: v.nextSeq,
		DurableSeq: min(d.seq, v.nextSeq-1), Generation: v.gen, Segments: len(v.segs), Bytes: v.bytes()}
	if l.Err() != nil {
		b.End = b.Durable
	}
	return b
}

// Wait returns once End is above offset. It returns the context's error, why the log is stopped, or that it is closed.
func (l *Log) Wait(ctx context.Context, offset int64) error {
	for {
		ch := l.Changed()
		if err := l.Err(); err != nil {
			return err
		}
		if l.view.Load().end > offset {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// SetRetention changes the retention; the next Retain applies it.
func (l *Log) SetRetention(r Retention) {
	l.change(func(s *settings) { s.retention = r })
}

// SetSegmentBytes changes the size at which segments are sealed.
func (l *Log) SetSegmentBytes(n int64) {
	l.change(func(s *settings) { s.segmentBytes = n })
}

// SetMode changes the fsync mode. Everything acknowledged so far is flushed before it returns.
func (l *Log) SetMode(ctx context.Context, m Mode, interval time.Duration) error {
	return l.exclusive(ctx, func() error {
		l.change(func(s *settings) {
			s.mode = m
			if interval > 0 {
				s.fsyncInterval = interval
			}
		})
		return l.flush()
	})
}

func (l *Log) change(fn func(*settings)) {
	for {
		old := l.live.Load()
		s := *old
		fn(&s)
		if l.live.CompareAndSwap(old, &s) {
			return
		}
	}
}

func (l *Log) mode() Mode { return l.live.Load().mode }

func (l *Log) segmentBytes() int64 { return l.live.Load().segmentBytes }

// Close refuses new work, finishes what is queued, flushes, writes the durable mark and closes the files. The error is
// why the log had stopped, or why the flush failed.
func (l *Log) Close() error {
	r := &request{done: make(chan struct{}, 1), op: l.lastStep}
	l.mu.Lock()
	if l.mu.closed {
		l.mu.Unlock()
		return nil
	}
	l.mu.closed = true
	for t := l.mu.timers; t != nil; t = t.next {
		t.Stop()
	}
	l.mu.queue = append(l.mu.queue, r)
	l.waiting.Add(1)
	lead := !l.mu.busy
	l.mu.busy = true
	l.mu.Unlock()
	if lead {
		l.commitOnce()
	}
	<-r.done
	waited := l.tasks.Wait()
	v := l.view.Load()
	for _, s := range v.segs {
		l.cfg.Files.forget(s)
	}
	if l.tail.dirty != nil { // stopped with unflushed writes: they are not ours to vouch for
		l.cfg.Files.release(l.tail.dirty)
	}
	l.share.set(0, 0, 0)
	return errors.Join(r.err, waited)
}

// lastStep leaves everything on the device, and says so in the mark.
func (l *Log) lastStep() error {
	if err := l.flush(); err != nil {
		return err
	}
	if l.tail.ahead > l.tail.end {
		l.cutAhead()
	}
	if err := l.writeMark(); err != nil { // it claims less than it could; that is no fault of the log
		l.cfg.log().Warn("could not write the durable mark", "error", err)
	}
	closed := error(errClosed)
	l.failure.CompareAndSwap(nil, &closed)
	l.notify()
	return nil
}

// later runs fn once, after d, unless it is due already or the log closes.
func (l *Log) later(name string, d time.Duration, fn func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed || *l.timerLocked(name) != nil {
		return
	}
	l.mu.timers = &timer{name: name, next: l.mu.timers, Timer: time.AfterFunc(d, func() {
		l.mu.Lock()
		t := l.timerLocked(name)
		*t = (*t).next
		closed := l.mu.closed
		l.mu.Unlock()
		if !closed {
			l.tasks.Go(name, func(context.Context) error {
				if err := fn(); err != nil && l.Err() == nil {
					l.cfg.log().Warn("background step failed", "step", name, "error", err)
				}
				return nil
			})
		}
	})}
}

// timer runs a named step once.
type timer struct {
	*time.Timer
	name string
	next *timer
}

// timerLocked returns where the timer of that name is in the list, or where the list ends.
func (l *Log) timerLocked(name string) **timer {
	at := &l.mu.timers
	for *at != nil && (*at).name != name {
		at = &(*at).next
	}
	return at
}
