package registry

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

type referenceJSON struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int32  `json:"version"`
}

// schemaJSON is a schema as a client sends it. The fields behind References belong to features that are not here.
type schemaJSON struct {
	Schema     string          `json:"schema"`
	SchemaType string          `json:"schemaType"`
	References []referenceJSON `json:"references"`

	ID       *int64          `json:"id"`
	Version  *int64          `json:"version"`
	Metadata json.RawMessage `json:"metadata"`
	RuleSet  json.RawMessage `json:"ruleSet"`
}

// versionJSON is a version as clients get it. The type is left out where it is Avro: old clients know no other.
type versionJSON struct {
	Subject    string          `json:"subject,omitempty"`
	ID         uint64          `json:"id,omitempty"`
	Version    int32           `json:"version,omitempty"`
	SchemaType string          `json:"schemaType,omitempty"`
	References []referenceJSON `json:"references,omitempty"`
	Schema     string          `json:"schema"`
	Deleted    bool            `json:"deleted,omitempty"`
}

func toVersionJSON(v broker.SchemaVersion) versionJSON {
	out := toSchemaJSON(v.Schema)
	out.Subject, out.ID, out.Version, out.Deleted = v.Subject, v.ID, v.Version, v.Deleted
	return out
}

func toSchemaJSON(s broker.Schema) versionJSON {
	out := versionJSON{Schema: s.Definition, SchemaType: wireType(s.Type)}
	for _, r := range s.References {
		out.References = append(out.References, referenceJSON(r))
	}
	return out
}

// wireType spells a type the way Confluent does.
func wireType(t string) string {
	switch t {
	case "avro":
		return ""
	case "json_schema":
		return "JSON"
	}
	return strings.ToUpper(t)
}

// given reports whether an optional field has something in it.
func given(raw json.RawMessage) bool {
	text := strings.TrimSpace(string(raw))
	return text != "" && text != "null" && text != "{}"
}

// spec reads the schema in a request's body.
func (h *handler) spec(w http.ResponseWriter, r *http.Request) (broker.SchemaSpec, error) {
	var in schemaJSON
	if err := h.read(w, r, &in); err != nil {
		return broker.SchemaSpec{}, err
	}
	refuse := func(what string) error {
		return fault.New(fault.Unsupported, "%s: leave it out", what).With("reason", "not_permitted")
	}
	switch {
	case in.ID != nil && *in.ID > 0 || in.Version != nil && *in.Version > 0:
		return broker.SchemaSpec{}, refuse("id and version are given by this registry, which has no import mode")
	case given(in.Metadata):
		return broker.SchemaSpec{}, refuse("metadata of schemas is not kept here")
	case given(in.RuleSet):
		return broker.SchemaSpec{}, refuse("rules of schemas are not carried out here")
	}
	normalize, err := flag(r, "normalize")
	if err != nil {
		return broker.SchemaSpec{}, err
	}
	out := broker.SchemaSpec{Type: in.SchemaType, Definition: in.Schema, Normalize: normalize}
	for _, ref := range in.References {
		if ref.Subject, err = unqualified(ref.Subject); err != nil {
			return broker.SchemaSpec{}, err
		}
		out.References = append(out.References, broker.SchemaReference(ref))
	}
	return out, nil
}

func (h *handler) listSubjects(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	shown, err := show(r)
	if err != nil {
		return err
	}
	prefix, err := subjectPrefix(r)
	if err != nil {
		return err
	}
	names := []string{}
	for _, subject := range s.Subjects(shown) {
		if strings.HasPrefix(subject.Name, prefix) {
			names = append(names, subject.Name)
		}
	}
	if names, err = page(r, names); err != nil {
		return err
	}
	return ok(w, names)
}

// subjectPrefix reads the filter of lists. :*: stands for all contexts.
func subjectPrefix(r *http.Request) (string, error) {
	prefix := r.URL.Query().Get("subjectPrefix")
	if rest, all := strings.CutPrefix(prefix, ":*:"); all {
		return rest, nil
	}
	return unqualified(prefix)
}

