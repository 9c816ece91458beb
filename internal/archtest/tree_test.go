package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

const module = "github.com/leveemq/levee"

// source is one Go file of the main module.
type source struct {
	path      string // slash-separated, relative to the module's root
	dir       string // its package
	text      string
	syntax    *ast.File
	test      bool // name ends in _test.go
	generated bool
}

// tree is the repository as the rules see it. It is not changed once loaded.
type tree struct {
	fsys    fs.FS
	fset    *token.FileSet
	sources []*source
	tracked []string // files that are, or are about to be, under version control
}

// skipped are directories that hold no source of the project.
var skipped = map[string]bool{".git": true, "bin": true, "dist": true, "levee-data": true, "node_modules": true}

// load reads every Go file of the module below fsys; nested modules and testdata are not part of it.
func load(fsys fs.FS, tracked []string) (*tree, error) {
	tr := &tree{fsys: fsys, fset: token.NewFileSet(), tracked: tracked}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "." {
				return nil
			}
			if skipped[d.Name()] || d.Name() == "testdata" || exists(fsys, path.Join(name, "go.mod")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(tr.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		tr.sources = append(tr.sources, &source{
			path: name, dir: path.Dir(name), text: string(text), syntax: syntax,
			test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(syntax),
		})
		return nil
	})
	return tr, err
}

func exists(fsys fs.FS, name string) bool {
	_, err := fs.Stat(fsys, name)
	return err == nil
}

// packages groups the sources by directory, in order.
func (tr *tree) packages() (dirs []string, byDir map[string][]*source) {
	byDir = map[string][]*source{}
	for _, s := range tr.sources {
		if byDir[s.dir] == nil {
			dirs = append(dirs, s.dir)
		}
		byDir[s.dir] = append(byDir[s.dir], s)
	}
	sort.Strings(dirs)
	return dirs, byDir
}

// imports returns the import paths of one file.
func (s *source) imports() []string {
	var paths []string
	for _, spec := range s.syntax.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// at renders a position as path:line.
func (tr *tree) at(pos token.Pos) string {
	p := tr.fset.Position(pos)
	return p.Filename + ":" + strconv.Itoa(p.Line)
}

func (tr *tree) line(pos token.Pos) int { return tr.fset.Position(pos).Line }

// match reports whether a package directory fits a pattern: exact, "a/*" one level below a, "a/**" a and all below it.
func match(pattern, dir string) bool {
	if base, ok := strings.CutSuffix(pattern, "/**"); ok {
		return dir == base || strings.HasPrefix(dir, base+"/")
	}
	if base, ok := strings.CutSuffix(pattern, "/*"); ok {
		return path.Dir(dir) == base
	}
	return pattern == dir
}

func matchAny(patterns []string, dir string) bool {
	for _, p := range patterns {
		if match(p, dir) {
			return true
		}
	}
	return false
}

// internalDir returns the directory within the module that an import path names.
func internalDir(importPath string) (dir string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// root finds the module's root from the directory the tests run in.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test's directory")
		}
		dir = parent
	}
}

var repository struct {
	once sync.Once
	tree *tree
	err  error
}

// repo loads this repository once.
func repo(t testing.TB) *tree {
	t.Helper()
	dir := root(t)
	repository.once.Do(func() {
		fsys := os.DirFS(dir)
		repository.tree, repository.err = load(fsys, trackedFiles(dir, fsys))
	})
	if repository.err != nil {
		t.Fatal(repository.err)
	}
	return repository.tree
}

// trackedFiles asks git; without git (a source archive) every file counts.
func trackedFiles(dir string, fsys fs.FS) []string {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = dir
	var files []string
	if out, err := cmd.Output(); err == nil {
		for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
			if exists(fsys, name) { // a deletion not committed yet is still listed
				files = append(files, name)
			}
		}
		return files
	}
	_ = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil: // load reports what cannot be read
			return fs.SkipDir
		case d.IsDir() && skipped[d.Name()]:
			return fs.SkipDir
		case !d.IsDir():
			files = append(files, name)
		}
		return nil
	})
	return files
}

// report fails the test once per finding.
func report(t *testing.T, findings []string) {
	t.Helper()
	for _, f := range findings {
		t.Error(f)
	}
}

// breaks loads a tree of the files given and demands that the rule finds exactly the places named: each finding must
// contain the wanted text of the same rank.
func breaks(t *testing.T, rule func(*tree) []string, files map[string]string, want ...string) {
	t.Helper()
	fsys := fstest.MapFS{}
	var names []string
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
		names = append(names, name)
	}
	sort.Strings(names)
	tr, err := load(fsys, names)
	if err != nil {
		t.Fatal(err)
	}
	got := rule(tr)
	if len(got) != len(want) {
		t.Fatalf("%d findings, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("finding %q does not contain %q", got[i], want[i])
		}
	}
}
