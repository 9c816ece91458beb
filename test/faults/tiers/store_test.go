package tiers

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/leveemq/levee/test/proc"
	"github.com/leveemq/levee/test/servers"
)

// store is where a broker copies to. It can be away for a while.
type store struct {
	env  map[string]string // what a broker has to be told
	down func()
	up   func()
}

// directory is a store in a directory that stands beside the data directory, as on a file system of its own. It is away as
// one that is not mounted.
func directory(t *testing.T) *store {
	t.Helper()
	root := filepath.Join(proc.Dir(t), "objects")
	must(t, os.Mkdir(root, 0o755))
	away := root + ".away"
	return &store{
		env:  map[string]string{"LEVEE_STORAGE_MODE": "shared_fs", "LEVEE_STORAGE_ROOT": root},
		down: func() { t.Helper(); must(t, os.Rename(root, away)) },
		up:   func() { t.Helper(); must(t, os.Rename(away, root)) },
	}
}

// bucket is a store that speaks S3. It is away as a server whose process is gone.
func bucket(t *testing.T) *store {
	t.Helper()
	const name = "levee"
	s := servers.StartS3(t, name)
	return &store{
		env: map[string]string{
			"LEVEE_STORAGE_MODE": "object_store", "LEVEE_OBJECT_STORE_KIND": "s3", "LEVEE_OBJECT_STORE_BUCKET": name,
			"LEVEE_OBJECT_STORE_ENDPOINT": s.URL, "LEVEE_OBJECT_STORE_REGION": "us-east-1", "LEVEE_OBJECT_STORE_PATH_STYLE": "true",
			"LEVEE_OBJECT_STORE_ACCESS_KEY": servers.AccessKey, "LEVEE_OBJECT_STORE_SECRET_KEY": servers.SecretKey,
		},
		down: s.Kill,
		up:   s.Start,
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
