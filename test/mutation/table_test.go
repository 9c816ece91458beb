package mutation

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/mutations.md")

const (
	pageFile = "docs/mutations.md"
	fewest   = 20 // mutants; fewer would prove little
)

// TestMutantsFitTheCode keeps the table true to the code without running anything: each old text stands where it is said
// to, what takes its place is Go, and the promises and tests named exist.
func TestMutantsFitTheCode(t *testing.T) {
	root := moduleRoot(t)
	promises, err := promiseIDs(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(mutants) < fewest {
		t.Errorf("%d mutants, want at least %d", len(mutants), fewest)
	}
	tests := map[string]map[string]bool{}
	seen := map[string]bool{}
	for i := range mutants {
		m := &mutants[i]
		for _, wrong := range m.wrong(root, promises, tests) {
			t.Errorf("%s: %s", m.name, wrong)
		}
		if seen[m.name] {
			t.Errorf("%s: this name stands twice", m.name)
		}
		seen[m.name] = true
	}
}

// wrong says what does not fit. tests keeps the functions of the directories looked at so far.
func (m *mutant) wrong(root string, promises map[string]bool, tests map[string]map[string]bool) (all []string) {
	complain := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if !regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`).MatchString(m.name) {
		complain("a name is words joined by hyphens")
	}
	if m.breaks == "" || strings.ContainsAny(m.breaks, "|\n") || len(m.promises) == 0 {
		complain("want what it breaks, in one line without |, and whose promises")
	}
	for _, id := range m.promises {
		if !promises[id] {
			complain("there is no promise %s", id)
		}
	}
	text, err := m.apply(root)
	if err != nil {
		complain("%v", err)
	} else if _, err := parser.ParseFile(token.NewFileSet(), m.file, text, parser.SkipObjectResolution); err != nil {
		complain("with the new text the file is no Go: %v", err)
	}
	if m.old == m.new {
		complain("the new text is the old one")
	}
	dir, function, _, err := m.target()
	if err != nil {
		complain("%v", err)
		return all
	}
	if tests[dir] == nil {
		if tests[dir], err = testFunctions(filepath.Join(root, filepath.FromSlash(dir))); err != nil {
			complain("%v", err)
		}
	}
	if !tests[dir][function] {
		complain("there is no test %s in %s", function, dir)
	}
	return all
}

// testFunctions returns the names of the functions in a directory's test files.
func testFunctions(dir string) (map[string]bool, error) {
	found := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return found, err
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return found, err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				found[f.Name.Name] = true
			}
		}
	}
	return found, nil
}

// promiseIDs returns the ids of the promises that have been made.
func promiseIDs(root string) (map[string]bool, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z]{3,4}-\d\d) \|.*\| (\S+)`).FindAllStringSubmatch(string(text), -1) {
		ids[m[1]] = m[2] != "planned"
	}
	return ids, nil
}

// TestMutantsThatDoNotFit shows that the table's test bites.
func TestMutantsThatDoNotFit(t *testing.T) {
	root := moduleRoot(t)
	promises := map[string]bool{"LOG-01": true}
	good := mutant{name: "a-b", file: "test/mutation/doc.go", old: "package mutation\n", new: "package mutants\n", breaks: "it",
		promises: []string{"LOG-01"}, test: "test/mutation.TestMutantsThatDoNotFit"}
	if wrong := good.wrong(root, promises, map[string]map[string]bool{}); len(wrong) > 0 {
		t.Errorf("a good one: %q", wrong)
	}
	for want, spoil := range map[string]func(m *mutant){
		"joined by hyphens":         func(m *mutant) { m.name = "A b" },
		"what it breaks":            func(m *mutant) { m.breaks = "a|b" },
		"whose promises":            func(m *mutant) { m.promises = nil },
		"no promise LOG-02":         func(m *mutant) { m.promises = []string{"LOG-02"} },
		"0 times instead of once":   func(m *mutant) { m.old = "package mutations\n" },
		"2 times instead of once":   func(m *mutant) { m.file, m.old = "go.mod", "require (" },
		"no such file":              func(m *mutant) { m.file = "test/mutation/none.go" },
		"is no Go":                  func(m *mutant) { m.new = "package\n" },
		"the new text is the old":   func(m *mutant) { m.new = m.old },
		"not of the form":           func(m *mutant) { m.test = "TestMutants" },
		"there is no test TestNone": func(m *mutant) { m.test = "test/mutation.TestNone" },
	} {
		m := good
		spoil(&m)
		if wrong := m.wrong(root, promises, map[string]map[string]bool{}); !strings.Contains(strings.Join(wrong, "\n"), want) {
			t.Errorf("want %q, got %q", want, wrong)
		}
	}
	if _, err := pick("none"); err == nil {
		t.Error("a mutant that is none was found")
	}
}

const pageHead = `# Mutations

Would a test notice if the promise it stands for were broken? Each row is a bug put into the product on purpose, and the
test that fails because of it.

` + "`go test -tags mutation -timeout 30m -v ./test/mutation`" + ` puts each one in, in a copy that only the compiler sees, and demands that
failure and no other; ` + "`LEVEE_MUTANT=NAME`" + ` tries one. The ids are those of the promises it breaks ([guarantees.md](guarantees.md));
*brokers* means that the test starts processes of a broker that has the bug. This page is generated from the table
(` + "`go test ./test/mutation -update`" + `), which every run of the tests holds against the code.

| mutant | what it breaks | promises | test that goes red |
|---|---|---|---|
`

func page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	for i := range mutants {
		m := &mutants[i]
		note := ""
		if m.process {
			note = " (brokers)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | `%s`%s |\n", m.name, m.breaks, strings.Join(m.promises, ", "), m.test, note)
	}
	return b.String()
}

func TestMutationsPage(t *testing.T) {
	file := filepath.Join(moduleRoot(t), filepath.FromSlash(pageFile))
	want := []byte(page())
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the table says; run: go test ./test/mutation -update", pageFile)
	}
}
