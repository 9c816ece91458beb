package broker

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/leveemq/levee/internal/cursor"
	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/subscription"
)

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// dispatchConfig returns how a subscription's records are dispatched.
func (h *hub) dispatchConfig(m *meta.Subscription) dispatch.Config {
	c := subscription.DispatchConfig(m)
	c.MaxSpan = int64(h.b.cfg.Limits.SubscriptionSpan)
	return c
}

func checkFilters(filters []string) error {
	for _, f := range filters {
		if _, err := path.Match(f, ""); err != nil {
			return fault.New(fault.InvalidArgument, "key filter %q: %w: use * for any characters, ? for one, [a-z] for one of some", f, err)
		}
	}
	return nil
}

func errNoSubscription(topic, name string) error {
	return fault.New(fault.NotFound, "topic %s has no subscription %s: create it: levee subscription create %s %s", topic, name, topic, name).
		With("topic", topic).With("subscription", name)
}

// reliable returns the topic of that name where it can have subscriptions that are kept.
func (h *hub) reliable(name string) (*topic, error) {
	t, err := h.b.lookup(name, nil)
	if err == nil && t.fans != nil {
		err = fault.New(fault.InvalidArgument, "topic %s is non_reliable and keeps nothing: a subscription of it exists while it has consumers, and has no position", t.Full)
	}
	return t, err
}

// CreateSubscription makes a subscription of a reliable topic. Where it starts is resolved to offsets and made durable
// before it returns. It fails with kind already_exists where the name is taken, not_found without the topic, unavailable
// where a partition cannot be asked for its offsets, and as Subscribe does for an offset that is not there.
func (h *hub) CreateSubscription(ctx context.Context, spec SubscriptionSpec) (SubscriptionInfo, error) {
	t, err := h.reliable(spec.Topic)
	if err != nil {
		return SubscriptionInfo{}, err
	}
	if err := h.createSubscription(ctx, t, spec); err != nil {
		return SubscriptionInfo{}, onTopic("create a subscription of", t.Full, err)
	}
	return h.DescribeSubscription(ctx, spec.Topic, spec.Name)
}

func (h *hub) createSubscription(ctx context.Context, t *topic, spec SubscriptionSpec) error {
	c := meta.CreateSubscription{
		Topic: t.Name, ID: t.ID, Name: spec.Name, Type: spec.Type, Settings: spec.Settings, TimeMs: h.b.cfg.Now().UnixMilli(),
		Starts: make([]int64, t.partitions()),
	}
	if c.Type == "" {
		c.Type = Exclusive
	}
	if err := c.Validate(); err != nil { // before anything is waited for
		return err
	}
	for i, p := range t.parts {
		at, _, err := resolve(ctx, t.Full, int32(i), p, spec.Start) //nolint:gosec // bounded by meta
		if err != nil {
			return err
		}
		c.Starts[i] = at
	}
	_, err := h.b.propose(ctx, c)
	return err
}

// SetSubscription changes settings of a subscription: those in set that are not nil, and those named in unset back to the
// default. It takes effect before it returns.
func (h *hub) SetSubscription(ctx context.Context, topic, name string, set SubscriptionSettings, unset []string) (SubscriptionInfo, error) {
	t, m, err := h.subscription(topic, name)
	if err != nil {
		return SubscriptionInfo{}, err
	}
	r, err := h.b.propose(ctx, meta.SetSubscription{Topic: t.Name, ID: t.ID, Name: name, Version: m.Version, Settings: set, Unset: unset})
	if err != nil {
		return SubscriptionInfo{}, onTopic("set subscription "+name+" of", t.Full, err)
	}
	for i := range t.parts {
		if run := h.inUse(t, int32(i), name); run != nil { //nolint:gosec // bounded by meta
			run.Reconfigure(h.dispatchConfig(r.Subscription))
		}
	}
	return h.DescribeSubscription(ctx, topic, name)
}

// subscription returns a subscription of a reliable topic.
func (h *hub) subscription(topic, name string) (*topic, *meta.Subscription, error) {
	t, err := h.reliable(topic)
	if err != nil {
		return nil, nil, err
	}
	m, err := h.kept(t, name)
	return t, m, err
}

// kept returns what the metadata says of a subscription of that incarnation of a topic.
func (h *hub) kept(t *topic, name string) (*meta.Subscription, error) {
	m, err := h.b.cfg.Meta.View().Subscription(t.Name, name)
	if err != nil || m.TopicID != t.ID {
		return nil, errNoSubscription(t.Full, name)
	}
	return m, nil
}

// DeleteSubscription removes a subscription: its consumers end with kind deleted, and what it had settled is forgotten.
func (h *hub) DeleteSubscription(ctx context.Context, topic, name string) error {
	t, m, err := h.subscription(topic, name)
	if err != nil {
		return err
	}
	return h.deleteSubscription(ctx, t, m)
}

