package registry

import (
	"fmt"
	"sync"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/schema"
)

// cache keeps parsed schemas by id, which never means anything else. The oldest go when there are too many.
type cache struct {
	mu      sync.Mutex
	entries map[uint64]*schema.Parsed // guarded by mu
	order   []uint64                  // guarded by mu; oldest first
	bytes   int                       // guarded by mu; of the definitions
}

const (
	cachedSchemas = 2000
	cachedBytes   = 32 << 20
)

func (c *cache) get(id uint64) *schema.Parsed {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[id]
}

func (c *cache) add(id uint64, p *schema.Parsed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[uint64]*schema.Parsed{}
	}
	if c.entries[id] != nil {
		return
	}
	c.entries[id] = p
	c.order = append(c.order, id)
	c.bytes += len(p.Definition())
	for len(c.order) > 1 && (len(c.order) > cachedSchemas || c.bytes > cachedBytes) {
		c.bytes -= len(c.entries[c.order[0]].Definition())
		delete(c.entries, c.order[0])
		c.order = c.order[1:]
	}
}

// maxReferenceDepth is how long a chain of references may be.
const maxReferenceDepth = 50

// load returns the parsed form of a registered schema.
func (r *Registry) load(v *meta.View, s *meta.Schema, depth int) (*schema.Parsed, error) {
	if p := r.parsed.get(s.ID); p != nil {
		return p, nil
	}
	references, err := r.resolve(v, s.References, All, depth)
	if err != nil {
		return nil, fmt.Errorf("schema %d: %w", s.ID, err)
	}
	p, err := schema.Parse(schema.Type(s.Type), s.Definition, references)
	if err != nil {
		return nil, fault.New(fault.Internal, "schema %d, which was registered, cannot be read: %w", s.ID, err)
	}
	r.parsed.add(s.ID, p)
	return p, nil
}

// resolve finds what references point to.
func (r *Registry) resolve(v *meta.View, references []Reference, show Show, depth int) ([]schema.Reference, error) {
	if depth > maxReferenceDepth {
		return nil, fault.New(fault.InvalidArgument, "references form a chain of more than %d", maxReferenceDepth).With("reason", schema.ReasonInvalid)
	}
	if len(references) > meta.MaxSchemaReferences {
		return nil, fault.New(fault.InvalidArgument, "%d references are too many: use up to %d", len(references), meta.MaxSchemaReferences).With("reason", schema.ReasonInvalid)
	}
	resolved := make([]schema.Reference, 0, len(references))
	for _, ref := range references {
		target, err := r.target(v, ref, show)
		if err != nil {
			return nil, err
		}
		p, err := r.load(v, target, depth+1)
		if err != nil {
			return nil, err
		}
		resolved = append(resolved, schema.Reference{Name: ref.Name, Schema: p})
	}
	return resolved, nil
}

// target finds the schema a reference points to. A missing one makes the schema that refers to it an invalid one.
func (r *Registry) target(v *meta.View, ref Reference, show Show) (*meta.Schema, error) {
	found, err := v.Subject(ref.Subject)
	if err == nil {
		if sv, ok := found.Find(ref.Version); ok && show.shows(sv.Deleted) {
			return v.Schema(sv.SchemaID)
		}
	}
	return nil, fault.New(fault.InvalidArgument, "the reference %q points to version %d of subject %q, which there is not", ref.Name, ref.Version, ref.Subject).
		With("reason", schema.ReasonInvalid)
}

// read parses what a client sent.
func (r *Registry) read(v *meta.View, s Spec, show Show) (*schema.Parsed, error) {
	t, err := schema.ParseType(s.Type)
	if err != nil {
		return nil, err
	}
	references, err := r.resolve(v, s.References, show, 0)
	if err != nil {
		return nil, err
	}
	return schema.Parse(t, s.Definition, references)
}
