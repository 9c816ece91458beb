package exposure

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/seglog"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew; read the difference before you commit it")

func TestExposures(t *testing.T) {
	of := func(mode seglog.Mode, interval, age time.Duration, bytes int64) Topic {
		return Topic{Reliable: true, Mode: mode, FsyncInterval: interval, RetentionBytes: bytes, RetentionAge: age}
	}
	copied := of(seglog.OnCommit, 250*time.Millisecond, time.Hour, 0)
	copied.Copied, copied.SealAge = true, 10*time.Minute
	buffered := of(seglog.Periodic, 250*time.Millisecond, 0, 0)
	buffered.Buffered = true
	few := buffered
	few.KeepSegments, few.Degrade = 3, true
	all := copied
	all.Buffered = true
	inside, both := copied, all
	inside.Inside, both.Inside = true, true
	expiring := copied
	expiring.ObjectBytes, expiring.ObjectAge = 1<<30, 24*time.Hour
	kept := expiring
	kept.RetentionAge = 0
	var got strings.Builder
	for _, c := range []struct {
		name  string
		topic Topic
	}{
		{"on_commit", of(seglog.OnCommit, 250*time.Millisecond, 0, 0)},
		{"periodic 250ms", of(seglog.Periodic, 250*time.Millisecond, 0, 0)},
		{"periodic 5s, kept a week", of(seglog.Periodic, 5*time.Second, 7*24*time.Hour, 0)},
		{"none, 1 GiB kept", of(seglog.None, 250*time.Millisecond, 0, 1<<30)},
		{"on_commit, an hour or 1000 bytes kept", of(seglog.OnCommit, 250*time.Millisecond, time.Hour, 1000)},
		{"on_commit, an hour kept, copied", copied},
		{"on_commit, an hour kept, a day or 1 GiB of copies", expiring},
		{"on_commit, everything kept, a day or 1 GiB of copies", kept},
		{"periodic 250ms, write buffer", buffered},
		{"periodic 250ms, write buffer that keeps 3 segments and may be gone without", few},
		{"on_commit, an hour kept, copied, write buffer", all},
		{"on_commit, an hour kept, copied on this disk", inside},
		{"on_commit, an hour kept, copied on this disk, write buffer", both},
		{"non_reliable", Topic{}},
	} {
		fmt.Fprintf(&got, "## %s\n", c.name)
		for _, e := range Of(c.topic) {
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
