// Package azure owns the adapter to Azure Blob Storage. It is the only importer of Azure's SDK. Objects are block blobs;
// large ones are staged in blocks that only the last request makes a blob of, under the condition of the put. It never
// repeats the request that makes an object appear. Invariant: a version is the entity tag that the service gave.
package azure

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/leveemq/levee/internal/objstore"
)

// Sizes of blocks. The service takes 50,000 of them.
const (
	defaultBlock = 16 << 20
	maxBlocks    = 50_000
	parallel     = 4 // blocks sent at once
)

// Config says where the container is and who we are there. AccountKey replaces the usual places: the environment
// (AZURE_CLIENT_ID …), a workload's identity, the machine's managed identity, the az command.
type Config struct {
	Account    string // storage account
	Container  string
	Endpoint   string // URL of the account's blobs; empty: https://ACCOUNT.blob.core.windows.net
	AccountKey string // base64

	BlockSize int64 // bytes; 0: 16 MiB. Objects that are not larger go in one request
}

// Validate returns what is wrong with it, all at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{objstore.ErrInvalid}, args...)...))
	}
	if c.Account == "" {
		bad("azure: no storage account")
	}
	if c.Container == "" {
		bad("azure: no container")
	}
	if u, err := url.Parse(c.Endpoint); c.Endpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "") {
		bad("azure: endpoint %q: not http://HOST or https://HOST", c.Endpoint)
	}
	if _, err := base64.StdEncoding.DecodeString(c.AccountKey); err != nil {
		bad("azure: the account key is not base64") // nothing of it belongs into a log
	}
	if c.BlockSize < 0 {
		bad("azure: blocks of %d bytes", c.BlockSize)
	}
	return errors.Join(errs...)
}

// Store is a container. It is safe for concurrent use.
type Store struct {
	client    *container.Client
	transport *http.Transport
	block     int64
}

var _ objstore.Store = (*Store)(nil)

// Open makes a store of a container that exists. It sends nothing yet: objstore.Probe tells whether it works.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(cfg.Endpoint, "/")
	if base == "" {
		base = "https://" + cfg.Account + ".blob.core.windows.net"
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       time.Minute,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 2 * time.Minute,
		DisableCompression:    true, // ranges are of what is stored
	}
	opts := azcore.ClientOptions{
		Transport: &http.Client{Transport: transport},
		Retry:     policy.RetryOptions{MaxRetries: -1}, // a repeated write may meet itself and call that a conflict
		Telemetry: policy.TelemetryOptions{ApplicationID: "levee"},
	}
	client, err := newClient(base+"/"+url.PathEscape(cfg.Container), cfg, opts)
	if err != nil {
		return nil, fmt.Errorf("%w: azure: %w", objstore.ErrInvalid, err)
	}
	s := &Store{client: client, transport: transport, block: cfg.BlockSize}
	if s.block == 0 {
		s.block = defaultBlock
	}
	return s, nil
}

func newClient(address string, cfg Config, opts azcore.ClientOptions) (*container.Client, error) {
	if cfg.AccountKey != "" {
		key, err := container.NewSharedKeyCredential(cfg.Account, cfg.AccountKey)
		if err != nil {
			return nil, err
		}
		return container.NewClientWithSharedKeyCredential(address, key, &container.ClientOptions{ClientOptions: opts})
	}
	identity := opts
	identity.Retry = policy.RetryOptions{} // asking for a token may be repeated
	cred, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: identity})
	if err != nil {
		return nil, err
	}
	return container.NewClient(address, cred, &container.ClientOptions{ClientOptions: opts})
}

// Close implements objstore.Store.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// failure makes an error of the SDK's.
func failure(op objstore.Op, key string, sent bool, err error) error {
	f := objstore.Failure{Op: op, Key: key, Sent: sent, Cause: err}
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		return f.Err()
	}
	f.Status = answer.StatusCode
	f.Cause = &response{status: answer.StatusCode, code: answer.ErrorCode}
	switch answer.ErrorCode {
	case "ServerBusy":
		f.Slow = true
	case "BlobAlreadyExists": // comes as 409
		f.Status = http.StatusPreconditionFailed
	case "ContainerNotFound":
		return fmt.Errorf("%s %s: %w: %w", op, key, objstore.ErrInvalid, f.Cause)
	case "InvalidBlockList": // another writer's commit threw our blocks away
		f.Status = http.StatusConflict
	}
	return f.Err()
}

// response is what matters of the SDK's error, whose text has forty lines.
type response struct {
	status int
	code   string
}

// Error implements error.
func (r *response) Error() string { return fmt.Sprintf("status %d %s", r.status, r.code) }

// infoOf puts together what headers say.
func infoOf(key string, size *int64, etag *azcore.ETag, modified *time.Time, meta map[string]*string) (objstore.Info, error) {
	if size == nil || etag == nil || *etag == "" {
		return objstore.Info{}, errors.New("the answer lacks the size or the entity tag")
	}
	info := objstore.Info{Key: key, Size: *size, Version: objstore.Version(*etag)}
	if modified != nil {
		info.Modified = *modified
	}
	for name, value := range meta {
		if strings.EqualFold(name, crcName) && value != nil { // names come back with other capitals
			n, err := strconv.ParseUint(*value, 16, 32)
			info.CRC32C, info.HasCRC = uint32(n), err == nil
		}
	}
	return info, nil
}
