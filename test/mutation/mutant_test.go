package mutation

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mutant is one deliberate bug. Its test is green without it: that is what the ordinary run of all tests shows.
type mutant struct {
	name     string // words joined by hyphens
	file     string // of the product, relative to the module's root
	old, new string // text that stands in the file once, and what takes its place
	breaks   string // in words, as of a broker that has the bug

	promises []string // ids in docs/guarantees.md that such a broker breaks
	test     string   // what must go red: dir.TestName, or one of its subtests: dir.TestName/sub
	short    bool     // the test's short form is enough
	process  bool     // the test runs brokers of their own: it gets a binary with the bug, and is itself built without
}

// mutants is the table, in the order of the page.
var mutants = slices.Concat(logMutants, recoveryMutants, metadataMutants, brokerMutants, dispatchMutants, tierMutants, bufferMutants, edgeMutants)

// pick returns the mutant of that name.
func pick(name string) (*mutant, error) {
	for i := range mutants {
		if mutants[i].name == name {
			return &mutants[i], nil
		}
	}
	return nil, fmt.Errorf("no mutant is named %q", name)
}

// apply returns the file with the bug in it.
func (m *mutant) apply(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return nil, fmt.Errorf("%s holds the old text %d times instead of once: the code has changed, so must the mutant:\n%s", m.file, n, m.old)
	}
	return []byte(strings.Replace(string(text), m.old, m.new, 1)), nil
}

var testForm = regexp.MustCompile(`^([\w./-]+)\.((?:Test|Fuzz)\w*)((?:/\S+)?)$`)

// target takes the test's name apart: its package's directory, its function, and the whole name that go test reports.
func (m *mutant) target() (dir, function, full string, err error) {
	parts := testForm.FindStringSubmatch(m.test)
	if parts == nil {
		return "", "", "", fmt.Errorf("%q is not of the form dir.TestName or dir.TestName/subtest", m.test)
	}
	return parts[1], parts[2], parts[2] + parts[3], nil
}

// moduleRoot returns the directory that holds go.mod.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for path.Dir(dir) != dir {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("no go.mod above the test's directory")
	return ""
}
