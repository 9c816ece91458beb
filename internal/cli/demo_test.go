package cli

import (
	"encoding/json"
	"os"
	"os/exec"
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

// TestDemoEphemeralNode runs it with a server, where PATH has one, and with what stands in for it.
func TestDemoEphemeralNode(t *testing.T) {
	for _, path := range []string{os.Getenv("PATH"), t.TempDir()} {
		dir := t.TempDir()
		env := demoEnv(t, dir)
		t.Setenv("PATH", path)
		out, stderr, code := runEnv(t.Context(), env, nil, "demo", "ephemeral-node", "--records", "3000")
		if code != exitDone || !strings.Contains(out, "SIGKILL, and deleting "+dir) || !strings.HasSuffix(out, "checks passed.\n") {
			t.Fatalf("exit code %d:\n%s%s", code, out, stderr)
		}
		_, err := exec.LookPath("redis-server")
		_, err2 := exec.LookPath("valkey-server")
		if none := err != nil && err2 != nil; none != strings.HasPrefix(out, "Neither valkey-server nor redis-server") {
			t.Errorf("without a server: %v; it said:\n%s", none, out)
		}
		if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
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
