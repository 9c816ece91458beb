package meta

import (
	"fmt"
	"slices"

	"github.com/leveemq/levee/internal/fault"
)

// RegisterSchema adds a version to a subject. Where a version that is not deleted has the same fingerprint, that one is
// the answer and nothing changes; where any schema has it, the new version has that schema's id. Refused with conflict
// where the subject moved; with not_found where a version referred to does not exist; with exhausted at the limits.
// Result.Subject, Result.Schema and Result.SchemaVersion say what it is now; the version is new where the subject's
// Revision is Result.Index.
type RegisterSchema struct {
	Subject     string            `json:"subject"`
	Type        string            `json:"type"`
	Definition  string            `json:"definition"`
	References  []SchemaReference `json:"references,omitempty"`
	Fingerprint string            `json:"fingerprint"` // equal for what counts as the same schema, and for nothing else
	TimeMs      int64             `json:"time_ms"`     // since the epoch
	CreatedBy   string            `json:"created_by,omitempty"`
	Description string            `json:"description,omitempty"`
	Tags        []string          `json:"tags,omitempty"`
	Revision    uint64            `json:"revision"` // Subject.Revision it was decided on; 0: there is no such subject
}

// DeleteSchemaVersion deletes a version: softly, or for good one that is soft-deleted. Its number is not given again.
// Refused with conflict where the subject moved, the version is in use as a reference, or it is to go for good and is
// not soft-deleted; with not_found otherwise. Result.Subject is the subject as it is now.
type DeleteSchemaVersion struct {
	Subject   string `json:"subject"`
	Version   int32  `json:"version"`
	Permanent bool   `json:"permanent,omitempty"`
	Revision  uint64 `json:"revision"` // Subject.Revision it was decided on
}

// DeleteSubject deletes all versions of a subject; see DeleteSchemaVersion. Its own compatibility goes with them.
// Result.Subject is the subject as it was.
type DeleteSubject struct {
	Subject   string `json:"subject"`
	Permanent bool   `json:"permanent,omitempty"`
	Revision  uint64 `json:"revision"` // Subject.Revision it was decided on
}

// SetCompatibility sets what new versions of a subject, which need not exist yet, have to get along with.
// Result.Subject is the subject as it is now.
type SetCompatibility struct {
	Subject string `json:"subject,omitempty"` // empty: of all that have none of their own
	Mode    string `json:"mode,omitempty"`    // empty: unset
}

// SetTopicSchema says what a topic's records are held against. The subject need not exist. Without one, and with policy
// none, nothing is set any more. Result.Topic is the topic.
type SetTopicSchema struct {
	Topic           Name    `json:"topic"`
	ID              TopicID `json:"id"`
	Subject         string  `json:"subject,omitempty"`
	Policy          string  `json:"policy"`             // one of the Policy… words
	ValidatePayload bool    `json:"validate,omitempty"` // TopicSchema.Validate
}

// Op returns the command's stored name.
func (RegisterSchema) Op() string { return "schema.register" }

// Op returns the command's stored name.
func (DeleteSchemaVersion) Op() string { return "schema.delete" }

// Op returns the command's stored name.
func (DeleteSubject) Op() string { return "subject.delete" }

// Op returns the command's stored name.
func (SetCompatibility) Op() string { return "schema.compatibility" }

// Op returns the command's stored name.
func (SetTopicSchema) Op() string { return "topic.schema" }

func (c *RegisterSchema) schema() *Schema {
	return &Schema{Type: c.Type, Definition: c.Definition, References: some(c.References), Fingerprint: c.Fingerprint}
}

func (c *RegisterSchema) version() *SubjectVersion {
	return &SubjectVersion{CreatedMs: c.TimeMs, CreatedBy: c.CreatedBy, Description: c.Description, Tags: some(c.Tags)}
}

// Validate refuses what could be no schema, whatever its definition means.
func (c RegisterSchema) Validate() error {
	return firstError(ValidateSubject(c.Subject), c.schema().check(), c.version().check())
}

// Validate refuses a subject or version that cannot be.
func (c DeleteSchemaVersion) Validate() error {
	if c.Version < 1 {
		return fault.New(fault.InvalidArgument, "version %d is not allowed: versions are 1 or above", c.Version).With("reason", "invalid_version")
	}
	return ValidateSubject(c.Subject)
}

// Validate refuses a subject that cannot be.
func (c DeleteSubject) Validate() error { return ValidateSubject(c.Subject) }

// Validate refuses a subject or mode that cannot be.
func (c SetCompatibility) Validate() error {
	if c.Subject == "" {
		return checkCompatibility(c.Mode)
	}
	return firstError(ValidateSubject(c.Subject), checkCompatibility(c.Mode))
}

