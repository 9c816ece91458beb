package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/fault"
)

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(dir, name+".pem")}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = a.issue(t, tmpl, a.file, "")
	return a
}

// issue signs tmpl with a, or with its own key where a has none yet, and writes certificate and key.
func (a *authority) issue(t *testing.T, tmpl *x509.Certificate, certFile, keyFile string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, certFile, "CERTIFICATE", der)
	if keyFile != "" {
		b, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		writePEM(t, keyFile, "PRIVATE KEY", b)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// leaf issues a certificate for 127.0.0.1 and returns its files.
func (a *authority) leaf(t *testing.T, dir, name string, notAfter time.Time) (cert, key string) {
	t.Helper()
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	a.issue(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: notAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, cert, key)
	return cert, key
}

// handshake connects, and reads for so long, because under TLS 1.3 a server's refusal of the client comes after its handshake.
func handshake(t *testing.T, addr string, c *tls.Config, wait time.Duration) (tls.ConnectionState, error) {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, c)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	_, err = conn.Read(make([]byte, 1))
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		err = nil // it waits for us: we are in
	}
	return conn.ConnectionState(), err
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	cert, key := ca.leaf(t, dir, "broker", time.Now().Add(time.Hour))
	clientCert, clientKey := ca.leaf(t, dir, "client", time.Now().Add(time.Hour))
	strangerCert, strangerKey := newAuthority(t, dir, "other").leaf(t, dir, "stranger", time.Now().Add(time.Hour))
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	load := func(cert, key string) []tls.Certificate {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{pair}
	}

	plain := map[string]string{"tls.cert": cert, "tls.key": key}
	mutual := map[string]string{"tls.cert": cert, "tls.key": key, "tls.client_ca": ca.file}
	one, both := up(t, settings(t, t.TempDir(), plain)), up(t, settings(t, t.TempDir(), mutual))
	for _, c := range []struct {
		name   string
		server *running
		client *tls.Config
		ok     bool
	}{
		{"server alone", one, &tls.Config{RootCAs: roots}, true},
		{"server alone, unknown authority", one, &tls.Config{}, false},
		{"mutual", both, &tls.Config{RootCAs: roots, Certificates: load(clientCert, clientKey)}, true},
		{"mutual, no certificate", both, &tls.Config{RootCAs: roots}, false},
		{"mutual, another authority's", both, &tls.Config{RootCAs: roots, Certificates: load(strangerCert, strangerKey)}, false},
		{"too old", one, &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, false},
	} {
		for protocol, addr := range map[string]string{"h2": c.server.listening.GRPC, "http/1.1": c.server.listening.HTTP} {
			client := c.client.Clone()
			client.NextProtos = []string{protocol}
			wait := patience // for the refusal
			if c.ok {
				wait = 300 * time.Millisecond
			}
			state, err := handshake(t, addr, client, wait)
			if (err == nil) != c.ok || c.ok && state.NegotiatedProtocol != protocol {
				t.Errorf("%s, %s: %q, %v", c.name, protocol, state.NegotiatedProtocol, err)
			}
		}
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: load(clientCert, clientKey)}, DisableKeepAlives: true}
	if code, _ := get(t, &http.Client{Transport: tr}, "https://"+both.listening.HTTP+"/readyz"); code != http.StatusOK {
		t.Errorf("HTTPS: %d", code)
	}
}

func TestUnusableCertificates(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	cert, key := ca.leaf(t, dir, "a", time.Now().Add(time.Hour))
	_, otherKey := ca.leaf(t, dir, "b", time.Now().Add(time.Hour))
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tls  config.TLS
		keys []string
	}{
		{config.TLS{Cert: cert, Key: otherKey}, []string{"tls.cert"}},
		{config.TLS{Cert: filepath.Join(dir, "none"), Key: key, ClientCA: empty}, []string{"tls.cert", "tls.client_ca"}},
		{config.TLS{Cert: cert, Key: key, ClientCA: filepath.Join(dir, "none")}, []string{"tls.client_ca"}},
	} {
		_, err := loadCertificates(c.tls, silent)
		if fault.KindOf(err) != fault.InvalidArgument {
			t.Errorf("%+v: %v", c.tls, err)
			continue
		}
		for _, k := range c.keys {
			if !strings.Contains(err.Error(), k+" = ") {
				t.Errorf("%s is not named: %v", k, err)
			}
		}
	}
	data := filepath.Join(dir, "data")
	err := Run(t.Context(), settings(t, data, map[string]string{"tls.cert": cert, "tls.key": otherKey}), Options{})
	if fault.KindOf(err) != fault.InvalidArgument {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("a start with unusable certificates touched the data directory: %v", err)
	}
}

func TestExpiredCertificateIsMentioned(t *testing.T) {
	dir := t.TempDir()
	cert, key := newAuthority(t, dir, "ca").leaf(t, dir, "old", time.Now().Add(-time.Hour))
	lines := &lockedBuffer{}
	if _, err := loadCertificates(config.TLS{Cert: cert, Key: key}, slog.New(slog.NewTextHandler(lines, nil))); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(lines.String(), "expired") {
		t.Error(lines.String())
	}
}

func TestPlainTextBeyondLoopbackIsRefused(t *testing.T) {
	_, err := config.Load(config.LoadOptions{Flags: map[string]string{"listen.grpc": "0.0.0.0:0"}})
	if fault.KindOf(err) != fault.InvalidArgument || !strings.Contains(err.Error(), "listen.grpc") {
		t.Fatalf("got %v", err)
	}
	// The server does not rely on who made its configuration.
	cfg := settings(t, t.TempDir(), nil)
	cfg.Listen.HTTP = "0.0.0.0:0"
	if err := Run(t.Context(), cfg, Options{}); fault.KindOf(err) != fault.InvalidArgument || !strings.Contains(err.Error(), "listen.http") {
		t.Fatalf("got %v", err)
	}
}
