package client

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
)

// Option changes how Dial connects.
type Option func(*options)

type options struct {
	tls       *tls.Config
	tokenFile string
	logger    *slog.Logger
	dialer    func(ctx context.Context, addr string) (net.Conn, error)
}

// WithTLS makes connections with TLS. The Client keeps config, which must not be changed any more. Without this option
// connections are not encrypted.
func WithTLS(config *tls.Config) Option { return func(o *options) { o.tls = config } }

// WithTokenFile sends what the file at path holds, spaces at its ends cut off, as a bearer token with every call. The
// file is read for each call, so its content may be exchanged. Dial refuses this option without TLS unless the broker's
// address is a loopback one: others could read the token on its way.
func WithTokenFile(path string) Option { return func(o *options) { o.tokenFile = path } }

// WithLogger makes the Client log reconnects and the like. Without this option it is silent.
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.logger = logger } }

// WithDialer makes connections with dial, which gets the address as Dial got it.
func WithDialer(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(o *options) { o.dialer = dial }
}

func (o *options) validate(addr string) error {
	var problems []error
	if addr == "" {
		problems = append(problems, errors.New("the address is empty: give host:port"))
	}
	if o.tokenFile != "" && o.tls == nil && !loopback(addr) {
		problems = append(problems, errors.New("a token over an unencrypted connection can be read by others: use TLS"))
	}
	if err := errors.Join(problems...); err != nil {
		return &Error{Kind: KindInvalidArgument, Message: err.Error()}
	}
	return nil
}

func loopback(addr string) bool {
	if strings.HasPrefix(addr, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// tokenFile is the credentials of WithTokenFile.
type tokenFile struct {
	path   string
	secure bool
}

// GetRequestMetadata returns the header that carries the token.
func (t tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := os.ReadFile(t.path)
	if err != nil {
		return nil, newError(KindUnauthenticated, "read token: %v", err)
	}
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(string(token))}, nil
}

// RequireTransportSecurity says whether gRPC must refuse to send the token in the clear.
func (t tokenFile) RequireTransportSecurity() bool { return t.secure }
