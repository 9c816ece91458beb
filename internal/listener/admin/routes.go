package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// handlerFunc answers a request, or returns why not; then nothing was written yet.
type handlerFunc func(w http.ResponseWriter, r *http.Request) error

// endpoint is one row of the start page and of the mux.
type endpoint struct {
	method, path, help string
	serve              handlerFunc
}

const recordsPath = "/v1/topics/{namespace}/{topic}/records"

func (s *Server) endpoints() []endpoint {
	return []endpoint{
		{"GET", "/healthz", "200 while the process lives", s.healthz},
		{"GET", "/readyz", "200 when the broker serves; what is wrong, in words", s.readyz},
		{"GET", "/metrics", "Prometheus metrics", s.serveMetrics()},
		{"GET", "/v1/namespaces", "every namespace", s.listNamespaces},
		{"PUT", "/v1/namespaces/{namespace}", "create a namespace", s.putNamespace},
		{"DELETE", "/v1/namespaces/{namespace}", "delete an empty namespace", s.deleteNamespace},
		{"GET", "/v1/topics", "every topic; ?namespace= for one namespace's", s.listTopics},
		{"GET", "/v1/topics/{namespace}/{topic}", "one topic: settings, partitions, what each fault could cost", s.getTopic},
		{"PUT", "/v1/topics/{namespace}/{topic}", `create: {"partitions":1,"dispatch":"reliable","settings":{…}}`, s.putTopic},
		{"PATCH", "/v1/topics/{namespace}/{topic}", `change settings: {"settings":{…},"unset":[…]}`, s.patchTopic},
		{"DELETE", "/v1/topics/{namespace}/{topic}", "delete the topic and its data", s.deleteTopic},
		{"GET", topicSchemaPath, "what the topic's records are held against", s.getTopicSchema},
		{"PUT", topicSchemaPath, `set it: {"subject":"…","policy":"none|warn|enforce","validate":true}`, s.putTopicSchema},
		{"DELETE", topicSchemaPath, "hold them against nothing", s.deleteTopicSchema},
		{"POST", recordsPath, "publish: JSON, or text with ?key= and ?lines=1", s.publish},
		{"GET", recordsPath, "read: ?partition=&from=earliest|latest|N|@TIME&limit=&wait=; ?follow=1 for a stream of events", s.consume},
		{"GET", "/{$}", "this page", s.index},
	}
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, e := range s.endpoints() {
		mux.Handle(e.method+" "+e.path, s.wrap(e.path, e.serve))
	}
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.Handle(path, s.wrap("/debug/pprof/", s.profile(h)))
	}
	if s.cfg.Schemas != nil {
		for _, path := range s.cfg.SchemaPaths {
			h := s.wrap(path, s.serveSchemas)
			mux.Handle(path, h)
			mux.Handle(path+"/", h)
		}
	}
	// A page of another site must not publish or delete through a browser that can reach this port.
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(s.wrap("cross-origin", func(http.ResponseWriter, *http.Request) error {
		return &statusError{http.StatusForbidden, fault.New(fault.InvalidArgument, "a browser sent this for a page of another site")}
	}))
	return guard.Handler(s.jsonErrors(mux))
}

// jsonErrors gives the mux's own refusals the shape of all others.
func (s *Server) jsonErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		said := &muteWriter{header: http.Header{}, status: http.StatusOK}
		h.ServeHTTP(said, r)
		s.wrap("unknown", func(w http.ResponseWriter, r *http.Request) error {
			if said.status == http.StatusMethodNotAllowed {
				allow := said.header.Get("Allow")
				w.Header().Set("Allow", allow)
				return &statusError{said.status, fault.New(fault.InvalidArgument, "%s does not take %s: use %s", r.URL.Path, r.Method, allow)}
			}
			return fault.New(fault.NotFound, "there is nothing at %s: / lists what there is", r.URL.Path)
		}).ServeHTTP(w, r)
	})
}

// muteWriter keeps what a handler would have said about a request, and drops its text.
type muteWriter struct {
	header http.Header
	status int
}

func (m *muteWriter) Header() http.Header         { return m.header }
func (m *muteWriter) WriteHeader(status int)      { m.status = status }
func (m *muteWriter) Write(p []byte) (int, error) { return len(p), nil }

