package broker

import (
	"context"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/subscription"
)

// CreateTopic makes a topic and opens its partitions. It fails with kind already_exists where the name is taken,
// invalid_argument where the spec cannot be, exhausted where the broker would have too many partitions, conflict where
// there is data on disk at the topic's place that the metadata does not account for. When ctx ends before the metadata
// has answered, the topic may or may not come to exist.
func (b *Broker) CreateTopic(ctx context.Context, spec TopicSpec) (TopicInfo, error) {
	c, err := b.creation(spec)
	if err != nil {
		return TopicInfo{}, onTopic("create topic", spec.Name, err)
	}
	r, err := b.propose(ctx, c)
	if err != nil {
		return TopicInfo{}, onTopic("create topic", spec.Name, err)
	}
	t := b.sync(c.Name)
	if t == nil || t.ID != c.ID {
		// The broker stops, and the next run serves it; or somebody else has deleted it already. Made it was.
		return *b.cfg.Defaults.info(r.Topic), nil
	}
	for _, p := range t.parts {
		// One that cannot be opened is a partition that is unavailable, and described so: the topic exists.
		if p.Ready(ctx) != nil && ctx.Err() != nil {
			break
		}
	}
	return *b.cfg.Defaults.info(t.meta.Load()), nil
}

// creation turns a spec into the command that makes the topic.
func (b *Broker) creation(spec TopicSpec) (c meta.CreateTopic, err error) {
	if c.Name, err = meta.ParseTopic(spec.Name); err != nil {
		return c, err
	}
	if err := spec.Settings.check(); err != nil {
		return c, err
	}
	c.ID, c.TimeMs = b.cfg.NewID(), b.cfg.Now().UnixMilli()
	c.Partitions, c.Dispatch, c.Settings = max(spec.Partitions, 0), spec.Dispatch, spec.Settings.toMeta()
	if spec.Partitions == 0 {
		c.Partitions = 1
	}
	if c.Dispatch == "" {
		c.Dispatch = Reliable
	}
	if spec.Partitions < 0 || int(c.Partitions) > b.cfg.Limits.Partitions {
		return c, fault.New(fault.InvalidArgument, "partitions = %d is not allowed: use 1 to %d", spec.Partitions, b.cfg.Limits.Partitions).
			With("key", "partitions")
	}
	if err := c.Settings.Validate(c.Dispatch); err != nil {
		return c, err
	}
	if b.cfg.Room != nil {
		if err := b.cfg.Room(); err != nil {
			b.cfg.LogMetrics.RefusedFull()
			return c, err
		}
	}
	v := b.cfg.Meta.View()
	if _, err := v.Topic(c.Name); err != nil { // where the name is taken the metadata says so
		if err := b.layout.Unclaimed(c.Name, v.DeletedThrough(c.Name)+1); err != nil {
			return c, err
		}
	}
	if c.Dispatch == Reliable && b.cfg.Defaults.forPartition(c.Settings).Mode != seglog.OnCommit {
		c.Reserved = partition.FirstReservation
	}
	if _, parts := b.topics.counts(); parts+int(c.Partitions) > b.cfg.Limits.TotalPartitions {
		return c, fault.New(fault.Exhausted, "%d partitions exist and the broker takes %d: delete topics or raise the limit",
			parts, b.cfg.Limits.TotalPartitions).With("limit", b.cfg.Limits.TotalPartitions)
	}
	return c, nil
}

// SetTopic changes settings of a topic while it is in use: those in set that are not nil, and those named in unset back
// to the broker's default. It takes effect before it returns.
//
// A topic that becomes on_commit is flushed first: only then does the metadata say so, and so it never says on_commit
// of acknowledged data that a power loss could still take. That needs every partition to be available.
func (b *Broker) SetTopic(ctx context.Context, name string, set Settings, unset []string) (info TopicInfo, err error) {
	err = onPresent(b, name, func(t *topic) error {
		info, err = b.setTopic(ctx, t, set, unset)
		return err
	})
	return info, err
}

// onPresent does something to the topic that has a name. It does it again where that one was replaced meanwhile, for then
// the other was meant: to say that there is none would be wrong at any moment.
func onPresent(b *Broker, name string, do func(t *topic) error) error {
	for {
		t, err := b.lookup(name, nil)
		if err != nil {
			return err
		}
		if err = do(t); err == nil {
			return nil
		}
		if k := fault.KindOf(err); k != fault.Deleted && k != fault.NotFound {
			return err
		}
		if now, gone := b.cfg.Meta.View().Topic(t.Name); gone != nil || now.ID == t.ID {
			return err
		}
		b.sync(t.Name)
	}
}