func (h *hub) deleteSubscription(ctx context.Context, t *topic, m *meta.Subscription) error {
	if _, err := h.b.propose(ctx, meta.DeleteSubscription{Topic: t.Name, ID: t.ID, Name: m.Name, Created: m.Created}); err != nil {
		return onTopic("delete subscription "+m.Name+" of", t.Full, err)
	}
	h.endThose(func(k subscription.Key) bool { return k.TopicID == t.ID && k.Name == m.Name },
		fault.New(fault.Deleted, "subscription %s of %s was deleted", m.Name, t.Full).With("subscription", m.Name))
	h.sweep()
	return nil
}

// SeekSubscription moves a subscription to a position in one partition, or in all where partition is -1: what comes from
// there on is delivered, again where it was settled already, and nothing before it any more. It is durable when it
// returns nil. Consumers stay connected.
func (h *hub) SeekSubscription(ctx context.Context, topic, name string, part int32, to Position) error {
	t, m, err := h.subscription(topic, name)
	if err != nil {
		return err
	}
	from, through := part, part
	if part == -1 {
		from, through = 0, int32(t.partitions()-1) //nolint:gosec // bounded by meta
	} else if err := t.has(part); err != nil {
		return err
	}
	for p := from; p <= through; p++ {
		if err := h.seek(ctx, t, m, p, to); err != nil {
			return onTopic("seek subscription "+name+" of", t.Full, err)
		}
	}
	return nil
}

func (h *hub) seek(ctx context.Context, t *topic, m *meta.Subscription, part int32, to Position) error {
	at, _, err := resolve(ctx, t.Full, part, t.parts[part], to)
	if err != nil {
		return err
	}
	for {
		now, ok := h.b.cfg.Meta.View().Cursor(t.ID, m.Name, part)
		if !ok {
			return errNoSubscription(t.Full, m.Name)
		}
		r, err := h.b.propose(ctx, meta.SeekCursor{Topic: t.Name, ID: t.ID, Subscription: m.Name, Created: m.Created, Partition: part, Epoch: now.Epoch, Position: at})
		switch {
		case fault.KindOf(err) == fault.Conflict && ctx.Err() == nil: // another seek was faster: this one is the later
			continue
		case err != nil:
			return err
		}
		if run := h.inUse(t, part, m.Name); run != nil {
			run.SeekTo(at, r.Cursor.Epoch)
		}
		return nil
	}
}

// Subscriptions returns the subscriptions of a topic as they stand here and now, by name. Those of a non-reliable topic
// are those that have consumers.
func (h *hub) Subscriptions(ctx context.Context, topic string) ([]SubscriptionInfo, error) {
	t, err := h.b.lookup(topic, nil)
	if err != nil {
		return nil, err
	}
	if t.fans != nil {
		return h.passing(t), nil
	}
	var list []SubscriptionInfo
	for m := range h.b.cfg.Meta.View().Subscriptions(t.ID) {
		list = append(list, h.describeSubscription(t, m))
	}
	return list, nil
}

// describeWait bounds how long a description waits for partitions that are being opened, as at the start of a broker.
const describeWait = 2 * time.Second

// DescribeSubscription returns a subscription as it stands here and now. Partitions that are being opened are waited for,
// two seconds at most; the state of one that is not open then says so. It fails with kind not_found without it.
func (h *hub) DescribeSubscription(ctx context.Context, topic, name string) (SubscriptionInfo, error) {
	t, err := h.b.lookup(topic, nil)
	if err != nil {
		return SubscriptionInfo{}, err
	}
	if t.fans != nil {
		for _, s := range h.passing(t) {
			if s.Name == name {
				return s, nil
			}
		}
		return SubscriptionInfo{}, errNoSubscription(t.Full, name)
	}
	m, err := h.kept(t, name)
	if err != nil {
		return SubscriptionInfo{}, err
	}
	wait, stop := context.WithTimeout(ctx, describeWait)
	defer stop()
	for _, p := range t.parts {
		_ = p.Ready(wait) // what it came to shows in the state
	}
	return h.describeSubscription(t, m), nil
}

