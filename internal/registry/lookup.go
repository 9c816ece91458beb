package registry

import (
	"context"
	"slices"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/schema"
)

func badVersion(n int32) error {
	return fault.New(fault.InvalidArgument, "version %d is not allowed: versions are 1 or above, or latest", n).With("reason", "invalid_version")
}

func noVersion(subject string, n int32) error {
	return fault.New(fault.NotFound, "subject %q has no version %d", subject, n).With("reason", "version_not_found").With("subject", subject)
}

func noSubject(subject string) error {
	return fault.New(fault.NotFound, "there is no subject %q", subject).With("reason", "subject_not_found").With("subject", subject)
}

// version puts a version together with its schema.
func version(s *meta.Subject, v meta.SubjectVersion, of *meta.Schema) Version {
	return Version{
		Schema: *of, Subject: s.Name, Version: v.Version, CreatedMs: v.CreatedMs, CreatedBy: v.CreatedBy, Description: v.Description, Tags: v.Tags, Deleted: v.Deleted,
	}
}

// shown returns the versions of a subject that are to be shown.
func shown(v *meta.View, s *meta.Subject, show Show) ([]Version, error) {
	var list []Version
	for _, there := range s.Versions {
		if !show.shows(there.Deleted) {
			continue
		}
		registered, err := v.Schema(there.SchemaID)
		if err != nil {
			return nil, err
		}
		list = append(list, version(s, there, registered))
	}
	return list, nil
}

// pick finds a version of a subject by number, or the latest.
func pick(s *meta.Subject, number int32, show Show) (meta.SubjectVersion, error) {
	if !slices.ContainsFunc(s.Versions, func(there meta.SubjectVersion) bool { return show.shows(there.Deleted) }) {
		return meta.SubjectVersion{}, noSubject(s.Name)
	}
	for _, there := range slices.Backward(s.Versions) {
		if show.shows(there.Deleted) && (number == Latest || there.Version == number) {
			return there, nil
		}
	}
	return meta.SubjectVersion{}, noVersion(s.Name, number)
}

// Schema returns the schema with that id.
func (r *Registry) Schema(id uint64) (Schema, error) {
	s, err := r.store.View().Schema(id)
	if err != nil {
		return Schema{}, err
	}
	return *s, nil
}

