package cli

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// benchmarks runs one and returns its result; every field the contract lists must be there.
func benchmark(t *testing.T, env []string, args ...string) benchJSON {
	t.Helper()
	out, stderr, code := runEnv(t.Context(), env, nil, append([]string{"bench"}, append(args, "--output", "json")...)...)
	if code != exitDone {
		t.Fatalf("%v: exit code %d: %s%s", args, code, out, stderr)
	}
	var fields map[string]json.RawMessage
	var result benchJSON
	if err := json.Unmarshal([]byte(out), &fields); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatal(err)
	}
	want := []string{"records_per_second", "bytes_per_second", "latency_us", "cpu_seconds", "rss_bytes", "records", "errors", "machine", "settings"}
	if args[0] == "log" {
		want = append(want, "device")
	}
	for _, name := range want {
		if fields[name] == nil {
			t.Errorf("%v: no field %s", args, name)
		}
	}
	l := result.LatencyUs
	if result.Records == 0 || result.Errors != 0 || result.RecordsPerSecond <= 0 || !slices.IsSorted([]float64{0, l.P50, l.P99, l.P999, l.Max}) || result.Machine.CPUs == 0 {
		t.Errorf("%v: %+v", args, result)
	}
	return result
}

func TestBenchLog(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"--publishers", "4", "--batch", "3"},
		{"--fsync", "none", "--in-flight", "8", "--size", "1KiB"},
		{"--fsync", "periodic", "--size", "0"},
	} {
		r := benchmark(t, nil, append([]string{"log", "--dir", dir, "--duration", "100ms"}, args...)...)
		if r.Device == nil || r.Device.FdatasyncUs.P50 <= 0 || r.Device.FdatasyncUs.P99 < r.Device.FdatasyncUs.P50 || r.Device.PwriteRecordsPerSecond <= 0 {
			t.Errorf("device: %+v", r.Device)
		}
		if got := r.Records % int64(r.Settings.Batch); got != 0 {
			t.Errorf("%d records are not whole batches of %d", r.Records, r.Settings.Batch)
		}
	}
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestBenchOfABroker(t *testing.T) {
	env := testBroker(t)
	p := benchmark(t, env, "publish", "b", "--publishers", "3", "--batch", "10", "--in-flight", "2", "--idempotent", "--compression", "lz4", "--duration", "200ms")
	if p.Settings.Topic != "b" || p.Settings.Compression != "lz4" || !p.Settings.Idempotent || p.Records%10 != 0 {
		t.Errorf("publish: %+v", p)
	}
	if c := benchmark(t, env, "consume", "b", "--consumers", "2", "--duration", "1m"); c.Records != 2*p.Records {
		t.Errorf("two consumers read %d records of %d", c.Records, p.Records)
	}
	began := time.Now()
	e := benchmark(t, env, "e2e", "b", "--publishers", "2", "--consumers", "2", "--rate", "1000", "--duration", "300ms")
	// A busy machine ends it late. Each publisher sends one record at once.
	if took := time.Since(began); e.Records > 2*(int64(1000*took.Seconds())+2) {
		t.Errorf("e2e: %d records at 1000 a second for %v, twice", e.Records, took)
	}
	benchmark(t, env, "e2e", "b", "--rate", "0", "--in-flight", "4", "--duration", "100ms")

	out, stderr, code := runEnv(t.Context(), env, nil, "bench", "publish", "b", "--duration", "50ms")
	if code != exitDone || !strings.HasPrefix(out, "publish: ") || !strings.Contains(out, "latency  p50 ") || stderr != "" {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	if _, stderr, code := runEnv(t.Context(), env, nil, "bench", "consume", "nowhere"); code != exitFailed || !strings.Contains(stderr, "levee topic create nowhere") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if _, stderr, code := runEnv(t.Context(), env, nil, "topic", "create", "volatile", "--dispatch", "non_reliable"); code != exitDone {
		t.Fatal(stderr)
	}
	benchmark(t, env, "e2e", "volatile", "--duration", "200ms")
}
