package archtest

import (
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write docs/metrics.md instead of comparing it")

// metric is one metric as its package declares it.
type metric struct {
	name, kind, help string
	labels           []string
	dir              string
	at               token.Pos
}

var (
	optsType   = regexp.MustCompile(`^(Counter|Gauge|Histogram|Summary)Opts$`)
	metricName = regexp.MustCompile(`^levee_[a-z][a-z0-9_]*$`)
)

// metricsReader finds the metrics that one file declares: options with a literal name, a prometheus.Desc, or calls of a
// local function that puts a prefix before the name it is given.
type metricsReader struct {
	tr      *tree
	s       *source
	makers  map[string]metric // by the local function's name: its kind and prefix
	found   []metric
	unclear []string
}

func readMetrics(tr *tree, s *source) *metricsReader {
	r := &metricsReader{tr: tr, s: s, makers: map[string]metric{}}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if !ok || len(assign.Lhs) != 1 || len(assign.Rhs) != 1 {
			return true
		}
		fn, isFunc := assign.Rhs[0].(*ast.FuncLit)
		id, isName := assign.Lhs[0].(*ast.Ident)
		if isFunc && isName {
			r.maker(id.Name, fn)
		}
		return true
	})
	ast.Inspect(s.syntax, r.visit)
	return r
}

// maker remembers a local function whose first two parameters are a metric's name and help.
func (r *metricsReader) maker(name string, fn *ast.FuncLit) {
	var params []string
	for _, f := range fn.Type.Params.List {
		for _, n := range f.Names {
			params = append(params, n.Name)
		}
	}
	if len(params) < 2 {
		return
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		if kind, fields := opts(n); kind != "" {
			if prefix, ok := prefixOf(fields["Name"], params[0]); ok {
				r.makers[name] = metric{kind: kind, name: prefix}
			}
		}
		return true
	})
}

// opts returns the kind and fields of a composite literal of options.
func opts(n ast.Node) (kind string, fields map[string]ast.Expr) {
	lit, ok := n.(*ast.CompositeLit)
	if !ok {
		return "", nil
	}
	sel, ok := lit.Type.(*ast.SelectorExpr)
	if !ok || !optsType.MatchString(sel.Sel.Name) {
		return "", nil
	}
	fields = map[string]ast.Expr{}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if k, ok := kv.Key.(*ast.Ident); ok {
				fields[k.Name] = kv.Value
			}
		}
	}
	return strings.ToLower(strings.TrimSuffix(sel.Sel.Name, "Opts")), fields
}

// prefixOf reads `param` and `"prefix" + param`.
func prefixOf(e ast.Expr, param string) (string, bool) {
	switch x := e.(type) {
	case *ast.Ident:
		return "", x.Name == param
	case *ast.BinaryExpr:
		prefix, ok := text(x.X)
		id, isParam := x.Y.(*ast.Ident)
		return prefix, ok && isParam && id.Name == param
	}
	return "", false
}

// text reads a string literal, or several added together.
func text(e ast.Expr) (string, bool) {
	switch x := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(x.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		a, ok := text(x.X)
		b, also := text(x.Y)
		return a + b, ok && also
	}
	return "", false
}

