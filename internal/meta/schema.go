package meta

import (
	"encoding/binary"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/leveemq/levee/internal/fault"
)

// Bounds of schemas. As the bounds of settings they are part of what Apply does.
const (
	MaxSchemaBytes      = 1 << 20 // of one definition
	MaxSchemaReferences = 200     // of one schema
	MaxSubjects         = 100_000 // those of which only the name is remembered included
	MaxSubjectLength    = 512     // bytes
	MaxSubjectVersions  = 1000    // of one subject, soft-deleted ones included
	maxSchemaTags       = 100
	maxSchemaText       = 4096 // bytes of a description
)

// Policies of topics: what is done with a record that does not match the topic's schema.
const (
	PolicyNone    = "none"
	PolicyWarn    = "warn"
	PolicyEnforce = "enforce"
)

// Schema is a definition that was registered, under whatever subjects.
type Schema struct {
	ID          uint64            `json:"id"` // 1, 2, 3 …; never given to another
	Type        string            `json:"type"`
	Definition  string            `json:"definition"`
	References  []SchemaReference `json:"references,omitempty"`
	Fingerprint string            `json:"fingerprint"`
}

// SchemaReference is another schema that a definition uses, and the name it uses for it.
type SchemaReference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int32  `json:"version"`
}

// SubjectVersion is one version of a subject.
type SubjectVersion struct {
	Version     int32    `json:"version"` // 1, 2, 3 …; never given twice under one subject
	SchemaID    uint64   `json:"schema_id"`
	CreatedMs   int64    `json:"created_ms"` // since the epoch
	CreatedBy   string   `json:"created_by,omitempty"`
	Description string   `json:"description,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	Deleted     bool     `json:"deleted,omitempty"` // softly: it keeps its number and may still be read
}

// Subject is a name under which versions of a schema follow one another. It may have none yet, or none any more, where
// only its compatibility was set.
type Subject struct {
	Name          string           `json:"name"`
	Revision      uint64           `json:"revision"`                // index of its last change
	LastVersion   int32            `json:"last_version,omitempty"`  // the highest ever given out
	Versions      []SubjectVersion `json:"versions,omitempty"`      // ascending
	Compatibility string           `json:"compatibility,omitempty"` // empty: the global one counts
	Deleted       bool             `json:"-"`                       // it has versions, and all are soft-deleted
}

// TopicSchema is what a topic's records are held against.
type TopicSchema struct {
	Subject  string `json:"subject"`
	Policy   string `json:"policy"` // one of the Policy… words
	Validate bool   `json:"validate"`
}

// remembered reports whether nothing is left of the subject but the version numbers it gave out. Those must never come
// again, so its name stays; to everybody else it does not exist.
func (s *Subject) remembered() bool { return len(s.Versions) == 0 && s.Compatibility == "" }

// settle derives Deleted.
func (s *Subject) settle() {
	s.Deleted = len(s.Versions) > 0 && !slices.ContainsFunc(s.Versions, func(there SubjectVersion) bool { return !there.Deleted })
}

func (s *Subject) find(version int32) (int, bool) {
	return slices.BinarySearchFunc(s.Versions, version, func(v SubjectVersion, n int32) int { return int(v.Version) - int(n) })
}

// Find returns the version with that number, soft-deleted or not.
func (s *Subject) Find(version int32) (SubjectVersion, bool) {
	i, ok := s.find(version)
	if !ok {
		return SubjectVersion{}, false
	}
	return s.Versions[i], true
}

// Schema returns the schema with that id. Its error is not_found.
func (v *View) Schema(id uint64) (*Schema, error) {
	if s, ok := v.schemas.get(id); ok {
		return s, nil
	}
	return nil, fault.New(fault.NotFound, "there is no schema with id %d", id).With("reason", "schema_not_found")
}

// Subject returns a subject, also one that is soft-deleted. Its error is not_found.
func (v *View) Subject(name string) (*Subject, error) {
	if s, ok := v.subjects.get(name); ok && !s.remembered() {
		return s, nil
	}
	return nil, noSubject(name)
}

// Subjects visits all subjects, soft-deleted ones included, in the order of names.
func (v *View) Subjects() iter.Seq[*Subject] {
	return func(yield func(*Subject) bool) {
		for _, s := range v.subjects.all() {
			if !s.remembered() && !yield(s) {
				return
			}
		}
	}
}

// SchemaUses visits the subjects and versions that have the schema, soft-deleted ones included.
func (v *View) SchemaUses(id uint64) iter.Seq2[string, int32] {
	return func(yield func(string, int32) bool) {
		prefix := useKey(id, "", 0)[:8]
		for key := range v.schemaUses.from(prefix) {
			if !strings.HasPrefix(key, prefix) {
				return
			}
			end := len(key) - 5
			if !yield(key[8:end], int32(binary.BigEndian.Uint32([]byte(key[end+1:])))) {
				return
			}
		}
	}
}

// SchemaReferrers visits the ids of the schemas that refer to a version of a subject.
func (v *View) SchemaReferrers(subject string, version int32) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		prefix := referrerKey(subject, version, 0)
		prefix = prefix[:len(prefix)-8]
		for key := range v.referrers.from(prefix) {
			if !strings.HasPrefix(key, prefix) || !yield(binary.BigEndian.Uint64([]byte(key[len(prefix):]))) {
				return
			}
		}
	}
}

// Compatibility returns the global compatibility mode; empty where none was set.
func (v *View) Compatibility() string { return v.compatibility }

// TopicSchema returns what a topic's records are held against; false where nothing was set.
func (v *View) TopicSchema(id TopicID) (TopicSchema, bool) {
	return v.topicSchemas.get(string(id[:]))
}

// useKey is the id, the subject, a byte that is in no subject, and the version, numbers with their highest byte first.
func useKey(id uint64, subject string, version int32) string {
	b := binary.BigEndian.AppendUint64(nil, id)
	b = append(append(b, subject...), 0)
	return string(binary.BigEndian.AppendUint32(b, uint32(version)))
}

// referrerKey is the subject referred to, a byte that is in no subject, its version, and the id of the schema that does.
func referrerKey(subject string, version int32, id uint64) string {
	b := append([]byte(subject), 0)
	return string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, uint32(version)), id))
}

// addSchema makes a schema known. Its uses are noted with the versions that have it.
func (v *View) addSchema(s *Schema) {
	v.schemas = v.schemas.set(s.ID, s)
	v.fingerprints = v.fingerprints.set(s.Fingerprint, s.ID)
	for _, r := range s.References {
		v.referrers = v.referrers.set(referrerKey(r.Subject, r.Version, s.ID), struct{}{})
	}
}

// dropUse notes that a version is gone for good, and forgets its schema where no other has it.
func (v *View) dropUse(id uint64, subject string, version int32) {
	v.schemaUses = v.schemaUses.remove(useKey(id, subject, version))
	for range v.SchemaUses(id) {
		return
	}
	s, _ := v.schemas.get(id)
	v.schemas = v.schemas.remove(id)
	v.fingerprints = v.fingerprints.remove(s.Fingerprint)
	for _, r := range s.References {
		v.referrers = v.referrers.remove(referrerKey(r.Subject, r.Version, id))
	}
}

func noSubject(name string) *fault.Error {
	return fault.New(fault.NotFound, "there is no subject %q", name).With("reason", "subject_not_found").With("subject", name)
}

func noVersion(subject string, version int32) *fault.Error {
	return fault.New(fault.NotFound, "subject %q has no version %d", subject, version).With("reason", "version_not_found").With("subject", subject)
}

// ValidateSubject returns an invalid_argument error where s cannot be a subject's name.
func ValidateSubject(s string) error {
	if s == "" {
		return fault.New(fault.InvalidArgument, "the subject is empty: give it a name").With("reason", "invalid_subject")
	}
	if err := checkText("subject", s, MaxSubjectLength); err != nil {
		return fault.New(fault.InvalidArgument, "%w", err).With("reason", "invalid_subject")
	}
	return nil
}

// checkText refuses what is too long, what JSON could not hold as it is, and what would garble a line of output.
func checkText(what, s string, most int) error {
	switch {
	case len(s) > most:
		return fault.New(fault.InvalidArgument, "the %s has %d bytes: use up to %d", what, len(s), most).With("key", what)
	case !utf8.ValidString(s):
		return fault.New(fault.InvalidArgument, "the %s is not UTF-8", what).With("key", what)
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fault.New(fault.InvalidArgument, "the %s has control characters", what).With("key", what)
	}
	return nil
}

func checkCompatibility(mode string) error {
	switch mode {
	case "", "none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive":
		return nil
	}
	return badSetting("compatibility", mode, "none, backward, backward_transitive, forward, forward_transitive, full or full_transitive").With("reason", "invalid_compatibility")
}

func (s *Schema) check() error {
	switch s.Type {
	case "avro", "json_schema", "protobuf", "bytes", "string", "number":
	default:
		return badSetting("type", s.Type, "avro, json_schema, protobuf, bytes, string or number").With("reason", "invalid_schema")
	}
	switch {
	case len(s.Definition) > MaxSchemaBytes:
		return fault.New(fault.InvalidArgument, "the definition has %d bytes: use up to %d", len(s.Definition), MaxSchemaBytes).With("reason", "invalid_schema")
	case !utf8.ValidString(s.Definition):
		return fault.New(fault.InvalidArgument, "the definition is not UTF-8").With("reason", "invalid_schema")
	case len(s.References) > MaxSchemaReferences:
		return fault.New(fault.InvalidArgument, "%d references are too many: use up to %d", len(s.References), MaxSchemaReferences).With("reason", "invalid_schema")
	case s.Fingerprint == "":
		return fault.New(fault.InvalidArgument, "the fingerprint is empty")
	}
	for _, r := range s.References {
		if r.Version < 1 {
			return fault.New(fault.InvalidArgument, "reference %q: version %d is not allowed: versions are 1 or above", r.Name, r.Version).With("reason", "invalid_version")
		}
		if err := firstError(ValidateSubject(r.Subject), checkText("name of a reference", r.Name, maxSchemaText)); err != nil {
			return err
		}
	}
	return checkText("fingerprint", s.Fingerprint, MaxNameLength)
}

func (s *SubjectVersion) check() error {
	if len(s.Tags) > maxSchemaTags {
		return fault.New(fault.InvalidArgument, "%d tags are too many: use up to %d", len(s.Tags), maxSchemaTags).With("key", "tags")
	}
	for _, tag := range s.Tags {
		if err := checkText("tag", tag, MaxNameLength); err != nil {
			return err
		}
	}
	if len(s.Description) > maxSchemaText || !utf8.ValidString(s.Description) { // it may have lines
		return fault.New(fault.InvalidArgument, "the description has %d bytes: use up to %d, of UTF-8", len(s.Description), maxSchemaText).With("key", "description")
	}
	return firstError(checkText("created_by", s.CreatedBy, MaxNameLength), checkTime(s.CreatedMs))
}

func (s TopicSchema) check() error {
	switch s.Policy {
	case PolicyNone:
		if s == (TopicSchema{Policy: PolicyNone}) {
			return nil
		}
	case PolicyWarn, PolicyEnforce:
	default:
		return badSetting("policy", s.Policy, "none, warn or enforce")
	}
	return ValidateSubject(s.Subject)
}

// ChangedTopicSchemas visits the topics for which something else is set than in an older view, also those that are gone.
// It takes time for what changed, not for what there is. nil stands for the view in which there is nothing.
func (v *View) ChangedTopicSchemas(since *View) iter.Seq[TopicID] {
	if since == nil {
		since = &View{}
	}
	return func(yield func(TopicID) bool) {
		for key := range v.topicSchemas.changes(since.topicSchemas, func(a, b TopicSchema) bool { return a == b }) {
			if !yield(TopicID([]byte(key))) {
				return
			}
		}
	}
}
