package grpc

import (
	"context"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
)

// subscriptions is what the Admin service asks of the broker about subscriptions. Its methods are safe for concurrent
// use, changes are durable when they return, and their errors carry a fault kind. It is a *broker.Broker.
type subscriptions interface {
	CreateSubscription(ctx context.Context, spec broker.SubscriptionSpec) (broker.SubscriptionInfo, error)
	Subscriptions(ctx context.Context, topic string) ([]broker.SubscriptionInfo, error)
	DescribeSubscription(ctx context.Context, topic, name string) (broker.SubscriptionInfo, error)
	SetSubscription(ctx context.Context, topic, name string, set broker.SubscriptionSettings, unset []string) (broker.SubscriptionInfo, error)
	// SeekSubscription moves one partition, or all with -1.
	SeekSubscription(ctx context.Context, topic, name string, partition int32, to broker.Position) error
	DeleteSubscription(ctx context.Context, topic, name string) error
}

// CreateSubscription makes a subscription.
func (a *adminService) CreateSubscription(ctx context.Context, req *leveev1.CreateSubscriptionRequest) (*leveev1.CreateSubscriptionResponse, error) {
	s, err := a.subscriptions.CreateSubscription(ctx, broker.SubscriptionSpec{
		Topic: req.Topic, Name: req.Name, Type: broker.SubscriptionType(req.Type), Start: positionOf(req.Start),
		Settings: subscriptionSettingsOf(req.Settings),
	})
	if err != nil {
		return nil, err
	}
	return &leveev1.CreateSubscriptionResponse{Subscription: subscriptionOf(s)}, nil
}

// ListSubscriptions returns a topic's subscriptions.
func (a *adminService) ListSubscriptions(ctx context.Context, req *leveev1.ListSubscriptionsRequest) (*leveev1.ListSubscriptionsResponse, error) {
	all, err := a.subscriptions.Subscriptions(ctx, req.Topic)
	if err != nil {
		return nil, err
	}
	resp := &leveev1.ListSubscriptionsResponse{}
	for _, s := range all {
		resp.Subscriptions = append(resp.Subscriptions, subscriptionOf(s))
	}
	return resp, nil
}

// DescribeSubscription returns one.
func (a *adminService) DescribeSubscription(ctx context.Context, req *leveev1.DescribeSubscriptionRequest) (*leveev1.DescribeSubscriptionResponse, error) {
	s, err := a.subscriptions.DescribeSubscription(ctx, req.Topic, req.Name)
	if err != nil {
		return nil, err
	}
	return &leveev1.DescribeSubscriptionResponse{Subscription: subscriptionOf(s)}, nil
}

// SetSubscription changes its settings.
func (a *adminService) SetSubscription(ctx context.Context, req *leveev1.SetSubscriptionRequest) (*leveev1.SetSubscriptionResponse, error) {
	s, err := a.subscriptions.SetSubscription(ctx, req.Topic, req.Name, subscriptionSettingsOf(req.Settings), req.Unset)
	if err != nil {
		return nil, err
	}
	return &leveev1.SetSubscriptionResponse{Subscription: subscriptionOf(s)}, nil
}

// SeekSubscription moves it.
func (a *adminService) SeekSubscription(ctx context.Context, req *leveev1.SeekSubscriptionRequest) (*leveev1.SeekSubscriptionResponse, error) {
	if err := a.subscriptions.SeekSubscription(ctx, req.Topic, req.Name, req.Partition, positionOf(req.To)); err != nil {
		return nil, err
	}
	return &leveev1.SeekSubscriptionResponse{}, nil
}

// DeleteSubscription removes it.
func (a *adminService) DeleteSubscription(ctx context.Context, req *leveev1.DeleteSubscriptionRequest) (*leveev1.DeleteSubscriptionResponse, error) {
	if err := a.subscriptions.DeleteSubscription(ctx, req.Topic, req.Name); err != nil {
		return nil, err
	}
	return &leveev1.DeleteSubscriptionResponse{}, nil
}

func positionOf(p *leveev1.Position) broker.Position {
	switch at := p.GetAt().(type) {
	case *leveev1.Position_Latest:
		return broker.Latest()
	case *leveev1.Position_Offset:
		return broker.Offset(at.Offset)
	case *leveev1.Position_TimeMs:
		return broker.Time(at.TimeMs)
	}
	return broker.Earliest()
}

func subscriptionOf(s broker.SubscriptionInfo) *leveev1.Subscription {
	out := &leveev1.Subscription{
		Topic: s.Topic, TopicId: s.TopicID[:], Name: s.Name, Type: string(s.Type), CreatedMs: s.CreatedMs,
		Settings: subscriptionSettingsFrom(s.Settings), Effective: subscriptionSettingsFrom(s.Effective),
	}
	for _, p := range s.Parts {
		part := &leveev1.SubscriptionPart{
			Partition: p.Partition, Position: p.Position, End: p.End, First: p.First, Backlog: p.Backlog, Settled: p.Settled,
			InFlight: count(p.InFlight), Redelivering: count(p.Redelivering), Delayed: count(p.Delayed), State: clip(p.State, messageChars),
		}
		for _, c := range p.Consumers {
			part.Consumers = append(part.Consumers, &leveev1.SubscriptionConsumer{
				Name: clip(c.Name, detailChars), Active: c.Active, Unsettled: count(c.Unsettled), UnsettledBytes: c.UnsettledBytes,
			})
		}
		out.Parts = append(out.Parts, part)
	}
	return out
}

func subscriptionSettingsFrom(s broker.SubscriptionSettings) *leveev1.SubscriptionSettings {
	return &leveev1.SubscriptionSettings{
		AckTimeoutMs: s.AckTimeoutMs, MaxDeliveries: s.MaxDeliveries, RedeliveryDelayMs: s.RedeliveryDelayMs,
		MaxRedeliveryDelayMs: s.MaxRedeliveryDelayMs, Backoff: s.Backoff, Poison: s.Poison, DeadLetterTopic: s.DeadLetterTopic,
		WindowMessages: s.WindowMessages, WindowBytes: s.WindowBytes, TotalMessages: s.TotalMessages, TotalBytes: s.TotalBytes,
		KeyInFlight: s.KeyInFlight, OnTrimmed: s.OnTrimmed, ExpireAfterMs: s.ExpireAfterMs,
	}
}

// subscriptionSettingsOf maps what a client set; nil sets nothing. The broker decides what the values may be.
func subscriptionSettingsOf(s *leveev1.SubscriptionSettings) broker.SubscriptionSettings {
	if s == nil {
		return broker.SubscriptionSettings{}
	}
	return broker.SubscriptionSettings{
		AckTimeoutMs: s.AckTimeoutMs, MaxDeliveries: s.MaxDeliveries, RedeliveryDelayMs: s.RedeliveryDelayMs,
		MaxRedeliveryDelayMs: s.MaxRedeliveryDelayMs, Backoff: s.Backoff, Poison: s.Poison, DeadLetterTopic: s.DeadLetterTopic,
		WindowMessages: s.WindowMessages, WindowBytes: s.WindowBytes, TotalMessages: s.TotalMessages, TotalBytes: s.TotalBytes,
		KeyInFlight: s.KeyInFlight, OnTrimmed: s.OnTrimmed, ExpireAfterMs: s.ExpireAfterMs,
	}
}
