// Package registry serves the schema registry over HTTP the way Confluent's does: the same paths, bodies and error codes,
// so that the serializers and tools made for that one work with this one. It turns requests into calls of the broker's
// registry and decides nothing about schemas. Invariant: a request holds a bounded amount of memory, and every failure
// is answered with {"error_code", "message"}.
package registry

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
)

// Paths are the prefixes of everything this serves.
func Paths() []string {
	return []string{"/subjects", "/schemas", "/config", "/compatibility", "/mode", "/contexts"}
}

const (
	contentType = "application/vnd.schemaregistry.v1+json"
	maxBody     = 4 * broker.MaxSchemaBytes // a definition grows when it is escaped as a JSON string
	maxBodies   = 32                        // read at once
)

// handler answers what is below Paths.
type handler struct {
	schemas func() *broker.Schemas
	bodies  chan struct{}
	mux     *http.ServeMux
}

// handlerFunc answers a request, or returns why not; then nothing was written yet.
type handlerFunc func(s *broker.Schemas, w http.ResponseWriter, r *http.Request) error

// New returns a handler. schemas returns the registry, or nil while there is none yet; it is called with every request.
// Parameters that a path does not know are ignored: clients of Confluent's registry send some of which the default is
// what happens here.
func New(schemas func() *broker.Schemas) http.Handler {
	h := &handler{schemas: schemas, bodies: make(chan struct{}, maxBodies), mux: http.NewServeMux()}
	for pattern, serve := range map[string]handlerFunc{
		"GET /subjects":                                             h.listSubjects,
		"GET /subjects/{subject}/versions":                          h.listVersions,
		"POST /subjects/{subject}/versions":                         h.register,
		"POST /subjects/{subject}":                                  h.lookup,
		"DELETE /subjects/{subject}":                                h.deleteSubject,
		"GET /subjects/{subject}/versions/{version}":                h.getVersion,
		"DELETE /subjects/{subject}/versions/{version}":             h.deleteVersion,
		"GET /subjects/{subject}/versions/{version}/schema":         h.getVersionText,
		"GET /subjects/{subject}/versions/{version}/{refs}":         h.referencedBy,
		"GET /schemas":                                              h.listSchemas,
		"GET /schemas/types":                                        h.listTypes,
		"GET /schemas/ids/{id}":                                     h.getSchema,
		"GET /schemas/ids/{id}/schema":                              h.getSchemaText,
		"GET /schemas/ids/{id}/subjects":                            h.listSchemaSubjects,
		"GET /schemas/ids/{id}/versions":                            h.listSchemaVersions,
		"POST /compatibility/subjects/{subject}/versions":           h.check,
		"POST /compatibility/subjects/{subject}/versions/{version}": h.check,
		"GET /config":                                               h.getConfig,
		"PUT /config":                                               h.putConfig,
		"DELETE /config":                                            h.deleteConfig,
		"GET /config/{subject}":                                     h.getConfig,
		"PUT /config/{subject}":                                     h.putConfig,
		"DELETE /config/{subject}":                                  h.deleteConfig,
		"GET /mode":                                                 h.getMode,
		"PUT /mode":                                                 h.putMode,
		"GET /mode/{subject}":                                       h.getMode,
		"PUT /mode/{subject}":                                       h.putMode,
		"DELETE /mode/{subject}":                                    h.getMode,
		"GET /contexts":                                             h.listContexts,
	} {
		h.mux.HandleFunc(pattern, h.wrap(serve))
	}
	return h
}

// ServeHTTP gives the mux's own refusals the shape of all others.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rest, below := strings.CutPrefix(r.URL.EscapedPath(), "/contexts/"); below {
		h.context(w, r, rest)
		return
	}
	if len(r.URL.Path) > 1 && strings.HasSuffix(r.URL.Path, "/") { // some clients end their paths in one
		trimmed := *r.URL
		trimmed.Path, trimmed.RawPath = strings.TrimRight(r.URL.Path, "/"), strings.TrimRight(r.URL.RawPath, "/")
		short := *r
		short.URL = &trimmed
		r = &short
	}
	if _, pattern := h.mux.Handler(r); pattern != "" {
		h.mux.ServeHTTP(w, r)
		return
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		other := *r
		other.Method = method
		if _, pattern := h.mux.Handler(&other); pattern != "" {
			answerError(w, http.StatusMethodNotAllowed, http.StatusMethodNotAllowed, r.Method+" is not what this takes")
			return
		}
	}
	answerError(w, http.StatusNotFound, http.StatusNotFound, "there is nothing at "+r.URL.Path)
}

func (h *handler) wrap(serve handlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s := h.schemas()
		err := error(fault.New(fault.Unavailable, "the broker is starting: try again"))
		if s != nil {
			err = serve(s, w, r)
		}
		if err != nil {
			status, code := codes(err)
			answerError(w, status, code, err.Error())
		}
	}
}

