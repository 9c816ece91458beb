// Package proc owns the broker processes of tests: it builds the binary, starts brokers on directories and loopback
// ports of their own, ends them in every way there is, and keeps what they printed. It never looks at what is inside a
// broker: tests that use it see what users see. Invariant: no process that it started outlives the test binary, however
// that ends, and whatever a broker prints about a panic or a data race fails the test it ran for.
package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/invariants"
)

// built is this test process's binary; the first test that needs it builds it.
var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// Main is a package's TestMain: it runs the tests and removes the binary afterwards. It returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir) // a leftover in the temporary directory is not worth a failure
	}
	return code
}

// Binary returns the path of the broker's binary, built from this tree with the build flags of the test that asks.
// LEVEE_TEST_BINARY names another one, to see what tests say about it.
func Binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() { built.path, built.err = build() })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

func build() (string, error) {
	if other := os.Getenv("LEVEE_TEST_BINARY"); other != "" {
		return other, nil
	}
	var err error
	if built.dir, err = os.MkdirTemp("", "levee-bin-"); err != nil {
		return "", err
	}
	path := filepath.Join(built.dir, "levee")
	args := []string{"build", "-buildvcs=false", "-o", path}
	if Race {
		args = append(args, "-race")
	}
	if invariants.Enabled {
		args = append(args, "-tags=invariants")
	}
	cmd := exec.Command("go", append(args, "github.com/leveemq/levee/cmd/levee")...)
	cmd.Env = os.Environ()
	if !Race { // which needs C
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the broker: %w\n%s", err, out)
	}
	return path, nil
}

// Dir returns a new directory for a test. It is removed when the test passes; when it fails it stays, and the test says
// where.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "levee-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("everything is kept in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
