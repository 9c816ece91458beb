package subscription

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/cursor"
	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
)

// Config is what the subscriptions of a broker have in common. It is shared and must not change.
type Config struct {
	Saver *cursor.Saver
	// Bury makes a dead letter of a record; it is durable when it returns nil. It is called by one goroutine at a time for
	// each Run, and again, later, where it failed.
	Bury      func(ctx context.Context, l Letter) error
	Tasks     *task.Group
	Logger    *slog.Logger
	Metrics   *Metrics
	Now       func() time.Time // for what clients see: delays of records, times of dead letters
	ReadBytes int              // of one read; 0: 1 MiB
	ReadCount int              // records of one; 0: 10,000
	// CacheBytes bounds what all Runs keep of what they have read ahead, beyond two reads each: what does not find room is
	// read again. 0: 256 MiB.
	CacheBytes int64

	cached atomic.Int64 // bytes they keep
}

// Key names what a Run runs.
type Key struct {
	TopicID   meta.TopicID
	Partition int32
	Name      string
}

// Spec says what a Run begins with.
type Spec struct {
	Key
	Topic    string // namespace/name, for errors and logs
	Created  uint64 // meta.Subscription.Created; 0 on a non-reliable topic, where nothing is saved
	Epoch    uint64 // meta.Cursor.Epoch
	State    cursor.State
	Dispatch dispatch.Config
	End      func() int64 // of the log: acknowledgements behind it are nobody's; nil on a non-reliable topic
}

// Source is what a subscription reads: a log, or what passes by on a non-reliable topic. Methods but Close are called by
// one goroutine at a time.
type Source interface {
	// Read returns what comes at from, at most about maxBytes and maxRecords but at least one batch where there is one.
	Read(ctx context.Context, from int64, maxBytes, maxRecords int, memory func(size int) []byte) (seglog.Chunk, error)
	// Changed returns a channel that is closed once there may be more than the next Read finds.
	Changed() <-chan struct{}
	Close()
}

// Run is one subscription of one partition that is in use. It is safe for concurrent use.
type Run struct {
	cfg  *Config
	spec Spec
	open func(ctx context.Context) (Source, error)
	born time.Time // of its monotonic clock

	mu        sync.Mutex
	core      *dispatch.Dispatcher
	consumers map[dispatch.ConsumerID]*Consumer
	lastID    dispatch.ConsumerID
	cache     cache
	event     dispatch.Event // the next to be told; reused
	epoch     uint64         // of the cursor; moves with each seek
	dirty     bool           // the saver knows
	taken     taken          // of what is being saved
	active    time.Time      // when a consumer was here last
	feed      *feed          // nil while there are no consumers
	graves    graves
	refused   string // set by a join's effects: who holds the subscription
	over      error  // what everything answers once it is not nil
	told      told
}

// told is what people were told of.
type told struct {
	blocked  string // why the subscription stands still
	strained bool   // since there was room again
	quiet    obs.Throttle
}

type taken struct {
	epoch  uint64
	change cursor.Change
}

// New returns the Run of a subscription. open opens its source; it is called when the first consumer comes, and again
// after there was none.
func New(cfg *Config, spec Spec, open func(ctx context.Context) (Source, error)) (*Run, error) {
	set, err := cursor.NewSet(spec.State)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "subscription %s of %s/%d: its cursor in the metadata cannot be read: %w; seek it to where it should go on: levee subscription seek %s %s earliest",
			spec.Name, spec.Topic, spec.Partition, err, spec.Topic, spec.Name)
	}
	r := &Run{cfg: cfg, spec: spec, open: open, born: time.Now(), consumers: map[dispatch.ConsumerID]*Consumer{}, epoch: spec.Epoch, active: cfg.Now(), told: told{quiet: obs.Throttle{Every: time.Minute}}}
	r.cache.shared = spec.Created == 0
	r.cache.cfg, r.cache.least = cfg, 2*cfg.readBytes()
	r.cache.most = mostCached(spec.Dispatch.WithDefaults()) + r.cache.least
	r.core = dispatch.New(spec.Dispatch, set, spec.State.Counts)
	return r, nil
}

// mostCached is how many bytes of what was read ahead are worth keeping. With key_shared the look-ahead is full of records
// of whoever is slow, which lie here and there among what the others had already.
func mostCached(c dispatch.Config) int {
	if c.Type == dispatch.KeyShared {
		return 4 * int(c.LookAhead.Bytes)
	}
	return int(c.LookAhead.Bytes)
}

// Key returns what it runs.
func (r *Run) Key() Key { return r.spec.Key }

// Type returns how its consumers share it.
func (r *Run) Type() meta.SubscriptionType { return types[r.spec.Dispatch.Type] }

func (c *Config) readBytes() int {
	if c.ReadBytes <= 0 {
		return 1 << 20
	}
	return c.ReadBytes
}

func (c *Config) readCount() int {
	if c.ReadCount <= 0 {
		return 10_000
	}
	return c.ReadCount
}

func (c *Config) cacheBytes() int64 {
	if c.CacheBytes <= 0 {
		return 256 << 20
	}
	return c.CacheBytes
}

