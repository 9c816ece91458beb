// Command run is go test with two things added: the tests that were skipped, and why, stand just before go test's last
// lines, and the packages that failed stand last of these, each with what failed in it: often the end is all that is kept. It
// starts `go test -json` with the arguments it is given and prints what go test would have printed. It never
// changes what is run or how it is judged, except that with -no-skips a skip outside the list fails. Invariant: it
// exits 0 only when go test did.
//
//	go run ./test/run [-no-skips FILE] [go test's arguments]
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var allowed *allowList
	if len(args) >= 2 && args[0] == "-no-skips" {
		var err error
		if allowed, err = readAllowList(args[1]); err != nil {
			fmt.Fprintln(stderr, "run:", err)
			return 2
		}
		args = args[2:]
	}
	// The interrupt goes to go test too; this program stays to report what it says.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)

	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(stderr, "run: start go test:", err)
		return 2
	}
	rep := newReport(stdout, stderr)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			rep.line(strings.TrimRight(line, "\n"))
		}
		if err != nil {
			break
		}
	}
	failed := cmd.Wait() != nil
	return rep.finish(failed, allowed)
}