// statusError answers with another status than its kind's.
type statusError struct {
	status int
	err    *fault.Error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// wrap counts and times h, and answers for it when it fails.
func (s *Server) wrap(route string, h handlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rw := &responseWriter{ResponseWriter: w, status: http.StatusOK}
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		rw.Header().Set("Cache-Control", "no-store")
		if err := h(rw, r); err != nil {
			s.fail(rw, r, err)
		}
		s.metrics.requests.WithLabelValues(route, strconv.Itoa(rw.status)).Inc()
		if !rw.stream {
			s.metrics.seconds.WithLabelValues(route).Observe(time.Since(start).Seconds())
		}
	})
}

// writeWithin ends the connection when the answer is not taken within d.
func (s *Server) writeWithin(w http.ResponseWriter, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d)) // a recorder in a test has none
}

// patient lets the handler wait longer than a body may take to arrive: net/http would end the request then.
func patient(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// responseWriter remembers what was answered.
type responseWriter struct {
	http.ResponseWriter
	status int
	began  bool
	stream bool
}

func (w *responseWriter) WriteHeader(status int) {
	if !w.began {
		w.status, w.began = status, true
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *responseWriter) Write(p []byte) (int, error) {
	w.began = true
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// errorJSON is what a failure looks like, everywhere on this port.
type errorJSON struct {
	Kind      string            `json:"kind"`
	Message   string            `json:"message"`
	Retriable bool              `json:"retriable"`
	Details   map[string]string `json:"details,omitempty"`
}

func toErrorJSON(err error) errorJSON {
	kind := fault.KindOf(err)
	return errorJSON{Kind: kind.String(), Message: err.Error(), Retriable: kind.Row().Retriable, Details: fault.DetailsOf(err)}
}

func (s *Server) fail(w *responseWriter, r *http.Request, err error) {
	kind := fault.KindOf(err)
	if kind == fault.Internal {
		s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	if w.began {
		return // the answer is under way; its reader sees it cut short
	}
	status := kind.Row().HTTP
	if own, ok := err.(*statusError); ok { //nolint:errorlint // only the outermost says how it is answered
		status = own.status
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, map[string]errorJSON{"error": toErrorJSON(err)})
}

// writeJSON answers with v. A write that fails has no one left to be told.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// serveSchemas passes a request on. It is answered in the words of that protocol, failures too.
func (s *Server) serveSchemas(w http.ResponseWriter, r *http.Request) error {
	s.cfg.Schemas.ServeHTTP(w, r)
	return nil
}

// broker returns the broker, or why there is none.
func (s *Server) broker() (*broker.Broker, error) {
	if b := s.cfg.Broker(); b != nil {
		return b, nil
	}
	return nil, fault.New(fault.Unavailable, "the broker is starting: ask /readyz how far it is, and try again")
}

func topicName(r *http.Request) string {
	return r.PathValue("namespace") + "/" + r.PathValue("topic")
}

func (s *Server) serveMetrics() handlerFunc {
	if s.cfg.Registry == nil {
		return func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			return nil
		}
	}
	h := promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	return func(w http.ResponseWriter, r *http.Request) error {
		h.ServeHTTP(w, r)
		return nil
	}
}

// maxProfile bounds how long a profile or trace may be recorded.
const maxProfile = 5 * time.Minute

func (s *Server) profile(h http.HandlerFunc) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		if !s.profiles() {
			return fault.New(fault.NotFound, "profiles are served on loopback only: connect from the broker's machine to a loopback listener")
		}
		if text := r.FormValue("seconds"); text != "" {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil || seconds < 0 || seconds > maxProfile.Seconds() {
				return fault.New(fault.InvalidArgument, "seconds=%s: want 0 to %g", text, maxProfile.Seconds())
			}
		}
		patient(w)
		s.writeWithin(w, maxProfile+s.limits.WriteTimeout)
		h(w, r)
		return nil
	}
}

// queryInt reads a number between low and high from the query; missing reads as otherwise.
func queryInt(r *http.Request, name string, otherwise, low, high int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, fault.New(fault.InvalidArgument, "%s=%s: want a whole number from %d to %d", name, text, low, high)
	}
	return n, nil
}

// queryBool reads a switch from the query.
func queryBool(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fault.New(fault.InvalidArgument, "%s=%s: want 1 or 0", name, text)
	}
	return on, nil
}

// knownQuery refuses parameters that would be ignored: a misspelt one must not change what is read or written.
func knownQuery(r *http.Request, names ...string) error {
next:
	for name := range r.URL.Query() {
		for _, known := range names {
			if name == known {
				continue next
			}
		}
		return fault.New(fault.InvalidArgument, "unknown parameter %q: this takes %s", name, fmt.Sprint(names))
	}
	return nil
}
