package meta

import (
	"iter"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

// Bounds of subscriptions and cursors. As the bounds of settings they are part of what Apply does.
const (
	MaxSubscriptions = 1_000_000
	MaxCursors       = 10_000_000 // a subscription has one a partition
)

// Subscription is a named reader of a topic. Where it is in each partition is in its cursors.
type Subscription struct {
	Topic     Name
	TopicID   TopicID
	Name      string
	Created   uint64 // index of its creation: one that is deleted and made again has another
	Version   uint64 // moves with every change of Settings
	Type      SubscriptionType
	Settings  SubscriptionSettings
	CreatedMs int64 // since the epoch
	ActiveMs  int64 // when it last had a consumer, as far as was stored
}

// CreateSubscription makes a subscription that begins at Starts, an offset for each partition. Refused with
// already_exists; with invalid_argument on a non_reliable topic; with exhausted at the limits. Result.Subscription is the
// new one.
type CreateSubscription struct {
	Topic    Name                 `json:"topic"`
	ID       TopicID              `json:"id"`
	Name     string               `json:"name"`
	Type     SubscriptionType     `json:"type"`
	Settings SubscriptionSettings `json:"settings"`
	TimeMs   int64                `json:"time_ms"` // since the epoch
	Starts   []int64              `json:"starts"`  // by partition
}

// SetSubscription changes settings of a subscription: those that are not nil are set, those named in Unset go back to
// the broker's default. Result.Subscription is the subscription as changed.
type SetSubscription struct {
	Topic    Name                 `json:"topic"`
	ID       TopicID              `json:"id"`
	Name     string               `json:"name"`
	Version  uint64               `json:"version"` // Subscription.Version the change was decided on; refused with conflict when it moved
	Settings SubscriptionSettings `json:"settings"`
	Unset    []string             `json:"unset,omitempty"` // names of settings
}

// DeleteSubscription removes a subscription and its cursors. Refused with deleted where Created is that of another one.
// Result.Subscription is what was removed.
type DeleteSubscription struct {
	Topic   Name    `json:"topic"`
	ID      TopicID `json:"id"`
	Name    string  `json:"name"`
	Created uint64  `json:"created"`
}

// Op returns the command's stored name.
func (CreateSubscription) Op() string { return "subscription.create" }

// Op returns the command's stored name.
func (SetSubscription) Op() string { return "subscription.set" }

// Op returns the command's stored name.
func (DeleteSubscription) Op() string { return "subscription.delete" }

// Validate refuses names, types, settings and offsets that cannot be.
func (c CreateSubscription) Validate() error {
	if len(c.Starts) < 1 || len(c.Starts) > MaxPartitions {
		return fault.New(fault.InvalidArgument, "starts: %d offsets are not allowed: give one for each partition", len(c.Starts)).With("key", "starts")
	}
	for _, o := range c.Starts {
		if err := checkOffset("starts", o); err != nil {
			return err
		}
	}
	if err := checkSubscriptionType(c.Type); err != nil {
		return err
	}
	return firstError(checkTopic(c.Topic, c.ID), ValidateSubscription(c.Name), checkTime(c.TimeMs), c.Settings.Validate())
}

// Validate refuses unknown names of settings, names both set and unset, and a command that changes nothing.
func (c SetSubscription) Validate() error {
	return firstError(checkTopic(c.Topic, c.ID), ValidateSubscription(c.Name), c.Settings.checkUnset(c.Unset), c.Settings.Validate())
}

// Validate refuses names that cannot be.
func (c DeleteSubscription) Validate() error {
	return firstError(checkTopic(c.Topic, c.ID), ValidateSubscription(c.Name))
}

// ValidateSubscription returns an invalid_argument error where s cannot be a subscription's name.
func ValidateSubscription(s string) error {
	if err := checkPart("subscription", s); err != nil {
		return err
	}
	return nil
}

func checkSubscriptionType(t SubscriptionType) error {
	switch t {
	case Exclusive, Shared, Failover, KeyShared:
		return nil
	}
	return badSetting("type", string(t), "exclusive, shared, failover or key_shared")
}

func (c CreateSubscription) apply(_ *State, v *View, index uint64) (Result, *fault.Error) {
	t, refused := v.current(c.Topic, c.ID)
	if refused != nil {
		return Result{}, refused
	}
	if t.Dispatch != Reliable {
		return Result{}, fault.New(fault.InvalidArgument, "topic %s is %s: nothing of its subscriptions is kept", c.Topic, t.Dispatch).With("topic", c.Topic)
	}
	if len(c.Starts) != len(t.Partitions) {
		return Result{}, fault.New(fault.InvalidArgument, "starts: %d offsets for the %d partitions of topic %s: give one for each", len(c.Starts), len(t.Partitions), c.Topic).
			With("key", "starts")
	}
	if err := c.Settings.checkFor(c.Topic); err != nil {
		return Result{}, err
	}
	key := subscriptionKey(c.ID, c.Name)
	if _, ok := v.subscriptions.get(key); ok {
		return Result{}, fault.New(fault.AlreadyExists, "subscription %s of topic %s exists already", c.Name, c.Topic).With("topic", c.Topic).With("subscription", c.Name)
	}
	if v.subscriptions.len() >= MaxSubscriptions {
		return Result{}, fault.New(fault.Exhausted, "there are %d subscriptions, the most there may be: delete one first", MaxSubscriptions)
	}
	if v.cursors.len()+len(c.Starts) > MaxCursors {
		return Result{}, fault.New(fault.Exhausted, "the subscriptions have %d cursors and may have %d, one for each partition: delete one first", v.cursors.len(), MaxCursors)
	}
	sub := &Subscription{
		Topic: t.Name, TopicID: t.ID, Name: key[len(TopicID{}):], Created: index, Version: index, Type: c.Type,
		Settings: c.Settings, CreatedMs: c.TimeMs, ActiveMs: c.TimeMs,
	}
	v.subscriptions = v.subscriptions.set(key, sub)
	for i, at := range c.Starts {
		v.cursors = v.cursors.set(cursorKey(c.ID, c.Name, int32(i)), &Cursor{Epoch: 1, Position: at})
	}
	return Result{Subscription: sub}, nil
}

func (c SetSubscription) apply(_ *State, v *View, index uint64) (Result, *fault.Error) {
	sub, refused := v.subscription(c.Topic, c.ID, c.Name)
	if refused != nil {
		return Result{}, refused
	}
	if sub.Version != c.Version {
		return Result{}, fault.New(fault.Conflict, "subscription %s of topic %s: its settings changed meanwhile (version %d, now %d): read them again", c.Name, c.Topic, c.Version, sub.Version).
			With("version", sub.Version)
	}
	settings := sub.Settings.Merge(c.Settings, c.Unset)
	if err := settings.checkFor(c.Topic); err != nil {
		return Result{}, err
	}
	changed := *sub
	changed.Settings, changed.Version = settings, index
	v.subscriptions = v.subscriptions.set(subscriptionKey(c.ID, c.Name), &changed)
	return Result{Subscription: &changed}, nil
}

func (c DeleteSubscription) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	sub, refused := v.incarnation(c.Topic, c.ID, c.Name, c.Created)
	if refused != nil {
		return Result{}, refused
	}
	key := subscriptionKey(c.ID, c.Name)
	v.subscriptions = v.subscriptions.remove(key)
	v.cursors = withoutPrefix(v.cursors, key+cursorMark)
	return Result{Subscription: sub}, nil
}

