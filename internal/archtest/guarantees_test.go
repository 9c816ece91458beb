package archtest

import (
	"fmt"
	"go/ast"
	"io/fs"
	"regexp"
	"strings"
	"testing"
)

const guaranteesFile = "docs/guarantees.md"

var (
	promiseID = regexp.MustCompile(`^[A-Z]{3,4}-\d\d$`)
	quoted    = regexp.MustCompile("`([^`]+)`")
	// testRef is internal/x.TestName, client.FuzzName or test/e2e.TestName/subtest.
	testRef = regexp.MustCompile(`^([\w./-]+)\.((?:Test|Fuzz|Benchmark|Example)\w*)(/\S*)?$`)
)

// promise is one row of the guarantees' tables.
type promise struct {
	id, text, proof string
	line            int
}

// promises reads every table row whose first cell is an id.
func promises(text string) []promise {
	var rows []promise
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		id := strings.TrimSpace(cells[0])
		if !promiseID.MatchString(id) {
			continue
		}
		p := promise{id: id, line: i + 1}
		if len(cells) == 3 {
			p.text, p.proof = strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		}
		rows = append(rows, p)
	}
	return rows
}

// testFuncs returns "dir.TestName" for every function that go test runs.
func testFuncs(tr *tree) map[string]bool {
	found := map[string]bool{}
	for _, s := range tr.sources {
		if !s.test {
			continue
		}
		for _, decl := range s.syntax.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				found[s.dir+"."+f.Name.Name] = true
			}
		}
	}
	return found
}

func guaranteesRule(tr *tree) []string {
	text, err := fs.ReadFile(tr.fsys, guaranteesFile)
	if err != nil {
		return []string{err.Error()}
	}
	rows := promises(string(text))
	if len(rows) == 0 {
		return []string{guaranteesFile + ": no row: the table has the columns id, promise, proved by"}
	}
	exists := testFuncs(tr)
	seen := map[string]bool{}
	var findings []string
	for _, p := range rows {
		complain := func(format string, args ...any) {
			findings = append(findings, fmt.Sprintf("%s:%d: %s: ", guaranteesFile, p.line, p.id)+fmt.Sprintf(format, args...))
		}
		if seen[p.id] {
			complain("this id stands twice")
		}
		seen[p.id] = true
		if p.text == "" {
			complain("want three cells: id, promise, proved by")
			continue
		}
		refs := quoted.FindAllStringSubmatch(p.proof, -1)
		if len(refs) == 0 && !strings.HasPrefix(p.proof, "planned") {
			complain("neither a test nor `planned`")
		}
		if rest := strings.TrimLeft(quoted.ReplaceAllString(p.proof, ""), " ,;"); rest != "" && !strings.HasPrefix(rest, "planned") {
			complain("only tests prove a promise: %q proves nothing; what is still to come stands behind `planned:`", rest)
		}
		for _, ref := range refs {
			m := testRef.FindStringSubmatch(ref[1])
			switch {
			case m == nil:
				complain("`%s` is not of the form dir.TestName", ref[1])
			case !exists[m[1]+"."+m[2]]:
				complain("there is no test %s in %s", m[2], m[1])
			}
		}
	}
	return findings
}

func TestGuaranteesNameTheirTests(t *testing.T) { report(t, guaranteesRule(repo(t))) }

func TestGuaranteesNameTheirTestsBites(t *testing.T) {
	table := "| id | promise | proved by |\n|---|---|---|\n" +
		"| LOG-01 | a | `internal/a.TestA` `internal/a.TestA/sub` |\n" +
		"| LOG-02 | b | planned |\n" +
		"| LOG-03 | c | planned: `internal/a.TestGone` |\n" +
		"| LOG-04 | d |  |\n" +
		"| LOG-05 | e |\n" +
		"| LOG-05 | f | `TestA` |\n" +
		"| LOG-06 | g | `internal/a.TestA`, `internal/a.TestA`; planned: more |\n" +
		"| LOG-07 | h | `internal/a.TestA`; seen once |\n"
	breaks(t, guaranteesRule, map[string]string{
		guaranteesFile:         table,
		"internal/a/a_test.go": "package a\nfunc TestA(t *testing.T) {}",
	},
		":5: LOG-03: there is no test TestGone in internal/a",
		":6: LOG-04: neither a test nor `planned`",
		":7: LOG-05: want three cells",
		":8: LOG-05: this id stands twice",
		":8: LOG-05: `TestA` is not of the form",
		":10: LOG-07: only tests prove a promise",
	)
	breaks(t, guaranteesRule, map[string]string{guaranteesFile: "nothing"}, "no row")
	breaks(t, guaranteesRule, map[string]string{"a.md": ""}, "file does not exist")
}