// Validate refuses a topic, subject or policy that cannot be.
func (c SetTopicSchema) Validate() error {
	return firstError(checkTopic(c.Topic, c.ID), TopicSchema{c.Subject, c.Policy, c.ValidatePayload}.check())
}

func (c RegisterSchema) apply(_ *State, v *View, index uint64) (Result, *fault.Error) {
	found, ok := v.subjects.get(c.Subject)
	if !ok {
		found = &Subject{Name: c.Subject}
	}
	id, known := v.fingerprints.get(c.Fingerprint)
	schema, _ := v.schemas.get(id)
	if known && schema.Type != c.Type {
		return Result{}, fault.New(fault.InvalidArgument, "the fingerprint is that of schema %d, which has type %s", id, schema.Type).With("reason", "invalid_schema")
	}
	for i, there := range found.Versions {
		if known && there.SchemaID == id && !there.Deleted {
			return Result{Subject: found, Schema: schema, SchemaVersion: &found.Versions[i]}, nil
		}
	}
	if refused := found.decidedOn(c.Revision); refused != nil {
		return Result{}, refused
	}
	references := c.References
	if known {
		references = schema.References // fingerprints may leave out how things are named
	}
	if refused := found.mayGrow(v, references); refused != nil {
		return Result{}, refused
	}
	if !known {
		v.lastSchemaID++
		schema = c.schema()
		schema.ID = v.lastSchemaID
		v.addSchema(schema)
	}
	made := c.version()
	made.Version, made.SchemaID = found.LastVersion+1, schema.ID
	changed := *found
	changed.LastVersion = made.Version
	changed.Versions = append(slices.Clip(found.Versions), *made)
	v.schemaUses = v.schemaUses.set(useKey(schema.ID, c.Subject, made.Version), struct{}{})
	return Result{Subject: v.setSubject(changed, index), Schema: schema, SchemaVersion: made}, nil
}

// mayGrow says why a subject cannot have another version, or nil.
func (s *Subject) mayGrow(v *View, references []SchemaReference) *fault.Error {
	switch {
	case s.LastVersion == 0 && s.remembered() && v.subjects.len() >= MaxSubjects:
		return fault.New(fault.Exhausted, "there are, or were, %d subjects, the most there may be", MaxSubjects)
	case len(s.Versions) >= MaxSubjectVersions:
		return fault.New(fault.Exhausted, "subject %q has %d versions, the most there may be: delete some for good first", s.Name, MaxSubjectVersions)
	case s.LastVersion == 1<<31-1:
		return fault.New(fault.Exhausted, "subject %q used up all version numbers: choose another name", s.Name)
	}
	for _, r := range references {
		subject, ok := v.subjects.get(r.Subject)
		if !ok || subject.remembered() {
			return fault.New(fault.NotFound, "reference %q: %w", r.Name, noSubject(r.Subject)).With("reason", "subject_not_found").With("subject", r.Subject)
		}
		if there, ok := subject.Find(r.Version); !ok || there.Deleted {
			return fault.New(fault.NotFound, "reference %q: %w", r.Name, noVersion(r.Subject, r.Version)).With("reason", "version_not_found").With("subject", r.Subject)
		}
	}
	return nil
}

// decidedOn refuses what was decided on another state of the subject. One of which only the name is remembered does not
// exist for anybody, so that is decided on revision 0.
func (s *Subject) decidedOn(revision uint64) *fault.Error {
	now := s.Revision
	if s.remembered() {
		now = 0
	}
	if now != revision {
		return fault.New(fault.Conflict, "subject %q changed meanwhile (revision %d, now %d): read it again", s.Name, revision, now).With("revision", now)
	}
	return nil
}

// setSubject stores a subject as changed at index, or removes it where nothing must be remembered of it.
func (v *View) setSubject(s Subject, index uint64) *Subject {
	was := s.Deleted
	s.settle()
	if s.Deleted && !was {
		s.Compatibility = "" // it was for versions to come, and these begin anew
	}
	s.Versions, s.Revision = some(s.Versions), index
	if s.remembered() && s.LastVersion == 0 {
		v.subjects = v.subjects.remove(s.Name)
	} else {
		v.subjects = v.subjects.set(s.Name, &s)
	}
	return &s
}

// existing returns a subject that there is, where it is as it was decided on.
func (v *View) existing(name string, revision uint64) (*Subject, *fault.Error) {
	s, ok := v.subjects.get(name)
	if !ok || s.remembered() {
		return nil, noSubject(name)
	}
	return s, s.decidedOn(revision)
}

