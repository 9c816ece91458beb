package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// asCommand makes this test binary act as the command itself, since demonstrations start os.Executable(): "1" as it is,
// "broken" as one that fails at once, "forgets", "stops badly" and "without tiers" as one whose brokers break their promises. Without it the child would run all tests again.
const asCommand = "CLI_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	switch os.Getenv(asCommand) {
	case "broken":
		os.Exit(7)
	case "forgets":
		forget()
		os.Exit(asItIs())
	case "stops badly":
		os.Exit(asItIs() + 9)
	case "without tiers":
		withoutTiers()
		os.Exit(asItIs())
	case "1":
		os.Exit(asItIs())
	}
	goleak.VerifyTestMain(m)
}

// asItIs runs the command as it is and returns its exit code.
func asItIs() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ())
}

// run runs one command in-process, without any environment.
func run(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runEnv(t.Context(), nil, strings.NewReader(stdin), args...)
}

func runEnv(ctx context.Context, env []string, stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	var out, errs buffer
	code = Main(ctx, args, stdin, &out, &errs, env)
	return out.String(), errs.String(), code
}

// buffer is a bytes.Buffer that several goroutines may use. The command's context bounds nothing it does.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// broker is a broker in this process, started through the command line.
type broker struct {
	addr, http string
	log        *buffer
	stop       func() int // and returns the exit code
}

// startBroker starts one on a data directory.
func startBroker(ctx context.Context, dataDir string, args ...string) (*broker, error) {
	ctx, cancel := context.WithCancel(ctx)
	first := &firstLine{seen: make(chan struct{})}
	b := &broker{log: &buffer{}}
	code := make(chan int, 1)
	args = append([]string{"server", "--data-dir", dataDir, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--output", "json"}, args...)
	go func() { code <- Main(ctx, args, strings.NewReader(""), first, b.log, nil) }()
	b.stop = sync.OnceValue(func() int {
		cancel()
		return <-code
	})
	select {
	case <-first.seen:
	case c := <-code:
		code <- c
		return b, &usageError{msg: b.log.String()}
	}
	var at listeningJSON
	err := json.Unmarshal(first.line, &at)
	b.addr, b.http = at.GRPC, at.HTTP
	return b, err
}

// testBroker starts one that ends with the test, and returns the environment that leads there.
func testBroker(t *testing.T, args ...string) []string {
	t.Helper()
	b, err := startBroker(context.Background(), t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if code := b.stop(); code != 0 {
			t.Errorf("the broker ended with %d:\n%s", code, b.log)
		}
	})
	return []string{"LEVEE_ADDR=" + b.addr}
}
