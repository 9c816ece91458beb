package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
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
