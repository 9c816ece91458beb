package open

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/test/servers"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	for text, want := range map[string]Config{
		"local:/var/objects":    {Kind: Local, Path: "/var/objects"},
		"local:objects":         {Kind: Local, Path: "objects"},
		"shared_fs:/mnt/levee ": {Kind: SharedFS, Path: "/mnt/levee "},
		"s3://bucket":           {Kind: S3, Bucket: "bucket"},
		"s3://bucket?region=eu-1&endpoint=https%3A%2F%2Fs3.test%3A9000&path_style=true&ca_file=/ca.pem&part_bytes=8388608": {
			Kind: S3, Bucket: "bucket", Region: "eu-1", Endpoint: "https://s3.test:9000", PathStyle: true, CAFile: "/ca.pem", PartBytes: 8 << 20,
		},
		"gcs://bucket?credentials_file=/key.json": {Kind: GCS, Bucket: "bucket", CredentialsFile: "/key.json"},
		"gcs://bucket?anonymous=1":                {Kind: GCS, Bucket: "bucket", Anonymous: true},
		"azure://account/container":               {Kind: Azure, Account: "account", Bucket: "container"},
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

func TestWrongURLs(t *testing.T) {
	for text, says := range map[string]string{
		"":                              "no kind",
		"objects":                       "no kind",
		"ftp://x":                       "there are local, shared_fs, s3, gcs, azure",
		"local:":                        "needs a path",
		"s3:bucket":                     "s3://NAME",
		"s3://":                         "s3://NAME",
		"s3://key:secret@bucket":        "s3://NAME",
		"s3://bucket/prefix":            "behind the bucket",
		"s3://bucket?acess=1":           `no option "acess"`,
		"s3://bucket?region=a&region=b": "2 times",
		"s3://bucket?path_style=maybe":  "no value",
		"s3://bucket?part_bytes=1":      "at least 5242880",
		"s3://bucket?endpoint=s3.test":  "not http://HOST",
		"s3://bucket?secret_key=x":      "does not belong into a URL",
		"s3://bucket?anonymous=true":    "takes no anonymous (that is for gcs)",
		"gcs://bucket?region=eu":        "takes no region",
		"gcs://bucket?part_bytes=1000":  "multiple of 262144",
		"azure://account":               "no container",
		"azure://account/c?ca_file=x":   "takes no ca_file",
	} {
		_, err := Parse(text)
		if !errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

// TestAllAtOnce: whoever has several things wrong is told of all of them, and not of secrets.
func TestAllAtOnce(t *testing.T) {
	err := Config{Kind: S3, Path: "/x", Account: "a", AccessKey: "only one", SecretKey: ""}.Validate()
	for _, says := range []string{"takes no path", "takes no account", "no bucket", "go together"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q is not in: %v", says, err)
		}
	}
	err = Config{Kind: Azure, Account: "a", Bucket: "c", SecretKey: "not base64!"}.Validate()
	if err == nil || strings.Contains(err.Error(), "not base64!") {
		t.Errorf("%v", err)
	}
}

// TestStores: what is opened by its settings works.
func TestStores(t *testing.T) {
	shared := t.TempDir()
	for name, cfg := range map[string]func(t *testing.T) Config{
		Local:    func(t *testing.T) Config { return Config{Kind: Local, Path: t.TempDir() + "/new"} },
		SharedFS: func(*testing.T) Config { return Config{Kind: SharedFS, Path: shared} },
		S3: func(t *testing.T) Config {
			return Config{Kind: S3, Bucket: "bucket", Endpoint: servers.S3(t, "bucket"), PathStyle: true, AccessKey: servers.AccessKey, SecretKey: servers.SecretKey}
		},
		GCS: func(t *testing.T) Config {
			return Config{Kind: GCS, Bucket: "bucket", Endpoint: servers.GCS(t, "bucket"), Anonymous: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Store(t.Context(), cfg(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := objstore.Probe(t.Context(), s, "probes"); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNotThere: no store comes of what is not there, not even a nil one in an interface.
func TestNotThere(t *testing.T) {
	file := t.TempDir() + "/key.json"
	if err := os.WriteFile(file, []byte("no JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []Config{
		{Kind: SharedFS, Path: t.TempDir() + "/none"},
		{Kind: S3, Bucket: "bucket", CAFile: file},
		{Kind: GCS, Bucket: "bucket", CredentialsFile: file},
		{Kind: "tape"},
	} {
		if s, err := Store(t.Context(), cfg); err == nil || s != nil {
			t.Errorf("%+v: %v, %v", cfg, s, err)
		}
	}
}