func (r *Run) logger() *slog.Logger { return obs.Logger(r.cfg.Logger) }

func (r *Run) now() dispatch.Now {
	return dispatch.Now{Mono: time.Since(r.born), WallMs: r.cfg.Now().UnixMilli()}
}

// step tells the dispatcher r.event and carries out what follows from it. The caller holds mu.
func (r *Run) step() {
	e := &r.event
	failed := r.perform(r.core.Step(r.now(), e))
	*e = dispatch.Event{Items: e.Items[:0], Ranges: e.Ranges[:0]}
	if failed != nil {
		r.endConsumers(failed)
	}
	r.warn()
	r.nudge()
}

// about adds ranges to the event. The caller holds mu.
func (r *Run) about(list ...seglog.Range) {
	for _, g := range list {
		r.event.Ranges = append(r.event.Ranges, cursor.Range(g))
	}
}

// tell is step for an event that needs nothing but a kind and an offset. The caller holds mu.
func (r *Run) tell(kind dispatch.EventKind, offset int64) {
	r.event.Kind, r.event.Offset = kind, offset
	r.step()
}

// perform carries out effects, and returns why every consumer is to end where they are. The caller holds mu.
func (r *Run) perform(effects []dispatch.Effect) (failed error) {
	m := r.cfg.Metrics
	for i := range effects {
		f := &effects[i]
		switch f.Kind {
		case dispatch.Deliver:
			if c := r.consumers[f.Consumer]; c != nil {
				c.give(f.Spans)
			}
		case dispatch.Active, dispatch.Standby:
			if c := r.consumers[f.Consumer]; c != nil {
				c.active = f.Kind == dispatch.Active
				kind := Standby
				if c.active {
					kind = Active
				} else {
					c.forget() // what it was given and did not take yet went to the active one
				}
				c.notify(Event{Kind: kind})
			}
		case dispatch.Evicted:
			if c := r.consumers[f.Consumer]; c != nil {
				delete(r.consumers, f.Consumer)
				m.Takeovers.Inc()
				c.finish(fault.New(fault.Fenced, "consumer %q of subscription %s on %s/%d: another one of that name has taken over", c.name, r.spec.Name, r.spec.Topic, r.spec.Partition).
					With("consumer", c.name))
			}
		case dispatch.Refused:
			r.refused = f.Reason
		case dispatch.ToDeadLetter:
			r.bury(f)
		case dispatch.Dropped:
			m.Dropped.Add(float64(f.To - f.From + 1))
			r.logger().Warn("records that could not be handled are dropped, as the subscription's poison policy says", "topic", r.spec.Topic, "partition", r.spec.Partition,
				"subscription", r.spec.Name, "from", f.From, "to", f.To, "deliveries", f.Count, "reason", f.Reason)
		case dispatch.Blocked:
			m.Blocked.Inc()
			r.told.blocked = f.Reason
			r.logger().Warn("a subscription stands still before a record that cannot be handled, as its poison policy says; seek behind it to go on", "topic", r.spec.Topic,
				"partition", r.spec.Partition, "subscription", r.spec.Name, "offset", f.From, "deliveries", f.Count, "reason", f.Reason)
		case dispatch.Failed:
			err := &seglog.TrimmedError{Topic: r.spec.Topic, Partition: r.spec.Partition, Requested: f.From, Oldest: f.To}
			if f.Consumer == 0 {
				failed = err
			} else if c := r.consumers[f.Consumer]; c != nil {
				delete(r.consumers, f.Consumer)
				c.finish(err)
			}
		case dispatch.Skipped:
			m.Skipped.Add(float64(f.To - f.From + 1))
			r.logger().Warn("retention had removed records that a subscription had not settled: it skips them, as it is set to", "topic", r.spec.Topic,
				"partition", r.spec.Partition, "subscription", r.spec.Name, "from", f.From, "to", f.To)
			r.broadcast(Event{Kind: Skipped, Range: seglog.Range{From: f.From, To: f.To}})
		case dispatch.Passed:
			m.Dropped.Add(float64(f.To - f.From + 1))
		case dispatch.LostRange:
			r.broadcast(Event{Kind: Lost, Range: seglog.Range{From: f.From, To: f.To}})
		}
	}
	return failed
}

func (r *Run) broadcast(e Event) {
	for _, c := range r.consumers {
		c.notify(e)
	}
}

// endConsumers ends every consumer with err. The caller holds mu.
func (r *Run) endConsumers(err error) {
	gone := r.consumers
	r.consumers = map[dispatch.ConsumerID]*Consumer{}
	for id, c := range gone {
		c.finish(err)
		r.event.Kind, r.event.Consumer = dispatch.Leave, id
		r.step()
	}
	r.rest()
}

// rest ends the feed where nobody is left. The caller holds mu.
func (r *Run) rest() {
	if len(r.consumers) > 0 {
		return
	}
	r.active = r.cfg.Now()
	if f := r.feed; f != nil {
		r.feed = nil
		f.cancel()
	}
	r.cache.clear()
	r.changed() // the time of its last use is saved, too
}