func (h *hub) describeSubscription(t *topic, m *meta.Subscription) SubscriptionInfo {
	info := SubscriptionInfo{
		Topic: t.Full, TopicID: t.ID, Name: m.Name, Type: m.Type, Settings: m.Settings, Effective: subscription.Effective(m), CreatedMs: m.CreatedMs,
	}
	for i, p := range t.parts {
		part := SubscriptionPart{Partition: int32(i), State: "idle"} //nolint:gosec // bounded by meta
		if run := h.inUse(t, part.Partition, m.Name); run != nil {
			describeRun(run, &part)
		} else if c, ok := h.b.cfg.Meta.View().Cursor(t.ID, m.Name, part.Partition); ok {
			part.Position, part.Settled = c.Position, settledAbove(c)
		}
		p.Prepare(false)
		if bounds, ok := p.Bounds(); ok {
			part.First, part.End = bounds.First, bounds.End
			part.Backlog = max(part.End-max(part.Position, part.First)-part.Settled, 0)
		} else {
			part.State = p.Status().State.String() + ": where its log ends is not known, nor the backlog"
		}
		info.Parts = append(info.Parts, part)
	}
	return info
}

// settledAbove counts what a cursor that is not in use has settled above its position.
func settledAbove(c *meta.Cursor) int64 {
	set, err := cursor.NewSet(stateOf(c))
	if err != nil {
		return 0
	}
	return set.Settled()
}

func describeRun(run *subscription.Run, part *SubscriptionPart) {
	s := run.State()
	part.Position, part.Settled = s.Position, s.Settled
	part.InFlight, part.Redelivering, part.Delayed = int(s.Stats.InFlightMessages), int(s.Stats.Redeliver), s.Stats.Delayed
	switch {
	case s.Stats.FailedOldest >= 0:
		part.State = "failed: retention has removed records that were not settled; seek to go on"
	case s.Stats.Blocked >= 0:
		part.State = "blocked: " + s.Blocked
	case s.Strained:
		part.State = fmt.Sprintf("strained: offset %d is not settled, and records are handed out up to %d above it: it is at %d", s.Position, s.Stats.MaxSpan, s.Stats.Span)
	case len(s.Consumers) > 0:
		part.State = "active"
	}
	for _, c := range s.Consumers {
		part.Consumers = append(part.Consumers, ConsumerState{Name: c.Name, Active: c.Active, Unsettled: c.Messages, UnsettledBytes: c.Bytes})
	}
}

// passing returns the subscriptions of a non-reliable topic, which are those that have consumers.
func (h *hub) passing(t *topic) []SubscriptionInfo {
	byName := map[string]*SubscriptionInfo{}
	for _, run := range h.allInUse() {
		key := run.Key()
		if key.TopicID != t.ID {
			continue
		}
		info := byName[key.Name]
		if info == nil {
			typ := run.Type()
			info = &SubscriptionInfo{Topic: t.Full, TopicID: t.ID, Name: key.Name, Type: typ, Effective: subscription.Effective(&meta.Subscription{Topic: t.Name, Name: key.Name})}
			byName[key.Name] = info
		}
		part := SubscriptionPart{Partition: key.Partition, State: "idle"}
		describeRun(run, &part)
		part.End = t.fans[key.Partition].End()
		part.First = part.End
		if len(part.Consumers) > 0 {
			info.Parts = append(info.Parts, part)
		}
	}
	var list []SubscriptionInfo
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if info := byName[name]; len(info.Parts) > 0 {
			slices.SortFunc(info.Parts, func(a, b SubscriptionPart) int { return int(a.Partition - b.Partition) })
			list = append(list, *info)
		}
	}
	return list
}

// expire removes subscriptions that were not in use for as long as they are set to be kept.
func (h *hub) expire(ctx context.Context) {
	now := h.b.cfg.Age()
	if now.Sub(h.started) < expiryGrace {
		return // their consumers may be on their way back
	}
	for m := range h.b.cfg.Meta.View().AllSubscriptions() {
		if m.Settings.ExpireAfterMs == nil || *m.Settings.ExpireAfterMs <= 0 {
			continue
		}
		t := h.b.topics.get(m.Topic)
		if t == nil || t.ID != m.TopicID {
			continue
		}
		last := time.UnixMilli(max(m.ActiveMs, m.CreatedMs))
		for i := range t.parts {
			if run := h.inUse(t, int32(i), m.Name); run != nil { //nolint:gosec // bounded by meta
				if at := run.State().Active; at.After(last) {
					last = at
				}
			}
		}
		if idle := h.b.cfg.Now().Sub(last); idle > ms(*m.Settings.ExpireAfterMs) {
			h.b.cfg.Logger.Info("a subscription expires, as it is set to", "topic", t.Full, "subscription", m.Name, "idle", idle.Round(time.Second))
			if err := h.deleteSubscription(ctx, t, m); err != nil && ctx.Err() == nil {
				h.b.cfg.Logger.Warn("an expired subscription could not be removed; it is tried again", "topic", t.Full, "subscription", m.Name, "err", err)
			}
		}
	}
}

// expiryGrace is for how long after a start no subscription expires.
const expiryGrace = 10 * time.Minute
