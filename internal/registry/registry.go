// Package registry owns what is done with schemas: registering them under subjects, telling whether a new version may
// follow, looking them up, and holding the records of topics that have a policy against them. What is registered is kept
// by the metadata, and what a schema means is decided by package schema; this package puts the two together and keeps
// nothing but parsed schemas at hand. Invariant: a version that it answered with is in the metadata, and was compatible
// with the versions that stood beside it at that moment.
package registry

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/schema"
	"github.com/prometheus/client_golang/prometheus"
)

// Latest stands for the newest version of a subject.
const Latest int32 = -1

// DefaultCompatibility is what counts where nobody set a mode.
const DefaultCompatibility = string(schema.Backward)

// Show says which versions are meant: those that are not deleted, all, or those that are soft-deleted.
type Show uint8

// What to show.
const (
	Live Show = iota
	All
	Deleted
)

func (s Show) shows(deleted bool) bool {
	switch s {
	case All:
		return true
	case Deleted:
		return deleted
	}
	return !deleted
}

// Reference is another schema that a definition uses, by the name it uses for it.
type Reference = meta.SchemaReference

// Schema is a definition that was registered.
type Schema = meta.Schema

// Spec is a schema that somebody has, to be registered, looked up or checked.
type Spec struct {
	Type        string // in any spelling; empty: avro
	Definition  string
	References  []Reference
	CreatedBy   string
	Description string
	Tags        []string
	Normalize   bool // keep the canonical form instead of the definition as it is written
}

// Version is one version of a subject with its schema.
type Version struct {
	Schema
	Subject     string
	Version     int32
	CreatedMs   int64 // since the epoch
	CreatedBy   string
	Description string
	Tags        []string
	Deleted     bool // softly
}

// Subject is a name under which versions follow each other.
type Subject struct {
	Name          string
	Compatibility string  // the mode in force
	Own           string  // its own mode; empty where the global one is used
	Deleted       bool    // all its versions are
	Latest        Version // of those shown
}

// Against says what a schema is checked against.
type Against struct {
	Mode    string // empty: the subject's
	Version int32  // only this one, or Latest; 0: those the mode names
}

// Config is what a registry needs.
type Config struct {
	Store meta.Store // required
	// PolicyChanged is called after SetTopicSchema, before it returns; nil: nobody wants to know.
	PolicyChanged func(topic meta.Name)
	Registerer    prometheus.Registerer
	Logger        *slog.Logger
	Now           func() time.Time // nil: time.Now
}

// Registry answers what is asked of schemas and changes them. It is safe for concurrent use.
type Registry struct {
	store         meta.Store
	policyChanged func(meta.Name)
	now           func() time.Time
	log           *slog.Logger
	metrics       *metrics
	parsed        cache
	slots         chan struct{} // bounds how much is parsed and compared side by side for clients
	quiet         obs.Throttle
}

// New returns a registry over a store.
func New(cfg Config) *Registry {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.PolicyChanged == nil {
		cfg.PolicyChanged = func(meta.Name) {}
	}
	return &Registry{
		store: cfg.Store, policyChanged: cfg.PolicyChanged, now: cfg.Now, log: obs.Logger(cfg.Logger), metrics: newMetrics(cfg.Registerer),
		slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), quiet: obs.Throttle{Every: 10 * time.Second},
	}
}

// patience bounds how long one request may parse and compare.
const patience = 30 * time.Second

// work waits for its turn to parse and compare; the caller gives the turn back with done.
func (r *Registry) work(ctx context.Context) (bounded context.Context, done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fault.New(fault.KindOf(err), "check a schema: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	select {
	case r.slots <- struct{}{}:
		return bounded, func() { cancel(); <-r.slots }, nil
	case <-bounded.Done():
		cancel()
		return nil, nil, fault.New(fault.KindOf(bounded.Err()), "wait for other schemas to be checked: %w", bounded.Err())
	}
}

// conflictRetries is how often a change is decided again because the subject changed meanwhile.
const conflictRetries = 20

// retry repeats what was decided on a state of a subject that is no more.
func retry(change func() error) error {
	var err error
	for range conflictRetries {
		err = change()
		if fault.KindOf(err) != fault.Conflict || fault.DetailsOf(err)["reason"] != "" {
			break
		}
	}
	return err
}
