package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// SubscriptionSettings are a subscription's. A nil field means: the broker's default.
type SubscriptionSettings struct {
	AckTimeout         *time.Duration // how long a delivery is held without a heartbeat; 0: for ever; milliseconds
	MaxDeliveries      *int32         // after that many Poison decides; 0: no limit
	RedeliveryDelay    *time.Duration // before a record is handed out again; milliseconds
	MaxRedeliveryDelay *time.Duration // bound of exponential backoff; milliseconds
	Backoff            *string        // fixed or exponential
	Poison             *string        // dead_letter, block or drop
	DeadLetterTopic    *string        // where dead letters go; default <topic>-<subscription>-dlq
	WindowMessages     *int32         // unsettled records of one consumer
	WindowBytes        *int64         // the same in bytes
	TotalMessages      *int32         // unsettled records of a partition
	TotalBytes         *int64         // the same in bytes
	KeyInFlight        *int32         // key_shared: unsettled records of one key
	OnTrimmed          *string        // fail or skip_to_oldest
	ExpireAfter        *time.Duration // removed when unused for so long; 0: never; milliseconds
}

// SubscriptionSpec says what subscription to create.
type SubscriptionSpec struct {
	Topic    string
	Name     string
	Type     SubscriptionType // empty: Exclusive
	From     Position         // where it begins in each partition, decided now
	Settings SubscriptionSettings
}

// SubscriptionInfo is a subscription that exists, as it stands.
type SubscriptionInfo struct {
	Topic     string // namespace/name
	TopicID   []byte // names the topic's incarnation
	Name      string
	Type      SubscriptionType
	Settings  SubscriptionSettings // as set
	Effective SubscriptionSettings // with the broker's defaults filled in
	Created   time.Time
	Parts     []SubscriptionPart // by number
}

// SubscriptionPart is where a subscription stands in one partition.
type SubscriptionPart struct {
	Partition    int32
	Position     int64  // everything below it is settled
	End          int64  // next offset that readers will see
	First        int64  // oldest offset retained
	Backlog      int64  // offsets up to End that are not settled
	Settled      int64  // offsets above Position that are
	InFlight     int32  // records handed out and not settled
	Redelivering int32  // records that wait to be handed out again
	Delayed      int32  // records that wait for their time
	State        string // idle, active, "strained: why", "blocked: why" or "failed: why"
	Consumers    []ConsumerState
}

// ConsumerState is one connected consumer.
type ConsumerState struct {
	Name           string
	Active         bool // false: standby of a failover subscription
	Unsettled      int32
	UnsettledBytes int64
}

// DeadLetter is a record that a subscription gave up.
type DeadLetter struct {
	Topic           string // where it lies
	Offset          int64  // where it lies there
	SourcePartition int32
	SourceOffset    int64
	Reason          string
	Deliveries      int32         // how often it was handed out
	Time            time.Time     // when it was given up
	Record          record.Record // as it was published
}

// CreateSubscription creates a subscription of a reliable topic.
func (a *Admin) CreateSubscription(ctx context.Context, spec SubscriptionSpec) (SubscriptionInfo, error) {
	r, err := a.rpc.CreateSubscription(ctx, &leveev1.CreateSubscriptionRequest{
		Topic: spec.Topic, Name: spec.Name, Type: string(spec.Type), Start: spec.From.message(), Settings: spec.Settings.message(),
	})
	if err != nil {
		return SubscriptionInfo{}, asError(err)
	}
	return subscriptionOf(r.GetSubscription()), nil
}

// Subscriptions returns the subscriptions of a topic.
func (a *Admin) Subscriptions(ctx context.Context, topic string) ([]SubscriptionInfo, error) {
	r, err := a.rpc.ListSubscriptions(ctx, &leveev1.ListSubscriptionsRequest{Topic: topic})
	if err != nil {
		return nil, asError(err)
	}
	return convert(r.GetSubscriptions(), subscriptionOf), nil
}

