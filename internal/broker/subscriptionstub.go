package broker

import (
	"context"

	"github.com/leveemq/levee/internal/fault"
)

var errNoSubscriptions = fault.New(fault.Unsupported, "this broker has no subscriptions yet")

// Consumer stands in for the consumer of a subscription.
type Consumer struct{}

// Info returns nothing.
func (*Consumer) Info() ConsumerInfo { return ConsumerInfo{} }

// Next fails.
func (*Consumer) Next(context.Context, int) (ConsumerEvent, error) {
	return ConsumerEvent{}, errNoSubscriptions
}

// Settle fails.
func (*Consumer) Settle(Settlement) error { return errNoSubscriptions }

// Heartbeat does nothing.
func (*Consumer) Heartbeat() {}

// Save fails.
func (*Consumer) Save(context.Context) error { return errNoSubscriptions }

// Close does nothing.
func (*Consumer) Close() {}

// OpenConsumer fails.
func (b *Broker) OpenConsumer(context.Context, ConsumerSpec) (*Consumer, error) {
	return nil, errNoSubscriptions
}

// CreateSubscription fails.
func (b *Broker) CreateSubscription(context.Context, SubscriptionSpec) (SubscriptionInfo, error) {
	return SubscriptionInfo{}, errNoSubscriptions
}

// Subscriptions fails.
func (b *Broker) Subscriptions(context.Context, string) ([]SubscriptionInfo, error) {
	return nil, errNoSubscriptions
}

// DescribeSubscription fails.
func (b *Broker) DescribeSubscription(context.Context, string, string) (SubscriptionInfo, error) {
	return SubscriptionInfo{}, errNoSubscriptions
}

// SetSubscription fails.
func (b *Broker) SetSubscription(context.Context, string, string, SubscriptionSettings, []string) (SubscriptionInfo, error) {
	return SubscriptionInfo{}, errNoSubscriptions
}

// SeekSubscription fails.
func (b *Broker) SeekSubscription(context.Context, string, string, int32, Position) error {
	return errNoSubscriptions
}

// DeleteSubscription fails.
func (b *Broker) DeleteSubscription(context.Context, string, string) error { return errNoSubscriptions }

// DeadLetters fails.
func (b *Broker) DeadLetters(context.Context, string, string, int, func(DeadLetter) error) error {
	return errNoSubscriptions
}

// RedriveDeadLetters fails.
func (b *Broker) RedriveDeadLetters(context.Context, string, string, func(DeadLetter) error) (int, error) {
	return 0, errNoSubscriptions
}

// PurgeDeadLetters fails.
func (b *Broker) PurgeDeadLetters(context.Context, string, string) (int, error) {
	return 0, errNoSubscriptions
}
