package danube

import (
	"context"

	"github.com/leveemq/levee/internal/broker"
)

// brokerCalls is the broker with the types that the services want.
type brokerCalls struct{ *broker.Broker }

func (b brokerCalls) OpenPublisher(ctx context.Context, topic string, id []byte) (publisher, error) {
	p, err := b.Broker.OpenPublisher(ctx, topic, id)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (b brokerCalls) OpenConsumer(ctx context.Context, spec broker.ConsumerSpec) (consumer, error) {
	c, err := b.Broker.OpenConsumer(ctx, spec)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (b brokerCalls) SchemaUses(id uint64) ([]schemaVersion, error) {
	return b.Schemas().Uses(id, broker.ShowLive)
}

func (b brokerCalls) SchemaVersion(subject string, version int32) (schemaVersion, error) {
	return b.Schemas().Version(subject, version, broker.ShowLive)
}

func (b brokerCalls) SchemaVersions(subject string) ([]schemaVersion, error) {
	return b.Schemas().Versions(subject, broker.ShowLive)
}

func (b brokerCalls) Subjects() []schemaSubject { return b.Schemas().Subjects(broker.ShowLive) }

func (b brokerCalls) CheckSchema(ctx context.Context, subject string, s schemaSpec, mode string) ([]string, error) {
	return b.Schemas().Check(ctx, subject, s, broker.SchemaAgainst{Mode: mode})
}

func (b brokerCalls) SchemaCompatibility(subject string) (string, error) {
	return b.Schemas().Compatibility(subject, true)
}

func (b brokerCalls) TopicSchema(topic string) (topicSchema, error) {
	return b.Schemas().TopicSchema(topic)
}

func (b brokerCalls) RegisterSchema(ctx context.Context, subject string, s schemaSpec) (schemaVersion, bool, error) {
	return b.Schemas().Register(ctx, subject, s)
}

func (b brokerCalls) SetSchemaCompatibility(ctx context.Context, subject, mode string) error {
	return b.Schemas().SetCompatibility(ctx, subject, mode)
}

func (b brokerCalls) DeleteSchemaVersion(ctx context.Context, subject string, version int32) error {
	_, err := b.Schemas().DeleteVersion(ctx, subject, version, false)
	return err
}

func (b brokerCalls) SetTopicSchema(ctx context.Context, topic string, t topicSchema) error {
	t.SchemaID = 0 // what was read says it; it is not to be set
	return b.Schemas().SetTopicSchema(ctx, topic, t)
}
