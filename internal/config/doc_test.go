package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md and levee.example.yaml")

const (
	pageFile    = "../../docs/configuration.md"
	exampleFile = "../../levee.example.yaml"
)

func TestConfigurationPage(t *testing.T) { golden(t, pageFile, page()) }

func TestExampleFile(t *testing.T) {
	golden(t, exampleFile, example())
	c, err := Load(LoadOptions{File: exampleFile})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range c.Entries() {
		if e.Value != e.Default {
			t.Errorf("%s is %q, its default %q", e.Key, e.Value, e.Default)
		}
		if !strings.HasPrefix(e.Origin, exampleFile+":") {
			t.Errorf("%s is not in the example: its origin is %q", e.Key, e.Origin)
		}
	}
}

func golden(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, []byte(want)) {
		t.Errorf("%s is not what the code says; run: go test ./internal/config -update", file)
	}
}

const pageHead = `# Configuration

This page is generated from the code (` + "`go test ./internal/config -update`" + `); a test keeps it true. All settings with comments, as a
file to begin with: [levee.example.yaml](../levee.example.yaml).

## Where a value comes from

A later source wins:

1. the default below;
2. the file of ` + "`levee server --config FILE`" + `: YAML, a section for every dot (` + "`listen.grpc`" + ` is ` + "`grpc:`" + ` below ` + "`listen:`" + `);
3. the environment: ` + "`LEVEE_`" + ` and the key in capitals with ` + "`_`" + ` for every dot (` + "`LEVEE_LISTEN_GRPC`" + `). An empty variable counts as not set;
   one that looks like a setting and is none is refused, any other ` + "`LEVEE_…`" + ` variable only mentioned in the log;
4. the flag, where there is one.

` + "`levee config show`" + ` prints every value in force and where it came from. ` + "`levee config check FILE`" + ` says what is wrong with a file.
Whatever is wrong stops the start, all of it at once: a key that does not exist, a value that is not allowed, values that
contradict each other. Nothing is corrected silently.

` + "`LEVEE_TLS_CERT` and `LEVEE_TLS_KEY`" + ` name what the process that reads them presents: a broker to its clients, any other command to
the broker it connects to. Where the two differ, give them different environments.

## Units

| unit | is written as |
|---|---|
| address | ` + "`host:port`" + `; port 0 takes a free one; an empty host is every interface |
| addresses | ` + "`host:port`" + ` of servers to connect to, several with a comma between |
| boolean | ` + "`true` or `false`" + ` |
| count | a whole number |
| duration | numbers with units ` + "`ns`, `us`, `ms`, `s`, `m`, `h`" + `, also after whole days: ` + "`250ms`, `1h30m`, `7d`" + ` |
| path | a file or directory; a relative one begins where the broker was started |
| size | bytes: a whole number, also with ` + "`KiB`, `MiB`, `GiB`" + ` |
| word | one of the words listed |

## Settings

| key | default | unit | allowed | flag | meaning |
|---|---|---|---|---|---|
`

const pageTail = `
Settings are also checked against each other:

* an address that other machines can reach needs ` + "`tls.cert` and `tls.key`, or `insecure: true`" + `;
* ` + "`tls.cert` and `tls.key`" + ` go together, and ` + "`tls.client_ca`" + ` needs both;
* the two listeners cannot share a port;
* ` + "`limits.record_bytes`" + ` is at least 1KiB below ` + "`limits.batch_bytes`" + `, which neither ` + "`limits.decompressed_bytes`" + ` nor
  ` + "`limits.in_flight_bytes`" + ` may be below;
* ` + "`limits.topic_partitions`" + ` is at most ` + "`limits.partitions`" + `;
* ` + "`storage.index_interval`" + ` is at most ` + "`storage.segment_bytes`" + `;
* what begins with ` + "`valkey`" + ` and says where servers are is for a ` + "`valkey.mode`" + ` other than none, which needs it; certificates need
  ` + "`valkey.tls`" + `; ` + "`valkey.keep_segments`" + ` is for ` + "`storage.mode: none`" + `.
`

func page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	for _, k := range table(Default()) {
		flag := ""
		if k.flag != "" {
			flag = "`--" + k.flag + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s | %s |\n", k.name, shown(k.def), k.unit(), k.value.allowed(), flag, k.help)
	}
	b.WriteString(pageTail)
	return b.String()
}

func shown(text string) string {
	if text == "" {
		return `""`
	}
	return text
}

const exampleHead = `# Every setting of a Levee broker, with its default: what is here changes nothing. Copy it, keep the lines you want to
# change, and start with: levee server --config FILE
# Generated from the code (go test ./internal/config -update); docs/configuration.md says more.
`

func example() string {
	var b strings.Builder
	b.WriteString(exampleHead)
	var open string
	for _, k := range table(Default()) {
		section, name, nested := strings.Cut(k.name, ".")
		if !nested {
			section, name = "", k.name
		}
		indent := ""
		if nested {
			indent = "  "
		}
		b.WriteString("\n")
		if section != open && nested {
			b.WriteString(section + ":\n")
		}
		open = section
		for _, line := range wrap(fmt.Sprintf("%s (%s: %s)", k.help, k.unit(), k.value.allowed()), 110) {
			b.WriteString(indent + "# " + line + "\n")
		}
		fmt.Fprintf(&b, "%s%s: %s\n", indent, name, shown(k.def))
	}
	return b.String()
}

func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(text) {
		if line != "" && len(line)+1+len(w) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return append(lines, line)
}
