package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/cursor"
	"github.com/leveemq/levee/internal/fan"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/subscription"
)

// hub is the part of the Broker that knows its subscriptions; its methods are the Broker's. One that is in use is here, for
// each partition; those that are not are metadata and nothing else.
type hub struct {
	b       *Broker
	cfg     subscription.Config
	started time.Time // by Config.Age

	mu  sync.Mutex
	all map[subscription.Key]*subscription.Run // guarded by mu
}

// cursorSaved is how often cursors that change are saved: what was settled since may be handed out again after a crash.
const cursorSaved = time.Second

func newHub(b *Broker) *hub {
	m := subscription.NewMetrics(b.cfg.Registerer)
	h := &hub{b: b, started: b.cfg.Age(), all: map[subscription.Key]*subscription.Run{}}
	h.cfg = subscription.Config{
		Saver: cursor.NewSaver(b.cfg.Meta, cursorSaved, b.cfg.Logger, m.NoteSave), Bury: h.bury, Tasks: b.tasks, Logger: b.cfg.Logger, Metrics: m,
		Now: b.cfg.Now, ReadBytes: b.cfg.BytesPerRead, ReadCount: b.cfg.RecordsPerRead,
	}
	return h
}

// keyOf names a subscription of one partition of a topic.
func keyOf(t *topic, part int32, name string) subscription.Key {
	return subscription.Key{TopicID: t.ID, Partition: part, Name: name}
}

// inUse returns the Run of a subscription of one partition; nil where nobody uses it.
func (h *hub) inUse(t *topic, part int32, name string) *subscription.Run {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all[keyOf(t, part, name)]
}

// allInUse returns those in use, in no order.
func (h *hub) allInUse() []*subscription.Run {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.all))
}

// sweep forgets those that nobody uses any more.
func (h *hub) sweep() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, s := range h.all {
		if s.Retire() {
			delete(h.all, k)
		}
	}
}

// obtain returns the Run of a key, made by make where there is none.
func (h *hub) obtain(k subscription.Key, make func() (*subscription.Run, error)) (*subscription.Run, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.all[k]; s != nil {
		return s, nil
	}
	s, err := make()
	if err == nil {
		h.all[k] = s
	}
	return s, err
}

// endThose ends those that match with err.
func (h *hub) endThose(match func(subscription.Key) bool, err error) {
	for _, s := range h.allInUse() {
		if match(s.Key()) {
			s.End(err)
		}
	}
}

// Consumer is one consumer of a subscription's one partition. Next is called by one goroutine at a time; everything else
// may be called by any, at any time.
type Consumer struct {
	b    *Broker
	run  *subscription.Run
	c    *subscription.Consumer
	info ConsumerInfo
	t    *topic
	once sync.Once
}

// OpenConsumer opens a consumer of a subscription, and makes the subscription where it is missing and spec says so. It
// fails with kind not_found for an unknown topic, partition or subscription, deleted where ID names another incarnation,
// conflict where the subscription is exclusive and somebody else's (detail consumer) or is of another type (detail type),
// trimmed where retention has passed it and it is set to fail then, exhausted where as many consumers as allowed are open.
func (h *hub) OpenConsumer(ctx context.Context, spec ConsumerSpec) (*Consumer, error) {
	t, err := h.b.lookup(spec.Topic, spec.ID)
	if err != nil {
		return nil, err
	}
	if err := t.has(spec.Partition); err != nil {
		return nil, err
	}
	if err := checkFilters(spec.KeyFilters); err != nil {
		return nil, err
	}
	if err := h.b.seats.admit(); err != nil {
		return nil, err
	}
	c, err := h.openConsumer(ctx, t, spec)
	if err != nil {
		h.b.seats.leave()
		if ended := t.ended(); ended != nil {
			return nil, ended
		}
		return nil, onTopic("consume from", t.Full, err)
	}
	t.subscribers[spec.Partition].Add(1)
	return c, nil
}

func (h *hub) openConsumer(ctx context.Context, t *topic, spec ConsumerSpec) (*Consumer, error) {
	if spec.Name == "" {
		spec.Name = fmt.Sprintf("consumer-%x", h.b.cfg.NewID())
	}
	for {
		run, m, err := h.runFor(ctx, t, spec)
		if err != nil {
			return nil, err
		}
		joined, err := run.Join(ctx, subscription.Member{
			Name: spec.Name, Priority: spec.Priority, Filters: spec.KeyFilters, WindowMessages: spec.WindowMessages,
			WindowBytes: spec.WindowBytes, MaxRecordBytes: spec.MaxRecordBytes, Memory: spec.Memory, Epoch: spec.Epoch,
		})
		if subscription.Retired(err) {
			h.sweep()
			continue
		}
		if err != nil {
			return nil, err
		}
		info := ConsumerInfo{
			Topic: t.Full, TopicID: t.ID, Partition: spec.Partition, Partitions: int32(t.partitions()), //nolint:gosec // bounded by meta
			Subscription: spec.Subscription, Type: m.Type, Name: spec.Name, Position: joined.Position(), Epoch: joined.Epoch(), Reliable: t.fans == nil, Active: joined.Active(),
		}
		if info.Reliable {
			info.AckTimeout = ms(*subscription.Effective(m).AckTimeoutMs)
		}
		return &Consumer{b: h.b, run: run, c: joined, t: t, info: info}, nil
	}
}

