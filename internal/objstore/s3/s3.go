// Package s3 owns the adapter to stores that speak S3: Amazon's and others that honour If-None-Match and If-Match on
// PutObject and CompleteMultipartUpload. It is the only importer of minio-go, and uses of it the single requests: what the
// library does around them drops the conditions of uploads in parts, repeats writes, and ends a canceled listing without
// an error. It never repeats the request that makes an object appear. Invariant: a version is the entity tag that the server
// gave, so contents that are equal may have equal versions.
package s3

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// Sizes of parts. Amazon takes at least 5 MiB, and 10,000 of them.
const (
	minPart     = 5 << 20
	defaultPart = 16 << 20
	maxParts    = 10_000
	parallel    = 4 // parts sent at once
)

// Config says where the bucket is and who we are there. AccessKey and SecretKey together replace the usual places: the
// environment (AWS_ACCESS_KEY_ID …), the shared credentials file, and the role of the machine, container or service account.
type Config struct {
	Endpoint  string // URL; empty: Amazon's of the region
	Region    string // empty: asked for, or us-east-1 where there is an endpoint
	Bucket    string
	PathStyle bool   // the bucket in the path and not in the host name
	CAFile    string // PEM, of the endpoint's authorities; empty: the system's

	AccessKey, SecretKey, SessionToken string

	PartSize int64 // bytes; 0: 16 MiB. Objects that are not larger go in one request
}

// Validate returns what is wrong with it, all at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{objstore.ErrInvalid}, args...)...))
	}
	if c.Bucket == "" {
		bad("s3: no bucket")
	} else if err := s3utils.CheckValidBucketName(c.Bucket); err != nil {
		bad("s3: bucket %q: %v", c.Bucket, err)
	}
	if _, _, err := c.host(); err != nil {
		bad("s3: endpoint %q: %v", c.Endpoint, err)
	}
	if (c.AccessKey == "") != (c.SecretKey == "") {
		bad("s3: access key and secret key go together")
	}
	if c.SessionToken != "" && c.AccessKey == "" {
		bad("s3: a session token without its keys")
	}
	if c.PartSize != 0 && c.PartSize < minPart {
		bad("s3: parts of %d bytes, at least %d", c.PartSize, minPart)
	}
	return errors.Join(errs...)
}

// host returns the endpoint as the library wants it.
func (c Config) host() (host string, secure bool, err error) {
	if c.Endpoint == "" {
		return "s3.amazonaws.com", true, nil
	}
	u, err := url.Parse(c.Endpoint)
	switch {
	case err != nil:
		return "", false, err
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", false, errors.New("not http://HOST or https://HOST")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil:
		return "", false, errors.New("only a scheme and a host, with a port where it needs one")
	}
	return u.Host, u.Scheme == "https", nil
}

// Store is a bucket. It is safe for concurrent use.
type Store struct {
	core      *minio.Core
	transport *http.Transport
	bucket    string
	part      int64
	secure    bool
}

var _ objstore.Store = (*Store)(nil)

// Open makes a store of a bucket that exists. It sends nothing yet: objstore.Probe tells whether it works.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	host, secure, err := cfg.host()
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	opts := &minio.Options{
		Creds: creds(cfg), Secure: secure, Region: cfg.Region, Transport: transport,
		MaxRetries: 1, // a repeated write may meet itself and call that a conflict
	}
	if cfg.PathStyle {
		opts.BucketLookup = minio.BucketLookupPath
	}
	if opts.Region == "" && cfg.Endpoint != "" {
		opts.Region = "us-east-1"
	}
	core, err := minio.NewCore(host, opts)
	if err != nil {
		return nil, fmt.Errorf("%w: s3: %w", objstore.ErrInvalid, err)
	}
	s := &Store{core: core, transport: transport, bucket: cfg.Bucket, part: cfg.PartSize, secure: secure}
	if s.part == 0 {
		s.part = defaultPart
	}
	return s, nil
}

func newTransport(caFile string) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       time.Minute,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 2 * time.Minute, // the last request of an upload in parts may take that long
		DisableCompression:    true,            // ranges are of what is stored
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if caFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("%w: s3: authorities: %w", objstore.ErrInvalid, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: s3: authorities: no certificate in %s", objstore.ErrInvalid, caFile)
	}
	t.TLSClientConfig.RootCAs = pool
	return t, nil
}

func creds(cfg Config) *credentials.Credentials {
	if cfg.AccessKey != "" {
		return credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, cfg.SessionToken)
	}
	return credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
	})
}

// Close implements objstore.Store.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// failure makes an error of the library's.
func failure(op objstore.Op, key string, sent bool, err error) error {
	f := objstore.Failure{Op: op, Key: key, Sent: sent, Cause: err}
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) {
		return f.Err()
	}
	f.Status = status(answer)
	f.Cause = fmt.Errorf("%s: %w", answer.Code, err)
	switch answer.Code {
	case "SlowDown", "SlowDownWrite", "SlowDownRead", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "TooManyRequests":
		f.Slow = true
	case "NoSuchBucket":
		return fmt.Errorf("%s %s: %w: %w", op, key, objstore.ErrInvalid, f.Cause)
	case "NoSuchUpload": // completed already, or aborted by a rule
		return fmt.Errorf("%s %s: %w: %w", op, key, objstore.ErrOutcomeUnknown, f.Cause)
	}
	return f.Err()
}

// status is the answer's, or what its code stands for: an upload in parts may fail behind a 200.
func status(answer minio.ErrorResponse) int {
	if answer.StatusCode >= 300 {
		return answer.StatusCode
	}
	switch answer.Code {
	case "PreconditionFailed":
		return http.StatusPreconditionFailed
	case "ConditionalRequestConflict", "OperationAborted":
		return http.StatusConflict
	case "AccessDenied":
		return http.StatusForbidden
	}
	return http.StatusInternalServerError
}
