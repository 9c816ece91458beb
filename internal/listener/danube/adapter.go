package danube

import (
	"context"

	"github.com/leveemq/levee/internal/broker"
)

// brokerCalls is the broker with the types that the services want.
type brokerCalls struct {
	*broker.Broker
}

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

func registrySpec(s schemaSpec) broker.SchemaSpec {
	return broker.SchemaSpec{Type: s.Type, Definition: s.Definition, CreatedBy: s.CreatedBy, Description: s.Description, Tags: s.Tags}
}

func versionOf(v broker.SchemaVersion) schemaVersion {
	return schemaVersion{
		ID: v.ID, Type: v.Type, Definition: v.Definition, Fingerprint: v.Fingerprint, Subject: v.Subject, Version: v.Version,
		CreatedMs: v.CreatedMs, CreatedBy: v.CreatedBy, Description: v.Description, Tags: v.Tags,
	}
}

func versionsOf(list []broker.SchemaVersion) []schemaVersion {
	out := make([]schemaVersion, len(list))
	for i, v := range list {
		out[i] = versionOf(v)
	}
	return out
}

func (b brokerCalls) RegisterSchema(ctx context.Context, subject string, s schemaSpec) (schemaVersion, bool, error) {
	v, created, err := b.Schemas().Register(ctx, subject, registrySpec(s))
	return versionOf(v), created, err
}

func (b brokerCalls) SchemaUses(id uint64) ([]schemaVersion, error) {
	list, err := b.Schemas().Uses(id, broker.ShowLive)
	return versionsOf(list), err
}

func (b brokerCalls) SchemaVersion(subject string, version int32) (schemaVersion, error) {
	v, err := b.Schemas().Version(subject, version, broker.ShowLive)
	return versionOf(v), err
}

func (b brokerCalls) SchemaVersions(subject string) ([]schemaVersion, error) {
	list, err := b.Schemas().Versions(subject, broker.ShowLive)
	return versionsOf(list), err
}

func (b brokerCalls) Subjects() []schemaSubject {
	list := b.Schemas().Subjects(broker.ShowLive)
	out := make([]schemaSubject, len(list))
	for i, s := range list {
		out[i] = schemaSubject{Name: s.Name, Compatibility: s.Compatibility, Latest: versionOf(s.Latest)}
	}
	return out
}

func (b brokerCalls) CheckSchema(ctx context.Context, subject string, s schemaSpec, mode string) ([]string, error) {
	return b.Schemas().Check(ctx, subject, registrySpec(s), broker.SchemaAgainst{Mode: mode})
}

func (b brokerCalls) SchemaCompatibility(subject string) (string, error) {
	return b.Schemas().Compatibility(subject, true)
}

func (b brokerCalls) SetSchemaCompatibility(ctx context.Context, subject, mode string) error {
	return b.Schemas().SetCompatibility(ctx, subject, mode)
}

func (b brokerCalls) DeleteSchemaVersion(ctx context.Context, subject string, version int32) error {
	_, err := b.Schemas().DeleteVersion(ctx, subject, version, false)
	return err
}

func (b brokerCalls) TopicSchema(topic string) (topicSchema, error) {
	t, err := b.Schemas().TopicSchema(topic)
	return topicSchema{Subject: t.Subject, Policy: t.Policy, Validate: t.Validate, SchemaID: t.SchemaID}, err
}

func (b brokerCalls) SetTopicSchema(ctx context.Context, topic string, t topicSchema) error {
	return b.Schemas().SetTopicSchema(ctx, topic, broker.TopicSchema{Subject: t.Subject, Policy: t.Policy, Validate: t.Validate})
}
