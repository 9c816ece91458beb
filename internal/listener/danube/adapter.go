package danube

import (
	"context"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

// brokerCalls is the broker with the types that the services want.
type brokerCalls struct {
	*broker.Broker
	noSchemas
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

// noSchemas is a registry that is not there: topics follow no schema, and there are none to name.
type noSchemas struct{}

var errNoRegistry = fault.New(fault.Unsupported, "this broker has no schema registry")

func (noSchemas) SchemaUses(uint64) ([]schemaVersion, error) { return nil, errNoRegistry }
func (noSchemas) SchemaVersion(string, int32) (schemaVersion, error) {
	return schemaVersion{}, errNoRegistry
}
func (noSchemas) SchemaVersions(string) ([]schemaVersion, error)           { return nil, errNoRegistry }
func (noSchemas) Subjects() []schemaSubject                                { return nil }
func (noSchemas) SchemaCompatibility(string) (string, error)               { return "", errNoRegistry }
func (noSchemas) TopicSchema(string) (topicSchema, error)                  { return topicSchema{}, nil }
func (noSchemas) DeleteSchemaVersion(context.Context, string, int32) error { return errNoRegistry }
func (noSchemas) CheckSchema(string, schemaSpec, string) ([]string, error) { return nil, errNoRegistry }

func (noSchemas) RegisterSchema(context.Context, string, schemaSpec) (schemaVersion, bool, error) {
	return schemaVersion{}, false, errNoRegistry
}

func (noSchemas) SetSchemaCompatibility(context.Context, string, string) error { return errNoRegistry }

func (noSchemas) SetTopicSchema(context.Context, string, topicSchema) error { return errNoRegistry }
