package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
)

// Patience bounds each wait for a process. It is long because the machine may be busy with other tests.
const Patience = 2 * time.Minute

// Options say how a broker is started. The zero value is a broker with default settings on free loopback ports.
type Options struct {
	Env  map[string]string // further environment variables, e.g. LEVEE_LIMITS_RECORD_BYTES
	Args []string          // further arguments
	Cwd  string            // working directory; empty: the test's
	// Under is a command that becomes the broker, with what it needs before the broker's own command line.
	Under []string
}

// Broker is one broker process. Its methods are for one goroutine at a time, but for Running and PID.
type Broker struct {
	Dir  string // its data directory
	GRPC string // where it listens, known after Listening
	HTTP string

	t       testing.TB
	cmd     *exec.Cmd
	out     *firstLine
	log     string // file with what it and its predecessors on this directory printed
	logFrom int64  // where its own part begins
	started chan error
	exited  chan struct{} // closed when the process is gone
	wanted  bool          // it was told to end
}

// Launch starts a broker on dir and returns at once. The test's end kills it at the latest.
func Launch(t testing.TB, dir string, o Options) *Broker {
	t.Helper()
	b := &Broker{
		Dir: dir, t: t, log: dir + ".log", out: &firstLine{seen: make(chan struct{})},
		started: make(chan error, 1), exited: make(chan struct{}),
	}
	log, err := os.OpenFile(b.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() // the child has its own
	if b.logFrom, err = log.Seek(0, 2); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"server", "--data-dir", dir, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--output", "json"}, o.Args...)
	line := append(append(append([]string(nil), o.Under...), Binary(t)), args...)
	b.cmd = exec.Command(line[0], line[1:]...)
	b.cmd.Stdout, b.cmd.Stderr, b.cmd.Env, b.cmd.Dir = b.out, log, Environment(o.Env), o.Cwd
	b.cmd.SysProcAttr = DieWithParent()
	go b.run()
	if err := <-b.started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-b.exited:
			return
		default:
		}
		b.wanted = true
		_ = b.cmd.Process.Kill()
		<-b.exited
		if t.Failed() {
			t.Logf("the end of %s:\n%s", b.log, b.tail())
		} else {
			b.Healthy()
		}
	})
	return b
}

// run starts the process and waits for its end, on one thread: the process dies with it.
func (b *Broker) run() {
	runtime.LockOSThread()
	err := b.cmd.Start()
	b.started <- err
	if err == nil {
		_ = b.cmd.Wait() // ProcessState tells
	}
	close(b.exited)
}

// Start launches a broker and waits until it is ready.
func Start(t testing.TB, dir string, o Options) *Broker {
	t.Helper()
	b := Launch(t, dir, o)
	b.Ready()
	return b
}

// Listening waits until the broker listens.
func (b *Broker) Listening() {
	b.t.Helper()
	var at struct{ GRPC, HTTP string }
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-b.out.seen:
	case <-b.exited:
		select {
		case <-b.out.seen: // it did, and ended since: both are there, and either may be chosen above
		default:
			b.t.Fatalf("the broker ended before it listened (%v); it printed:\n%s", b.cmd.ProcessState, b.tail())
		}
	case <-timer.C:
		b.t.Fatalf("the broker does not listen after %v; it printed:\n%s", Patience, b.tail())
	}
	if err := json.Unmarshal(b.out.line, &at); err != nil || at.GRPC == "" || at.HTTP == "" {
		b.t.Fatalf("the broker printed %q and not where it listens", b.out.line)
	}
	b.GRPC, b.HTTP = at.GRPC, at.HTTP
}

// Ready waits until the broker serves.
func (b *Broker) Ready() {
	b.t.Helper()
	b.Listening()
	b.Await("ready", func() bool { return Ready("http://" + b.HTTP) })
}

// Ready reports whether the broker whose HTTP port is at url says that it serves.
func Ready(url string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return false
	}
	res, err := HTTP.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// HTTP is a client that keeps no connection, so that none counts where connections are counted.
var HTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Await polls a condition until it holds; the process must live that long.
func (b *Broker) Await(what string, holds func() bool) {
	b.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-b.exited:
			b.t.Fatalf("the broker ended before it was %s (%v); it printed:\n%s", what, b.cmd.ProcessState, b.tail())
		case <-deadline.C:
			b.t.Fatalf("the broker is not %s after %v; it printed:\n%s", what, Patience, b.tail())
		}
	}
}

