package broker

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew; read the difference before you commit it")

func TestExposures(t *testing.T) {
	of := func(fsync string, interval, age time.Duration, bytes int64) Settings {
		segment := int64(256 << 20)
		return Settings{Fsync: &fsync, FsyncInterval: &interval, RetentionBytes: &bytes, RetentionAge: &age, SegmentBytes: &segment}
	}
	var got strings.Builder
	for _, c := range []struct {
		name     string
		settings Settings
		reliable bool
	}{
		{"on_commit", of("on_commit", 250*time.Millisecond, 0, 0), true},
		{"periodic 250ms", of("periodic", 250*time.Millisecond, 0, 0), true},
		{"periodic 5s, kept a week", of("periodic", 5*time.Second, 7*24*time.Hour, 0), true},
		{"none, 1 GiB kept", of("none", 250*time.Millisecond, 0, 1<<30), true},
		{"on_commit, an hour or 1000 bytes kept", of("on_commit", 250*time.Millisecond, time.Hour, 1000), true},
		{"non_reliable", Settings{}, false},
	} {
		fmt.Fprintf(&got, "## %s\n", c.name)
		for _, e := range exposures(c.settings, c.reliable) {
			fmt.Fprintf(&got, "%s: %s\n", e.Fault, e.Loses)
		}
		got.WriteString("\n")
	}
	const golden = "testdata/exposures.txt"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("differs from %s; got:\n%s", golden, got.String())
	}
}
