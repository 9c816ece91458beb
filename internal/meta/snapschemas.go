package meta

import (
	"fmt"
	"slices"
)

// The lines of a snapshot that are about schemas; see snapshotVersion.

type snapshotTopicSchema struct {
	ID TopicID `json:"id"` // of the topic
	TopicSchema
}

func (w *snapshotWriter) writeSchemas(v *View) {
	for key, s := range v.topicSchemas.all() {
		w.write(snapshotLine{TopicSchema: &snapshotTopicSchema{TopicID([]byte(key)), s}})
	}
	for _, s := range v.schemas.all() {
		w.write(snapshotLine{Schema: s})
	}
	for _, s := range v.subjects.all() {
		w.write(snapshotLine{Subject: s})
	}
}

func (r *snapshotReader) takeTopicSchema(s *snapshotTopicSchema) error {
	if err := firstError(r.order(8, s.ID.String()), s.check()); err != nil {
		return err
	}
	if _, ok := r.v.TopicByID(s.ID); !ok || s.TopicSchema == (TopicSchema{Policy: PolicyNone}) {
		return fmt.Errorf("the schema of topic id %s has no topic, or says nothing", s.ID)
	}
	r.v.topicSchemas = r.v.topicSchemas.set(string(s.ID[:]), s.TopicSchema)
	return nil
}

func (r *snapshotReader) takeSchema(s *Schema) error {
	if err := firstError(r.order(9, fmt.Sprintf("%020d", s.ID)), s.check()); err != nil {
		return err
	}
	if s.ID == 0 || s.ID > r.v.lastSchemaID {
		return fmt.Errorf("schema %d is out of range", s.ID)
	}
	if id, twice := r.v.fingerprints.get(s.Fingerprint); twice {
		return fmt.Errorf("schema %d has the fingerprint of schema %d", s.ID, id)
	}
	s.References = some(s.References)
	r.v.addSchema(s)
	return nil
}

func (r *snapshotReader) takeSubject(s *Subject) error {
	if err := firstError(r.order(10, s.Name), ValidateSubject(s.Name), checkCompatibility(s.Compatibility)); err != nil {
		return err
	}
	if s.Revision == 0 || s.Revision > r.v.index || s.LastVersion < 0 || s.LastVersion == 0 && s.remembered() {
		return fmt.Errorf("subject %q is out of range", s.Name)
	}
	last := int32(0)
	for i := range s.Versions {
		there := &s.Versions[i]
		if err := there.check(); err != nil {
			return err
		}
		if _, ok := r.v.schemas.get(there.SchemaID); !ok || there.Version <= last || there.Version > s.LastVersion {
			return fmt.Errorf("version %d of subject %q is out of range", there.Version, s.Name)
		}
		last, there.Tags = there.Version, some(there.Tags)
		r.v.schemaUses = r.v.schemaUses.set(useKey(there.SchemaID, s.Name, there.Version), struct{}{})
	}
	s.Versions = slices.Clip(some(s.Versions))
	s.settle()
	r.v.subjects = r.v.subjects.set(s.Name, s)
	return nil
}

// checkSchemas refuses a state with a schema that no version has, or with a reference to a version that is not there.
func (r *snapshotReader) checkSchemas() error {
	v := r.v
	for id, s := range v.schemas.all() {
		used := false
		for range v.SchemaUses(id) {
			used = true
			break
		}
		if !used {
			return fmt.Errorf("schema %d is of no subject", id)
		}
		for _, r := range s.References {
			subject, ok := v.subjects.get(r.Subject)
			if ok {
				_, ok = subject.Find(r.Version)
			}
			if !ok {
				return fmt.Errorf("schema %d refers to version %d of subject %q, which does not exist", id, r.Version, r.Subject)
			}
		}
	}
	return nil
}
