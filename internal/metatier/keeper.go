package metatier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/task"
	"github.com/prometheus/client_golang/prometheus"
)

// Source is the metadata that a Keeper copies.
type Source interface {
	View() *meta.View
	// Changed returns a channel that is closed once there is a newer view than the one View returned before the call.
	Changed() <-chan struct{}
	// Term returns the term of the entries behind the views.
	Term() uint32
}

// KeeperConfig is what a Keeper needs to know. The zero value of a duration means its default.
type KeeperConfig struct {
	Place
	Self
	Claim  ID     // of the directory
	Epoch  uint64 // of the record when the directory last saw that it names the claim; 0: it never did
	Source Source
	// Seen keeps the epoch in which the record names the claim where the next run finds it as Epoch, durably; nil: nobody does.
	Seen  func(epoch uint64) error
	NewID func() ID
	Now   func() time.Time

	Pause   time.Duration // between two copies, at least; and four times what the last one took. Default 100 ms
	Cursors time.Duration // after which the progress of subscriptions is copied at the latest; default 8 s
	Poll    time.Duration // how often the record is looked at; default 10 s

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

func (c KeeperConfig) withDefaults() KeeperConfig {
	if c.Pause == 0 {
		c.Pause = 100 * time.Millisecond
	}
	if c.Cursors == 0 {
		c.Cursors = 8 * time.Second
	}
	if c.Poll == 0 {
		c.Poll = 10 * time.Second
	}
	c.Logger = obs.Logger(c.Logger)
	return c
}

// Keeper copies the metadata of a broker whenever it changes, and finds out when somebody else has taken the cluster's data
// over. A store that is away holds up nothing: it is tried again for ever. It is safe for concurrent use.
type Keeper struct {
	cfg     KeeperConfig
	tasks   *task.Group
	metrics *metrics
	closing chan struct{}
	done    chan struct{} // closed when run has returned
	fenced  chan struct{} // closed once it is known
	once    sync.Once
	started bool

	mu  sync.Mutex
	err error // guarded by mu; why the last attempt failed; nil after one that did not
	// elsewhere says that this is likely to be another store than the objects are in, as it was when the run began; "": it is not.
	elsewhere string // guarded by mu

	asked   time.Time     // guarded by mu; when MayDelete last heard that the data is this directory's
	fence   error         // guarded by mu; set before fenced is closed
	since   time.Time     // guarded by mu; when the oldest change came that is not copied; zero: none is
	waiting string        // guarded by mu; the last failure that was logged, as its kind
	through uint64        // guarded by mu; the index that is copied
	moved   chan struct{} // guarded by mu; closed when through rises; nil: nobody waits

	work work
}

// work is what only one goroutine touches: that of run, and Check before it.
type work struct {
	epoch    uint64     // in which the record was last seen to name the claim; 0: it never was
	taken    bool       // the record is known to name this run
	copied   *meta.View // what the record's snapshot holds; nil: not known
	seen     *meta.View // up to here changes were told apart
	urgent   bool       // something else than cursors changed since copied
	took     time.Duration
	copiedAt time.Time // when the last copy was done
	lookedAt time.Time // when the record was last read
}

// NewKeeper returns one that does nothing before Check or Start.
func NewKeeper(cfg KeeperConfig) *Keeper {
	k := &Keeper{cfg: cfg.withDefaults(), work: work{epoch: cfg.Epoch}, tasks: task.NewGroup(context.Background()), closing: make(chan struct{}), done: make(chan struct{}), fenced: make(chan struct{})}
	k.metrics = newMetrics(cfg.Registerer, k.lag)
	return k
}

// Check reads the record, once, and makes it name this run. A FencedError says that the cluster's data is somebody else's,
// a StaleError that the directory's metadata is older than the copy, a GoneError that the record is gone. After any other error it is not known, and Start goes
// on finding out. It is called before Start.
func (k *Keeper) Check(ctx context.Context) error {
	_, _, err := k.own(ctx)
	if err != nil {
		k.failed(err)
	}
	return err
}

// Mine asks the store, once, whether the cluster's data is still this directory's: a FencedError says that it is not. After any
// other error it is not known. It writes nothing.
func (k *Keeper) Mine(ctx context.Context) error {
	o, _, err := k.cfg.read(ctx)
	if err == nil && o != nil && o.Claim != k.cfg.Claim {
		err = &FencedError{Owner: *o, Key: k.cfg.Key(), Cluster: k.cfg.Cluster, Dir: k.cfg.Dir}
	}
	return err
}

// lately is for how long an answer of the store counts for MayDelete.
const lately = time.Second

// MayDelete returns nil where the record named this directory within the last second; it asks the store where it has not heard
// for longer. Who does not own the data any more must not delete from it: a FencedError says so, and then the broker has to stop,
// as when the Keeper found out. After any other error it is not known, and nothing may be deleted either.
func (k *Keeper) MayDelete(ctx context.Context) error {
	k.mu.Lock()
	fence, asked := k.fence, time.Since(k.asked)
	k.mu.Unlock()
	if fence != nil {
		return fence
	}
	if asked >= 0 && asked < lately {
		return nil
	}
	at := time.Now().Round(0) // a machine that slept does not count that in its other clock
	o, _, err := k.cfg.read(ctx)
	switch {
	case err != nil:
		return err
	case o == nil:
		return fault.New(fault.Unavailable, "object %s is not there, which says whose the data of cluster %q is: nothing is deleted from it until it is", k.cfg.Key(), k.cfg.Cluster)
	case o.Claim != k.cfg.Claim:
		err := &FencedError{Owner: *o, Key: k.cfg.Key(), Cluster: k.cfg.Cluster, Dir: k.cfg.Dir}
		k.failed(err)
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = at
	return nil
}

// Start begins to copy.
func (k *Keeper) Start() {
	k.started = true
	k.tasks.Go("copy the metadata", k.run)
}

// Fenced is closed when the broker has to stop because of Err.
func (k *Keeper) Fenced() <-chan struct{} { return k.fenced }

// Err returns why the broker has to stop; nil while it need not.
func (k *Keeper) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fence
}

// Problem says what is wrong with the copy; "" where nothing is.
func (k *Keeper) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		return k.elsewhere
	}
	return fmt.Sprintf("the metadata cannot be copied to the object store, and who loses this data directory loses its newest changes: %v", k.err)
}