func (c DeleteSchemaVersion) apply(_ *State, v *View, index uint64) (Result, *fault.Error) {
	s, refused := v.existing(c.Subject, c.Revision)
	if refused != nil {
		return Result{}, refused
	}
	i, ok := s.find(c.Version)
	if !ok {
		return Result{}, noVersion(c.Subject, c.Version)
	}
	there := s.Versions[i]
	switch {
	case there.Deleted && !c.Permanent:
		return Result{}, fault.New(fault.NotFound, "version %d of subject %q is deleted already: it can be deleted for good", c.Version, c.Subject).With("reason", "version_deleted")
	case !there.Deleted && c.Permanent:
		return Result{}, fault.New(fault.Conflict, "version %d of subject %q is not deleted: delete it softly first", c.Version, c.Subject).With("reason", "version_not_deleted")
	}
	if refused := referenced(v, c.Subject, c.Version, c.Permanent, func(string) bool { return false }); refused != nil {
		return Result{}, refused
	}
	changed := *s
	changed.Versions = slices.Clone(s.Versions)
	if c.Permanent {
		changed.Versions = slices.Delete(changed.Versions, i, i+1)
		v.dropUse(there.SchemaID, c.Subject, c.Version)
	} else {
		changed.Versions[i].Deleted = true
	}
	return Result{Subject: v.setSubject(changed, index)}, nil
}

func (c DeleteSubject) apply(_ *State, v *View, index uint64) (Result, *fault.Error) {
	s, refused := v.existing(c.Subject, c.Revision)
	if refused != nil {
		return Result{}, refused
	}
	switch {
	case len(s.Versions) == 0:
		return Result{}, noSubject(c.Subject)
	case s.Deleted && !c.Permanent:
		return Result{}, fault.New(fault.NotFound, "subject %q is deleted already: it can be deleted for good", c.Subject).With("reason", "subject_deleted")
	case !s.Deleted && c.Permanent:
		return Result{}, fault.New(fault.Conflict, "subject %q is not deleted: delete it softly first", c.Subject).With("reason", "subject_not_deleted")
	}
	for _, there := range s.Versions {
		if there.Deleted && !c.Permanent {
			continue
		}
		own := func(subject string) bool { return subject == c.Subject } // those go as well
		if refused := referenced(v, c.Subject, there.Version, c.Permanent, own); refused != nil {
			return Result{}, refused
		}
	}
	changed := *s
	changed.Versions = slices.Clone(s.Versions)
	for i, there := range s.Versions {
		changed.Versions[i].Deleted = true
		if c.Permanent {
			v.dropUse(there.SchemaID, c.Subject, there.Version)
		}
	}
	if changed.Compatibility = ""; c.Permanent {
		changed.Versions = nil
	}
	v.setSubject(changed, index)
	return Result{Subject: s}, nil
}

// referenced refuses what would leave a reference without its target: a version goes softly only where no live version
// refers to it, and for good only where none does.
func referenced(v *View, subject string, version int32, permanent bool, but func(subject string) bool) *fault.Error {
	for id := range v.SchemaReferrers(subject, version) {
		for by, number := range v.SchemaUses(id) {
			user, _ := v.subjects.get(by)
			if there, _ := user.Find(number); but(by) || there.Deleted && !permanent {
				continue
			}
			return fault.New(fault.Conflict, "version %d of subject %q is referred to by version %d of subject %q: delete that first", version, subject, number, by).
				With("reason", "referenced").With("subject", by).With("version", fmt.Sprint(number)).With("schema_id", fmt.Sprint(id))
		}
	}
	return nil
}

func (c SetCompatibility) apply(_ *State, v *View, index uint64) (Result, *fault.Error) {
	if c.Subject == "" {
		v.compatibility = c.Mode
		return Result{}, nil
	}
	s, ok := v.subjects.get(c.Subject)
	switch {
	case c.Mode == "" && (!ok || s.remembered()):
		return Result{}, noSubject(c.Subject)
	case !ok && v.subjects.len() >= MaxSubjects:
		return Result{}, fault.New(fault.Exhausted, "there are, or were, %d subjects, the most there may be", MaxSubjects)
	case !ok:
		s = &Subject{Name: c.Subject}
	}
	changed := *s
	changed.Compatibility = c.Mode
	return Result{Subject: v.setSubject(changed, index)}, nil
}

func (c SetTopicSchema) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	t, refused := v.current(c.Topic, c.ID)
	if refused != nil {
		return Result{}, refused
	}
	key, set := string(c.ID[:]), TopicSchema{c.Subject, c.Policy, c.ValidatePayload}
	if set == (TopicSchema{Policy: PolicyNone}) {
		v.topicSchemas = v.topicSchemas.remove(key)
	} else {
		v.topicSchemas = v.topicSchemas.set(key, set)
	}
	return Result{Topic: t}, nil
}
