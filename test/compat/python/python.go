// Package python runs the published Python clients that tests hold the broker against. It never installs anything: what
// `make clients` has put into bin/python is there or the test is skipped. Its one invariant: no script outlives its test.
package python

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Interpreter returns the Python that has the clients, and skips the test where there is none.
func Interpreter(t testing.TB) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(here), "..", "..", "..", "bin", "python", "bin", "python")
	if _, err := os.Stat(path); err != nil {
		t.Skip("the Python clients are not installed: make clients")
	}
	return path
}

// Script is a Python program that runs.
type Script struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
	err   bytes.Buffer
}

// Start runs a script below the test's directory. It is killed when ctx ends.
func Start(ctx context.Context, t testing.TB, name string, args ...string) *Script {
	t.Helper()
	s := &Script{t: t, cmd: exec.CommandContext(ctx, Interpreter(t), append([]string{"-u", name}, args...)...)} //nolint:gosec // the test's own
	s.cmd.Stderr = &s.err
	in, err := s.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.in, s.lines = in, bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // nothing where it has ended
		_ = s.cmd.Wait()
	})
	return s
}

// Says waits until the script prints line, and fails the test if it prints another or ends.
func (s *Script) Says(line string) {
	s.t.Helper()
	if got := s.Line(); got != line {
		s.fail("the script says %q instead of %q", got, line)
	}
}

// Line waits for the next line the script prints, and fails the test if it ends before.
func (s *Script) Line() string {
	s.t.Helper()
	got, err := s.lines.ReadString('\n')
	if err != nil {
		s.fail("the script ends with %q (%v)", got, err)
	}
	return strings.TrimSpace(got)
}

// fail ends the script and the test, with what the script printed as errors.
func (s *Script) fail(format string, args ...any) {
	s.t.Helper()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.t.Fatalf(format+":\n%s", append(args, s.err.String())...)
}

// GoOn lets a script go on that waits for a line.
func (s *Script) GoOn() {
	s.t.Helper()
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		s.t.Fatal(err)
	}
}
