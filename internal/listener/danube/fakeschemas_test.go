package danube

import (
	"context"
	"fmt"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

// fakeSchemas is a registry in memory. Definitions that are empty are invalid; those that begin with "no" are compatible
// with nothing.
type fakeSchemas struct {
	subjects map[string][]schemaVersion
	modes    map[string]string
	follows  map[string]topicSchema
	ids      uint64
}

func (f *fakeSchemas) RegisterSchema(_ context.Context, subject string, s schemaSpec) (schemaVersion, bool, error) {
	for _, v := range f.subjects[subject] {
		if v.Definition == s.Definition {
			return v, false, nil
		}
	}
	if s.Definition == "" {
		return schemaVersion{}, false, fault.New(fault.InvalidArgument, "it is empty").With("reason", "invalid_schema")
	}
	f.ids++
	v := schemaVersion{
		Schema:  broker.Schema{ID: f.ids, Type: s.Type, Definition: s.Definition, Fingerprint: fmt.Sprint("sha256:", f.ids)},
		Subject: subject,
		Version: int32(len(f.subjects[subject]) + 1), CreatedMs: 1_500, CreatedBy: s.CreatedBy, Description: s.Description, Tags: s.Tags,
	}
	f.subjects[subject] = append(f.subjects[subject], v)
	return v, true, nil
}

func (f *fakeSchemas) SchemaUses(id uint64) (list []schemaVersion, err error) {
	for _, versions := range f.subjects {
		for _, v := range versions {
			if v.ID == id {
				list = append(list, v)
			}
		}
	}
	return list, nil
}

func (f *fakeSchemas) SchemaVersion(subject string, version int32) (schemaVersion, error) {
	list := f.subjects[subject]
	if version == latestSchema {
		version = int32(len(list))
	}
	if version < 1 || int(version) > len(list) {
		return schemaVersion{}, fault.New(fault.NotFound, "subject %s has no version %d", subject, version)
	}
	return list[version-1], nil
}

func (f *fakeSchemas) SchemaVersions(subject string) ([]schemaVersion, error) {
	if len(f.subjects[subject]) == 0 {
		return nil, fault.New(fault.NotFound, "no subject %s", subject)
	}
	return f.subjects[subject], nil
}

func (f *fakeSchemas) Subjects() (list []schemaSubject) {
	for name, versions := range f.subjects {
		list = append(list, schemaSubject{Name: name, Compatibility: "backward", Latest: versions[len(versions)-1]})
	}
	return list
}

func (f *fakeSchemas) CheckSchema(_ context.Context, _ string, s schemaSpec, mode string) ([]string, error) {
	if mode == "BACKWARD" && s.Definition == "no" {
		return []string{"a field is missing"}, nil
	}
	return nil, nil
}

func (f *fakeSchemas) SchemaCompatibility(subject string) (string, error) {
	if m := f.modes[subject]; m != "" {
		return m, nil
	}
	return "backward", nil
}

func (f *fakeSchemas) SetSchemaCompatibility(_ context.Context, subject, mode string) error {
	f.modes[subject] = mode
	return nil
}

func (f *fakeSchemas) DeleteSchemaVersion(_ context.Context, subject string, version int32) error {
	if _, err := f.SchemaVersion(subject, version); err != nil {
		return err
	}
	f.subjects[subject] = f.subjects[subject][:version-1]
	return nil
}

func (f *fakeSchemas) TopicSchema(topic string) (topicSchema, error) { return f.follows[topic], nil }

func (f *fakeSchemas) SetTopicSchema(_ context.Context, topic string, t topicSchema) error {
	f.follows[topic] = t
	return nil
}
