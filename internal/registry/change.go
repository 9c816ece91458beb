package registry

import (
	"context"
	"fmt"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/schema"
)

// Register adds a schema to a subject as its newest version, and makes the subject where there is none. A schema that
// the subject has already is not added again: created is false, and the version is the one there is. It fails with kind
// invalid_argument and the detail reason = incompatible where the schema breaks the subject's compatibility; the error
// then says what breaks, a line each.
func (r *Registry) Register(ctx context.Context, subject string, s Spec) (v Version, created bool, err error) {
	if err := meta.ValidateSubject(subject); err != nil {
		return Version{}, false, err
	}
	ctx, done, err := r.work(ctx)
	if err != nil {
		return Version{}, false, err
	}
	defer done()
	err = retry(func() error {
		v, created, err = r.register(ctx, subject, s)
		return err
	})
	return v, created, err
}

func (r *Registry) register(ctx context.Context, subject string, s Spec) (Version, bool, error) {
	view := r.store.View()
	var revision uint64
	found, err := view.Subject(subject)
	if err == nil {
		revision = found.Revision
	}
	p, err := r.read(view, s, Live)
	if err != nil {
		return Version{}, false, err
	}
	if found != nil {
		if there, ok := r.same(ctx, view, found, p, Live); ok {
			return there, false, nil
		}
		problems, err := r.compare(ctx, view, found, p, Against{})
		if err != nil {
			return Version{}, false, err
		}
		if len(problems) > 0 {
			r.metrics.incompatible.Inc()
			return Version{}, false, incompatible(subject, string(r.mode(view, found)), problems)
		}
	}
	c := meta.RegisterSchema{
		Subject: subject, Type: string(p.Type()), Definition: s.Definition, References: s.References, Fingerprint: p.Fingerprint(),
		TimeMs: r.now().UnixMilli(), CreatedBy: s.CreatedBy, Description: s.Description, Tags: s.Tags, Revision: revision,
	}
	if s.Normalize {
		c.Definition = p.Canonical()
	}
	result, err := r.store.Propose(ctx, c)
	if err != nil {
		return Version{}, false, fmt.Errorf("register a schema under %q: %w", subject, err)
	}
	r.parsed.add(result.Schema.ID, p)
	created := result.Subject.Revision == result.Index
	if created {
		r.metrics.registered.Inc()
	}
	return version(result.Subject, *result.SchemaVersion, result.Schema), created, nil
}

func incompatible(subject, mode string, problems []string) error {
	return fault.New(fault.InvalidArgument, "the schema breaks the compatibility of subject %q, which is %s:\n%s", subject, mode, strings.Join(problems, "\n")).
		With("reason", "incompatible").With("subject", subject).With("compatibility", mode)
}

// Check says why a schema may not become the next version of a subject; nothing where it may. A subject that does not
// exist takes any schema.
func (r *Registry) Check(ctx context.Context, subject string, s Spec, a Against) ([]string, error) {
	if err := meta.ValidateSubject(subject); err != nil {
		return nil, err
	}
	ctx, done, err := r.work(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	view := r.store.View()
	p, err := r.read(view, s, Live)
	if err != nil {
		return nil, err
	}
	found, err := view.Subject(subject)
	if err != nil {
		if a.Version > 0 {
			return nil, err
		}
		found = &meta.Subject{Name: subject}
	}
	return r.compare(ctx, view, found, p, a)
}

// compare checks p against versions of a subject.
func (r *Registry) compare(ctx context.Context, v *meta.View, s *meta.Subject, p *schema.Parsed, a Against) ([]string, error) {
	mode := r.mode(v, s)
	if a.Mode != "" {
		var err error
		if mode, err = schema.ParseMode(a.Mode); err != nil {
			return nil, err
		}
	}
	versions, err := against(s, a, mode)
	if err != nil {
		return nil, err
	}
	var problems []string
	for i := len(versions) - 1; i >= 0; i-- {
		if err := ctx.Err(); err != nil {
			return nil, fault.New(fault.KindOf(err), "compare with %d versions of subject %q: %w", len(versions), s.Name, err)
		}
		registered, err := v.Schema(versions[i].SchemaID)
		if err != nil {
			return nil, err
		}
		old, err := r.load(v, registered, 0)
		if err != nil {
			return nil, err
		}
		for _, broken := range schema.Check(mode, p, []*schema.Parsed{old}) {
			problems = append(problems, fmt.Sprintf("version %d: %s", versions[i].Version, broken))
		}
		if len(problems) > maxProblems {
			return problems[:maxProblems], nil
		}
	}
	return problems, nil
}

// maxProblems bounds what one answer lists.
const maxProblems = 100

// against lists the versions that count.
func against(s *meta.Subject, a Against, mode schema.Mode) ([]meta.SubjectVersion, error) {
	if a.Version > 0 {
		there, ok := s.Find(a.Version)
		if !ok || there.Deleted {
			return nil, noVersion(s.Name, a.Version)
		}
		return []meta.SubjectVersion{there}, nil
	}
	if a.Version < Latest {
		return nil, badVersion(a.Version)
	}
	var versions []meta.SubjectVersion
	for _, there := range s.Versions {
		if !there.Deleted {
			versions = append(versions, there)
		}
	}
	if len(versions) > 1 && (a.Version == Latest || !mode.Transitive()) {
		versions = versions[len(versions)-1:]
	}
	if mode == schema.None {
		return nil, nil
	}
	return versions, nil
}

// DeleteVersion deletes a version of a subject, softly, or for good one that is soft-deleted, and returns its number.
func (r *Registry) DeleteVersion(ctx context.Context, subject string, version int32, permanent bool) (int32, error) {
	number := version
	err := retry(func() error {
		found, err := r.store.View().Subject(subject)
		if err != nil {
			return err
		}
		show := Live
		if permanent {
			show = All
		}
		if number = version; version == Latest {
			there, err := pick(found, Latest, show)
			if err != nil {
				return err
			}
			number = there.Version
		}
		if number < 1 {
			return badVersion(number)
		}
		_, err = r.store.Propose(ctx, meta.DeleteSchemaVersion{Subject: subject, Version: number, Permanent: permanent, Revision: found.Revision})
		return err
	})
	return number, err
}

// DeleteSubject deletes a subject with all its versions, softly, or for good one that is soft-deleted. It returns the
// numbers of the versions it deleted.
func (r *Registry) DeleteSubject(ctx context.Context, subject string, permanent bool) ([]int32, error) {
	var numbers []int32
	err := retry(func() error {
		numbers = nil
		found, err := r.store.View().Subject(subject)
		if err != nil {
			return err
		}
		for _, there := range found.Versions {
			if permanent || !there.Deleted {
				numbers = append(numbers, there.Version)
			}
		}
		_, err = r.store.Propose(ctx, meta.DeleteSubject{Subject: subject, Permanent: permanent, Revision: found.Revision})
		return err
	})
	if err != nil {
		return nil, err
	}
	return numbers, nil
}

// SetCompatibility sets the mode of a subject, or the global one where subject is empty. An empty mode unsets it.
func (r *Registry) SetCompatibility(ctx context.Context, subject, mode string) error {
	if mode != "" {
		m, err := schema.ParseMode(mode)
		if err != nil {
			return err
		}
		mode = string(m)
	}
	_, err := r.store.Propose(ctx, meta.SetCompatibility{Subject: subject, Mode: mode})
	return err
}