// lag returns for how long a change has not been copied.
func (k *Keeper) lag() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.since.IsZero() {
		return 0
	}
	return max(0, time.Since(k.since).Seconds())
}

// Await returns nil once the metadata is copied through an index; or why it will not be: Err, once that is there, or ctx's cause.
func (k *Keeper) Await(ctx context.Context, index uint64) error {
	for {
		k.mu.Lock()
		if k.through >= index {
			k.mu.Unlock()
			return nil
		}
		if k.moved == nil {
			k.moved = make(chan struct{})
		}
		moved := k.moved
		k.mu.Unlock()
		select {
		case <-moved:
		case <-k.fenced:
			return k.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Stop copies what changed last, if the store answers before ctx ends, and ends the Keeper. It may be called more than
// once, but not while Start is.
func (k *Keeper) Stop(ctx context.Context) error {
	if !k.started {
		return nil
	}
	k.once.Do(func() { close(k.closing) })
	select {
	case <-k.done:
	case <-ctx.Done():
		k.tasks.Stop()
	}
	return k.tasks.Wait()
}

func (k *Keeper) stopping() bool {
	select {
	case <-k.closing:
		return true
	default:
		return false
	}
}

// run copies until it is stopped, or fenced.
func (k *Keeper) run(ctx context.Context) error {
	defer close(k.done)
	wait := firstWait
	for {
		last := k.stopping()
		err := k.attempt(ctx)
		switch {
		case ctx.Err() != nil || last:
			if err != nil && ctx.Err() == nil {
				k.failed(err)
			}
			return nil
		case err != nil:
			if k.failed(err) {
				return nil
			}
			k.pause(ctx, wait)
			wait = min(2*wait, longWait)
		default:
			wait = firstWait
			k.rest(ctx)
		}
	}
}

// pause waits about d.
func (k *Keeper) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-k.closing:
	case <-ctx.Done():
	}
}

// rest waits until there is something to do.
func (k *Keeper) rest(ctx context.Context) {
	w := &k.work
	for {
		changed := k.cfg.Source.Changed()
		k.note(k.cfg.Source.View())
		at := w.lookedAt.Add(k.cfg.Poll)
		if w.seen != w.copied {
			at = earlier(at, k.due())
		}
		if w.urgent {
			changed = nil // nothing that comes can make it more so
		}
		d := time.Until(at)
		if d <= 0 {
			return
		}
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
		case <-changed:
		case <-k.closing:
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// due is when the next copy is to be made.
func (k *Keeper) due() time.Time {
	w := &k.work
	soonest := w.copiedAt.Add(max(k.cfg.Pause, 4*w.took))
	if w.urgent {
		return soonest
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return later(soonest, k.since.Add(k.cfg.Cursors))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// note takes a view in.
func (k *Keeper) note(v *meta.View) {
	w := &k.work
	if w.copied == nil {
		w.urgent = true
	}
	if w.seen != nil && v != w.seen && v.Same(w.seen) && w.seen == w.copied {
		w.copied = v // a command that was refused: nothing to copy
	}
	if w.seen != nil && !w.urgent && !v.CursorsOnlySince(w.seen) {
		w.urgent = true
	}
	w.seen = v
	if w.seen != w.copied {
		k.mu.Lock()
		if k.since.IsZero() {
			k.since = time.Now()
		}
		k.mu.Unlock()
	}
}

// exported reports whether anything is in objects.
func exported(v *meta.View) bool {
	for t := range v.Topics("") {
		for n := range t.Partitions {
			if v.Export(t.ID, int32(n)) != nil { //nolint:gosec // bounded
				return true
			}
		}
	}
	return false
}

// anotherStore says, for as long as this run goes on, that the store lacks the record though the metadata has objects.
func (k *Keeper) anotherStore() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.elsewhere == "" {
		k.elsewhere = fmt.Sprintf("the object store had no object %s when this broker started, and the metadata has objects that were copied: if it is another store, bucket, prefix or cluster than before, what was copied there cannot be read, and what comes is copied here: set storage and object_store to what they were, and restart", k.cfg.Key())
		k.cfg.Logger.Error("the object store is likely to be another store than what was copied is in", "problem", k.elsewhere)
	}
}

// own reads the record and sees to it that it names this run.
func (k *Keeper) own(ctx context.Context) (*Owner, objstore.Version, error) {
	o, version, err := k.cfg.read(ctx)
	if err != nil {
		return nil, "", err
	}
	w := &k.work
	switch {
	case o == nil && w.epoch > 0:
		return nil, "", &GoneError{Key: k.cfg.Key(), Cluster: k.cfg.Cluster, Dir: k.cfg.Dir, Epoch: w.epoch}
	case o == nil:
		w.copied = nil
		if exported(k.cfg.Source.View()) {
			k.anotherStore()
		}
	case o.Claim != k.cfg.Claim || w.taken && o.Run != k.cfg.Run:
		return nil, "", &FencedError{Owner: *o, Key: k.cfg.Key(), Cluster: k.cfg.Cluster, Dir: k.cfg.Dir}
	case o.Run == k.cfg.Run:
		if err := k.saw(o.Epoch); err != nil {
			return nil, "", err
		}
		w.taken, w.lookedAt = true, time.Now()
		return o, version, k.behind(o)
	}
	if err := k.behind(o); err != nil {
		return nil, "", err
	}
	now := k.cfg.Now().UnixMilli()
	next := Owner{Claim: k.cfg.Claim, Run: k.cfg.Run, Write: k.cfg.NewID(), Broker: k.cfg.Broker, Who: k.cfg.Who, Epoch: 1, TakenMs: now, TimeMs: now}
	if o != nil {
		next.Epoch, next.Before, next.TakenMs, next.Snapshot = o.Epoch, o.Before, o.TakenMs, o.Snapshot
	}
	if version, err = k.cfg.put(ctx, version, &next); err != nil {
		return nil, "", err
	}
	if err := k.saw(next.Epoch); err != nil {
		return nil, "", err
	}
	w.taken, w.lookedAt = true, time.Now()
	return &next, version, nil
}

// saw has the directory remember that there was a record, so that one that is gone is not taken for one that never was.
func (k *Keeper) saw(epoch uint64) error {
	if k.work.epoch == epoch {
		return nil
	}
	if k.cfg.Seen != nil {
		if err := k.cfg.Seen(epoch); err != nil {
			return err
		}
	}
	k.work.epoch = epoch
	return nil
}

// behind refuses metadata that is older than its copy: entries are missing that were acknowledged.
func (k *Keeper) behind(o *Owner) error {
	if o == nil {
		return nil
	}
	index, term := k.cfg.Source.View().Index(), k.cfg.Source.Term()
	if here := (Snapshot{Index: index, Term: term}); !here.older(o.Snapshot) {
		return nil
	}
	return &StaleError{Dir: k.cfg.Dir, Index: index, Term: term, Key: "object " + k.cfg.dir() + o.Snapshot.Name, Copy: o.Snapshot}
}

// attempt looks at the record, and copies what changed.
func (k *Keeper) attempt(ctx context.Context) error {
	view := k.cfg.Source.View()
	k.note(view) // first: what waits is to be seen while the store is away
	o, version, err := k.own(ctx)
	if err != nil {
		return err
	}
	w := &k.work
	if w.seen == w.copied || view.Index() == 0 {
		return k.succeeded(view)
	}
	if !w.urgent && !k.stopping() && time.Until(k.due()) > 0 {
		return k.succeeded(nil)
	}
	began := time.Now()
	payload, err := view.Snapshot()
	if err != nil {
		return err
	}
	term := k.cfg.Source.Term()
	b := raft.Copy{Seq: view.Index(), Term: term, Payload: payload}.Encode()
	next := *o
	next.Snapshot, next.Write, next.TimeMs = describe(b, view.Index(), term, o.Epoch), k.cfg.NewID(), k.cfg.Now().UnixMilli()
	if next.Snapshot == o.Snapshot {
		return k.succeeded(view)
	}
	if err := k.cfg.keep(ctx, b, next.Snapshot); err != nil {
		return err
	}
	if _, err := k.cfg.put(ctx, version, &next); err != nil {
		return err
	}
	w.took, w.copiedAt = time.Since(began), time.Now()
	k.metrics.copies.Inc()
	k.metrics.bytes.Set(float64(len(b)))
	if err := k.cfg.prune(ctx, next.Snapshot); err != nil {
		k.cfg.Logger.Info("older copies of the metadata stay in the object store until the next one", "err", err)
	}
	return k.succeeded(view)
}

// succeeded takes note of an attempt that came to its end, and of the view that is copied; nil: none was to be.
func (k *Keeper) succeeded(copied *meta.View) error {
	w := &k.work
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = nil
	if k.waiting != "" {
		k.waiting = ""
		k.cfg.Logger.Info("the metadata is copied to the object store again")
	}
	if copied != nil {
		w.copied, w.urgent = copied, false
		k.since = time.Time{}
		k.metrics.copied.Set(float64(copied.Index()))
		if k.through = copied.Index(); k.moved != nil {
			close(k.moved)
			k.moved = nil
		}
	}
	return nil
}

// final reports whether an error says that the broker has to stop.
func final(err error) bool {
	var fenced *FencedError
	var stale *StaleError
	return errors.As(err, &fenced) || errors.As(err, &stale)
}

// failed takes note of a failure, and reports whether it is the last one: then the broker has to stop.
func (k *Keeper) failed(err error) bool {
	kind := fault.KindOf(err)
	k.metrics.failures.WithLabelValues(kind.String()).Inc()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
	if final(err) {
		if k.fence == nil {
			k.fence = err
			close(k.fenced)
		}
		return true
	}
	if k.waiting != kind.String() {
		k.waiting = kind.String()
		k.cfg.Logger.Warn("the metadata cannot be copied to the object store now; it is tried again until it can", "err", err)
	}
	return false
}
