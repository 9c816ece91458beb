package admin

import (
	"html/template"
	"net/http"
)

// state puts together where the broker stands.
func (s *Server) state() State {
	b := s.cfg.Broker()
	st := State{Phase: Starting}
	switch {
	case s.cfg.State != nil:
		st = s.cfg.State()
	case b != nil:
		st = State{Phase: b.State(), Problems: b.Problems()}
	}
	// The broker has the last word on being ready.
	switch {
	case b == nil && st.Phase == Ready:
		st.Phase = Starting
	case b != nil:
		if err := b.Ready(); err != nil {
			if st.Detail == "" {
				st.Detail = err.Error()
			}
			if st.Phase == Ready {
				st.Phase = b.State()
			}
		}
	}
	return st
}

// healthz says that the process lives and answers; whether it serves is readyz's word. A broker that recovers for
// minutes must not be killed for it.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, map[string]string{"status": "alive"})
	return nil
}

type readyJSON struct {
	State      string   `json:"state"` // starting, ready or draining
	Detail     string   `json:"detail,omitempty"`
	Topics     int      `json:"topics"`
	Partitions int      `json:"partitions"`
	Problems   []string `json:"problems"` // partitions that are unavailable, and why, among them

	Copies  *copiesJSON `json:"copies,omitempty"`       // of sealed segments; absent: none are made
	Buffer  *bufferJSON `json:"write_buffer,omitempty"` // absent: there is none
	Waiting int         `json:"waiting,omitempty"`      // partitions that are not served because a lost broker may have acknowledged more
}

// copiesJSON is what this disk has alone, of all partitions together.
type copiesJSON struct {
	ExposedBytes int64 `json:"exposed_bytes"` // of records that have no copy
	ExposedMs    int64 `json:"exposed_ms"`    // how long ago the oldest segment of those was begun
}

type bufferJSON struct {
	Unconfirmed int64 `json:"unconfirmed"` // records that it has not confirmed yet
	Uncovered   int   `json:"uncovered"`   // partitions of which records were acknowledged without it
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) error {
	st := s.state()
	answer := readyJSON{State: st.Phase, Detail: st.Detail, Problems: st.Problems}
	if answer.Problems == nil {
		answer.Problems = []string{}
	}
	if b := s.cfg.Broker(); b != nil {
		answer.Topics, answer.Partitions = b.Counts()
		e := b.Exposed()
		if e.Copied {
			answer.Copies = &copiesJSON{e.Bytes, e.Age.Milliseconds()}
		}
		if e.Buffered {
			answer.Buffer = &bufferJSON{e.Unconfirmed, e.Uncovered}
		}
		answer.Waiting = e.Waiting
	}
	status := http.StatusOK
	if st.Phase != Ready {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, answer)
	return nil
}

var indexPage = template.Must(template.New("index").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Levee</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}td{padding:.1em 1em .1em 0;vertical-align:top}code{white-space:nowrap}</style>
</head><body>
<h1>Levee {{.Version}}</h1>
<p>This broker is <strong>{{.State.Phase}}</strong>{{with .State.Detail}}: {{.}}{{end}}.</p>
{{with .State.Problems}}<p>Problems:</p><ul>{{range .}}<li>{{.}}</li>{{end}}</ul>{{end}}
<table>{{range .Endpoints}}
<tr><td><code>{{.Method}}</code></td><td><code>{{.Path}}</code></td><td>{{.Help}}</td></tr>{{end}}
</table></body></html>
`))

func (s *Server) index(w http.ResponseWriter, _ *http.Request) error {
	type row struct{ Method, Path, Help string }
	page := struct {
		Version   string
		State     State
		Endpoints []row
	}{Version: s.cfg.Version, State: s.state()}
	for _, e := range s.endpoints() {
		if e.path != "/{$}" {
			page.Endpoints = append(page.Endpoints, row{e.method, e.path, e.help})
		}
	}
	if s.cfg.Schemas != nil {
		page.Endpoints = append(page.Endpoints, row{"GET", "/subjects", "schema registry, as Confluent's: with /schemas, /config, /compatibility and /mode"})
	}
	if s.profiles() {
		page.Endpoints = append(page.Endpoints, row{"GET", "/debug/pprof/", "Go profiles of this process"})
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	return indexPage.Execute(w, page)
}
