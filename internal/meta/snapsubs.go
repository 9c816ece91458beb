package meta

import (
	"fmt"
)

// The lines of a snapshot that are about subscriptions; see snapshotVersion.

type snapshotSubscription struct {
	ID        TopicID              `json:"id"` // of the topic
	Name      string               `json:"name"`
	Created   uint64               `json:"created"`
	Version   uint64               `json:"version"`
	Type      SubscriptionType     `json:"type"`
	Settings  SubscriptionSettings `json:"settings"`
	CreatedMs int64                `json:"created_ms"`
	ActiveMs  int64                `json:"active_ms"`
}

type snapshotCursor struct {
	ID           TopicID         `json:"id"` // of the topic
	Subscription string          `json:"subscription"`
	Partition    int32           `json:"partition"`
	Epoch        uint64          `json:"epoch"`
	Position     int64           `json:"position"`
	Blocks       []AckBlock      `json:"blocks,omitempty"`
	Counts       []DeliveryCount `json:"counts,omitempty"`
}

func (w *snapshotWriter) writeSubscriptions(v *View) {
	for _, s := range v.subscriptions.all() {
		w.write(snapshotLine{Subscription: &snapshotSubscription{s.TopicID, s.Name, s.Created, s.Version, s.Type, s.Settings, s.CreatedMs, s.ActiveMs}})
	}
	for key, c := range v.cursors.all() {
		id, subscription, partition := splitCursorKey(key)
		w.write(snapshotLine{Cursor: &snapshotCursor{id, subscription, partition, c.Epoch, c.Position, c.Blocks, c.Counts}})
	}
}

func (r *snapshotReader) takeSubscription(s *snapshotSubscription) error {
	v, key := r.v, subscriptionKey(s.ID, s.Name)
	t, ok := v.TopicByID(s.ID)
	if !ok || t.Dispatch != Reliable {
		return fmt.Errorf("subscription %q has no topic that could have it", s.Name)
	}
	if err := s.Settings.checkFor(t.Name); err != nil {
		return err
	}
	if err := firstError(r.order(6, key), ValidateSubscription(s.Name), checkSubscriptionType(s.Type), checkTime(s.CreatedMs), checkTime(s.ActiveMs)); err != nil {
		return err
	}
	if s.Created == 0 || s.Version < s.Created || v.index < s.Version || s.ActiveMs < s.CreatedMs {
		return fmt.Errorf("subscription %q is out of range", s.Name)
	}
	v.subscriptions = v.subscriptions.set(key, &Subscription{
		Topic: t.Name, TopicID: s.ID, Name: key[len(s.ID):], Created: s.Created, Version: s.Version, Type: s.Type,
		Settings: s.Settings, CreatedMs: s.CreatedMs, ActiveMs: s.ActiveMs,
	})
	return nil
}

func (r *snapshotReader) takeCursor(c *snapshotCursor) error {
	v, key := r.v, cursorKey(c.ID, c.Subscription, c.Partition)
	if _, ok := v.subscriptions.get(subscriptionKey(c.ID, c.Subscription)); !ok {
		return fmt.Errorf("cursor of %q has no subscription", c.Subscription)
	}
	if t, ok := v.TopicByID(c.ID); !ok || int(c.Partition) >= len(t.Partitions) {
		return fmt.Errorf("cursor of %q has no partition %d", c.Subscription, c.Partition)
	}
	if err := firstError(r.order(7, key), checkPartition(c.Partition), checkOffset("position", c.Position), checkBlocks(c.Blocks), checkCounts(c.Counts)); err != nil {
		return err
	}
	if c.Epoch == 0 || len(c.Blocks) > 0 && c.Blocks[0].Number < c.Position/AckBlockOffsets || len(c.Counts) > 0 && c.Counts[0].Offset < c.Position {
		return fmt.Errorf("cursor of %q is out of range", c.Subscription)
	}
	for _, b := range c.Blocks {
		if len(b.Bits) == 0 {
			return fmt.Errorf("cursor of %q has an empty block", c.Subscription)
		}
	}
	v.cursors = v.cursors.set(key, &Cursor{Epoch: c.Epoch, Position: c.Position, Blocks: some(c.Blocks), Counts: some(c.Counts)})
	return nil
}

// checkCursors refuses a state in which a subscription lacks a cursor. Each cursor that is there was held against its
// subscription and partition, so their number tells.
func (r *snapshotReader) checkCursors() error {
	v, want := r.v, 0
	for _, s := range v.subscriptions.all() {
		t, _ := v.topics.get(s.Topic.String())
		want += len(t.Partitions)
	}
	if n := v.cursors.len(); n != want {
		return fmt.Errorf("it has %d cursors of %d", n, want)
	}
	return nil
}
