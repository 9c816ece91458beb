package meta

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
)

func TestLimitsOfSchemas(t *testing.T) {
	good := func(change func(*RegisterSchema)) Command {
		c := RegisterSchema{Subject: "s", Type: "avro", Definition: "1", Fingerprint: "f"}
		change(&c)
		return c
	}
	for name, c := range map[string]Command{
		"definition":            good(func(c *RegisterSchema) { c.Definition = strings.Repeat("x", MaxSchemaBytes+1) }),
		"definition, no UTF-8":  good(func(c *RegisterSchema) { c.Definition = "\xff" }),
		"subject":               good(func(c *RegisterSchema) { c.Subject = strings.Repeat("x", MaxSubjectLength+1) }),
		"subject, no UTF-8":     good(func(c *RegisterSchema) { c.Subject = "\xff" }),
		"references":            good(func(c *RegisterSchema) { c.References = make([]SchemaReference, MaxSchemaReferences+1) }),
		"tags":                  good(func(c *RegisterSchema) { c.Tags = make([]string, maxSchemaTags+1) }),
		"description":           good(func(c *RegisterSchema) { c.Description = strings.Repeat("x", maxSchemaText+1) }),
		"description, no UTF-8": good(func(c *RegisterSchema) { c.Description = "\xff" }),
		"fingerprint":           good(func(c *RegisterSchema) { c.Fingerprint = strings.Repeat("x", MaxNameLength+1) }),
		"subject deleted":       DeleteSubject{},
	} {
		if err := c.Validate(); fault.KindOf(err) != fault.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := good(func(c *RegisterSchema) { c.Definition = strings.Repeat("x", MaxSchemaBytes) }).Validate(); err != nil {
		t.Error(err)
	}
}

// apply applies commands one after the other and returns the last result.
func apply(t *testing.T, s *State, commands ...Command) Result {
	t.Helper()
	var r Result
	for _, c := range commands {
		var err error
		if r, err = s.Apply(s.View().Index()+1, c); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestVersionsOfASubjectAreBounded(t *testing.T) {
	s, revision := NewState(), uint64(0)
	register := func(i int) Result {
		r := apply(t, s, RegisterSchema{Subject: "s", Type: "string", Definition: fmt.Sprint(i), Fingerprint: fmt.Sprint("f", i), Revision: revision})
		revision = max(revision, s.mustSubject(t, "s").Revision)
		return r
	}
	for i := range MaxSubjectVersions {
		if r := register(i); r.Refused != nil {
			t.Fatal(r.Refused)
		}
	}
	if r := register(MaxSubjectVersions); r.Refused == nil || r.Refused.Kind != fault.Exhausted {
		t.Errorf("%v", r.Refused)
	}
	apply(t, s, DeleteSchemaVersion{Subject: "s", Version: 7, Revision: revision})
	apply(t, s, DeleteSchemaVersion{Subject: "s", Version: 7, Permanent: true, Revision: s.mustSubject(t, "s").Revision})
	revision = s.mustSubject(t, "s").Revision
	if r := register(MaxSubjectVersions); r.Refused != nil || r.SchemaVersion.Version != MaxSubjectVersions+1 || r.Schema.ID != MaxSubjectVersions+1 {
		t.Errorf("%v %+v", r.Refused, r.SchemaVersion)
	}
}

func (s *State) mustSubject(t *testing.T, name string) *Subject {
	t.Helper()
	subject, err := s.View().Subject(name)
	if err != nil {
		t.Fatal(err)
	}
	return subject
}

// TestRefusalsOfSchemasSayWhy: listeners tell their clients by the detail "reason".
func TestRefusalsOfSchemasSayWhy(t *testing.T) {
	s := NewState()
	apply(t, s,
		RegisterSchema{Subject: "a", Type: "avro", Definition: "1", Fingerprint: "f1"},
		RegisterSchema{Subject: "b", Type: "avro", Definition: "2", Fingerprint: "f2", References: []SchemaReference{{"n", "a", 1}}},
		RegisterSchema{Subject: "a", Type: "avro", Definition: "3", Fingerprint: "f3", Revision: 1},
		DeleteSchemaVersion{Subject: "a", Version: 2, Revision: 3},
		RegisterSchema{Subject: "gone", Type: "avro", Definition: "3", Fingerprint: "f3"},
		DeleteSubject{Subject: "gone", Revision: 5})
	for reason, c := range map[string]Command{
		"subject_not_found":     DeleteSubject{Subject: "c"},
		"version_not_found":     DeleteSchemaVersion{Subject: "a", Version: 9, Revision: 4},
		"version_deleted":       DeleteSchemaVersion{Subject: "a", Version: 2, Revision: 4},
		"version_not_deleted":   DeleteSchemaVersion{Subject: "a", Version: 1, Permanent: true, Revision: 4},
		"subject_deleted":       DeleteSubject{Subject: "gone", Revision: 6},
		"subject_not_deleted":   DeleteSubject{Subject: "a", Permanent: true, Revision: 4},
		"referenced":            DeleteSchemaVersion{Subject: "a", Version: 1, Revision: 4},
		"invalid_subject":       DeleteSubject{},
		"invalid_version":       DeleteSchemaVersion{Subject: "a"},
		"invalid_compatibility": SetCompatibility{Mode: "x"},
		"invalid_schema":        RegisterSchema{Subject: "a", Type: "x"},
	} {
		r := apply(t, s, c)
		if r.Refused == nil || fault.DetailsOf(r.Refused)["reason"] != reason {
			t.Errorf("%s: %v", reason, r.Refused)
		}
	}
	r := apply(t, s, DeleteSubject{Subject: "a", Revision: 4})
	if d := fault.DetailsOf(r.Refused); d["reason"] != "referenced" || d["subject"] != "b" || d["version"] != "1" || d["schema_id"] != "2" {
		t.Errorf("%v", d)
	}
	reference := []SchemaReference{{"n", "a", 2}}
	if r := apply(t, s, RegisterSchema{Subject: "d", Type: "avro", Fingerprint: "f4", References: reference}); fault.DetailsOf(r.Refused)["reason"] != "version_not_found" {
		t.Errorf("%v", r.Refused)
	}
	if _, err := s.View().Schema(9); fault.DetailsOf(err)["reason"] != "schema_not_found" {
		t.Error(err)
	}
	if ids := slices.Collect(s.View().SchemaReferrers("a", 1)); !slices.Equal(ids, []uint64{2}) {
		t.Error(ids)
	}
}

func TestChangedTopicSchemas(t *testing.T) {
	s := NewState()
	changed := func(since *View) (ids []TopicID) {
		for id := range s.View().ChangedTopicSchemas(since) {
			ids = append(ids, id)
		}
		return ids
	}
	a, b := Name{DefaultNamespace, "a"}, Name{DefaultNamespace, "b"}
	apply(t, s,
		CreateTopic{Name: a, ID: TopicID{1}, Partitions: 1, Dispatch: Reliable}, CreateTopic{Name: b, ID: TopicID{2}, Partitions: 1, Dispatch: Reliable},
		SetTopicSchema{Topic: a, ID: TopicID{1}, Subject: "s", Policy: PolicyWarn}, SetTopicSchema{Topic: b, ID: TopicID{2}, Subject: "s", Policy: PolicyWarn})
	first := s.View()
	if ids := changed(nil); !slices.Equal(ids, []TopicID{{1}, {2}}) {
		t.Errorf("since the beginning: %v", ids)
	}
	apply(t, s, SetTopicSchema{Topic: a, ID: TopicID{1}, Subject: "s", Policy: PolicyWarn})
	if ids := changed(first); ids != nil {
		t.Errorf("the same again: %v", ids)
	}
	apply(t, s, SetTopicSchema{Topic: b, ID: TopicID{2}, Subject: "s", Policy: PolicyEnforce}, DeleteTopic{Name: a, ID: TopicID{1}})
	if ids := changed(first); !slices.Equal(ids, []TopicID{{1}, {2}}) {
		t.Errorf("changed and gone: %v", ids)
	}
}
