package danube

import (
	"context"

	"github.com/leveemq/levee/internal/broker"
)

// calls is what the services ask of the broker. All methods are safe for concurrent use, and their errors carry a fault
// kind. *broker.Broker has them but for the types it returns; tests have a fake.
type calls interface {
	topics
	namespaces
	subscriptions
	streams
	schemas
}

type topics interface {
	Topic(name string) (broker.TopicInfo, error)
	Topics(namespace string) ([]broker.TopicInfo, error)
	CreateTopic(ctx context.Context, spec broker.TopicSpec) (broker.TopicInfo, error)
	DeleteTopic(ctx context.Context, name string) error
	UnloadTopic(ctx context.Context, name string) error
}

type namespaces interface {
	Namespaces() []broker.NamespaceInfo
	CreateNamespace(ctx context.Context, name string) error
	DeleteNamespace(ctx context.Context, name string) error
}

type subscriptions interface {
	Subscriptions(ctx context.Context, topic string) ([]broker.SubscriptionInfo, error)
	DescribeSubscription(ctx context.Context, topic, name string) (broker.SubscriptionInfo, error)
	SetSubscription(ctx context.Context, topic, name string, set broker.SubscriptionSettings, unset []string) (broker.SubscriptionInfo, error)
	DeleteSubscription(ctx context.Context, topic, name string) error
}

type streams interface {
	OpenPublisher(ctx context.Context, topic string, id []byte) (publisher, error)
	OpenConsumer(ctx context.Context, spec broker.ConsumerSpec) (consumer, error)
	// SettleFor settles for whoever was handed the records. It does not wait for the disk.
	SettleFor(topic string, partition int32, subscription string, s broker.Settlement) error
}

// publisher is a *broker.Publisher.
type publisher interface {
	Info() broker.TopicInfo
	// Submit takes one batch. When it returns nil, done is called exactly once, from any goroutine, and the batch must
	// not change until then; otherwise done is never called.
	Submit(ctx context.Context, partition int32, batch []byte, done func(broker.PublishResult)) error
	Close()
}

// consumer is a *broker.Consumer.
type consumer interface {
	Info() broker.ConsumerInfo
	// Next waits for the next event; one caller at a time.
	Next(ctx context.Context, maxBytes int) (broker.ConsumerEvent, error)
	Settle(s broker.Settlement) error
	// Close ends it, and Next with it; what it held is handed out again. It may be called more than once.
	Close()
}