func labels(args []ast.Expr) []string {
	var names []string
	for _, a := range args {
		if lit, ok := a.(*ast.CompositeLit); ok {
			for _, e := range lit.Elts {
				if name, ok := text(e); ok {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

func (r *metricsReader) visit(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return true
	}
	switch fn := call.Fun.(type) {
	case *ast.Ident:
		if m, ok := r.makers[fn.Name]; ok && len(call.Args) >= 2 {
			name, named := text(call.Args[0])
			help, helped := text(call.Args[1])
			r.add(metric{name: m.name + name, kind: m.kind, help: help, labels: labels(call.Args[2:]), at: call.Pos()}, named && helped)
		}
	case *ast.SelectorExpr:
		if fn.Sel.Name == "NewDesc" && len(call.Args) == 4 {
			name, named := text(call.Args[0])
			help, helped := text(call.Args[1])
			r.add(metric{name: name, kind: "gauge", help: help, labels: labels(call.Args[2:3]), at: call.Pos()}, named && helped)
			return true
		}
		if len(call.Args) == 0 {
			return true
		}
		kind, fields := opts(call.Args[0])
		if kind == "" {
			return true
		}
		name, named := text(fields["Name"])
		help, helped := text(fields["Help"])
		if named || helped { // otherwise it stands in a maker, whose calls are read
			r.add(metric{name: name, kind: kind, help: help, labels: labels(call.Args[1:]), at: call.Pos()}, named && helped)
		}
	}
	return true
}

func (r *metricsReader) add(m metric, clear bool) {
	if !clear {
		r.unclear = append(r.unclear, r.tr.at(m.at)+": name and help of a metric must be literals, so that docs/metrics.md can be made from them")
		return
	}
	m.dir = r.s.dir
	r.found = append(r.found, m)
}

// allMetrics returns every metric of the module, by package and name, and what is wrong with how they are declared.
func allMetrics(tr *tree) (all []metric, findings []string) {
	for _, s := range tr.sources {
		if s.test || !strings.HasPrefix(s.path, "internal/") && !strings.HasPrefix(s.path, "client/") {
			continue
		}
		r := readMetrics(tr, s)
		if strings.HasSuffix(s.path, "/metrics.go") {
			all = append(all, r.found...)
			findings = append(findings, r.unclear...)
			continue
		}
		for _, m := range r.found {
			findings = append(findings, tr.at(m.at)+": a metric is declared in its package's metrics.go")
		}
	}
	sort.Slice(all, func(i, j int) bool {
		return all[i].dir < all[j].dir || (all[i].dir == all[j].dir && all[i].name < all[j].name)
	})
	seen := map[string]string{}
	for _, m := range all {
		complain := func(what string) { findings = append(findings, tr.at(m.at)+": "+m.name+": "+what) }
		switch {
		case !metricName.MatchString(m.name):
			complain("want levee_, the part, and what it counts, in lower case")
		case seen[m.name] != "":
			complain("stands in " + seen[m.name] + " too")
		case (m.kind == "counter") != strings.HasSuffix(m.name, "_total") && !strings.HasSuffix(m.name, "_bytes"):
			complain("a counter's name ends in _total, and nothing else's does")
		case len(m.help) < 5 || !strings.HasSuffix(m.help, "."):
			complain("its help is no sentence")
		}
		seen[m.name] = m.dir
	}
	return all, findings
}

func metricsPage(all []metric) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\nServed at `/metrics` of the HTTP port. This page is generated from the code: `make gen`. The Go runtime's and the\n" +
		"process's own metrics (`go_…`, `process_…`) are there too.\n")
	dir := ""
	for _, m := range all {
		if m.dir != dir {
			dir = m.dir
			fmt.Fprintf(&b, "\n## `%s`\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n", dir)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(m.labels, ", "), strings.ReplaceAll(m.help, "|", `\|`))
	}
	return b.String()
}

func TestMetricsPage(t *testing.T) {
	all, findings := allMetrics(repo(t))
	report(t, findings)
	file := filepath.Join(root(t), "docs", "metrics.md")
	page := metricsPage(all)
	if *rewrite {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
		return
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != page {
		t.Errorf("docs/metrics.md is not what the code declares (%v): run make gen", err)
	}
}

func TestMetricsPageBites(t *testing.T) {
	code := `package x
func newMetrics() {
	counter := func(name, help string) C { return prometheus.NewCounter(prometheus.CounterOpts{Name: "levee_x_" + name, Help: help}) }
	counter("a_total", "Things that were counted.")
	counter("b", "Things that were counted.")
	counter(variable, "Things that were counted.")
	prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "levee_x_c", Help: "Things that are there."}, []string{"state"})
	prometheus.NewGauge(prometheus.GaugeOpts{Name: "levee_x_d", Help: "no"})
	prometheus.NewDesc("levee_x_c", "Things that are there.", []string{"kind"}, nil)
}`
	breaks(t, func(tr *tree) []string { _, findings := allMetrics(tr); return findings }, map[string]string{
		"internal/x/metrics.go": code, "internal/x/other.go": "package x\n" + `var e = prometheus.NewGauge(prometheus.GaugeOpts{Name: "levee_x_e", Help: "Things that stand apart."})`,
	},
		"internal/x/metrics.go:6: name and help", "internal/x/other.go:2: a metric is declared in", "levee_x_b: a counter's name", "levee_x_c: stands in internal/x", "levee_x_d: its help")
}
