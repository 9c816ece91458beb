package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/fault"
)

// connFlags are the flags of every command that say how to reach a broker.
type connFlags struct {
	Addr      string `default:"127.0.0.1:6650" placeholder:"HOST:PORT" variable:"LEVEE_ADDR" group:"global" help:"The broker."`
	TLSCA     string `name:"tls-ca" placeholder:"FILE" variable:"LEVEE_TLS_CA" group:"global" help:"Connect with TLS and trust the certificate authorities in this PEM file; system trusts those of the operating system."`
	TLSCert   string `name:"tls-cert" placeholder:"FILE" variable:"LEVEE_TLS_CERT" group:"global" help:"Certificate to present, PEM. Of levee server, the broker's own."`
	TLSKey    string `name:"tls-key" placeholder:"FILE" variable:"LEVEE_TLS_KEY" group:"global" help:"Its private key, PEM."`
	TokenFile string `placeholder:"FILE" variable:"LEVEE_TOKEN_FILE" group:"global" help:"Send what this file holds as a bearer token."`
}

// systemRoots is --tls-ca's word for the operating system's certificate authorities.
const systemRoots = "system"

// callTimeout bounds a call that only asks or changes metadata: a broker that does not answer should be noticed.
const callTimeout = 30 * time.Second

// dial returns a client of the broker that the flags name. It does not wait for a connection.
func (a *app) dial() (*client.Client, error) {
	var opts []client.Option
	if a.conn.TLSCA != "" || a.conn.TLSCert != "" || a.conn.TLSKey != "" {
		config, err := a.conn.tls()
		if err != nil {
			return nil, err
		}
		opts = append(opts, client.WithTLS(config))
	}
	if a.conn.TokenFile != "" {
		opts = append(opts, client.WithTokenFile(a.conn.TokenFile))
	}
	return client.Dial(a.conn.Addr, opts...)
}

func (c *connFlags) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLSCA != "" && c.TLSCA != systemRoots {
		pem, err := os.ReadFile(c.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("read --tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-ca %s holds no certificate in PEM form", c.TLSCA)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return nil, usagef("--tls-cert and --tls-key belong together: give both or neither")
	}
	if c.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("load --tls-cert and --tls-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// admin runs one call about metadata.
func (a *app) admin(call func(ctx context.Context, admin *client.Admin) error) error {
	return a.patientAdmin(func(ctx context.Context, admin *client.Admin) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return call(ctx, admin)
	})
}

// patientAdmin runs calls about metadata, which may take as long as they do.
func (a *app) patientAdmin(call func(ctx context.Context, admin *client.Admin) error) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	err = call(a.ctx, c.Admin())
	return errors.Join(err, c.Close())
}

// kindOf classifies an error, whether it came over the wire or arose here.
func kindOf(err error) (fault.Kind, map[string]string) {
	var remote *client.Error
	if errors.As(err, &remote) {
		kind, _ := fault.ByName(remote.Kind)
		return kind, remote.Details
	}
	return fault.KindOf(err), fault.DetailsOf(err)
}

// message returns an error's text for people. A remote error's kind is told by its text and the exit code.
func (a *app) message(err error) string {
	text := err.Error()
	var remote *client.Error
	if errors.As(err, &remote) {
		text = strings.Replace(text, remote.Error(), remote.Message, 1)
	}
	// What the transport wraps around a failed connection says nothing to people.
	before, cause, ok := strings.Cut(text, "connection error: desc = ")
	if !ok {
		if before, _, ok = strings.Cut(text, "name resolver error: "); !ok {
			return text
		}
		cause = "its name has no address"
	}
	cause = strings.Trim(cause, "\"")
	for _, wrapper := range []string{"transport: ", "Error while dialing: "} {
		cause = strings.TrimPrefix(cause, wrapper)
	}
	return fmt.Sprintf("%scannot reach the broker at %s: %s", before, a.conn.Addr, cause)
}

// unreachable returns what to try when a broker is not available, by what the way to it said. The client's transport
// keeps only the text.
func (a *app) unreachable(err error) string {
	text := err.Error()
	says := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED) || says("connection refused"):
		return fmt.Sprintf("start a broker: levee server, or name another than %s with --addr", a.conn.Addr)
	case says("name resolver error"):
		return "--addr HOST:PORT, with a host that has an address"
	case says("does not look like a TLS handshake"):
		return "without --tls-ca, --tls-cert, --tls-key and their variables: the broker speaks plain text"
	case says("x509:") || says("tls: "):
		return "--tls-ca FILE, with the authority that signed the broker's certificate, and --addr with a name that is in it"
	case says("server preface"):
		return "--tls-ca FILE: the broker speaks TLS, or something else listens there"
	}
	return "again in a moment"
}
