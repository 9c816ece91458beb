package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/test/servers"
)

// patience bounds each step; the first one compiles the broker.
const patience = 5 * time.Minute

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	saysSo     = regexp.MustCompile(`&& echo (\w+)`)
)

// TestReadme does what the README tells a newcomer to do, in a copy of this repository, on ports of its own: every
// block of shell, in order. `make run` is the first terminal, the rest the second.
func TestReadme(t *testing.T) {
	for _, tool := range []string{"bash", "make", "curl", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	dir := copyRepository(t)
	grpc, web := servers.FreePort(t), servers.FreePort(t)
	env := environment(map[string]string{
		"LEVEE_ADDR":        grpc,
		"LEVEE_LISTEN_GRPC": grpc,
		"LEVEE_LISTEN_HTTP": web,
	})
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := shellBlock.FindAllStringSubmatch(string(readme), -1)
	if len(blocks) < 5 {
		t.Fatalf("the README has %d blocks of shell: the first five minutes are missing", len(blocks))
	}
	first := &terminal{t: t, dir: dir, env: env}
	defer first.stop()
	second := []string{"set -eu"} // variables set in one block hold in those that follow
	for _, b := range blocks {
		// Files are this test's own, and a second without a record is no end on a busy machine.
		code := strings.NewReplacer("127.0.0.1:9040", web, "/tmp/levee-orders", filepath.Join(dir, "levee-orders"), "--timeout 1s", "--timeout 10s").Replace(b[1])
		if strings.TrimSpace(code) == "make run" {
			first.start(web)
			continue
		}
		killed := strings.Contains(code, "kill -9")
		out := run(t, dir, env, strings.Join(append(second, code), "\n"))
		t.Logf("$ %s%s", code, out)
		// The shell forgives what fails before &&, and curl what the broker refuses.
		if m := saysSo.FindStringSubmatch(code); m != nil && !strings.Contains("\n"+out, "\n"+m[1]+"\n") {
			t.Errorf("it did not say %q", m[1])
		}
		if strings.Contains(out, `{"error":`) {
			t.Error("the broker answered with an error")
		}
		if killed {
			first.wait()
		}
		for _, line := range strings.Split(code, "\n") {
			if strings.HasPrefix(line, "export ") {
				second = append(second, line)
			}
		}
	}
}

// terminal runs `make run`, again and again.
type terminal struct {
	t   *testing.T
	dir string
	env []string
	cmd *exec.Cmd
	out bytes.Buffer

	ended chan struct{} // closed once make and all that it started are gone, and out is whole
}

// start returns once the broker is ready.
func (tm *terminal) start(web string) {
	tm.t.Helper()
	tm.stop()
	tm.out.Reset()
	tm.cmd = exec.Command("make", "run")
	tm.cmd.Dir, tm.cmd.Env = tm.dir, tm.env
	tm.cmd.Stdout, tm.cmd.Stderr = &tm.out, &tm.out
	tm.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := tm.cmd.Start(); err != nil {
		tm.t.Fatal(err)
	}
	tm.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) { _ = cmd.Wait(); close(ended) }(tm.cmd, tm.ended)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ready("http://" + web + "/readyz") {
		select {
		case <-tick.C:
		case <-tm.ended:
			tm.t.Fatalf("make run ended:\n%s", &tm.out)
		case <-deadline:
			tm.t.Fatalf("the broker is not ready after %s", patience)
		}
	}
}

// wait returns once the broker that was killed is gone.
func (tm *terminal) wait() {
	tm.t.Helper()
	select {
	case <-tm.ended: // the pipe to out is closed: nothing that make started holds it any more
	case <-time.After(patience):
		tm.t.Fatal("make run goes on after its broker was killed")
	}
}

// stop ends make and the broker, if they still run.
func (tm *terminal) stop() {
	if tm.cmd != nil {
		_ = syscall.Kill(-tm.cmd.Process.Pid, syscall.SIGKILL)
		tm.wait()
	}
}

func ready(url string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode == http.StatusOK
}

// run executes a script that must succeed.
func run(t *testing.T, dir string, env []string, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v in:\n%s\n%s", err, script, out)
	}
	return string(out)
}

// environment is this process's without Levee's own settings, and with those given.
func environment(set map[string]string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LEVEE_") && !strings.HasPrefix(e, "MAKEFLAGS=") && !strings.HasPrefix(e, "MAKELEVEL=") {
			env = append(env, e)
		}
	}
	for k, v := range set {
		env = append(env, k+"="+v)
	}
	return env
}

// copyRepository copies what is, or is about to be, under version control into a directory of its own.
func copyRepository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		t.Skipf("needs git and a working tree: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "levee")
	for _, name := range strings.Split(strings.TrimRight(string(list), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return dir
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(to, text, info.Mode().Perm()); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}
