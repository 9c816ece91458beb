package archtest

import (
	"fmt"
	"sort"
	"strings"
	"testing"
)

// row is one line of the layer table. A package imports packages of strictly lower layers only.
type row struct {
	layer    int
	packages []string
}

// layers is the table. A new package needs a row here; think about which before you write it.
var layers = []row{
	{10, []string{"cmd/levee"}},
	{9, []string{"internal/cli"}},
	{8, []string{"internal/server"}}, // composition root: start and stop order
	{7, []string{"internal/config"}},
	{6, []string{"internal/listener/*"}}, // bytes to broker calls and back
	{5, []string{"internal/broker"}},
	{4, []string{"internal/subscription", "internal/group", "internal/registry", "internal/fsck"}},                                                                                  // records to consumers; what may be published; all that is stored against each other
	{3, []string{"internal/partition", "internal/dispatch", "internal/fan", "internal/exposure", "internal/objstore/open", "internal/metatier"}},                                    // the truth about one partition; the decisions of one subscription; any store by its settings
	{2, []string{"internal/cursor", "internal/datadir", "internal/seglog", "internal/tier", "internal/raft", "internal/writebuf/valkey", "internal/mirror", "internal/objstore/*"}}, // engines and adapters
	{1, []string{"internal/segfmt", "internal/objstore", "internal/writebuf", "internal/meta", "internal/schema", "internal/balance"}},
	{0, []string{"record", "internal/vfs", "internal/task", "internal/obs", "internal/fault", "internal/auth", "internal/console", "internal/invariants"}},
}

// sides are packages beside the layers: what each may import, and from where it may be imported (besides the tops).
var sides = []struct {
	packages  string
	imports   []string
	importers []string
}{
	{"api/**", []string{"api/**"}, []string{"api/**", "client/**", "internal/listener/grpc", "internal/listener/danube"}},
	{"client/**", []string{"api/**", "record", "client/**"}, []string{"client/**", "processor/**", "internal/cli"}},
	{"processor/**", []string{"client/**", "record", "internal/objstore/**", "processor/**"}, []string{"processor/**", "internal/cli"}},
}

// tops sit above what they use: they may import anything, and nothing but other tops and tests imports them.
var tops = []string{"internal/simulation", "internal/archtest", "test/**", "examples/**"}

// kit reports whether a package below internal is a test kit: a conformance suite or a fake with a package of its own.
func kit(dir string) bool {
	return dir != "internal/archtest" && match("internal/**", dir) && strings.HasSuffix(dir, "test")
}

func top(dir string) bool { return matchAny(tops, dir) || kit(dir) }

// listenersSee is all that a listener may know below itself: the broker and the leaves.
var listenersSee = []string{"internal/broker"}

func layerOf(dir string) (int, bool) {
	best, found := 0, false
	for _, r := range layers {
		for _, p := range r.packages {
			if p == dir {
				return r.layer, true // an exact row beats a pattern
			}
			if match(p, dir) {
				best, found = r.layer, true
			}
		}
	}
	return best, found
}

func sideOf(dir string) int {
	for i := range sides {
		if match(sides[i].packages, dir) {
			return i
		}
	}
	return -1
}

// mayImport says why from may not import to, or "".
func mayImport(from, to string) string {
	if top(from) {
		return ""
	}
	if top(to) {
		return "nothing imports a test kit but tests"
	}
	fromSide, toSide := sideOf(from), sideOf(to)
	switch {
	case fromSide >= 0:
		if !matchAny(sides[fromSide].imports, to) {
			return fmt.Sprintf("%s imports %s only", sides[fromSide].packages, strings.Join(sides[fromSide].imports, ", "))
		}
		return ""
	case toSide >= 0:
		if !matchAny(sides[toSide].importers, from) {
			return fmt.Sprintf("%s is imported by %s only", sides[toSide].packages, strings.Join(sides[toSide].importers, ", "))
		}
		return ""
	}
	above, _ := layerOf(from)
	below, _ := layerOf(to)
	if below >= above {
		return fmt.Sprintf("layer %d imports layer %d: imports go strictly down", above, below)
	}
	if match("internal/listener/*", from) && below > 0 && !matchAny(listenersSee, to) {
		return "a listener does not reach past the broker"
	}
	return ""
}

