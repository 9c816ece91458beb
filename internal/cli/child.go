package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/leveemq/levee/internal/task"
)

// child is a broker that a demonstration runs: this same binary, in a process of its own.
type child struct {
	cmd    *exec.Cmd
	first  *firstLine    // tells where it listens
	log    string        // file with what it printed besides
	exited chan struct{} // closed when the process is gone
	err    error         // how it ended; read after exited
}

// startChild starts a broker on a data directory, on free loopback ports. It gets none of the LEVEE_ variables of this
// process: they are meant for the user's broker; settings are some of its own.
func startChild(a *app, dataDir, log string, settings ...string) (*child, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program's own file: %w", err)
	}
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the child has its own
	c := &child{first: &firstLine{seen: make(chan struct{})}, log: log, exited: make(chan struct{})}
	c.cmd = exec.CommandContext(a.ctx, binary, "server", "--data-dir", dataDir, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--output", "json") //nolint:gosec // this program itself
	c.cmd.Stdout, c.cmd.Stderr = c.first, out
	for _, kv := range a.environ {
		if !strings.HasPrefix(kv, "LEVEE_") {
			c.cmd.Env = append(c.cmd.Env, kv)
		}
	}
	c.cmd.Env = append(c.cmd.Env, settings...)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a broker: %w", err)
	}
	// It ends with the process, which kill or stop end.
	task.NewGroup(context.WithoutCancel(a.ctx)).Go("broker-process", func(context.Context) error {
		c.err = c.cmd.Wait()
		close(c.exited)
		return nil
	})
	return c, nil
}

// address waits until the broker listens and returns where.
func (c *child) address(ctx context.Context) (string, error) {
	var at listeningJSON
	select {
	case <-c.first.seen:
	case <-c.exited:
		return "", fmt.Errorf("the broker ended before it listened (%s); it printed:\n%s", exitText(c.err), c.printed())
	case <-ctx.Done():
		return "", fmt.Errorf("the broker does not listen: %w; it printed:\n%s", ctx.Err(), c.printed())
	}
	if err := json.Unmarshal(c.first.line, &at); err != nil || at.GRPC == "" {
		return "", fmt.Errorf("the broker printed %q and not where it listens", c.first.line)
	}
	return at.GRPC, nil
}

// firstLine is a writer that keeps the first line and drops the rest. One goroutine writes; line is read after seen is
// closed.
type firstLine struct {
	line []byte
	done bool
	seen chan struct{}
}

// Write takes all of b.
func (f *firstLine) Write(b []byte) (int, error) {
	if !f.done {
		line, _, whole := bytes.Cut(b, []byte{'\n'})
		f.line = append(f.line, line...)
		if whole {
			f.done = true
			close(f.seen)
		}
	}
	return len(b), nil
}

// kill ends the process as a crash would and waits until it is gone. It may be called again.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // the error says that it is gone already
	<-c.exited
}

// stop asks for an orderly end and returns how the process ended.
func (c *child) stop(ctx context.Context) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-c.exited:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// printed returns the end of what the broker printed.
func (c *child) printed() string {
	text, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	const most = 4 << 10
	return string(text[max(0, len(text)-most):])
}