// changed has the cursor saved. The caller holds mu.
func (r *Run) changed() {
	if !r.dirty && r.spec.Created != 0 {
		r.dirty = true
		r.cfg.Saver.Dirty(r)
	}
}

// Take implements cursor.Saved.
func (r *Run) Take() (meta.CursorSave, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirty = false
	if r.spec.Created == 0 {
		return meta.CursorSave{}, false
	}
	set := r.core.Set()
	r.taken = taken{r.epoch, set.Changes()}
	c := &r.taken.change
	s := meta.CursorSave{
		ID: r.spec.TopicID, Subscription: r.spec.Name, Created: r.spec.Created, Partition: r.spec.Partition, Epoch: r.epoch,
		Position: c.Position, ActiveMs: r.lastUse().UnixMilli(),
	}
	for _, b := range c.Blocks {
		s.Blocks = append(s.Blocks, meta.AckBlock{Number: b.Number, Bits: b.Bits})
	}
	for _, n := range r.core.Counts(savedCounts) {
		s.Counts = append(s.Counts, meta.DeliveryCount{Offset: n.Offset, Deliveries: n.Deliveries})
	}
	return s, true
}

// lastUse returns when a consumer was here last. The caller holds mu.
func (r *Run) lastUse() time.Time {
	if len(r.consumers) > 0 {
		return r.cfg.Now()
	}
	return r.active
}

// savedCounts bounds how many delivery counts of unsettled records outlive the broker.
const savedCounts = 1000

// Done implements cursor.Saved.
func (r *Run) Done(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	set, t := r.core.Set(), r.taken
	r.taken = taken{}
	switch {
	case t.epoch != r.epoch: // a seek came between: what was taken is of a position that is gone
	case err != nil:
		set.Failed(t.change)
		r.dirty = true // the saver tries again by itself
	default:
		set.Saved(t.change)
	}
}

// Save returns nil once all that was settled before is durable.
func (r *Run) Save(ctx context.Context) error {
	if r.spec.Created == 0 {
		return nil
	}
	if err := r.cfg.Saver.Save(ctx, r); err != nil {
		return fault.New(fault.KindOf(err), "save the cursor of subscription %s on %s/%d: %w", r.spec.Name, r.spec.Topic, r.spec.Partition, err)
	}
	return nil
}

// SeekTo moves the cursor, which the metadata has at position and epoch already. Consumers stay and are given what comes
// from there on; what they hold is nobody's any more. A seek that is not later than what the Run knows of is passed over:
// seeks side by side are told in any order, and the metadata has the last of them.
func (r *Run) SeekTo(position int64, epoch uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if epoch <= r.epoch {
		return
	}
	r.epoch, r.told.blocked = epoch, ""
	r.graves.list = nil
	for _, c := range r.consumers {
		c.forget()
	}
	r.cache.clear()
	r.tell(dispatch.Seek, position)
}

// Settled reports whether an offset needs nothing more.
func (r *Run) Settled(offset int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Set().Has(offset)
}

// Discharge settles a range whether or not it was ever handed out.
func (r *Run) Discharge(g seglog.Range) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over != nil {
		return r.over
	}
	r.event.Kind = dispatch.Discharge
	r.about(g)
	r.step()
	r.changed()
	return nil
}

// Reconfigure changes how records are dispatched from now on.
func (r *Run) Reconfigure(c dispatch.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.Kind, r.event.Config = dispatch.Reconfigure, &c
	r.step()
}

// End ends every consumer with err; nobody can join any more.
func (r *Run) End(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over == nil {
		r.over = err
		r.endConsumers(err)
	}
}

// Retire ends a Run that nobody uses and of which everything is saved, and reports whether it did: then it must be
// forgotten before anybody looks for it.
func (r *Run) Retire() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over == nil && (len(r.consumers) > 0 || r.dirty || r.taken.epoch != 0 || r.graves.open()) {
		return false
	}
	if r.over == nil {
		r.over = errRetired
	}
	return true
}

var errRetired = fault.New(fault.Unavailable, "the subscription went idle: try again")

// Retired reports whether err comes of a Run that was retired: there is a new one to be had.
func Retired(err error) bool { return err == errRetired } //nolint:errorlint // it is never wrapped

// State is where a Run stands.
type State struct {
	Stats     dispatch.Stats
	Strained  bool // see strained
	Position  int64
	Settled   int64 // above the position
	Consumers []Holder
	Blocked   string
	Active    time.Time // when a consumer was here last
}

// Holder is one of its consumers.
type Holder struct {
	Name     string
	Active   bool
	Messages int
	Bytes    int64
}

// State returns where it stands.
func (r *Run) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := State{Stats: r.core.Stats(), Position: r.core.Set().Position(), Settled: r.core.Set().Settled(), Blocked: r.told.blocked, Active: r.lastUse()}
	s.Strained = strained(s.Stats.Span, s.Stats.MaxSpan)
	for h := range r.core.Holders {
		s.Consumers = append(s.Consumers, Holder{Name: h.Name, Active: h.Active, Messages: h.Messages, Bytes: h.Bytes})
	}
	return s
}
