package registry

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

// listTypes lists the types that clients of Confluent's registry know. There are three more: STRING, NUMBER and BYTES.
func (h *handler) listTypes(_ *broker.Schemas, w http.ResponseWriter, _ *http.Request) error {
	return ok(w, []string{"JSON", "PROTOBUF", "AVRO"})
}

// maxListed bounds the bytes of definitions that one list answers with; limit and offset ask for parts.
const maxListed = 64 << 20

func (h *handler) listSchemas(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	shown, err := show(r)
	if err != nil {
		return err
	}
	latest, err := flag(r, "latestOnly")
	if err != nil {
		return err
	}
	prefix, err := subjectPrefix(r)
	if err != nil {
		return err
	}
	list := []broker.SchemaVersion{}
	err = s.Schemas(shown, func(v broker.SchemaVersion) bool {
		if !strings.HasPrefix(v.Subject, prefix) {
			return true
		}
		if last := len(list) - 1; latest && last >= 0 && list[last].Subject == v.Subject {
			list[last] = v
			return true
		}
		list = append(list, v)
		return true
	})
	if err != nil {
		return err
	}
	if list, err = page(r, list); err != nil {
		return err
	}
	size := 0
	out := make([]versionJSON, 0, len(list))
	for _, v := range list {
		if size += len(v.Definition); size > maxListed {
			return fault.New(fault.TooLarge, "the schemas have more than %d bytes together: ask for a part with limit and offset", maxListed).With("limit", maxListed)
		}
		out = append(out, toVersionJSON(v))
	}
	return ok(w, out)
}

func schemaID(r *http.Request) (uint64, error) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		return 0, fault.New(fault.NotFound, "there is no schema with id %q: ids are numbers", r.PathValue("id")).With("reason", "schema_not_found")
	}
	return id, nil
}

// schema finds the schema a path names.
func schema(s *broker.Schemas, r *http.Request) (broker.Schema, error) {
	id, err := schemaID(r)
	if err != nil {
		return broker.Schema{}, err
	}
	return s.Schema(id)
}

func (h *handler) getSchema(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	found, err := schema(s, r)
	if err != nil {
		return err
	}
	if err := format(s, r, &found); err != nil {
		return err
	}
	return ok(w, toSchemaJSON(found))
}

func (h *handler) getSchemaText(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	found, err := schema(s, r)
	if err != nil {
		return err
	}
	return text(w, found.Definition)
}

// uses lists the versions that have the schema a path names; ?subject= keeps those of one.
func uses(s *broker.Schemas, r *http.Request) ([]broker.SchemaVersion, error) {
	id, err := schemaID(r)
	if err != nil {
		return nil, err
	}
	shown, err := show(r)
	if err != nil {
		return nil, err
	}
	only, err := unqualified(r.URL.Query().Get("subject"))
	if err != nil {
		return nil, err
	}
	list, err := s.Uses(id, shown)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(v broker.SchemaVersion) bool { return only != "" && v.Subject != only }), nil
}

func (h *handler) listSchemaSubjects(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	list, err := uses(s, r)
	if err != nil {
		return err
	}
	names := []string{}
	for _, v := range list {
		if !slices.Contains(names, v.Subject) {
			names = append(names, v.Subject)
		}
	}
	return ok(w, names)
}

func (h *handler) listSchemaVersions(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	type use struct {
		Subject string `json:"subject"`
		Version int32  `json:"version"`
	}
	list, err := uses(s, r)
	if err != nil {
		return err
	}
	versions := []use{}
	for _, v := range list {
		versions = append(versions, use{v.Subject, v.Version})
	}
	return ok(w, versions)
}

// check answers whether a schema may follow a version, or those that the subject's mode names.
func (h *handler) check(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	subject, err := subjectOf(r)
	if err != nil {
		return err
	}
	var against broker.SchemaAgainst
	if r.PathValue("version") != "" {
		if against.Version, err = versionOf(r); err != nil {
			return err
		}
	}
	verbose, err := flag(r, "verbose")
	if err != nil {
		return err
	}
	spec, err := h.spec(w, r)
	if err != nil {
		return err
	}
	problems, err := s.Check(r.Context(), subject, spec, against)
	if err != nil {
		return err
	}
	out := map[string]any{"is_compatible": len(problems) == 0}
	if verbose {
		out["messages"] = append([]string{}, problems...)
	}
	return ok(w, out)
}
