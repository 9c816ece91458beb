package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/proc"
)

// A broker is killed and its directory moved away. What its object store lacks, the next one waits for, and finds in that
// directory once it is told where it is: every record that was acknowledged is there, at its offset.
func TestDirectoryComesBack(t *testing.T) {
	x := newTiered(t)
	if err := os.Mkdir(x.root, 0o755); err != nil {
		t.Fatal(err)
	}
	const n = 3000
	x.start()
	topics := map[string]int{"first": n, "second": 50, "third": 0}
	for name := range topics {
		x.create(name, client.Settings{})
	}
	x.publish("first", 0, n/2)
	x.Await("the log to be copied", func() bool { return x.copiedBelow("first") > 0 })
	x.Terminate()
	x.Wait()
	x.env["LEVEE_STORAGE_SEAL_AGE"] = "10m" // what comes now is in the log alone
	x.start()
	x.publish("first", n/2, n-n/2)
	x.publish("second", 0, topics["second"])
	old := filepath.Join(filepath.Dir(x.dir), "old")
	before := x.lose(old)
	if r := x.levee(nil, "partition", "recover", "first/0"); r.Code != 1 || !strings.Contains(r.Stderr, "--from DIR") {
		t.Fatalf("it should wait: %+v", r)
	}
	for _, bad := range []struct {
		dir  string
		code int
		says string
	}{
		{"old", 2, "absolute"}, {x.dir, 1, "in use"}, {filepath.Dir(x.dir), 1, "not a broker's data directory"},
	} {
		if r := x.levee(nil, "partition", "recover", "first/0", "--from", bad.dir); r.Code != bad.code || !strings.Contains(r.Stderr, bad.says) {
			t.Errorf("from %s: %+v", bad.dir, r)
		}
	}
	r := x.levee(nil, "partition", "recover", "first/0", "--from", old, "--output", "json")
	var row struct {
		Topic  string
		Result struct {
			Objects   int64
			Directory string
			Returned  *struct{ From, To int64 }
		}
	}
	if err := json.Unmarshal([]byte(r.Stdout), &row); err != nil || r.Code != 0 || row.Topic != "first" || row.Result.Directory != old ||
		row.Result.Returned == nil || row.Result.Returned.From != row.Result.Objects || row.Result.Returned.To != n-1 || row.Result.Objects == 0 {
		t.Fatalf("%v: %+v", err, r)
	}
	if r := x.levee(nil, "partition", "recover", "--all", "--from", old); r.Code != 0 || !strings.Contains(r.Stdout, "of default/second serves again: 50 offsets came back from "+old) ||
		!strings.Contains(r.Stdout, "of default/third serves again") || strings.Contains(r.Stdout, "first") {
		t.Fatalf("%+v", r)
	}
	if r := x.levee(nil, "partition", "recover", "first", "--from", old); r.Code != 0 || !strings.Contains(r.Stdout, "no partition of first waits") {
		t.Errorf("again: %+v", r)
	}
	for name, n := range topics {
		x.complete(name, n)
		x.publish(name, n, 10)
		x.complete(name, n+10)
	}
	if text := x.levee(nil, "topic", "describe", "second").Stdout; !strings.Contains(text, "0 to 49 of those from "+old) {
		t.Errorf("described as:\n%s", text)
	}
	if after := contents(t, old); after != before {
		t.Errorf("the old directory changed:\n%s\n%s", before, after)
	}

	// What was given up does not come back.
	older := old + "er"
	// The next one knows what came back from the copy of the metadata alone, which is made a while later.
	x.Await("done with the copy of the metadata", func() bool {
		return strings.Contains(string(x.http("GET", "/metrics", "", nil).body), "levee_storage_metadata_lag_seconds 0\n")
	})
	x.lose(older)
	if r := x.levee(nil, "partition", "recover", "first", "--from", old); r.Code != 1 || !strings.Contains(r.Stderr, "is not what default/first/0 waits for") {
		t.Errorf("of the broker before: %+v", r)
	}
	if r := x.levee(nil, "partition", "recover", "second", "--accept-loss"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	x.Await("the loss to be settled", func() bool {
		return strings.Contains(x.levee(nil, "topic", "describe", "second").Stdout, "are lost")
	})
	if r := x.levee(nil, "partition", "recover", "second", "--from", older); r.Code != 1 || !strings.Contains(r.Stderr, "was given up") || !strings.Contains(r.Stderr, "levee inspect dump") {
		t.Errorf("too late: %+v", r)
	}
	if r := x.levee(nil, "partition", "recover", "first", "--from", older); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	x.complete("first", n+10)
}

// lose kills the broker, moves its directory away, has another one take over, and returns what the directory holds.
func (x *tiered) lose(to string) string {
	x.t.Helper()
	x.Kill()
	x.Wait()
	if err := os.Rename(x.dir, to); err != nil {
		x.t.Fatal(err)
	}
	before := contents(x.t, to)
	b := proc.Launch(x.t, x.dir, proc.Options{Env: x.env})
	b.Listening()
	x.rig = &rig{Broker: b, t: x.t, client: b.Dial(), raw: b.Raw(), ctx: x.ctx}
	return before
}

// contents returns what a directory holds, byte for byte.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b.WriteString(path + " " + info.ModTime().String() + " " + sum(data) + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}
