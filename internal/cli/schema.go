package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

type schemaCmd struct {
	Register         schemaRegisterCmd         `cmd:"" help:"Add a version to a subject."`
	Check            schemaCheckCmd            `cmd:"" help:"Say whether a schema could be the next version of a subject."`
	Get              schemaGetCmd              `cmd:"" help:"Print a schema."`
	Ls               schemaLsCmd               `cmd:"" help:"List subjects, or the versions of one."`
	SetCompatibility schemaSetCompatibilityCmd `cmd:"" help:"Set what new versions have to get along with."`
	Topic            schemaTopicCmd            `cmd:"" help:"Set or show what a topic's records are held against."`
	Delete           schemaDeleteCmd           `cmd:"" help:"Delete a version of a subject, or all of it."`
}

// httpFlags say where a broker's HTTP port is.
type httpFlags struct {
	HTTP string `name:"http" default:"127.0.0.1:9040" placeholder:"HOST:PORT" variable:"LEVEE_HTTP" help:"The broker's HTTP port."`
}

// maxAnswer bounds what an answer may hold.
const maxAnswer = 256 << 20

// call sends one request to the HTTP port and decodes the answer.
func (f *httpFlags) call(a *app, method, path string, query url.Values, body, into any) error {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	scheme := "http"
	if a.conn.TLSCA != "" || a.conn.TLSCert != "" || a.conn.TLSKey != "" {
		config, err := a.conn.tls()
		if err != nil {
			return err
		}
		scheme, transport.TLSClientConfig = "https", config
	}
	ctx, cancel := context.WithTimeout(a.ctx, 2*callTimeout)
	defer cancel()
	var sent io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+f.HTTP+path+"?"+query.Encode(), sent)
	if err != nil {
		return usagef("--http %s: %v", f.HTTP, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if a.conn.TokenFile != "" {
		token, err := os.ReadFile(a.conn.TokenFile)
		if err != nil {
			return fmt.Errorf("read --token-file: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		err = fault.New(fault.Unavailable, "cannot reach the broker's HTTP port at %s: %w", f.HTTP, err)
		return &exitError{hint: "start a broker: levee server, or name another port with --http", err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the broker's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return httpError(resp.StatusCode, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read the broker's answer: %w", err)
	}
	return nil
}

// httpError turns an answer's failure, in either of its forms, into an error of the kind it stands for.
func httpError(status int, text []byte) error {
	var said struct {
		Message string `json:"message"`
		Error   struct {
			Kind    string            `json:"kind"`
			Message string            `json:"message"`
			Details map[string]string `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &said) != nil || said.Message == "" && said.Error.Message == "" {
		return fault.New(fault.Internal, "the HTTP port answered with status %d: is a broker listening there?", status)
	}
	if kind, ok := fault.ByName(said.Error.Kind); ok {
		return fault.New(kind, "%s", said.Error.Message)
	}
	kind := fault.Internal
	switch status {
	case http.StatusNotFound:
		kind = fault.NotFound
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		kind = fault.InvalidArgument
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		kind = fault.Unavailable
	}
	return fault.New(kind, "%s", said.Message)
}

func subjectPath(subject string) string { return "/subjects/" + url.PathEscape(subject) }

// wireSchema is a schema as the HTTP port takes and gives it.
type wireSchema struct {
	Subject    string          `json:"subject,omitempty"`
	ID         uint64          `json:"id,omitempty"`
	Version    int32           `json:"version,omitempty"`
	Type       string          `json:"schemaType,omitempty"`
	References []wireReference `json:"references,omitempty"`
	Schema     string          `json:"schema"`
	Deleted    bool            `json:"deleted,omitempty"`
}

type wireReference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int32  `json:"version"`
}

// schemaJSON is a version as the commands print it.
type schemaJSON struct {
	Subject string `json:"subject" doc:"the name it is under"`
	Version int32  `json:"version" doc:"counted from 1"`
	ID      uint64 `json:"id" doc:"of the schema; the same wherever the same schema is registered"`
	Type    string `json:"type" doc:"avro, json, protobuf, string, number or bytes"`
	Schema  string `json:"schema,omitempty" doc:"the definition"`
	Deleted bool   `json:"deleted,omitempty" doc:"true for one that is deleted and not gone"`
}

func (w wireSchema) row() schemaJSON {
	kind := strings.ToLower(w.Type)
	if kind == "" {
		kind = "avro"
	}
	return schemaJSON{w.Subject, w.Version, w.ID, kind, w.Schema, w.Deleted}
}

// schemaSource are the flags that say which schema is meant.
type schemaSource struct {
	Type string   `default:"avro" enum:"avro,json,protobuf,string,number,bytes" placeholder:"TYPE" help:"avro, json, protobuf, string, number or bytes."`
	Ref  []string `placeholder:"NAME=SUBJECT:VERSION" help:"Another schema it refers to, by the name it uses: an Avro type, the URI of a $$ref, a path that is imported. May be repeated."`
}

// load reads the definition from a file, or from standard input where file is -.
func (s *schemaSource) load(a *app, file string) (wireSchema, error) {
	out := wireSchema{Type: strings.ToUpper(s.Type)}
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(io.LimitReader(a.stdin, 8<<20))
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return out, fmt.Errorf("read the schema: %w", err)
	}
	out.Schema = string(text)
	for _, ref := range s.Ref {
		name, target, ok := strings.Cut(ref, "=")
		at := strings.LastIndexByte(target, ':')
		if !ok || at < 0 {
			return out, usagef("--ref %s: write NAME=SUBJECT:VERSION", ref)
		}
		r := wireReference{Name: name, Subject: target[:at]}
		if _, err := fmt.Sscanf(target[at+1:], "%d", &r.Version); err != nil {
			return out, usagef("--ref %s: the version is a number", ref)
		}
		out.References = append(out.References, r)
	}
	return out, nil
}
