// Package open owns the way from settings to an object store: which kinds there are, which options each takes, and what is
// wrong with them in words an operator can act on. It never reads a configuration file and never decides what a store is
// used for. Invariant: an option that the kind does not take is an error and not ignored, for it was meant to do something.
package open

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/azure"
	"github.com/leveemq/levee/internal/objstore/dir"
	"github.com/leveemq/levee/internal/objstore/gcs"
	"github.com/leveemq/levee/internal/objstore/s3"
)

// The kinds of store.
const (
	Local    = "local"     // a directory of this machine, made where it is not there
	SharedFS = "shared_fs" // a directory that several machines have mounted, which has to be there
	S3       = "s3"
	GCS      = "gcs"
	Azure    = "azure"
)

// Config names a store. Its fields are what a configuration file calls them, in snake case; each kind takes some of them.
type Config struct {
	Kind      string // local, shared_fs, s3, gcs, azure
	Path      string // local, shared_fs: the directory
	Bucket    string // s3, gcs: the bucket; azure: the container
	Endpoint  string // s3, gcs, azure: URL; empty: the provider's own
	Region    string // s3
	PathStyle bool   // s3: the bucket in the path of URLs
	CAFile    string // s3: PEM of the endpoint's authorities
	Account   string // azure: the storage account

	// Credentials; all empty: the provider's usual places.
	AccessKey       string // s3
	SecretKey       string // s3; azure: the account's key
	SessionToken    string // s3
	CredentialsFile string // gcs
	Anonymous       bool   // gcs: none at all, for emulators

	PartBytes int64 // s3, gcs, azure: size of the parts of large uploads; 0: 16 MiB
}

// options says which kinds take an option, and whether one is set.
func (c Config) options() []option {
	return []option{
		{"path", c.Path != "", []string{Local, SharedFS}},
		{"bucket", c.Bucket != "", []string{S3, GCS, Azure}},
		{"endpoint", c.Endpoint != "", []string{S3, GCS, Azure}},
		{"region", c.Region != "", []string{S3}},
		{"path_style", c.PathStyle, []string{S3}},
		{"ca_file", c.CAFile != "", []string{S3}},
		{"account", c.Account != "", []string{Azure}},
		{"access_key", c.AccessKey != "", []string{S3}},
		{"secret_key", c.SecretKey != "", []string{S3, Azure}},
		{"session_token", c.SessionToken != "", []string{S3}},
		{"credentials_file", c.CredentialsFile != "", []string{GCS}},
		{"anonymous", c.Anonymous, []string{GCS}},
		{"part_bytes", c.PartBytes != 0, []string{S3, GCS, Azure}},
	}
}

type option struct {
	name  string
	set   bool
	kinds []string
}

// Kinds returns the kinds of store there are.
func Kinds() []string { return []string{Local, SharedFS, S3, GCS, Azure} }

// Validate returns what is wrong with it, all at once. Every error is objstore.ErrInvalid.
func (c Config) Validate() error {
	if !slices.Contains(Kinds(), c.Kind) {
		return fmt.Errorf("%w: store of kind %q: there are %s", objstore.ErrInvalid, c.Kind, strings.Join(Kinds(), ", "))
	}
	var errs []error
	for _, o := range c.options() {
		if o.set && !slices.Contains(o.kinds, c.Kind) {
			errs = append(errs, fmt.Errorf("%w: a store of kind %s takes no %s (that is for %s)", objstore.ErrInvalid, c.Kind, o.name, strings.Join(o.kinds, ", ")))
		}
	}
	switch c.Kind {
	case Local, SharedFS:
		if c.Path == "" {
			errs = append(errs, fmt.Errorf("%w: a store of kind %s needs a path", objstore.ErrInvalid, c.Kind))
		}
	case S3:
		errs = append(errs, c.s3().Validate())
	case GCS:
		errs = append(errs, c.gcs().Validate())
	case Azure:
		errs = append(errs, c.azure().Validate())
	}
	return errors.Join(errs...)
}

