package gcs

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/objstoretest"
	"github.com/leveemq/levee/test/servers"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a store of the bucket of a server.
func open(t *testing.T, url string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{Endpoint: url, Bucket: "bucket", Anonymous: true, ChunkSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s.resume = false // fake-gcs-server makes an object of what it has when it is asked
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	objstoretest.Run(t, open(t, servers.GCS(t, "bucket")), objstoretest.Traits{Slow: true})
}

func TestNetwork(t *testing.T) {
	p := servers.NewProxy(t, servers.GCS(t, "bucket"))
	objstoretest.RunNetwork(t, open(t, p.URL), p, 9<<20)
}

// TestCredentials: a service account's key gives tokens, and every request has one.
func TestCredentials(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	google := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/token":
			asked++
			_, _ = io.WriteString(w, `{"access_token":"the-token","token_type":"Bearer","expires_in":3600}`)
		case r.Header.Get("Authorization") != "Bearer the-token":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = io.WriteString(w, `{"name":"x","size":"1","generation":"7","crc32c":"AAAAAA=="}`)
		}
	}))
	defer google.Close()
	file := t.TempDir() + "/key.json"
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "levee@project.test", "token_uri": google.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Open(ctx, Config{Endpoint: google.URL, Bucket: "bucket", CredentialsFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cancel() // of the opening, not of the store
	for range 3 {
		info, err := s.Head(t.Context(), "x")
		if err != nil || info.Version != "7" {
			t.Fatalf("head: %+v, %v", info, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times for a token that holds for an hour", asked)
	}
	stranger, err := Open(t.Context(), Config{Endpoint: google.URL, Bucket: "bucket", Anonymous: true})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, err := stranger.Head(t.Context(), "x"); !errors.Is(err, objstore.ErrDenied) {
		t.Errorf("without a token: %v", err)
	}
}
