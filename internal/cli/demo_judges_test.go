package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// forget takes away what the topics of the data directory named in this process's arguments hold, as a broker does that
// lost what it had acknowledged. The first start finds nothing to take.
func forget() {
	i := slices.Index(os.Args, "--data-dir")
	held, err := filepath.Glob(filepath.Join(os.Args[i+1], "topics", "*", "*", "*"))
	for _, dir := range held {
		if err == nil {
			err = os.RemoveAll(dir)
		}
	}
	if err != nil {
		os.Exit(8)
	}
}

// withoutTiers makes this process forget what it was told of the places for records beside the disk.
func withoutTiers() {
	for _, key := range []string{"LEVEE_VALKEY_MODE", "LEVEE_VALKEY_ADDRESSES", "LEVEE_STORAGE_MODE", "LEVEE_STORAGE_ROOT"} {
		if err := os.Unsetenv(key); err != nil {
			os.Exit(8)
		}
	}
}

// TestDemoJudgesItsBroker covers OPS-04: the demonstration finds out by itself when what it shows is not so. A broker that
// forgets what it acknowledged, and one that does not end well, each fail just the checks they must, the exit code says
// so, and the data is kept.
func TestDemoJudgesItsBroker(t *testing.T) {
	for how, want := range map[string][]string{
		"forgets":     {"demo-durable survived", "demo-durable goes on"},
		"stops badly": {"clean stop"},
	} {
		env := append(demoEnv(t, t.TempDir()), asCommand+"="+how)
		out, stderr, code := runEnv(t.Context(), env, nil, "demo", "durable-restart", "--records", "20", "--output", "json")
		var result demoJSON
		if err := json.Unmarshal([]byte(out), &result); err != nil {
			t.Fatalf("%s: %v: %s%s", how, err, out, stderr)
		}
		var failed []string
		for _, c := range result.Checks {
			if !c.OK {
				failed = append(failed, c.Name)
			}
		}
		if code != exitFailed || result.OK || result.Dir == "" || len(result.Checks) != 8 || !slices.Equal(failed, want) {
			t.Errorf("%s: exit code %d, failed %q of %d checks, want %q: %s", how, code, failed, len(result.Checks), want, stderr)
		}
	}
}

// TestDemoEphemeralNodeJudgesItsBroker runs it with brokers that do without the tiers they are given: the second one has
// nothing.
func TestDemoEphemeralNodeJudgesItsBroker(t *testing.T) {
	env := append(demoEnv(t, t.TempDir()), asCommand+"=without tiers")
	out, stderr, code := runEnv(t.Context(), env, nil, "demo", "ephemeral-node", "--records", "20", "--output", "json")
	var result demoJSON
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v: %s%s", err, out, stderr)
	}
	if code != exitFailed || result.OK || result.Dir == "" || len(result.Checks) != 1 || !strings.Contains(stderr, demoEphemeral) {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
}