// DescribeSubscription returns a subscription as it stands.
func (a *Admin) DescribeSubscription(ctx context.Context, topic, name string) (SubscriptionInfo, error) {
	r, err := a.rpc.DescribeSubscription(ctx, &leveev1.DescribeSubscriptionRequest{Topic: topic, Name: name})
	if err != nil {
		return SubscriptionInfo{}, asError(err)
	}
	return subscriptionOf(r.GetSubscription()), nil
}

// SetSubscription changes the settings that are not nil, returns those named in unset (as the broker names them, e.g.
// "ack_timeout_ms") to the broker's default, and leaves the others alone. It takes effect at once.
func (a *Admin) SetSubscription(ctx context.Context, topic, name string, settings SubscriptionSettings, unset ...string) (SubscriptionInfo, error) {
	r, err := a.rpc.SetSubscription(ctx, &leveev1.SetSubscriptionRequest{Topic: topic, Name: name, Settings: settings.message(), Unset: unset})
	if err != nil {
		return SubscriptionInfo{}, asError(err)
	}
	return subscriptionOf(r.GetSubscription()), nil
}

// SeekSubscription moves a subscription: what lies below the position counts as settled, and all above it is handed out
// again. With partitions it moves those only, otherwise all.
func (a *Admin) SeekSubscription(ctx context.Context, topic, name string, to Position, partitions ...int32) error {
	if len(partitions) == 0 {
		partitions = []int32{-1}
	}
	for _, p := range partitions {
		_, err := a.rpc.SeekSubscription(ctx, &leveev1.SeekSubscriptionRequest{Topic: topic, Name: name, Partition: p, To: to.message()})
		if err != nil {
			return asError(err)
		}
	}
	return nil
}

// DeleteSubscription removes a subscription; its consumers end with an error of kind deleted. Its dead letters stay.
func (a *Admin) DeleteSubscription(ctx context.Context, topic, name string) error {
	_, err := a.rpc.DeleteSubscription(ctx, &leveev1.DeleteSubscriptionRequest{Topic: topic, Name: name})
	return failure(err)
}

// DeadLetters returns what a subscription gave up and nobody has redriven or purged, oldest first, at most so many or all
// with 0. The last pair has the error, if there is one.
func (a *Admin) DeadLetters(ctx context.Context, topic, name string, most int32) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		rpc, err := a.rpc.ListDeadLetters(ctx, &leveev1.ListDeadLettersRequest{Topic: topic, Name: name, Most: most})
		for err == nil {
			var r *leveev1.ListDeadLettersResponse
			if r, err = rpc.Recv(); err != nil {
				break
			}
			for _, d := range r.GetLetters() {
				if !yield(deadLetterOf(d), nil) {
					return
				}
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(DeadLetter{}, asError(err))
		}
	}
}

// RedriveDeadLetters publishes all of that to the source topic again and returns how many there were. progress, unless
// nil, is told now and then how far it is. After an error some may have been published, and maybe one twice next time.
func (a *Admin) RedriveDeadLetters(ctx context.Context, topic, name string, progress func(n int64)) (n int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rpc, err := a.rpc.RedriveDeadLetters(ctx, &leveev1.RedriveDeadLettersRequest{Topic: topic, Name: name})
	if err != nil {
		return 0, asError(err)
	}
	for {
		r, err := rpc.Recv()
		if err != nil {
			return n, asError(err)
		}
		if n = r.GetRedriven(); r.GetDone() {
			return n, nil
		}
		if progress != nil {
			progress(n)
		}
	}
}

// PurgeDeadLetters gives all of that up for good and returns how many there were.
func (a *Admin) PurgeDeadLetters(ctx context.Context, topic, name string) (int64, error) {
	r, err := a.rpc.PurgeDeadLetters(ctx, &leveev1.PurgeDeadLettersRequest{Topic: topic, Name: name})
	if err != nil {
		return 0, asError(err)
	}
	return r.GetPurged(), nil
}

