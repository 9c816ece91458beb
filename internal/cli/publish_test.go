package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// TestPublishSendsWhatIsTypedAtOnce reads a record back while standard input is still open.
func TestPublishSendsWhatIsTypedAtOnce(t *testing.T) {
	env := testBroker(t)
	if _, stderr, code := runEnv(t.Context(), env, nil, "topic", "create", "x"); code != exitDone {
		t.Fatal(stderr)
	}
	in, type_ := io.Pipe()
	ended := make(chan string)
	go func() {
		out, _, code := runEnv(context.Background(), env, in, "publish", "x", "--output", "json")
		ended <- fmt.Sprint(code, " ", out)
	}()
	for i := range 3 {
		if _, err := fmt.Fprintf(type_, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
		out, stderr, code := runEnv(t.Context(), env, nil, "consume", "x", "--from", fmt.Sprint(i), "--count", "1", "--timeout", "20s")
		if i == 0 && code == exitData { // the first record may not be there yet: 0 is the end then, which is allowed
			t.Fatal(stderr)
		}
		if out != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("got %q, %s", out, stderr)
		}
	}
	if _, err := io.WriteString(type_, "last"); err != nil {
		t.Fatal(err)
	}
	_ = type_.Close()
	if got := <-ended; got != `0 {"acknowledged":4,"first_offset":0,"last_offset":3}`+"\n" {
		t.Errorf("got %s", got)
	}
}

// TestPublishInterrupted keeps what was sent and says how much that is.
func TestPublishInterrupted(t *testing.T) {
	env := testBroker(t)
	if _, stderr, code := runEnv(t.Context(), env, nil, "topic", "create", "x"); code != exitDone {
		t.Fatal(stderr)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	in, lines := io.Pipe()
	type result struct {
		out, errs string
		code      int
	}
	ended := make(chan result)
	go func() {
		out, errs, code := runEnv(ctx, env, in, "publish", "x", "--output", "json")
		ended <- result{out, errs, code}
	}()
	for i := range 100 {
		if _, err := fmt.Fprintf(lines, "%d\n", i); err != nil {
			t.Fatal(err)
		}
	}
	if out, stderr, _ := runEnv(t.Context(), env, nil, "consume", "x", "--count", "100", "--timeout", "20s"); strings.Count(out, "\n") != 100 {
		t.Fatalf("%d lines, %s", strings.Count(out, "\n"), stderr)
	}
	interrupt()
	r := <-ended
	_ = lines.Close()
	if r.code != exitFailed || r.out != `{"acknowledged":100,"first_offset":0,"last_offset":99}`+"\n" || !strings.Contains(r.errs, "interrupted") {
		t.Errorf("got %+v", r)
	}
}

// TestPublishGoesOnOverARestart publishes at a rate while the broker is stopped and another one started in its place.
func TestPublishGoesOnOverARestart(t *testing.T) {
	dir := t.TempDir()
	first, err := startBroker(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.stop()
	env := []string{"LEVEE_ADDR=" + first.addr}
	if _, stderr, code := runEnv(t.Context(), env, nil, "topic", "create", "x", "--partitions", "3"); code != exitDone {
		t.Fatal(stderr)
	}
	const records = 3000
	var in strings.Builder
	for i := range records {
		fmt.Fprintf(&in, "%d\n", i)
	}
	ended := make(chan string)
	go func() {
		out, errs, code := runEnv(context.Background(), env, strings.NewReader(in.String()), "publish", "x", "--idempotent", "--rate", "3000", "--output", "json")
		ended <- fmt.Sprint(code, " ", out, errs)
	}()
	waitFor(t, func() bool {
		out, _, _ := runEnv(t.Context(), env, nil, "consume", "x", "--timeout", "10ms")
		return strings.Count(out, "\n") > 100
	})
	if code := first.stop(); code != exitDone {
		t.Fatalf("the broker ended with %d", code)
	}
	second, err := startBroker(context.Background(), dir, "--grpc", first.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer second.stop()
	if got := <-ended; !strings.HasPrefix(got, fmt.Sprintf(`0 {"acknowledged":%d,`, records)) {
		t.Errorf("got %s", got)
	}
	out, stderr, _ := runEnv(t.Context(), env, nil, "consume", "x", "--count", fmt.Sprint(records), "--timeout", "20s")
	seen := map[string]int{}
	for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
		seen[l]++
	}
	if len(seen) != records {
		t.Errorf("%d different records of %d; %s", len(seen), records, stderr)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("it did not happen in time")
		}
	}
}
