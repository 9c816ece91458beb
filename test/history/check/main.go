// Command check judges saved histories: it reads each file, makes the checks of package history on it, and prints what
// breaks a promise. It never talks to a broker and never changes a history. Invariant: it exits 0 only when every file
// was read whole, everything in it was judged, and nothing was found.
//
//	go run ./test/history/check [-json] [-html FILE] FILE...
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/leveemq/levee/test/history"
)

// The exit codes.
const (
	exitOK         = 0
	exitViolations = 1
	exitUsage      = 2 // or a file that is no history
	exitUndecided  = 3
)

const help = `Usage: check [flags] FILE...

Checks saved histories, one after the other; - is the standard input. Prints what breaks a promise, at most 20 lines for
each check, and a line that sums up the file.

Exit codes: 0 nothing found, 1 violations, 2 wrong usage or a file that is no history, 3 something could not be judged
in the time given.

Flags:
`

const examples = `
Examples:
  go run ./test/history/check history.jsonl
  go run ./test/history/check -all-read -html topic.html history.jsonl   every acknowledged record must have been read
  go run ./test/history/check -checks 1,5 -json run-*/history.jsonl      two checks, one JSON report a line
`

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// report is one line of -json.
type report struct {
	File string `json:"file"`
	OK   bool   `json:"ok"`
	history.Report
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var o history.Options
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print one JSON report a file")
	checks := flags.String("checks", "", "only these checks, by number, with commas between (default all)")
	flags.BoolVar(&o.AllRead, "all-read", false, "each acknowledged record must have been read by a reading begun after its answer")
	flags.DurationVar(&o.PublishWithin, "publish-within", 0, "how soon after a heal a publish succeeds (default 10s)")
	flags.DurationVar(&o.DeliverWithin, "deliver-within", 0, "how soon after a heal a waiting record is delivered (default 5s)")
	flags.DurationVar(&o.MetadataTime, "metadata-time", 0, "how long the check of metadata may think about one file (default 10s)")
	flags.StringVar(&o.Visualization, "html", "", "draw the first topic whose metadata is wrong to this file")
	flags.Usage = func() {
		fmt.Fprint(stderr, help)
		flags.PrintDefaults()
		fmt.Fprint(stderr, examples)
	}
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err == nil {
		o.Only, err = numbers(*checks)
	}
	if err == nil && flags.NArg() == 0 {
		err = errors.New("name at least one file, or - for the standard input")
	}
	if err != nil {
		fmt.Fprintf(stderr, "check: %v; see check --help\n", err)
		return exitUsage
	}
	worst := exitOK
	for _, file := range flags.Args() {
		code, err := one(file, o, *asJSON, stdin, stdout)
		if err != nil {
			fmt.Fprintf(stderr, "check: %s: %v\n", file, err)
			code = exitUsage
		}
		if worst != exitViolations && code != exitOK { // violations outrank the rest
			worst = code
		}
	}
	return worst
}

func numbers(list string) (n []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		var check int
		if _, err := fmt.Sscanf(text, "%d", &check); err != nil || check < history.CheckLost || check > history.CheckInvented {
			return nil, fmt.Errorf("%q is not a check: %d to %d are", text, history.CheckLost, history.CheckInvented)
		}
		n = append(n, check)
	}
	return n, nil
}

// one checks one file.
func one(file string, o history.Options, asJSON bool, stdin io.Reader, stdout io.Writer) (int, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return exitUsage, err
		}
		defer f.Close()
		in = f
	}
	h, err := history.Read(in)
	if err != nil {
		return exitUsage, fmt.Errorf("read history: %w", err)
	}
	r := h.Check(o)
	if asJSON {
		err = json.NewEncoder(stdout).Encode(report{file, r.OK(), r})
	} else {
		_, err = io.WriteString(stdout, text(file, r))
	}
	switch {
	case err != nil:
		return exitUsage, fmt.Errorf("write report: %w", err)
	case len(r.Violations) > 0:
		return exitViolations, nil
	case len(r.Undecided) > 0:
		return exitUndecided, nil
	}
	return exitOK, nil
}

func text(file string, r history.Report) string {
	var b strings.Builder
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "%s: %v\n", file, v)
	}
	for check, n := range r.Found {
		if told := min(n, 20); n > told {
			fmt.Fprintf(&b, "%s: check %d: and %d more\n", file, check, n-told)
		}
	}
	for _, u := range r.Undecided {
		fmt.Fprintf(&b, "%s: not decided: %s\n", file, u)
	}
	verdict := "ok"
	switch {
	case len(r.Violations) > 0:
		verdict = fmt.Sprintf("%d violations", r.Total())
	case len(r.Undecided) > 0:
		verdict = "not decided"
	}
	n := r.Counts
	fmt.Fprintf(&b, "%s: %s: %d publishes (%d acknowledged, %d failed, %d unknown, %d pending), %d records in %d readings, %d deliveries, %d faults, %d metadata operations; %d lost as allowed, %d not read back; %v\n",
		file, verdict, n.Publishes, n.Acked, n.Failed, n.Unknown, n.Pending, n.Records, n.Readings, n.Deliveries, n.Faults, n.Metadata, n.Lost, n.Unread, r.Took)
	return b.String()
}
