// Package gcs owns the adapter to Google Cloud Storage: the few requests of its JSON API that a store needs, without
// Google's client library. A version is an object's generation, which no two contents share, and the server itself keeps
// and compares every object's CRC-32C. It never repeats the request that makes an object appear. Invariant: every write
// names the generation it expects, so none overwrites what it does not know.
package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

const (
	googleEndpoint = "https://storage.googleapis.com"
	scope          = "https://www.googleapis.com/auth/devstorage.read_write"
	chunkUnit      = 256 << 10 // chunks of an upload are multiples of it
	defaultChunk   = 16 << 20
	maxAnswer      = 16 << 20 // bytes of JSON
)

// Config says where the bucket is and who we are there.
type Config struct {
	Bucket   string
	Endpoint string // URL; empty: Google's

	// CredentialsFile is a service account's key or a workload identity's configuration. Empty: the usual places
	// (GOOGLE_APPLICATION_CREDENTIALS, gcloud's file, the machine's or pod's service account).
	CredentialsFile string
	Anonymous       bool // send no credentials, for emulators

	ChunkSize int64 // bytes; 0: 16 MiB. Objects that are not larger go in one request
}

// Validate returns what is wrong with it, all at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{objstore.ErrInvalid}, args...)...))
	}
	if c.Bucket == "" {
		bad("gcs: no bucket")
	}
	if u, err := url.Parse(c.Endpoint); c.Endpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		bad("gcs: endpoint %q: not http://HOST or https://HOST", c.Endpoint)
	}
	if c.Anonymous && c.CredentialsFile != "" {
		bad("gcs: credentials, and none wanted")
	}
	if c.ChunkSize%chunkUnit != 0 || c.ChunkSize < 0 {
		bad("gcs: chunks of %d bytes, not a multiple of %d", c.ChunkSize, chunkUnit)
	}
	return errors.Join(errs...)
}

// Store is a bucket. It is safe for concurrent use.
type Store struct {
	client    *http.Client
	transport *http.Transport
	base      string
	bucket    string
	chunk     int64
	resume    bool // go on with interrupted uploads; false for emulators that take the question how far it got for the end
}

var _ objstore.Store = (*Store)(nil)

// Open makes a store of a bucket that exists. Where the credentials are a machine's it asks for them; otherwise it sends
// nothing yet: objstore.Probe tells whether it works.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{base: strings.TrimSuffix(cfg.Endpoint, "/"), bucket: cfg.Bucket, chunk: cfg.ChunkSize, resume: true}
	if s.base == "" {
		s.base = googleEndpoint
	}
	if s.chunk == 0 {
		s.chunk = defaultChunk
	}
	s.transport = &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       time.Minute,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 2 * time.Minute,
		DisableCompression:    true, // ranges are of what is stored
	}
	var through http.RoundTripper = s.transport
	if !cfg.Anonymous {
		// Tokens are renewed as long as the store lives, so not under the context of this call.
		plain := context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, &http.Client{Transport: s.transport, Timeout: time.Minute})
		found, err := findCredentials(plain, cfg.CredentialsFile)
		if err != nil {
			return nil, fmt.Errorf("%w: gcs: credentials: %w", objstore.ErrDenied, err)
		}
		through = &oauth2.Transport{Base: s.transport, Source: found.TokenSource}
	}
	s.client = &http.Client{
		Transport: through,
		// 308 is what an upload answers that is not complete yet.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s, nil
}

func findCredentials(ctx context.Context, file string) (*google.Credentials, error) {
	if file == "" {
		return google.FindDefaultCredentials(ctx, scope)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var kind struct{ Type string }
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return google.CredentialsFromJSONWithType(ctx, text, google.CredentialsType(kind.Type), scope)
}

// Close implements objstore.Store.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// object is the URL of an object's resource.
func (s *Store) object(key string) string {
	return s.base + "/storage/v1/b/" + url.PathEscape(s.bucket) + "/o/" + url.PathEscape(key)
}

// resource is what the API says of an object.
type resource struct {
	Name       string    `json:"name"`
	Size       int64     `json:"size,string"`
	Generation string    `json:"generation"`
	CRC32C     string    `json:"crc32c"`
	Updated    time.Time `json:"updated"`
}

func (r resource) info() (objstore.Info, error) {
	if r.Generation == "" {
		return objstore.Info{}, errors.New("the answer names no generation")
	}
	info := objstore.Info{Key: r.Name, Size: r.Size, Version: objstore.Version(r.Generation), Modified: r.Updated}
	info.CRC32C, info.HasCRC = decodeSum(r.CRC32C)
	return info, nil
}

// do sends a request and returns the answer, whose body the caller closes, where its status is one of those wanted.
func (s *Store) do(req *http.Request, wanted ...int) (*http.Response, error) {
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	for _, status := range wanted {
		if res.StatusCode == status {
			return res, nil
		}
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // of an error; the status says enough
	_ = res.Body.Close()
	return nil, newAnswer(res.StatusCode, text)
}

// answer is an error that the server gave.
type answer struct {
	status  int
	reason  string
	message string
}

// Error implements error.
func (a *answer) Error() string {
	return strings.TrimSpace(fmt.Sprintf("status %d %s: %s", a.status, a.reason, a.message))
}

func newAnswer(status int, text []byte) *answer {
	var body struct {
		Error struct {
			Message string
			Errors  []struct{ Reason string }
		}
	}
	a := &answer{status: status}
	if json.Unmarshal(text, &body) == nil {
		a.message = body.Error.Message
		if len(body.Error.Errors) > 0 {
			a.reason = body.Error.Errors[0].Reason
		}
	}
	if a.message == "" {
		a.message = string(text[:min(len(text), 200)])
	}
	return a
}

// failure makes an error of what do returned, or of an answer that cannot be understood.
func failure(op objstore.Op, key string, sent bool, err error) error {
	f := objstore.Failure{Op: op, Key: key, Sent: sent, Cause: err}
	var a *answer
	if errors.As(err, &a) {
		f.Status = a.status
		f.Slow = strings.HasSuffix(strings.ToLower(a.reason), "ratelimitexceeded")
	}
	return f.Err()
}

// decode reads an answer as JSON and closes it.
func decode(res *http.Response, into any) error {
	err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(into)
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10)) // so that the connection is used again
	return errors.Join(err, res.Body.Close())
}
