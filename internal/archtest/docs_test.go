package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	citation = regexp.MustCompile("`([a-z][a-z0-9]*)\\.([A-Z]\\w*)(?:\\.(\\w+))?(?:\\(\\))?`")
	cited    = regexp.MustCompile("`((?:internal|cmd|api|client|record|processor|test|tools|docs|examples|deploy)/[\\w./-]*)`")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fence    = regexp.MustCompile("(?ms)^```.*?^```")
)

// symbols indexes every name declared in the module by package name, then name: a type's own index holds its fields
// and methods.
type symbols map[string]map[string]map[string]bool

func index(tr *tree) symbols {
	all := symbols{}
	add := func(pkg, name, member string) {
		if all[pkg] == nil {
			all[pkg] = map[string]map[string]bool{}
		}
		if all[pkg][name] == nil {
			all[pkg][name] = map[string]bool{}
		}
		if member != "" {
			all[pkg][name][member] = true
		}
	}
	for _, s := range tr.sources {
		pkg := s.syntax.Name.Name
		for _, decl := range s.syntax.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					add(pkg, d.Name.Name, "")
				} else {
					add(pkg, receiver(d), d.Name.Name)
				}
			case *ast.GenDecl:
				indexDecl(pkg, d, add)
			}
		}
	}
	return all
}

func indexDecl(pkg string, d *ast.GenDecl, add func(pkg, name, member string)) {
	if d.Tok == token.IMPORT {
		return
	}
	for _, spec := range d.Specs {
		switch sp := spec.(type) {
		case *ast.ValueSpec:
			for _, n := range sp.Names {
				add(pkg, n.Name, "")
			}
		case *ast.TypeSpec:
			add(pkg, sp.Name.Name, "")
			var fields *ast.FieldList
			switch t := sp.Type.(type) {
			case *ast.StructType:
				fields = t.Fields
			case *ast.InterfaceType:
				fields = t.Methods
			}
			if fields == nil {
				continue
			}
			for _, f := range fields.List {
				for _, n := range f.Names {
					add(pkg, sp.Name.Name, n.Name)
				}
			}
		}
	}
}

// foreignPackages are the names of imported packages that are not ours: http, prometheus, slog.
func foreignPackages(tr *tree) map[string]bool {
	names := map[string]bool{}
	for _, s := range tr.sources {
		for _, imp := range s.imports() {
			if _, own := internalDir(imp); own {
				continue
			}
			for _, part := range strings.FieldsFunc(imp, func(r rune) bool { return r == '/' || r == '-' }) {
				names[part] = true
			}
		}
	}
	return names
}

// docsRule resolves what the documents cite: Go symbols, paths and links.
func docsRule(tr *tree) []string {
	known, foreign := index(tr), foreignPackages(tr)
	var findings []string
	for _, name := range tr.tracked {
		if path.Ext(name) != ".md" || strings.HasPrefix(name, "testdata/") {
			continue
		}
		text, err := fs.ReadFile(tr.fsys, name)
		if err != nil {
			findings = append(findings, err.Error())
			continue
		}
		prose := fence.ReplaceAllStringFunc(string(text), func(block string) string {
			return strings.Repeat("\n", strings.Count(block, "\n")) // keep line numbers
		})
		for i, line := range strings.Split(prose, "\n") {
			for _, problem := range docLine(tr, known, foreign, name, line) {
				findings = append(findings, fmt.Sprintf("%s:%d: %s", name, i+1, problem))
			}
		}
	}
	return findings
}

func docLine(tr *tree, known symbols, foreign map[string]bool, doc, line string) []string {
	var problems []string
	for _, m := range citation.FindAllStringSubmatch(line, -1) {
		pkg, sym, member := m[1], m[2], m[3]
		switch {
		case known[pkg] == nil && !foreign[pkg]:
			problems = append(problems, fmt.Sprintf("%s names no package", m[0]))
		case known[pkg] == nil || (known[pkg][sym] == nil && foreign[pkg]):
		case known[pkg][sym] == nil:
			problems = append(problems, fmt.Sprintf("%s: package %s declares no %s", m[0], pkg, sym))
		case member != "" && !known[pkg][sym][member]:
			problems = append(problems, fmt.Sprintf("%s: %s.%s has no %s", m[0], pkg, sym, member))
		}
	}
	for _, m := range cited.FindAllStringSubmatch(line, -1) {
		if testRef.MatchString(m[1]) || symbolRef(m[1]) {
			continue // guaranteesRule resolves those
		}
		if !exists(tr.fsys, strings.TrimSuffix(m[1], "/")) {
			problems = append(problems, m[0]+" does not exist")
		}
	}
	for _, m := range link.FindAllStringSubmatch(line, -1) {
		target, _, _ := strings.Cut(m[1], "#")
		if target == "" || strings.Contains(target, ":") {
			continue // a heading of this page, or another site
		}
		if !exists(tr.fsys, path.Join(path.Dir(doc), target)) {
			problems = append(problems, fmt.Sprintf("link to %s, which does not exist", m[1]))
		}
	}
	return problems
}

// symbolRef reports whether a path ends in .Name: a symbol with its package's directory.
func symbolRef(p string) bool {
	ext := strings.TrimPrefix(path.Ext(p), ".")
	return ext != "" && unicode.IsUpper(rune(ext[0]))
}

func TestDocsCiteWhatExists(t *testing.T) { report(t, docsRule(repo(t))) }

func TestDocsCiteWhatExistsBites(t *testing.T) {
	breaks(t, docsRule, map[string]string{
		"internal/seglog/a.go": "package seglog\nimport _ \"net/http\"\ntype Log struct{ End int }\nfunc (*Log) Append() {}\n",
		"docs/a.md": "`seglog.Log.Append` `seglog.Log.End` `http.Server` `seglog.Log` `storage.mode` `internal/seglog/a.go`\n" +
			"`seglog.Gone`\n`seglog.Log.Gone`\n`nolog.Log`\n`internal/gone`\n[x](gone.md) [y](a.md#z) [z](https://x.test)\n" +
			"```\n`seglog.Gone`\n```\n`seglog.Gone2`\n",
	},
		"docs/a.md:2: `seglog.Gone`: package seglog declares no Gone",
		"docs/a.md:3: `seglog.Log.Gone`: seglog.Log has no Gone",
		"docs/a.md:4: `nolog.Log` names no package",
		"docs/a.md:5: `internal/gone` does not exist",
		"docs/a.md:6: link to gone.md",
		"docs/a.md:10: `seglog.Gone2`",
	)
}
