package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/fault"
)

// certificates is what the listeners show and ask for.
type certificates struct {
	base *tls.Config
}

// loadCertificates reads the files that c names and returns nil where it names none. Its error has every problem at
// once, each with its key.
func loadCertificates(c config.TLS, log *slog.Logger) (*certificates, error) {
	if !c.Enabled() {
		return nil, nil
	}
	base := &tls.Config{MinVersion: tls.VersionTLS12}
	var errs []error
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		errs = append(errs, fault.New(fault.InvalidArgument,
			"tls.cert = %q, tls.key = %q: %w; allowed: a PEM certificate chain, leaf first, and its private key", c.Cert, c.Key, err).With("key", "tls.cert"))
	}
	base.Certificates = []tls.Certificate{pair}
	if c.ClientCA != "" {
		base.ClientAuth = tls.RequireAndVerifyClientCert
		if base.ClientCAs, err = loadAuthorities(c.ClientCA); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if leaf := pair.Leaf; leaf != nil && time.Now().After(leaf.NotAfter) {
		log.Warn("the certificate has expired: clients that check it will refuse it", "tls.cert", c.Cert, "not_after", leaf.NotAfter)
	}
	return &certificates{base: base}, nil
}

func loadAuthorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(pem) {
		err = fmt.Errorf("%s holds no certificate", file)
	}
	if err != nil {
		return nil, fault.New(fault.InvalidArgument, "tls.client_ca = %q: %w; allowed: a PEM file with at least one certificate", file, err).With("key", "tls.client_ca")
	}
	return pool, nil
}

// listener returns the configuration of a listener that speaks protocols (ALPN); nil, plain text, where c is nil. Every
// handshake asks anew what to use, so that other certificates can take over without a restart of the listener.
func (c *certificates) listener(protocols ...string) *tls.Config {
	if c == nil {
		return nil
	}
	// One value for all handshakes: its session tickets are good for each of them.
	now := c.base.Clone()
	now.NextProtos = protocols
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return now, nil },
	}
}
