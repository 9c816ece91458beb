package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/fault"
)

// selfSigned writes a certificate for loopback and its key, and returns their files.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "levee"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestTLS(t *testing.T) {
	cert, key := selfSigned(t)
	t.Run("server only", func(t *testing.T) {
		env := testBroker(t, "--tls-cert", cert, "--tls-key", key)
		if _, stderr, code := runEnv(t.Context(), env, nil, "topic", "ls", "--tls-ca", cert); code != exitDone {
			t.Errorf("exit code %d: %s", code, stderr)
		}
		for name, args := range map[string][]string{"plain text": nil, "unknown authority": {"--tls-ca", "system"}} {
			_, stderr, code := runEnv(t.Context(), env, nil, append([]string{"topic", "ls"}, args...)...)
			if code != exitFailed || !strings.Contains(stderr, "cannot reach the broker at ") || !strings.Contains(stderr, "try: --tls-ca FILE") {
				t.Errorf("%s: exit code %d: %s", name, code, stderr)
			}
		}
	})
	t.Run("plain text", func(t *testing.T) {
		env := testBroker(t)
		_, stderr, code := runEnv(t.Context(), env, nil, "topic", "ls", "--tls-ca", cert)
		if code != exitFailed || !strings.Contains(stderr, "the broker speaks plain text") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
	t.Run("mutual", func(t *testing.T) {
		config := filepath.Join(t.TempDir(), "levee.yaml")
		text := fmt.Sprintf("tls: {cert: %s, key: %s, client_ca: %s}\n", cert, key, cert)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		env := testBroker(t, "--config", config)
		env = append(env, "LEVEE_TLS_CA="+cert)
		if _, stderr, code := runEnv(t.Context(), env, nil, "topic", "ls"); code != exitFailed {
			t.Errorf("without a certificate: exit code %d: %s", code, stderr)
		}
		env = append(env, "LEVEE_TLS_CERT="+cert, "LEVEE_TLS_KEY="+key)
		if _, stderr, code := runEnv(t.Context(), env, nil, "topic", "ls"); code != exitDone {
			t.Errorf("with one: exit code %d: %s", code, stderr)
		}
	})
}

// TestExitCodesFollowTheTable looks at every kind, as it arises here and as it comes from a broker.
func TestExitCodesFollowTheTable(t *testing.T) {
	for _, kind := range fault.All() {
		want := kind.Row().Exit
		for _, err := range []error{
			fault.New(kind, "here"), &client.Error{Kind: kind.String()},
			fmt.Errorf("wrapped: %w", onTopic("x", errors.Join(&client.Error{Kind: kind.String()}))),
		} {
			if got := exitCode(err); got != want {
				t.Errorf("%s as %T: %d, not %d", kind, err, got, want)
			}
		}
	}
	for _, kind := range []fault.Kind{fault.Trimmed, fault.OutOfRange, fault.Corrupt} {
		if exitCode(fault.New(kind, "x")) != exitData {
			t.Errorf("%s does not exit with 3", kind)
		}
	}
	if exitCode(errors.New("unclassified")) != exitFailed || exitCode(&client.Error{Kind: "of a newer broker"}) != exitFailed || exitCode(context.Canceled) != exitFailed {
		t.Error("another error does not exit with 1")
	}
}

func TestMessagesAreForPeople(t *testing.T) {
	a := newApp(t.Context(), nil, nil, nil, nil, nil)
	a.conn.Addr = "b:1"
	for _, c := range []struct {
		err  error
		want string
	}{
		{&client.Error{Kind: "not_found", Message: "topic x does not exist"}, "topic x does not exist"},
		{fmt.Errorf("line 3: %w", &client.Error{Kind: "too_large", Message: "too large"}), "line 3: too large"},
		{&client.Error{Kind: "unavailable", Message: `connection error: desc = "transport: Error while dialing: dial tcp b:1: connect: connection refused"`},
			"cannot reach the broker at b:1: dial tcp b:1: connect: connection refused"},
		{fmt.Errorf("plain: %w", syscall.ENOENT), "plain: no such file or directory"},
	} {
		if got := a.message(c.err); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestEveryKindWithSomethingToTryHasAHint keeps the ones people meet first.
func TestEveryKindWithSomethingToTryHasAHint(t *testing.T) {
	a := newApp(t.Context(), nil, nil, nil, nil, nil)
	for kind, want := range map[string]string{
		client.KindNotFound:      "levee topic create x",
		client.KindAlreadyExists: "levee topic describe x",
		client.KindDeleted:       "levee topic ls",
		client.KindTrimmed:       "--from 7",
		client.KindOutOfRange:    "--from latest",
		client.KindUnavailable:   "again",
		client.KindCorrupt:       "levee inspect segments",
		client.KindNoSpace:       "levee topic set",
	} {
		err := onTopic("x", &client.Error{Kind: kind, Details: map[string]string{"oldest": "7"}})
		if got := a.hint(err); !strings.Contains(got, want) {
			t.Errorf("%s: %q does not say %q", kind, got, want)
		}
	}
}