// reasons maps what the registry says to Confluent's status and error code.
var reasons = map[string]struct{ status, code int }{
	"subject_not_found":     {404, 40401},
	"version_not_found":     {404, 40402},
	"schema_not_found":      {404, 40403},
	"subject_deleted":       {404, 40404},
	"subject_not_deleted":   {404, 40405},
	"version_deleted":       {404, 40406},
	"version_not_deleted":   {404, 40407},
	"compatibility_not_set": {404, 40408},
	"incompatible":          {409, 409},
	"invalid_schema":        {422, 42201},
	"invalid_version":       {422, 42202},
	"invalid_compatibility": {422, 42203},
	"invalid_mode":          {422, 42204},
	"not_permitted":         {422, 42205},
	"referenced":            {422, 42206},
	"invalid_subject":       {422, 42208},
}

func codes(err error) (status, code int) {
	if c, ok := reasons[fault.DetailsOf(err)["reason"]]; ok {
		return c.status, c.code
	}
	kind := fault.KindOf(err)
	status = kind.Row().HTTP
	switch kind {
	case fault.Internal, fault.IO, fault.Stopped, fault.OutcomeUnknown, fault.NoSpace:
		return status, 50001 // the backend failed
	case fault.Timeout:
		return status, 50002
	}
	return status, status
}

func answerError(w http.ResponseWriter, status, code int, message string) {
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, status, map[string]any{"error_code": code, "message": message})
}

// answer writes JSON. A write that fails has no one left to be told.
func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

func ok(w http.ResponseWriter, v any) error {
	answer(w, http.StatusOK, v)
	return nil
}

// read decodes a body. Fields it does not know are ignored, as parameters are.
func (h *handler) read(w http.ResponseWriter, r *http.Request, into any) error {
	select {
	case h.bodies <- struct{}{}:
		defer func() { <-h.bodies }()
	default:
		return fault.New(fault.Exhausted, "too many schemas are being sent at once: try again").With("limit", maxBodies)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return fault.New(fault.TooLarge, "the body has more than %d bytes", maxBody).With("limit", maxBody)
	case err != nil:
		return fault.New(fault.Canceled, "read request body: %w", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fault.New(fault.InvalidArgument, "read JSON body: %w", err)
	}
	return nil
}

// contextPrefix begins subjects that name a context, which Confluent writes as :.context:subject.
const contextPrefix = ":."

func errContext(name string) error {
	return fault.New(fault.InvalidArgument, "there is no context %q: this registry has the default one only", name).With("reason", "invalid_subject")
}

// unqualified takes the default context off a subject's name, and refuses others.
func unqualified(name string) (string, error) {
	rest, qualified := strings.CutPrefix(name, contextPrefix)
	if !qualified {
		return name, nil
	}
	context, subject, ok := strings.Cut(rest, ":")
	if !ok || context != "" {
		return "", errContext("." + context)
	}
	return subject, nil
}

func subjectOf(r *http.Request) (string, error) { return unqualified(r.PathValue("subject")) }

func (h *handler) listContexts(_ *broker.Schemas, w http.ResponseWriter, _ *http.Request) error {
	return ok(w, []string{"."})
}

// context serves what is below /contexts/NAME/, for the default context as if that were not there.
func (h *handler) context(w http.ResponseWriter, r *http.Request, path string) {
	escaped, rest, _ := strings.Cut(path, "/")
	name, err := url.PathUnescape(escaped)
	if err == nil && name != "." && name != ":.:" {
		err = errContext(name)
	}
	within := r.Clone(r.Context())
	within.URL.RawPath = "/" + rest
	if err == nil {
		within.URL.Path, err = url.PathUnescape(within.URL.RawPath)
	}
	if err != nil {
		status, code := codes(err)
		answerError(w, status, code, err.Error())
		return
	}
	h.ServeHTTP(w, within)
}

// flag reads a switch from the query.
func flag(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fault.New(fault.InvalidArgument, "%s=%s: want true or false", name, text)
	}
	return on, nil
}

// show reads which versions are meant.
func show(r *http.Request) (broker.SchemaShow, error) {
	only, err := flag(r, "deletedOnly")
	if err != nil {
		return broker.ShowLive, err
	}
	all, err := flag(r, "deleted")
	switch {
	case err != nil:
		return broker.ShowLive, err
	case only:
		return broker.ShowDeleted, nil
	case all:
		return broker.ShowAll, nil
	}
	return broker.ShowLive, nil
}

// page returns the part of a list that offset and limit ask for.
func page[T any](r *http.Request, list []T) ([]T, error) {
	for _, name := range []string{"offset", "limit"} {
		text := r.URL.Query().Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < -1 {
			return nil, fault.New(fault.InvalidArgument, "%s=%s: want a number", name, text)
		}
		switch {
		case n < 0: // all
		case name == "offset":
			list = list[min(n, len(list)):]
		default:
			list = list[:min(n, len(list))]
		}
	}
	return list, nil
}

// versionOf reads a version from the path: a number, latest or -1.
func versionOf(r *http.Request) (int32, error) {
	text := r.PathValue("version")
	if text == "latest" {
		return broker.LatestSchema, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 && n != int64(broker.LatestSchema) {
		return 0, fault.New(fault.InvalidArgument, "version %q is not allowed: want 1 or above, or latest", text).With("reason", "invalid_version")
	}
	return int32(n), nil
}
