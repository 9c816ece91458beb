// Command fuzz runs every fuzz target of the module, one after the other, within one time for all of them. It never
// decides what a target is: `go test -list` does. Invariant: it exits 0 only when every target ran and none failed.
//
//	go run ./test/fuzz -total 10m [packages]
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// shortest is the least time a target is worth starting for.
const shortest = 3 * time.Second

func main() {
	total := flag.Duration("total", time.Minute, "time shared by all targets")
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	if err := fuzz(*total, packages, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

type target struct{ pkg, name string }

func fuzz(total time.Duration, packages []string, out io.Writer) error {
	list := exec.Command("go", append([]string{"test", "-list", "^Fuzz"}, packages...)...)
	list.Stderr = os.Stderr
	listing, err := list.Output()
	if err != nil {
		return fmt.Errorf("list fuzz targets: %w\n%s", err, listing)
	}
	targets := parseList(string(listing))
	if len(targets) == 0 {
		return fmt.Errorf("no fuzz target in %s", strings.Join(packages, " "))
	}
	each := max(total/time.Duration(len(targets)), shortest)
	var failed []string
	for i, t := range targets {
		fmt.Fprintf(out, "fuzzing %d of %d, %s: %s %s\n", i+1, len(targets), each.Round(time.Second), t.pkg, t.name)
		cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), t.pkg)
		if output, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(out, "%s", output)
			failed = append(failed, t.pkg+" "+t.name)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d targets failed: %s: the output above says why; an input that fails is kept in testdata/fuzz beside its target: commit it with the fix",
			len(failed), len(targets), strings.Join(failed, ", "))
	}
	return nil
}

// parseList reads what `go test -list` prints: names, then "ok  package time" for each package.
func parseList(listing string) []target {
	var targets []target
	var names []string
	for _, line := range strings.Split(listing, "\n") {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 1 && strings.HasPrefix(fields[0], "Fuzz"):
			names = append(names, fields[0])
		case len(fields) >= 2 && fields[0] == "ok":
			for _, n := range names {
				targets = append(targets, target{fields[1], n})
			}
			names = nil
		}
	}
	return targets
}