func layerRule(tr *tree) []string {
	var findings []string
	dirs, byDir := tr.packages()
	for _, dir := range dirs {
		_, known := layerOf(dir)
		if !known && sideOf(dir) < 0 && !top(dir) {
			findings = append(findings, fmt.Sprintf("package %s is not in the layer table (internal/archtest/layers_test.go)", dir))
			continue
		}
		seen := map[string]bool{}
		for _, s := range byDir[dir] {
			if s.test {
				continue // tests may use whatever shows the promise
			}
			for _, imp := range s.imports() {
				to, ok := internalDir(imp)
				if !ok || seen[to] {
					continue
				}
				seen[to] = true
				if _, known := layerOf(to); !known && sideOf(to) < 0 && !top(to) {
					continue // reported above, under its own name
				}
				if why := mayImport(dir, to); why != "" {
					findings = append(findings, fmt.Sprintf("%s: %s imports %s: %s", s.path, dir, to, why))
				}
			}
		}
	}
	return findings
}

func TestLayers(t *testing.T) { report(t, layerRule(repo(t))) }

func TestLayersBites(t *testing.T) {
	file := func(pkg string, imports ...string) string {
		text := "package " + pkg + "\n"
		for _, i := range imports {
			text += fmt.Sprintf("import _ %q\n", module+"/"+i)
		}
		return text
	}
	breaks(t, layerRule, map[string]string{
		"internal/broker/a.go":         file("broker", "internal/partition", "internal/fault"),
		"internal/broker/a_test.go":    file("broker", "internal/server"),
		"internal/fault/a.go":          file("fault", "internal/obs"),
		"internal/listener/admin/a.go": file("admin", "internal/broker", "internal/seglog"),
		"internal/meta/a.go":           file("meta", "internal/raft"),
		"internal/novel/a.go":          file("novel"),
		"internal/obs/a.go":            file("obs"),
		"internal/partition/a.go":      file("partition", "internal/seglog", "client"),
		"internal/raft/a.go":           file("raft"),
		"internal/seglog/a.go":         file("seglog", "internal/tier"),
		"internal/server/a.go":         file("server", "internal/listener/admin", "test/e2e"),
		"internal/tier/a.go":           file("tier", "internal/objstore"),
		"client/a.go":                  file("client", "record", "api/levee/v1", "internal/fault"),
		"record/a.go":                  file("record"),
		"test/e2e/a.go":                file("e2e", "internal/seglog"),
	},
		"client imports internal/fault",
		"internal/fault imports internal/obs: layer 0 imports layer 0",
		"internal/listener/admin imports internal/seglog: a listener does not reach past the broker",
		"internal/meta imports internal/raft: layer 1 imports layer 2",
		"package internal/novel is not in the layer table",
		"internal/partition imports client: client/** is imported by",
		"internal/seglog imports internal/tier",
		"internal/server imports test/e2e",
	)
}

// clientClosure is everything of this module that a program using the client compiles.
func clientClosure(tr *tree) []string {
	_, byDir := tr.packages()
	seen := map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		for _, s := range byDir[dir] {
			if s.test {
				continue
			}
			for _, imp := range s.imports() {
				if to, ok := internalDir(imp); ok {
					visit(to)
				}
			}
		}
	}
	visit("client")
	var findings []string
	for dir := range seen {
		if !matchAny([]string{"client/**", "api/**", "record"}, dir) {
			findings = append(findings, "a program that imports client compiles "+dir+" too: keep the client small")
		}
	}
	sort.Strings(findings)
	return findings
}

func TestClientStaysSmall(t *testing.T) { report(t, clientClosure(repo(t))) }

func TestClientStaysSmallBites(t *testing.T) {
	breaks(t, clientClosure, map[string]string{
		"client/a.go":         "package client\nimport _ \"" + module + "/record\"",
		"record/a.go":         "package record\nimport _ \"" + module + "/internal/fault\"",
		"internal/fault/a.go": "package fault",
	}, "compiles internal/fault")
}
