package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
)

// failingWriter takes some bytes and then fails.
type failingWriter struct {
	left int
	err  error
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, w.err
	}
	return len(p), nil
}

// TestConsumeEndsQuietlyWithItsReader covers a reader that goes away while records flow, and one that does while the
// command waits for more.
func TestConsumeEndsQuietlyWithItsReader(t *testing.T) {
	env := testBroker(t)
	if _, stderr, code := runEnv(t.Context(), env, nil, "topic", "create", "x"); code != exitDone {
		t.Fatal(stderr)
	}
	if _, stderr, code := runEnv(t.Context(), env, strings.NewReader(strings.Repeat("record\n", 50_000)), "publish", "x"); code != exitDone {
		t.Fatal(stderr)
	}
	var errs buffer
	code := Main(t.Context(), []string{"consume", "x"}, nil, &failingWriter{100, syscall.EPIPE}, &errs, env)
	if code != exitDone || errs.String() != "" {
		t.Errorf("while records flow: exit code %d, %s", code, errs.String())
	}
	code = Main(t.Context(), []string{"consume", "x"}, nil, &failingWriter{100, syscall.ENOSPC}, &errs, env)
	if code != exitFailed || !strings.Contains(errs.String(), "no space") {
		t.Errorf("another error: exit code %d, %s", code, errs.String())
	}

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ended := make(chan int)
	go func() {
		ended <- Main(context.Background(), []string{"consume", "x", "--from", "49999"}, nil, w, io.Discard, env)
	}()
	if _, err := io.ReadFull(r, make([]byte, len("record\n"))); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	if code := <-ended; code != exitDone {
		t.Errorf("while it waits: exit code %d", code)
	}
}

// TestConsumeFollows prints what is published while it waits, and ends with the interrupt.
func TestConsumeFollows(t *testing.T) {
	env := testBroker(t)
	if _, stderr, code := runEnv(t.Context(), env, nil, "topic", "create", "x", "--partitions", "2"); code != exitDone {
		t.Fatal(stderr)
	}
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"consume", "x"}, exitDone},                      // an interrupt is how following ends
		{[]string{"consume", "x", "--count", "1000"}, exitFailed}, // but not all that was asked for came
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		r, w := io.Pipe()
		ended := make(chan int)
		go func() {
			code := Main(ctx, c.args, nil, w, io.Discard, env)
			_ = w.Close()
			ended <- code
		}()
		if _, stderr, code := runEnv(t.Context(), env, strings.NewReader("hello\n"), "publish", "x"); code != exitDone {
			t.Fatal(stderr)
		}
		line := make([]byte, len("hello\n"))
		if _, err := io.ReadFull(r, line); err != nil || string(line) != "hello\n" {
			t.Errorf("got %q, %v", line, err)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
		interrupt()
		if code := <-ended; code != c.code {
			t.Errorf("%s: exit code %d", fmt.Sprint(c.args), code)
		}
	}
}