// Dial returns a client of the broker, which the test's end closes.
func (b *Broker) Dial() *client.Client {
	b.t.Helper()
	c, err := client.Dial(b.GRPC)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Doom says that the process may end by itself from now on, because the test has seen to that.
func (b *Broker) Doom() { b.wanted = true }

// Up waits until the broker listens or is gone, and reports whether it listens.
func (b *Broker) Up() bool {
	b.t.Helper()
	select {
	case <-b.out.seen:
		b.Listening()
		return true
	case <-b.exited:
		return false
	case <-time.After(Patience):
		b.t.Fatalf("the broker neither listens nor ends within %v; it printed:\n%s", Patience, b.tail())
		return false
	}
}

// PID returns the process's id.
func (b *Broker) PID() int { return b.cmd.Process.Pid }

// Exited is closed when the process is gone.
func (b *Broker) Exited() <-chan struct{} { return b.exited }

// Kill ends the process as a crash would and waits until it is gone.
func (b *Broker) Kill() {
	b.t.Helper()
	b.signal(syscall.SIGKILL)
	b.Wait()
}

// Terminate asks the process to stop in good order. Wait waits for that.
func (b *Broker) Terminate() {
	b.t.Helper()
	b.signal(syscall.SIGTERM)
}

func (b *Broker) signal(s syscall.Signal) {
	b.t.Helper()
	if !b.wanted {
		select {
		case <-b.exited:
			b.t.Fatalf("the broker ended by itself (%v); it printed:\n%s", b.cmd.ProcessState, b.tail())
		default:
		}
	}
	b.wanted = true
	if err := b.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		b.t.Fatal(err)
	}
}

// Wait waits until the process is gone and returns its exit code, -1 where a signal ended it. What it printed must hold
// neither a panic nor a data race.
func (b *Broker) Wait() int {
	b.t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-b.exited:
	case <-timer.C:
		b.t.Fatalf("the broker has not ended after %v; it printed:\n%s", Patience, b.tail())
	}
	b.Healthy()
	return b.cmd.ProcessState.ExitCode()
}

// Healthy fails the test where the broker printed what no broker should.
func (b *Broker) Healthy() {
	b.t.Helper()
	printed := b.Printed()
	for _, alarm := range []string{"panic", "fatal error:", "DATA RACE", "this is a bug"} {
		if i := strings.Index(printed, alarm); i >= 0 {
			b.t.Errorf("the broker printed %q:\n%s", alarm, printed[max(0, i-1000):min(len(printed), i+8000)])
		}
	}
}

// Printed returns what this process wrote to standard error.
func (b *Broker) Printed() string {
	text, err := os.ReadFile(b.log)
	if err != nil {
		return err.Error()
	}
	return string(text[min(b.logFrom, int64(len(text))):])
}

func (b *Broker) tail() string {
	text := b.Printed()
	return text[max(0, len(text)-4<<10):]
}

// RunFile returns what the data directory says about its last run, the state it names among it.
func RunFile(t testing.TB, dir string) (state, text string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := bytes.Cut(raw, []byte{'\n'})
	var run struct{ State string }
	if err := json.Unmarshal(body, &run); err != nil {
		t.Fatalf("run: %v in %q", err, raw)
	}
	return run.State, string(raw)
}

// Environment is this process's environment without Levee's settings and with those given. Races end a process that
// was built to find them.
func Environment(set map[string]string) []string {
	env := []string{"GORACE=halt_on_error=1"}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LEVEE_") && !strings.HasPrefix(e, "GORACE=") {
			env = append(env, e)
		}
	}
	for k, v := range set {
		env = append(env, k+"="+v)
	}
	return env
}

// Result is what a command of the binary did.
type Result struct {
	Code   int
	Stdout string
	Stderr string
}

// Run runs one command of the binary to its end.
func Run(t testing.TB, stdin []byte, args ...string) Result {
	t.Helper()
	return RunWith(t, nil, stdin, args...)
}

// RunWith is Run with further environment variables.
func RunWith(t testing.TB, env map[string]string, stdin []byte, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(t), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = bytes.NewReader(stdin), &out, &errs, Environment(env)
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("levee %q has not ended after %v; it printed:\n%s%s", args, Patience, &out, &errs)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(fmt.Errorf("levee %q: %w", args, err))
	}
	return Result{Code: cmd.ProcessState.ExitCode(), Stdout: out.String(), Stderr: errs.String()}
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
