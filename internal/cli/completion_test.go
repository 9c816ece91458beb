package cli

import (
	"os/exec"
	"sort"
	"strings"
	"testing"
)

func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	script, _, code := run(t, "", "completion", "bash")
	if code != exitDone {
		t.Fatalf("exit %d", code)
	}
	for _, c := range []struct {
		line string // the last word is completed
		want string
	}{
		{"levee t", "topic"},
		{"levee topic un", "unload"},
		{"levee topic create x --fs", "--fsync --fsync-interval"},
		{"levee topic create x --fsync p", "periodic"},
		{"levee --output j", "json"},
		{"levee topic --output json cr", "create"},
		{"levee completion z", "zsh"},
		{"levee nothing x", ""},
	} {
		words := strings.Split(c.line, " ")
		program := script + "\nCOMP_WORDS=(" + strings.Join(words, " ") + ")\nCOMP_CWORD=$((${#COMP_WORDS[@]}-1))\n_levee\necho \"${COMPREPLY[@]}\"\n"
		out, err := exec.Command(bash, "--norc", "-c", program).CombinedOutput()
		got := strings.Fields(string(out))
		sort.Strings(got)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, want %q (%v)", c.line, got, c.want, err)
		}
	}
}

// TestCompletionScriptsParse asks the shells that are installed whether the scripts are theirs.
func TestCompletionScriptsParse(t *testing.T) {
	for shell, check := range map[string][]string{"bash": {"-n"}, "zsh": {"-n"}, "fish": {"--no-execute"}} {
		script, stderr, code := run(t, "", "completion", shell)
		if code != exitDone || stderr != "" || !strings.Contains(script, "unload") || !strings.Contains(script, "fsync-interval") {
			t.Errorf("%s: exit %d, %s", shell, code, stderr)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		cmd := exec.Command(path, check...)
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s refuses its script: %v\n%s", shell, err, out)
		}
	}
}

func TestUnknownShell(t *testing.T) {
	if _, stderr, code := run(t, "", "completion", "tcsh"); code != exitUsage || !strings.Contains(stderr, "zsh") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
