package broker

import (
	"github.com/leveemq/levee/internal/meta"
	schemas "github.com/leveemq/levee/internal/registry"
	"github.com/leveemq/levee/internal/schema"
)

// Schemas registers schemas, finds them, tells whether they get along, and says what topics are held against.
type Schemas = schemas.Registry

// What Schemas takes and answers with.
type (
	Schema          = schemas.Schema
	SchemaVersion   = schemas.Version
	SchemaSpec      = schemas.Spec
	SchemaReference = schemas.Reference
	SchemaSubject   = schemas.Subject
	SchemaAgainst   = schemas.Against
	SchemaShow      = schemas.Show
	TopicSchema     = schemas.TopicSchema
)

// Which versions are meant.
const (
	ShowLive    = schemas.Live    // those not deleted
	ShowAll     = schemas.All     //
	ShowDeleted = schemas.Deleted // those that are soft-deleted
)

// LatestSchema stands for the newest version of a subject.
const LatestSchema = schemas.Latest

// HeaderSchemaID is the header of a record that names the schema it was written with, by its id in decimal.
const HeaderSchemaID = schemas.HeaderSchemaID

// MaxSchemaBytes is the most that one definition may have.
const MaxSchemaBytes = schema.MaxDefinition

// Schemas returns the schema registry.
func (b *Broker) Schemas() *Schemas { return b.topics.schemas }

func newSchemas(b *Broker) *Schemas {
	return schemas.New(schemas.Config{
		Store: b.cfg.Meta, PolicyChanged: func(n meta.Name) { b.sync(n) }, Registerer: b.cfg.Registerer, Logger: b.cfg.Logger, Now: b.cfg.Now,
	})
}

// setGuard makes a topic hold what is published to it against what the metadata says now. The caller holds
// Broker.syncing, or nobody else has the topic yet.
func (r *registry) setGuard(t *topic) {
	g := r.schemas.Guard(t.Name, t.ID)
	if have := t.guard.Load(); !g.Is(have) {
		t.guard.Store(g)
	}
}
