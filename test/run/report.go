package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strings"
)

// event is one line of `go test -json`.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

// skip is one test that did not run.
type skip struct {
	pkg, test, reason string
}

// report collects events and prints them as go test does. It is used by one goroutine.
type report struct {
	out, progress io.Writer

	outputs map[string][]string // output of the running test (package and top-level name), until it is judged
	order   []string            // result lines of packages that passed, as go test prints them
	results map[string]string   // the newest result line of each package
	failed  []string            // the same of those that failed, each behind a line or more of why
	skips   []skip
	reasons map[string][]string // output of the running test alone, for its reason
	done    int
}

func newReport(out, progress io.Writer) *report {
	return &report{out: out, progress: progress, outputs: map[string][]string{}, results: map[string]string{}, reasons: map[string][]string{}}
}

var (
	resultLine = regexp.MustCompile(`^(ok|FAIL|\?|---)?\s*\t?\S*\t.*(\d+\.\d+s|\(cached\)|\[.*\])`)
	chatter    = regexp.MustCompile(`^=== (RUN|PAUSE|CONT|NAME)\b`)
	skipHead   = regexp.MustCompile(`^\s*--- SKIP: `)
	skipWhere  = regexp.MustCompile(`^\s*(\S+\.go:\d+): (.*)$`)
)

// line takes one line of output; what is not JSON is passed on as it is.
func (r *report) line(text string) {
	var e event
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &e) != nil {
		fmt.Fprintln(r.out, text)
		return
	}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.output(e)
	case "pass", "fail", "skip":
		r.judge(e)
	}
}

func (r *report) output(e event) {
	if chatter.MatchString(e.Output) {
		return
	}
	if e.Test == "" {
		r.packageOutput(e)
		return
	}
	top, _, _ := strings.Cut(e.Test, "/")
	key := e.Package + "." + top
	r.outputs[key] = append(r.outputs[key], e.Output)
	own := e.Package + "." + e.Test
	r.reasons[own] = append(r.reasons[own], e.Output)
}

func (r *report) packageOutput(e event) {
	switch text := strings.TrimRight(e.Output, "\n"); {
	case text == "PASS" || text == "FAIL" || text == "":
	case resultLine.MatchString(text) && strings.Contains(text, "\t"):
		r.results[e.Package] = text
	default:
		key := e.Package + "."
		r.outputs[key] = append(r.outputs[key], e.Output)
	}
}

// judge prints a failed test's output, forgets a passed one's, and notes a skipped one.
func (r *report) judge(e event) {
	if e.Test == "" {
		r.judgePackage(e)
		return
	}
	own := e.Package + "." + e.Test
	if e.Action == "skip" {
		r.skips = append(r.skips, skip{e.Package, e.Test, reason(r.reasons[own])})
	}
	delete(r.reasons, own)
	if strings.Contains(e.Test, "/") {
		return // its top-level test prints it
	}
	if e.Action == "fail" {
		r.print(own)
		r.failed = append(r.failed, why(e.Test, r.outputs[own]))
	}
	delete(r.outputs, own)
}

func (r *report) judgePackage(e event) {
	if e.Action == "fail" {
		// A test that was running when the process died was never judged: its output says why it died.
		for _, key := range keysOf(r.outputs, e.Package+".") {
			r.print(key)
			if text := why(strings.TrimPrefix(key, e.Package+"."), r.outputs[key]); text != "" {
				r.failed = append(r.failed, text)
			}
		}
	}
	for _, key := range keysOf(r.outputs, e.Package+".") {
		delete(r.outputs, key)
	}
	line := r.results[e.Package]
	if line == "" {
		if e.Action != "fail" {
			return
		}
		line = fmt.Sprintf("FAIL\t%s\t%.3fs", e.Package, e.Elapsed)
	}
	if e.Action == "fail" {
		r.failed = append(r.failed, line)
	} else {
		r.order = append(r.order, line)
	}
	r.done++
	fmt.Fprintf(r.progress, "finished %d: %s %s %.1fs\n", r.done, e.Package, e.Action, e.Elapsed)
}

func (r *report) print(key string) {
	for _, text := range r.outputs[key] {
		fmt.Fprint(r.out, text)
	}
}

func keysOf(m map[string][]string, prefix string) []string {
	var keys []string
	for k := range m {
		if rest, ok := strings.CutPrefix(k, prefix); ok && !strings.Contains(rest, "/") {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	return keys
}

// reason finds what t.Skip was told.
func reason(lines []string) string {
	for _, l := range lines {
		if skipHead.MatchString(l) {
			continue
		}
		if m := skipWhere.FindStringSubmatch(strings.TrimRight(l, "\n")); m != nil {
			return fmt.Sprintf("%s (%s)", m[2], m[1])
		}
	}
	return "no reason given"
}

// why says in a line or two, for who sees the end alone, which test failed and what it said first or died of. It says nothing of
// what belongs to no test and has no such line.
func why(test string, lines []string) string {
	head := ""
	if test != "" {
		head = "--- FAIL: " + test
	}
	for i, l := range lines {
		l = strings.TrimSpace(l)
		if m := skipWhere.FindString(l); m != "" || strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") || strings.HasPrefix(l, "WARNING: DATA RACE") {
			head += "\n    " + cut(l)
			if i+2 < len(lines) && strings.HasPrefix(l, "panic: test timed out") {
				head += ": " + cut(strings.TrimSpace(lines[i+1])+" "+strings.TrimSpace(lines[i+2]))
			}
			break
		}
	}
	return head
}

func cut(line string) string {
	if len(line) > 300 {
		return line[:300] + " ..."
	}
	return line
}

// finish prints the skips, then go test's own last lines, and returns the exit code.
func (r *report) finish(failed bool, allowed *allowList) int {
	var refused []string
	if len(r.skips) > 0 {
		fmt.Fprintf(r.out, "skipped %d:\n", len(r.skips))
		for _, s := range r.skips {
			note := ""
			if allowed != nil && !allowed.allows(s) {
				note = "NOT ALLOWED: "
				refused = append(refused, s.pkg+" "+s.test)
			}
			fmt.Fprintf(r.out, "    %s %s: %s%s\n", s.pkg, s.test, note, s.reason)
		}
	}
	for _, line := range append(r.order, r.failed...) {
		fmt.Fprintln(r.out, line)
	}
	if len(refused) > 0 {
		fmt.Fprintf(r.out, "%d skipped tests are not on the list %s: make them run, or add them with a reason: %s\n", len(refused), allowed.file, strings.Join(refused, ", "))
		failed = true
	}
	if failed {
		fmt.Fprintln(r.out, "FAIL")
		return 1
	}
	return 0
}