// Serialized returns the definition of a registered Protobuf schema as base64 of its file's descriptor; that of any other
// as it is.
func (r *Registry) Serialized(ctx context.Context, s Schema) (string, error) {
	if s.Type != string(schema.Protobuf) {
		return s.Definition, nil
	}
	_, done, err := r.work(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	p, err := r.load(r.store.View(), &s, 0)
	if err != nil {
		return "", err
	}
	return p.Serialized()
}

// Schemas visits all versions of all subjects, by subject and version.
func (r *Registry) Schemas(show Show, each func(Version) bool) error {
	view := r.store.View()
	for s := range view.Subjects() {
		list, err := shown(view, s, show)
		if err != nil {
			return err
		}
		for _, there := range list {
			if !each(there) {
				return nil
			}
		}
	}
	return nil
}

// Uses returns every subject and version that has the schema with that id.
func (r *Registry) Uses(id uint64, show Show) ([]Version, error) {
	view := r.store.View()
	registered, err := view.Schema(id)
	if err != nil {
		return nil, err
	}
	var list []Version
	for name, number := range view.SchemaUses(id) {
		s, err := view.Subject(name)
		if err != nil {
			return nil, err
		}
		if there, ok := s.Find(number); ok && show.shows(there.Deleted) {
			list = append(list, version(s, there, registered))
		}
	}
	return list, nil
}

// Version returns a version of a subject by its number, or the latest.
func (r *Registry) Version(subject string, number int32, show Show) (Version, error) {
	if number != Latest && number < 1 {
		return Version{}, badVersion(number)
	}
	view := r.store.View()
	s, err := view.Subject(subject)
	if err != nil {
		return Version{}, err
	}
	there, err := pick(s, number, show)
	if err != nil {
		return Version{}, err
	}
	registered, err := view.Schema(there.SchemaID)
	if err != nil {
		return Version{}, err
	}
	return version(s, there, registered), nil
}

// Lookup returns the newest version of a subject that has exactly that schema.
func (r *Registry) Lookup(ctx context.Context, subject string, spec Spec, show Show) (Version, error) {
	ctx, done, err := r.work(ctx)
	if err != nil {
		return Version{}, err
	}
	defer done()
	view := r.store.View()
	s, err := view.Subject(subject)
	if err != nil {
		return Version{}, err
	}
	if _, err := pick(s, Latest, show); err != nil {
		return Version{}, err
	}
	p, err := r.read(view, spec, show)
	if err != nil {
		return Version{}, err
	}
	if there, ok := r.same(ctx, view, s, p, show); ok {
		return there, nil
	}
	return Version{}, fault.New(fault.NotFound, "subject %q has no such schema", subject).With("reason", "schema_not_found").With("subject", subject)
}

// same finds the newest version of a subject that has the schema p.
func (r *Registry) same(ctx context.Context, v *meta.View, s *meta.Subject, p *schema.Parsed, show Show) (Version, bool) {
	equal := func(other *meta.Schema) bool { return other.Fingerprint == p.Fingerprint() }
	there, ok := newest(v, s, show, equal)
	if ok || p.Type() != schema.Protobuf {
		return there, ok
	}
	described := schema.Described(p.Definition())
	return newest(v, s, show, func(other *meta.Schema) bool { // text and descriptor have two fingerprints
		if ctx.Err() != nil || other.Type != string(schema.Protobuf) || schema.Described(other.Definition) == described {
			return false
		}
		registered, err := r.load(v, other, 0)
		return err == nil && registered.Same(p)
	})
}

// newest finds the newest version of a subject that has a schema as wanted.
func newest(v *meta.View, s *meta.Subject, show Show, wanted func(*meta.Schema) bool) (Version, bool) {
	for _, there := range slices.Backward(s.Versions) {
		if !show.shows(there.Deleted) {
			continue
		}
		if registered, err := v.Schema(there.SchemaID); err == nil && wanted(registered) {
			return version(s, there, registered), true
		}
	}
	return Version{}, false
}

// Versions returns the versions of a subject, ascending.
func (r *Registry) Versions(subject string, show Show) ([]Version, error) {
	view := r.store.View()
	s, err := view.Subject(subject)
	if err != nil {
		return nil, err
	}
	list, err := shown(view, s, show)
	if err == nil && len(list) == 0 {
		return nil, noSubject(subject)
	}
	return list, err
}

// Subjects returns the subjects that have versions to be shown, by name. With Deleted, those of which all versions are.
func (r *Registry) Subjects(show Show) []Subject {
	view := r.store.View()
	var list []Subject
	for s := range view.Subjects() {
		if show == Deleted && !s.Deleted {
			continue
		}
		there, err := pick(s, Latest, show)
		if err != nil {
			continue
		}
		registered, err := view.Schema(there.SchemaID)
		if err != nil {
			continue
		}
		list = append(list, Subject{Name: s.Name, Compatibility: string(r.mode(view, s)), Own: s.Compatibility, Deleted: s.Deleted, Latest: version(s, there, registered)})
	}
	return list
}

// ReferencedBy returns the ids of the schemas that refer to a version and that some version has.
func (r *Registry) ReferencedBy(subject string, number int32) ([]uint64, error) {
	there, err := r.Version(subject, number, All)
	if err != nil {
		return nil, err
	}
	view := r.store.View()
	ids := []uint64{}
	for id := range view.SchemaReferrers(subject, there.Version) {
		if uses, err := r.Uses(id, Live); err == nil && len(uses) > 0 {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// mode returns the compatibility that counts for a subject.
func (r *Registry) mode(v *meta.View, s *meta.Subject) schema.Mode {
	switch {
	case s.Compatibility != "":
		return schema.Mode(s.Compatibility)
	case v.Compatibility() != "":
		return schema.Mode(v.Compatibility())
	}
	return schema.Mode(DefaultCompatibility)
}

// Compatibility returns the mode of a subject, or the global one where subject is empty. Where a subject has none of its
// own, it is the global one with orGlobal, and otherwise an error with the detail reason = compatibility_not_set.
func (r *Registry) Compatibility(subject string, orGlobal bool) (string, error) {
	view := r.store.View()
	none := &meta.Subject{}
	if subject == "" {
		return string(r.mode(view, none)), nil
	}
	if s, err := view.Subject(subject); err == nil && s.Compatibility != "" {
		return s.Compatibility, nil
	}
	if orGlobal {
		return string(r.mode(view, none)), nil
	}
	return "", fault.New(fault.NotFound, "subject %q has no compatibility mode of its own", subject).With("reason", "compatibility_not_set").With("subject", subject)
}
