package mutation

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// judge reads the output of go test -json. It returns the first complaint of the test named full, which must have run
// to its end and failed; whatever else went wrong is an error, and so is a test that passed.
func judge(out []byte, full string) (string, error) {
	var text strings.Builder
	var words string // of the test, and of its subtests
	ran, failed, said := false, false, false
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Buffer(nil, 1<<24); lines.Scan(); {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			return "", fmt.Errorf("go test said %q", lines.Text())
		}
		text.WriteString(e.Output)
		switch {
		case e.Action == "build-fail":
			return "", fmt.Errorf("the mutant does not build:\n%s", text.String())
		case died(e.Output):
			return "", fmt.Errorf("the test died instead of failing:\n%s", tail(text.String()))
		case words == "" && (e.Test == full || strings.HasPrefix(e.Test, full+"/")) && complains(e.Output):
			words = strings.TrimSpace(e.Output)
		case e.Test != full:
		case e.Action == "run":
			ran = true
		case e.Action == "fail":
			failed = true
		case strings.Contains(e.Output, "--- FAIL: "+full+" "):
			said = true
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("read what go test said: %w", err)
	}
	switch {
	case !ran:
		return "", fmt.Errorf("there is no test %s to run:\n%s", full, tail(text.String()))
	case !failed:
		return "", fmt.Errorf("SURVIVED: %s does not notice it:\n%s", full, tail(text.String()))
	case !said:
		return "", fmt.Errorf("the run ended before %s failed:\n%s", full, tail(text.String()))
	}
	return words, nil
}

var wrote = regexp.MustCompile(`^\s+\w+\.go:\d+: `)

// complains reports whether a line is what a test wrote, other than how to repeat it.
func complains(line string) bool {
	return wrote.MatchString(line) && !strings.Contains(line, "LEVEE_SEED")
}

// died reports whether a line says that the process ended before its tests did. A test that gives up inside a bubble of
// testing/synctest leaves goroutines behind in it, and package testing tells that in the words of a crash.
func died(line string) bool {
	return (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")) &&
		!strings.HasPrefix(line, "panic: deadlock: main bubble goroutine has exited but blocked goroutines remain")
}

// tail returns the end of a text that may be long.
func tail(text string) string {
	const most = 2000
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}

func TestJudge(t *testing.T) {
	const (
		run     = `{"Action":"run","Test":"TestA"}`
		wrong   = `{"Action":"output","Test":"TestA","Output":"    a_test.go:7: seven is wrong\n"}`
		told    = `{"Action":"output","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}`
		failed  = `{"Action":"fail","Test":"TestA"}`
		passed  = `{"Action":"pass","Test":"TestA"}`
		seed    = `{"Action":"output","Test":"TestA","Output":"    a.go:1: LEVEE_SEED=7 repeats this\n"}`
		inner   = `{"Action":"output","Test":"TestA/sub","Output":"        a_test.go:9: nine\n"}`
		bubble  = `{"Action":"output","Test":"TestA","Output":"panic: deadlock: main bubble goroutine has exited but blocked goroutines remain [recovered]\n"}`
		panics  = `{"Action":"output","Test":"TestA","Output":"panic: runtime error: index out of range\n"}`
		timeout = `{"Action":"output","Test":"TestA","Output":"panic: test timed out after 1m0s\n"}`
		race    = `{"Action":"output","Output":"fatal error: concurrent map writes\n"}`
		build   = `{"Action":"build-fail"}`
		leak    = `{"Action":"fail"}`
	)
	for _, c := range []struct {
		lines []string
		words string // what the test complained of, or
		err   string
	}{
		{[]string{run, seed, wrong, told, failed, leak}, "a_test.go:7: seven is wrong", ""},
		{[]string{run, inner, told, failed}, "a_test.go:9: nine", ""},
		{[]string{run, wrong, told, bubble, failed}, "a_test.go:7: seven is wrong", ""},
		{[]string{run, passed}, "", "SURVIVED"},
		{[]string{run, passed, leak}, "", "SURVIVED"},
		{[]string{build, leak}, "", "does not build"},
		{[]string{leak}, "", "no test TestA to run"},
		{nil, "", "no test TestA to run"},
		{[]string{run, wrong, told, panics, failed}, "", "died"},
		{[]string{run, told, timeout, failed}, "", "died"},
		{[]string{run, race, failed}, "", "died"},
		{[]string{run, failed}, "", "ended before"},
		{[]string{"exit status 2"}, "", "go test said"},
	} {
		words, err := judge([]byte(strings.Join(c.lines, "\n")), "TestA")
		if words != c.words || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %q, %v; want %q, %q", c.lines, words, err, c.words, c.err)
		}
	}
}
