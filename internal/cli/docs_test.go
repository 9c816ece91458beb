package cli

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/leveemq/levee/internal/config"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

const docsFile = "../../docs/cli.md"

const docsHead = `# The command line

This page is made from the help of the commands (` + "`go test ./internal/cli -run TestDocs -update`" + `): what is here is what
` + "`levee COMMAND --help`" + ` prints. Scripts may rely on it; what changes is in the changelog.

One binary, ` + "`levee`" + `, is the broker and everything that talks to it.

* Results go to standard output. Everything else, such as errors, notes and progress, goes to standard error.
* Exit codes: 0 done, 1 failed, 2 bad usage (nothing was tried), 3 data is missing, corrupt or out of range.
* ` + "`--output json`" + ` prints one object a line. Its fields are listed with each command; more may be added, none changes its
  meaning. A name with a dot is a field of an object inside; where it says *s* of something, of each object of a list.
* An error says what failed and where, and on its next line what to try.
* NAME of a topic is ` + "`namespace/topic`, or `topic`" + ` alone in the namespace ` + "`default`" + `.
* Sizes are a number of bytes, or one with KiB, MiB, GiB or TiB. Durations are Go's, such as 250ms or 1h30m, and may begin with
  days: 7d, 1d12h.
* Offsets count the records of a partition from 0.
* On a terminal, work that takes longer than a second shows its progress on standard error.
* An interrupt ends a command in good order; a second one ends it at once.
`

// TestDocs keeps docs/cli.md what the commands say about themselves.
func TestDocs(t *testing.T) {
	t.Setenv("COLUMNS", "110")
	var want strings.Builder
	want.WriteString(docsHead)
	want.WriteString("\n## Flags of every command\n\n```\n")
	help, _, code := run(t, "", "--help")
	if code != exitDone {
		t.Fatalf("exit code %d", code)
	}
	_, flags, _ := strings.Cut(help, "Flags of every command:\n")
	flags, _, _ = strings.Cut(flags, "\nCommands:")
	want.WriteString(strings.TrimRight(flags, "\n") + "\n```\n")
	for _, command := range commands(t) {
		help, stderr, code := run(t, "", append(strings.Fields(command), "--help")...)
		if code != exitDone || stderr != "" {
			t.Errorf("%s: exit code %d, %s", command, code, stderr)
		}
		own, _, _ := strings.Cut(help, "\nFlags of every command:")
		if !strings.Contains(own, "\nExample:\n") {
			t.Errorf("levee %s --help has no example", command)
		}
		want.WriteString("\n## levee " + command + "\n\n```\n" + strings.TrimRight(own, "\n") + "\n```\n")
	}
	if *update {
		if err := os.WriteFile(docsFile, []byte(want.String()), 0o644); err != nil { //nolint:gosec // documentation
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Errorf("docs/cli.md is not what the commands say: go test ./internal/cli -run TestDocs -update")
	}
}

// commands returns every command that can be run: "topic create".
func commands(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, n := range model(t).Leaves(true) {
		all = append(all, commandOf(n))
	}
	return all
}

func model(t *testing.T) *kong.Application {
	t.Helper()
	parser, err := newParser(&root{}, newApp(t.Context(), nil, nil, nil, nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model
}

// TestServerHasAFlagForEachSettingWithOne keeps levee server's flags those that the configuration says there are.
func TestServerHasAFlagForEachSettingWithOne(t *testing.T) {
	want := map[string]bool{}
	for _, e := range config.Default().Entries() {
		if e.Flag != "" {
			want[e.Flag] = true
		}
	}
	for _, command := range []string{"server", "config show"} {
		got := map[string]bool{}
		for _, n := range model(t).Leaves(true) {
			if commandOf(n) == command {
				for _, f := range n.Flags {
					got[f.Name] = true
				}
			}
		}
		got["tls-cert"], got["tls-key"] = true, true // flags of every command
		for name := range want {
			if !got[name] {
				t.Errorf("levee %s has no flag --%s", command, name)
			}
		}
		for name := range got {
			if !want[name] && name != "config" {
				t.Errorf("levee %s has the flag --%s, which is no setting", command, name)
			}
		}
	}
}

// TestFlagsReachTheConfiguration gives each flag of levee server a value and looks where it arrives.
func TestFlagsReachTheConfiguration(t *testing.T) {
	out, stderr, code := runEnv(t.Context(), []string{"LEVEE_TLS_CERT=env.pem", "LEVEE_TLS_KEY=key.pem"}, nil,
		"config", "show", "--data-dir", "elsewhere", "--grpc", "127.0.0.1:1", "--http", "127.0.0.1:2", "--tls-cert", "flag.pem")
	if code != exitDone {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		"data_dir elsewhere flag --data-dir", "listen.grpc 127.0.0.1:1 flag --grpc", "listen.http 127.0.0.1:2 flag --http",
		"tls.cert flag.pem flag --tls-cert", "tls.key key.pem environment LEVEE_TLS_KEY",
	} {
		found := false
		for _, line := range strings.Split(out, "\n") {
			found = found || strings.Join(strings.Fields(line), " ") == want
		}
		if !found {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
}