// subscription returns a subscription of the topic's incarnation that is named.
func (v *View) subscription(topic Name, id TopicID, name string) (*Subscription, *fault.Error) {
	if _, refused := v.current(topic, id); refused != nil {
		return nil, refused
	}
	sub, ok := v.subscriptions.get(subscriptionKey(id, name))
	if !ok {
		return nil, noSubscription(topic, name)
	}
	return sub, nil
}

// incarnation is subscription, for the one that was made by that command.
func (v *View) incarnation(topic Name, id TopicID, name string, created uint64) (*Subscription, *fault.Error) {
	sub, refused := v.subscription(topic, id, name)
	if refused == nil && sub.Created != created {
		return nil, fault.New(fault.Deleted, "subscription %s of topic %s was deleted and created again: open it anew", name, topic).
			With("topic", topic).With("subscription", name)
	}
	return sub, refused
}

// Subscription returns a subscription of a topic. Its error is not_found, and says what is missing.
func (v *View) Subscription(topic Name, name string) (*Subscription, error) {
	t, err := v.Topic(topic)
	if err != nil {
		return nil, err
	}
	sub, ok := v.subscriptions.get(subscriptionKey(t.ID, name))
	if !ok {
		return nil, noSubscription(topic, name)
	}
	return sub, nil
}

// Subscriptions visits the subscriptions of a topic, in the order of names.
func (v *View) Subscriptions(topic TopicID) iter.Seq[*Subscription] {
	return func(yield func(*Subscription) bool) {
		prefix := string(topic[:])
		for key, sub := range v.subscriptions.from(prefix) {
			if !strings.HasPrefix(key, prefix) || !yield(sub) {
				return
			}
		}
	}
}

// AllSubscriptions visits all subscriptions, in the order of topic ids, then names.
func (v *View) AllSubscriptions() iter.Seq[*Subscription] {
	return func(yield func(*Subscription) bool) {
		for _, sub := range v.subscriptions.all() {
			if !yield(sub) {
				return
			}
		}
	}
}

// SubscriptionCount returns how many subscriptions there are.
func (v *View) SubscriptionCount() int { return v.subscriptions.len() }

func noSubscription(topic Name, name string) *fault.Error {
	return fault.New(fault.NotFound, "topic %s has no subscription %q: create it first", topic, name).With("topic", topic).With("subscription", name)
}

// subscriptionKey is the bytes of the topic's id, then the name: all of a topic are neighbours, and its removal finds
// them by a prefix of fixed length.
func subscriptionKey(id TopicID, name string) string { return string(id[:]) + name }
