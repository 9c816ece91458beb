package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func feed(r *report, events ...event) {
	for _, e := range events {
		line, _ := json.Marshal(e)
		r.line(string(line))
	}
}

func out(pkg, test, text string) event {
	return event{Action: "output", Package: pkg, Test: test, Output: text}
}

// stream is two packages side by side: a passes with a skip, b fails in a subtest, c does not build.
func stream(r *report) {
	feed(r,
		event{Action: "start", Package: "m/a"},
		out("m/a", "TestSkips", "=== RUN   TestSkips\n"),
		out("m/b", "TestFails", "=== RUN   TestFails\n"),
		out("m/a", "TestSkips", "    a_test.go:7: needs root\n"),
		out("m/b", "TestFails/sub", "    b_test.go:9: 1 != 2\n"),
		out("m/a", "TestSkips", "--- SKIP: TestSkips (0.00s)\n"),
		event{Action: "skip", Package: "m/a", Test: "TestSkips"},
		out("m/a", "TestPasses", "    a_test.go:8: chatty\n"),
		event{Action: "pass", Package: "m/a", Test: "TestPasses"},
		out("m/b", "TestFails", "--- FAIL: TestFails (0.00s)\n"),
		event{Action: "fail", Package: "m/b", Test: "TestFails/sub"},
		event{Action: "fail", Package: "m/b", Test: "TestFails"},
		out("m/b", "", "FAIL\n"), out("m/b", "", "FAIL\tm/b\t0.002s\n"),
		event{Action: "fail", Package: "m/b", Elapsed: 0.002},
		out("m/a", "", "PASS\n"), out("m/a", "", "ok  \tm/a\t0.001s\n"),
		event{Action: "pass", Package: "m/a", Elapsed: 0.001},
		event{Action: "build-output", ImportPath: "m/c", Output: "c.go:1: undefined: x\n"},
		out("m/c", "", "FAIL\tm/c [build failed]\n"),
		event{Action: "fail", Package: "m/c"},
		out("m/d", "", "?   \tm/d\t[no test files]\n"),
		event{Action: "skip", Package: "m/d"},
	)
}

func TestSkipsStandBeforeTheLastLines(t *testing.T) {
	var got, progress bytes.Buffer
	r := newReport(&got, &progress)
	stream(r)
	if code := r.finish(true, nil); code != 1 {
		t.Errorf("exit code %d", code)
	}
	want := "    b_test.go:9: 1 != 2\n--- FAIL: TestFails (0.00s)\nc.go:1: undefined: x\n" +
		"skipped 1:\n    m/a TestSkips: needs root (a_test.go:7)\n" +
		"ok  \tm/a\t0.001s\n?   \tm/d\t[no test files]\n--- FAIL: TestFails\n    b_test.go:9: 1 != 2\nFAIL\tm/b\t0.002s\nFAIL\tm/c [build failed]\nFAIL\n"
	if got.String() != want {
		t.Errorf("got:\n%swant:\n%s", got.String(), want)
	}
}

func TestDiedWithoutAVerdict(t *testing.T) {
	var got bytes.Buffer
	r := newReport(&got, &bytes.Buffer{})
	feed(r,
		out("m/a", "TestPanics", "panic: boom\n"),
		out("m/a", "", "exit status 2\n"),
		event{Action: "fail", Package: "m/a", Elapsed: 1},
	)
	r.line("not json")
	r.finish(true, nil)
	if want := "exit status 2\npanic: boom\nnot json\n--- FAIL: TestPanics\n    panic: boom\nFAIL\tm/a\t1.000s\nFAIL\n"; got.String() != want {
		t.Errorf("got:\n%swant:\n%s", got.String(), want)
	}
}

func TestAllowList(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skips")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# comment\n\ninternal/vfs.TestHoles # no holes here\n")
	list, err := readAllowList(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[[2]string]bool{
		{"example.org/m/internal/vfs", "TestHoles"}:      true,
		{"example.org/m/internal/vfs", "TestHoles/deep"}: true,
		{"example.org/m/internal/vfs", "TestHolesToo"}:   false,
		{"example.org/m/other", "TestHoles"}:             false,
	} {
		if got := list.allows(skip{pkg: name[0], test: name[1]}); got != want {
			t.Errorf("%v: allowed %v", name, got)
		}
	}
	var got bytes.Buffer
	r := newReport(&got, &bytes.Buffer{})
	stream(r)
	if code := r.finish(false, list); code != 1 || !strings.Contains(got.String(), "m/a TestSkips: NOT ALLOWED: needs root") {
		t.Errorf("code %d:\n%s", code, got.String())
	}
	write("internal/vfs.TestHoles\n")
	if _, err := readAllowList(file); err == nil || !strings.Contains(err.Error(), ":1:") {
		t.Errorf("a name without a reason was taken: %v", err)
	}
}