func (c Config) s3() s3.Config {
	return s3.Config{
		Endpoint: c.Endpoint, Region: c.Region, Bucket: c.Bucket, PathStyle: c.PathStyle, CAFile: c.CAFile,
		AccessKey: c.AccessKey, SecretKey: c.SecretKey, SessionToken: c.SessionToken, PartSize: c.PartBytes,
	}
}

func (c Config) gcs() gcs.Config {
	return gcs.Config{
		Bucket: c.Bucket, Endpoint: c.Endpoint, CredentialsFile: c.CredentialsFile, Anonymous: c.Anonymous, ChunkSize: c.PartBytes,
	}
}

func (c Config) azure() azure.Config {
	return azure.Config{
		Account: c.Account, Container: c.Bucket, Endpoint: c.Endpoint, AccountKey: c.SecretKey, BlockSize: c.PartBytes,
	}
}

// Store opens the store. A bucket or container has to exist. Nothing is asked of it yet: objstore.Probe tells whether it
// works, and does what this project needs.
func Store(ctx context.Context, c Config) (objstore.Store, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	switch c.Kind {
	case Local, SharedFS:
		return result(dir.Open(dir.Config{Root: c.Path, Exists: c.Kind == SharedFS}))
	case S3:
		return result(s3.Open(c.s3()))
	case GCS:
		return result(gcs.Open(ctx, c.gcs()))
	}
	return result(azure.Open(c.azure()))
}

// result makes no store of a failure: a nil pointer in an interface is not nil.
func result[S objstore.Store](s S, err error) (objstore.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Parse reads a store's URL:
//
//	local:DIRECTORY   shared_fs:DIRECTORY
//	s3://BUCKET?region=R&endpoint=URL&path_style=true&ca_file=FILE&part_bytes=N
//	gcs://BUCKET?endpoint=URL&credentials_file=FILE&anonymous=true&part_bytes=N
//	azure://ACCOUNT/CONTAINER?endpoint=URL&part_bytes=N
//
// Secrets have no place in it: URLs end up in histories and logs.
func Parse(text string) (Config, error) {
	kind, rest, ok := strings.Cut(text, ":")
	if !ok {
		return Config{}, fmt.Errorf("%w: store %q: it has no kind, as in local:DIRECTORY or s3://BUCKET", objstore.ErrInvalid, text)
	}
	c := Config{Kind: kind}
	if kind == Local || kind == SharedFS {
		c.Path = rest
		return c, c.Validate()
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return Config{}, fmt.Errorf("%w: a store of kind %q is named %s://NAME?OPTION=VALUE", objstore.ErrInvalid, kind, kind)
	}
	inside := strings.Trim(u.Path, "/")
	c.Bucket = u.Host
	if kind == Azure {
		c.Account, c.Bucket = u.Host, inside
	} else if inside != "" {
		return Config{}, fmt.Errorf("%w: store %s://%s: a path (%s) behind the bucket", objstore.ErrInvalid, kind, u.Host, inside)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Config{}, fmt.Errorf("%w: store %s://%s: options: %w", objstore.ErrInvalid, kind, u.Host, err)
	}
	for name, values := range query {
		if err := c.set(name, values); err != nil {
			return Config{}, fmt.Errorf("%w: store %s://%s: %w", objstore.ErrInvalid, kind, u.Host, err)
		}
	}
	return c, c.Validate()
}

func (c *Config) set(name string, values []string) (err error) {
	if len(values) != 1 {
		return fmt.Errorf("%s is given %d times", name, len(values))
	}
	value := values[0]
	switch name {
	case "endpoint":
		c.Endpoint = value
	case "region":
		c.Region = value
	case "ca_file":
		c.CAFile = value
	case "credentials_file":
		c.CredentialsFile = value
	case "path_style":
		c.PathStyle, err = strconv.ParseBool(value)
	case "anonymous":
		c.Anonymous, err = strconv.ParseBool(value)
	case "part_bytes":
		c.PartBytes, err = strconv.ParseInt(value, 10, 64)
	case "access_key", "secret_key", "session_token":
		return fmt.Errorf("%s does not belong into a URL: set it in the configuration or the environment", name)
	default:
		return fmt.Errorf("there is no option %q", name)
	}
	if err != nil {
		err = fmt.Errorf("%s: %q is no value for it", name, value)
	}
	return err
}