func (h *handler) listVersions(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	subject, err := subjectOf(r)
	if err != nil {
		return err
	}
	shown, err := show(r)
	if err != nil {
		return err
	}
	versions, err := s.Versions(subject, shown)
	if err != nil {
		return err
	}
	numbers := []int32{}
	for _, v := range versions {
		numbers = append(numbers, v.Version)
	}
	if numbers, err = page(r, numbers); err != nil {
		return err
	}
	return ok(w, numbers)
}

func (h *handler) register(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	subject, err := subjectOf(r)
	if err != nil {
		return err
	}
	spec, err := h.spec(w, r)
	if err != nil {
		return err
	}
	v, _, err := s.Register(r.Context(), subject, spec)
	if err != nil {
		return err
	}
	return ok(w, map[string]any{"id": v.ID, "version": v.Version})
}

func (h *handler) lookup(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	subject, err := subjectOf(r)
	if err != nil {
		return err
	}
	shown, err := show(r)
	if err != nil {
		return err
	}
	spec, err := h.spec(w, r)
	if err != nil {
		return err
	}
	v, err := s.Lookup(r.Context(), subject, spec, shown)
	if err != nil {
		return err
	}
	return ok(w, toVersionJSON(v))
}

// version finds the version a path names.
func version(s *broker.Schemas, r *http.Request) (broker.SchemaVersion, error) {
	subject, err := subjectOf(r)
	if err != nil {
		return broker.SchemaVersion{}, err
	}
	number, err := versionOf(r)
	if err != nil {
		return broker.SchemaVersion{}, err
	}
	shown, err := show(r)
	if err != nil {
		return broker.SchemaVersion{}, err
	}
	return s.Version(subject, number, shown)
}

func (h *handler) getVersion(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	v, err := version(s, r)
	if err != nil {
		return err
	}
	if err := format(s, r, &v.Schema); err != nil {
		return err
	}
	return ok(w, toVersionJSON(v))
}

// format gives a definition the form that a request asks for. It is the one that was sent, unless the descriptor of a
// Protobuf schema is wanted, which is how serializers that read no .proto text ask for it.
func format(s *broker.Schemas, r *http.Request, found *broker.Schema) error {
	if r.URL.Query().Get("format") != "serialized" {
		return nil
	}
	definition, err := s.Serialized(r.Context(), *found)
	if err != nil {
		return err
	}
	found.Definition = definition
	return nil
}

func (h *handler) getVersionText(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	v, err := version(s, r)
	if err != nil {
		return err
	}
	return text(w, v.Definition)
}

// text answers with a definition as it is.
func text(w http.ResponseWriter, definition string) error {
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write([]byte(definition))
	return nil
}

func (h *handler) referencedBy(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	if !strings.EqualFold(r.PathValue("refs"), "referencedby") { // Confluent's own documents spell it both ways
		return fault.New(fault.NotFound, "there is nothing at %s", r.URL.Path)
	}
	subject, err := subjectOf(r)
	if err != nil {
		return err
	}
	number, err := versionOf(r)
	if err != nil {
		return err
	}
	ids, err := s.ReferencedBy(subject, number)
	if err != nil {
		return err
	}
	return ok(w, ids)
}

func (h *handler) deleteVersion(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	subject, err := subjectOf(r)
	if err != nil {
		return err
	}
	number, err := versionOf(r)
	if err != nil {
		return err
	}
	permanent, err := flag(r, "permanent")
	if err != nil {
		return err
	}
	if number, err = s.DeleteVersion(r.Context(), subject, number, permanent); err != nil {
		return err
	}
	return ok(w, number)
}

func (h *handler) deleteSubject(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error {
	subject, err := subjectOf(r)
	if err != nil {
		return err
	}
	permanent, err := flag(r, "permanent")
	if err != nil {
		return err
	}
	numbers, err := s.DeleteSubject(r.Context(), subject, permanent)
	if err != nil {
		return err
	}
	return ok(w, numbers)
}