func subscriptionOf(m *leveev1.Subscription) SubscriptionInfo {
	return SubscriptionInfo{
		Topic: m.GetTopic(), TopicID: m.GetTopicId(), Name: m.GetName(), Type: SubscriptionType(m.GetType()),
		Settings: subscriptionSettingsOf(m.GetSettings()), Effective: subscriptionSettingsOf(m.GetEffective()),
		Created: time.UnixMilli(m.GetCreatedMs()),
		Parts: convert(m.GetParts(), func(p *leveev1.SubscriptionPart) SubscriptionPart {
			return SubscriptionPart{
				Partition: p.GetPartition(), Position: p.GetPosition(), End: p.GetEnd(), First: p.GetFirst(), Backlog: p.GetBacklog(),
				Settled: p.GetSettled(), InFlight: p.GetInFlight(), Redelivering: p.GetRedelivering(), Delayed: p.GetDelayed(), State: p.GetState(),
				Consumers: convert(p.GetConsumers(), func(c *leveev1.SubscriptionConsumer) ConsumerState {
					return ConsumerState{Name: c.GetName(), Active: c.GetActive(), Unsettled: c.GetUnsettled(), UnsettledBytes: c.GetUnsettledBytes()}
				}),
			}
		}),
	}
}

func (s SubscriptionSettings) message() *leveev1.SubscriptionSettings {
	return &leveev1.SubscriptionSettings{
		AckTimeoutMs: milliseconds(s.AckTimeout), MaxDeliveries: s.MaxDeliveries, RedeliveryDelayMs: milliseconds(s.RedeliveryDelay),
		MaxRedeliveryDelayMs: milliseconds(s.MaxRedeliveryDelay), Backoff: s.Backoff, Poison: s.Poison, DeadLetterTopic: s.DeadLetterTopic,
		WindowMessages: s.WindowMessages, WindowBytes: s.WindowBytes, TotalMessages: s.TotalMessages, TotalBytes: s.TotalBytes,
		KeyInFlight: s.KeyInFlight, OnTrimmed: s.OnTrimmed, ExpireAfterMs: milliseconds(s.ExpireAfter),
	}
}

func subscriptionSettingsOf(m *leveev1.SubscriptionSettings) SubscriptionSettings {
	if m == nil {
		return SubscriptionSettings{}
	}
	return SubscriptionSettings{
		AckTimeout: duration(m.AckTimeoutMs), MaxDeliveries: m.MaxDeliveries, RedeliveryDelay: duration(m.RedeliveryDelayMs),
		MaxRedeliveryDelay: duration(m.MaxRedeliveryDelayMs), Backoff: m.Backoff, Poison: m.Poison, DeadLetterTopic: m.DeadLetterTopic,
		WindowMessages: m.WindowMessages, WindowBytes: m.WindowBytes, TotalMessages: m.TotalMessages, TotalBytes: m.TotalBytes,
		KeyInFlight: m.KeyInFlight, OnTrimmed: m.OnTrimmed, ExpireAfter: duration(m.ExpireAfterMs),
	}
}

func deadLetterOf(m *leveev1.DeadLetter) DeadLetter {
	d := DeadLetter{
		Topic: m.GetTopic(), Offset: m.GetOffset(), SourcePartition: m.GetSourcePartition(), SourceOffset: m.GetSourceOffset(),
		Reason: m.GetReason(), Deliveries: m.GetDeliveries(), Time: time.UnixMilli(m.GetTimeMs()),
		Record: record.Record{Value: m.GetRecord().GetValue(), Timestamp: m.GetRecord().GetTimestampMs(), Offset: m.GetSourceOffset()},
	}
	if m.GetRecord().GetHasKey() {
		d.Record.Key = append([]byte{}, m.GetRecord().GetKey()...)
	}
	for _, h := range m.GetRecord().GetHeaders() {
		d.Record.Headers = append(d.Record.Headers, record.Header{Key: h.GetKey(), Value: h.GetValue()})
	}
	return d
}