func (b *Broker) setTopic(ctx context.Context, t *topic, set Settings, unset []string) (TopicInfo, error) {
	if err := set.check(); err != nil {
		return TopicInfo{}, onTopic("set topic", t.Full, err)
	}
	if !t.changing.Take(ctx.Done()) {
		return TopicInfo{}, onTopic("set topic", t.Full, context.Cause(ctx))
	}
	defer t.changing.Give()
	m, ok := b.cfg.Meta.View().TopicByID(t.ID)
	if !ok {
		return TopicInfo{}, errDeleted(t.Name)
	}
	c := meta.SetTopic{Name: t.Name, ID: t.ID, Version: m.Version, Settings: set.toMeta(), Unset: unset}
	if err := c.Validate(); err != nil {
		return TopicInfo{}, onTopic("set topic", t.Full, err)
	}
	before, after := b.cfg.Defaults.forPartition(m.Settings), b.cfg.Defaults.forPartition(m.Settings.Merge(c.Settings, c.Unset))
	tighten := after.Mode == seglog.OnCommit && before.Mode != seglog.OnCommit
	if tighten {
		first := before // the mode only: the rest waits for the metadata
		first.Mode, first.ModeChosen = seglog.OnCommit, after.ModeChosen
		if err := t.applyAll(ctx, first, true); err != nil {
			b.revert(ctx, t, before)
			return TopicInfo{}, onTopic("flush for on_commit", t.Full, err)
		}
	}
	if _, err := b.propose(ctx, c); err != nil {
		if tighten && fault.KindOf(err) != fault.OutcomeUnknown {
			b.revert(ctx, t, before)
		}
		return TopicInfo{}, onTopic("set topic", t.Full, err)
	}
	b.sync(t.Name)
	b.applyLocked(ctx, t)
	return *b.cfg.Defaults.info(t.meta.Load()), nil
}

// applySettings brings the partitions of t to the settings that the metadata has.
func (b *Broker) applySettings(ctx context.Context, t *topic) {
	if !t.changing.Take(ctx.Done()) {
		return
	}
	defer t.changing.Give()
	b.applyLocked(ctx, t)
}

// applyLocked is applySettings for who holds t.changing. A partition that cannot follow is left with what it had, which
// its next open makes good; it is logged.
func (b *Broker) applyLocked(ctx context.Context, t *topic) {
	m, ok := b.cfg.Meta.View().TopicByID(t.ID)
	if !ok {
		return
	}
	if err := t.applyAll(ctx, b.cfg.Defaults.forPartition(m.Settings), false); err != nil && t.ended() == nil {
		b.cfg.Logger.Warn("new settings do not hold on every partition yet; opening it again applies them", "topic", t.Full, "err", err)
	}
}

// revert goes back to the settings that the metadata still has.
func (b *Broker) revert(ctx context.Context, t *topic, s partition.Settings) {
	if err := t.applyAll(context.WithoutCancel(ctx), s, false); err != nil {
		b.cfg.Logger.Warn("could not go back to the earlier fsync mode; the stricter one stays until the partition is opened again",
			"topic", t.Full, "err", err)
	}
}

// DeleteTopic removes a topic. Once it returns nil the topic is gone for good, its handles answer kind deleted, and its
// data is being removed in the background, across restarts if need be. When ctx ends before the metadata has answered,
// the topic may or may not be gone.
func (b *Broker) DeleteTopic(ctx context.Context, name string) error {
	return onPresent(b, name, func(t *topic) error {
		if _, err := b.propose(ctx, meta.DeleteTopic{Name: t.Name, ID: t.ID, TimeMs: b.cfg.Now().UnixMilli()}); err != nil {
			return onTopic("delete topic", t.Full, err)
		}
		b.sync(t.Name)
		return nil
	})
}

// UnloadTopic flushes and closes the topic's logs; the next use opens and verifies them again, also where they were
// unavailable. Its subscribers and consumers end with kind unavailable, and what they
// acknowledged is saved. It does nothing to a non-reliable topic.
func (b *Broker) UnloadTopic(ctx context.Context, name string) error {
	t, err := b.lookup(name, nil)
	if err != nil {
		return err
	}
	b.endThose(func(k subscription.Key) bool { return k.TopicID == t.ID }, fault.New(fault.Unavailable, "topic %s was unloaded: connect again, which opens it", t.Full))
	if err := b.hub.cfg.Saver.Flush(ctx); err != nil {
		return onTopic("save the subscriptions of", t.Full, err)
	}
	b.sweep()
	for i, p := range t.parts {
		if err := p.Unload(ctx); err != nil {
			return fmt.Errorf("unload %s/%d: %w", t.Full, i, err)
		}
	}
	return nil
}