// runFor returns the Run that a consumer is to join, and what the metadata says of it, and makes what is missing.
func (h *hub) runFor(ctx context.Context, t *topic, spec ConsumerSpec) (*subscription.Run, *meta.Subscription, error) {
	if t.fans != nil {
		return h.passingRun(t, spec)
	}
	m, err := h.b.cfg.Meta.View().Subscription(t.Name, spec.Subscription)
	if fault.KindOf(err) == fault.NotFound && spec.Create {
		err = h.createSubscription(ctx, t, SubscriptionSpec{Name: spec.Subscription, Type: spec.Type, Start: spec.Start})
		if err == nil || fault.KindOf(err) == fault.AlreadyExists {
			m, err = h.b.cfg.Meta.View().Subscription(t.Name, spec.Subscription)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if spec.Type != "" && spec.Type != m.Type {
		return nil, nil, errOtherType(t.Full, m.Name, m.Type)
	}
	run, err := h.run(t, m, spec.Partition)
	return run, m, err
}

func errOtherType(topic, name string, is SubscriptionType) error {
	return fault.New(fault.Conflict, "subscription %s of %s is %s: use that type, or another subscription", name, topic, is).With("type", is)
}

// run returns the Run of a subscription of a reliable topic.
func (h *hub) run(t *topic, m *meta.Subscription, part int32) (*subscription.Run, error) {
	key := keyOf(t, part, m.Name)
	return h.obtain(key, func() (*subscription.Run, error) {
		saved, ok := h.b.cfg.Meta.View().Cursor(t.ID, m.Name, part)
		if !ok {
			return nil, errNoSubscription(t.Full, m.Name)
		}
		p := t.parts[part]
		return subscription.New(&h.cfg, subscription.Spec{
			Key: key, Topic: t.Full, Created: m.Created, Epoch: saved.Epoch, State: stateOf(saved), Dispatch: h.dispatchConfig(m),
			End: func() int64 {
				b, _ := p.Bounds()
				return b.End
			},
		}, func(ctx context.Context) (subscription.Source, error) {
			reader, err := p.NewReader(ctx, 0)
			if err != nil {
				return nil, err
			}
			return &logSource{reader: reader}, nil
		})
	})
}

// stateOf returns what the metadata keeps of a cursor as package cursor has it.
func stateOf(c *meta.Cursor) cursor.State {
	state := cursor.State{Position: c.Position}
	for _, b := range c.Blocks {
		state.Blocks = append(state.Blocks, cursor.Block{Number: b.Number, Bits: b.Bits})
	}
	for _, n := range c.Counts {
		state.Counts = append(state.Counts, cursor.Count{Offset: n.Offset, Deliveries: n.Deliveries})
	}
	return state
}

// logSource reads a partition's log for a subscription.
type logSource struct{ reader *partition.Reader }

func (s *logSource) Read(ctx context.Context, from int64, maxBytes, maxRecords int, memory func(int) []byte) (seglog.Chunk, error) {
	s.reader.MoveTo(from)
	s.reader.Memory = memory
	return s.reader.Next(ctx, maxBytes, maxRecords)
}

func (s *logSource) Changed() <-chan struct{} { return s.reader.Changed() }

func (s *logSource) Close() {}

// passingRun returns the Run of a subscription of a non-reliable topic, which exists while it has consumers.
func (h *hub) passingRun(t *topic, spec ConsumerSpec) (*subscription.Run, *meta.Subscription, error) {
	m := &meta.Subscription{Type: spec.Type}
	if m.Type == "" {
		m.Type = Exclusive
	}
	if err := meta.ValidateSubscription(spec.Subscription); err != nil {
		return nil, nil, err
	}
	key := keyOf(t, spec.Partition, spec.Subscription)
	f := t.fans[spec.Partition]
	run, err := h.obtain(key, func() (*subscription.Run, error) {
		c := h.dispatchConfig(m)
		c.AtMostOnce = true
		return subscription.New(&h.cfg, subscription.Spec{
			Key: key, Topic: t.Full, State: cursor.State{Position: f.End()}, Dispatch: c,
		}, func(context.Context) (subscription.Source, error) {
			s := &fanSource{fan: f, ring: fan.NewRing(h.b.cfg.Limits.RingBytes, h.b.cfg.Limits.RingBatches)}
			s.next = f.Join(s.ring)
			return s, nil
		})
	})
	if err == nil && run.Type() != m.Type {
		return nil, nil, errOtherType(t.Full, spec.Subscription, run.Type())
	}
	return run, m, err
}

// fanSource takes what passes by on a non-reliable topic for a subscription.
type fanSource struct {
	fan  *fan.Fan
	ring *fan.Ring
	next int64
}

func (s *fanSource) Read(_ context.Context, _ int64, maxBytes, _ int, _ func(int) []byte) (seglog.Chunk, error) {
	t, ok := s.ring.Take(maxBytes)
	if !ok {
		return seglog.Chunk{First: s.next, Next: s.next, End: s.next}, nil
	}
	s.next = t.Next
	return seglog.Chunk{Data: t.Batches, First: t.Next - int64(t.Records), Next: t.Next, Records: t.Records, End: t.Next}, nil
}

func (s *fanSource) Changed() <-chan struct{} { return s.ring.Wake }

func (s *fanSource) Close() { s.fan.Leave(s.ring) }

// Info returns what the consumer was given when it opened.
func (c *Consumer) Info() ConsumerInfo { return c.info }

// Next returns what comes next: data of about maxBytes (0: Config.BytesPerRead) but at least one record, or news. It waits
// until ctx is done. Its other errors are final: deleted where the topic or the subscription is gone, trimmed where
// retention has passed the subscription and it is set to fail then, fenced where another consumer of its name has taken
// over, unavailable where the broker stops or the partition was unloaded, corrupt, stopped, canceled after Close.
//
// The records handed out are the consumer's until they are settled, their time is over, or the consumer ends.
func (c *Consumer) Next(ctx context.Context, maxBytes int) (ConsumerEvent, error) {
	if maxBytes <= 0 {
		maxBytes = c.b.cfg.BytesPerRead
	}
	e, err := c.c.Next(ctx, maxBytes)
	if err == nil && e.Kind == subscription.Data {
		c.b.metrics.deliveredRecords.Add(float64(e.Records))
		c.b.metrics.deliveredBytes.Add(float64(len(e.Batches)))
	}
	return e, c.ended(ctx, err)
}

// News is Next for a caller that has no room for records: it returns news only, and false once room has something.
func (c *Consumer) News(ctx context.Context, room <-chan struct{}) (ConsumerEvent, bool, error) {
	e, ok, err := c.c.News(ctx, room)
	return e, ok, c.ended(ctx, err)
}

// ended returns what a consumer is told that ended with err, if it did.
func (c *Consumer) ended(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || c.t.ended() == nil {
		return err
	}
	return c.t.ended()
}

// Settle says what became of records that were handed out, to whomever. It does not wait for the disk: see Save.
func (c *Consumer) Settle(s Settlement) error { return c.c.Settle(s) }

// Heartbeat says that the consumer still works on what it holds, whose time begins anew.
func (c *Consumer) Heartbeat() { c.c.Heartbeat() }

// Save returns nil once all that was settled before is durable. Otherwise that happens within a second or so.
func (c *Consumer) Save(ctx context.Context) error { return c.run.Save(ctx) }

// Close ends the consumer; what it holds is handed to others at once.
func (c *Consumer) Close() {
	c.once.Do(func() {
		c.c.Close()
		c.t.subscribers[c.info.Partition].Add(-1)
		c.b.seats.leave()
	})
}

// SettleFor says what became of records without being a consumer. Of what nobody was handed since the subscription was
// last in use nothing is known, and such a word is passed over. It fails with kind not_found where there is no such
// topic, partition or subscription.
func (h *hub) SettleFor(topic string, part int32, name string, s Settlement) error {
	t, err := h.b.lookup(topic, nil)
	if err != nil {
		return err
	}
	if err := t.has(part); err != nil {
		return err
	}
	run := h.inUse(t, part, name)
	if run == nil {
		if t.fans != nil {
			return nil // it exists while it has consumers, and nothing is kept of it
		}
		_, err := h.b.cfg.Meta.View().Subscription(t.Name, name)
		return err
	}
	if err := run.Settle(s); err != nil && !subscription.Retired(err) {
		return err
	}
	return nil
}

// endOf ends the subscriptions in use of a topic that has ended.
func (h *hub) endOf(t *topic) {
	h.endThose(func(k subscription.Key) bool { return k.TopicID == t.ID }, t.ended())
	h.sweep()
}

// endConsumers ends the consumers of subscriptions and saves where these are, so that nothing that was settled is handed
// out again.
func (h *hub) endConsumers(ctx context.Context) {
	h.endThose(func(subscription.Key) bool { return true }, errDraining())
	if err := h.cfg.Saver.Flush(ctx); err != nil {
		h.b.cfg.Logger.Error("positions of subscriptions could not be saved: some of what was acknowledged last will be delivered again", "err", err)
	}
}
