package s3

import (
	"crypto/x509"
	"errors"
	"testing"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/objstoretest"
	"github.com/leveemq/levee/test/servers"
	"github.com/minio/minio-go/v7"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a store of the bucket of a server.
func open(t *testing.T, url string) *Store {
	t.Helper()
	s, err := Open(Config{
		Endpoint: url, Bucket: "bucket", PathStyle: true, AccessKey: servers.AccessKey, SecretKey: servers.SecretKey, PartSize: minPart,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	s := open(t, servers.S3(t, "bucket"))
	objstoretest.Run(t, s, objstoretest.Traits{})
	left, err := s.core.ListMultipartUploads(t.Context(), "bucket", "", "", "", "", 100)
	if err != nil || len(left.Uploads) > 0 {
		t.Errorf("uploads that failed or were canceled are still there: %+v, %v", left.Uploads, err)
	}
}

func TestNetwork(t *testing.T) {
	p := servers.NewProxy(t, servers.S3(t, "bucket"))
	objstoretest.RunNetwork(t, open(t, p.URL), p, 2*minPart+1)
}

// TestTLS: over TLS the bytes are not signed, so this is another way; and who is not known is not talked to.
func TestTLS(t *testing.T) {
	p, authority := servers.NewTLSProxy(t, servers.S3(t, "bucket"))
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": servers.AccessKey, "AWS_SECRET_ACCESS_KEY": servers.SecretKey, "AWS_SESSION_TOKEN": "",
	} {
		t.Setenv(name, value) // the usual places
	}
	cfg := Config{Endpoint: p.URL, Bucket: "bucket", PathStyle: true, CAFile: authority, PartSize: minPart}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	objstoretest.Run(t, s, objstoretest.Traits{Big: 2*minPart + 1, Many: 30})

	cfg.CAFile = ""
	stranger, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	_, err = stranger.PutIfAbsent(t.Context(), "x", objstore.Bytes([]byte("x")))
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		t.Errorf("a server that nobody vouches for: %v", err)
	}
}

// TestDenied: a wrong key, and a bucket that is not there, are told apart from an object that is not there.
func TestDenied(t *testing.T) {
	url := servers.S3(t, "bucket")
	open := func(bucket, secret string) *Store {
		s, err := Open(Config{Endpoint: url, Bucket: bucket, PathStyle: true, AccessKey: servers.AccessKey, SecretKey: secret})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	_, err := open("bucket", "wrong-secret").PutIfAbsent(t.Context(), "x", objstore.Bytes(nil))
	if !errors.Is(err, objstore.ErrDenied) {
		t.Errorf("wrong key: %v", err)
	}
	nowhere := open("nowhere", servers.SecretKey)
	if _, err = nowhere.PutIfAbsent(t.Context(), "x", objstore.Bytes(nil)); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("put into no bucket: %v", err)
	}
	if _, err = nowhere.Get(t.Context(), "x", 0, -1); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("get from no bucket: %v", err)
	}
	for _, err := range nowhere.List(t.Context(), "", "") {
		if !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("list of no bucket: %v", err)
		}
	}
}

// TestStatusBehindSuccess: an upload in parts may be refused behind a 200.
func TestStatusBehindSuccess(t *testing.T) {
	for code, want := range map[string]error{
		"PreconditionFailed": objstore.ErrExists, "ConditionalRequestConflict": objstore.ErrUnavailable,
		"InternalError": objstore.ErrOutcomeUnknown, "SlowDown": objstore.ErrThrottled, "AccessDenied": objstore.ErrDenied,
		"NoSuchUpload": objstore.ErrOutcomeUnknown, "NoSuchBucket": objstore.ErrInvalid,
	} {
		err := failure(objstore.OpPutIfAbsent, "k", true, minio.ErrorResponse{Code: code, StatusCode: 200})
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", code, err, want)
		}
	}
}
