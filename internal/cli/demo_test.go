package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// demoEnv makes the processes that a demonstration starts act as the command, with their temporary files in dir.
func demoEnv(t *testing.T, dir string) []string {
	t.Helper()
	t.Setenv("TMPDIR", dir)
	return append(os.Environ(), asCommand+"=1", "LEVEE_DATA_DIR=must-not-be-used", "LEVEE_ADDR=must.not.be.used:1")
}

func TestDemoDurableRestart(t *testing.T) {
	dir := t.TempDir()
	env := demoEnv(t, dir)
	out, stderr, code := runEnv(t.Context(), env, nil, "demo", "durable-restart", "--records", "100")
	if code != exitDone || !strings.Contains(out, "SIGKILL") || !strings.HasSuffix(out, "checks passed.\n") {
		t.Fatalf("exit code %d:\n%s%s", code, out, stderr)
	}
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	out, stderr, code = runEnv(t.Context(), env, nil, "demo", "durable-restart", "--records", "1", "--output", "json")
	var result demoJSON
	if err := json.Unmarshal([]byte(out), &result); err != nil || code != exitDone || !result.OK || len(result.Checks) != 8 || result.Dir != "" {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
}

// TestDemoKeepsItsDataOnFailure runs one whose brokers cannot start.
func TestDemoKeepsItsDataOnFailure(t *testing.T) {
	dir := t.TempDir()
	env := append(demoEnv(t, dir), asCommand+"=broken")
	out, stderr, code := runEnv(t.Context(), env, nil, "demo", "durable-restart", "--output", "json")
	var result demoJSON
	if err := json.Unmarshal([]byte(out), &result); err != nil || code != exitFailed || result.OK || !strings.HasPrefix(result.Dir, dir) {
		t.Fatalf("exit code %d: %s%s", code, out, stderr)
	}
	if !strings.Contains(stderr, "kept in "+result.Dir) || !strings.Contains(stderr, "the broker ended before it listened (exit status 7)") {
		t.Errorf("stderr is %s", stderr)
	}
	if _, err := os.Stat(filepath.Join(result.Dir, "broker-1.log")); err != nil {
		t.Error(err)
	}
}
