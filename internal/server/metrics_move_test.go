package server

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// patience bounds how long a test waits for what must come.
const patience = time.Minute

// documented is one row of docs/metrics.md.
type documented struct {
	name, kind, help string
	labels           []string
}

var metricRow = regexp.MustCompile("(?m)^\\| `(levee_\\w+)` \\| (\\w+) \\| ([^|]*) \\| (.*) \\|$")

// documentedMetrics reads docs/metrics.md, which a test keeps equal to what the code declares.
func documentedMetrics(t *testing.T) map[string]documented {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]documented{}
	for _, m := range metricRow.FindAllStringSubmatch(string(text), -1) {
		d := documented{name: m[1], kind: m[2], help: strings.ReplaceAll(m[4], `\|`, "|")}
		if labels := strings.TrimSpace(m[3]); labels != "" {
			d.labels = strings.Split(labels, ", ")
		}
		all[d.name] = d
	}
	if len(all) < 50 {
		t.Fatalf("docs/metrics.md lists %d metrics: this test does not understand it any more", len(all))
	}
	return all
}

// reading is the value of every series: name or name{label="value"}; of a histogram the number of observations, and
// with :sum behind it their sum.
type reading map[string]float64

func readMetrics(t *testing.T, g prometheus.Gatherer) reading {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	r := reading{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "levee_") {
			continue // of Go and of the process
		}
		for _, m := range f.GetMetric() {
			name := f.GetName() + labels(m)
			if h := m.GetHistogram(); h != nil {
				r[name], r[name+":sum"] = float64(h.GetSampleCount()), h.GetSampleSum()
			} else {
				r[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return r
}

func labels(m *dto.Metric) string {
	var pairs []string
	for _, l := range m.GetLabel() {
		pairs = append(pairs, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	if len(pairs) == 0 {
		return ""
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

// change is what a series must do.
type change struct {
	series  string
	by      float64
	atLeast bool // by, in its direction, is the least; otherwise it is exact
}

func by(series string, n float64) change      { return change{series, n, false} }
func atLeast(series string, n float64) change { return change{series, n, true} }

func (c change) wrong(before, after reading) string {
	got := after[c.series] - before[c.series]
	switch {
	case got == c.by, c.atLeast && c.by > 0 && got > c.by, c.atLeast && c.by < 0 && got < c.by:
		return ""
	case c.atLeast:
		return fmt.Sprintf("%s moved by %v, want at least %v", c.series, got, c.by)
	}
	return fmt.Sprintf("%s moved by %v, want %v", c.series, got, c.by)
}

// movements are the metrics that were seen to rise and to fall, by the name of their family.
type movements struct {
	mu         sync.Mutex
	rose, fell map[string]bool
}

func (m *movements) note(series string, n float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	family := strings.TrimSuffix(series, ":sum")
	family, _, _ = strings.Cut(family, "{")
	switch {
	case n > 0:
		m.rose[family] = true
	case n < 0:
		m.fell[family] = true
	}
}

// meter watches the metrics of a server.
type meter struct {
	t *testing.T
	*running
	fs   vfs.FS
	seen *movements
}

// during does something and waits until every series named has moved as it must.
func (m *meter) during(what string, do func(), want ...change) {
	m.t.Helper()
	before := readMetrics(m.t, m.registry)
	do()
	m.await(what, before, want)
}

// sinceStart waits until every series named has moved as it must since the process began.
func (m *meter) sinceStart(what string, want ...change) {
	m.t.Helper()
	m.await(what, reading{}, want)
}

func (m *meter) await(what string, before reading, want []change) {
	m.t.Helper()
	var wrong []string
	if !until(func() bool {
		after := readMetrics(m.t, m.registry)
		wrong = nil
		for _, c := range want {
			if w := c.wrong(before, after); w != "" {
				wrong = append(wrong, w)
			}
		}
		return len(wrong) == 0
	}) {
		m.t.Fatalf("%s:\n%s", what, strings.Join(wrong, "\n"))
	}
	for _, c := range want {
		m.seen.note(c.series, c.by)
	}
}

// until reports whether a condition that nothing signals came about.
func until(ok func() bool) bool {
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}

// value returns what a series stands at.
func (m *meter) value(series string) float64 {
	m.t.Helper()
	return readMetrics(m.t, m.registry)[series]
}

// onDisk returns how many segment files there are below the data directory, and their bytes, without those of topics
// that are not open.
func (m *meter) onDisk(closed ...string) (files, size float64) {
	m.t.Helper()
	for name, n := range below(m.t, m.fs, m.dir) {
		shut := slices.ContainsFunc(closed, func(topic string) bool { return strings.Contains(name, "/"+topic+"@") })
		if strings.HasSuffix(name, segfmt.LogSuffix) && !strings.Contains(name, "/.deleted/") && !shut {
			files++
			b, err := vfs.ReadFile(m.fs, name, n)
			if err != nil {
				continue // gone meanwhile, or longer
			}
			size += float64(segfmt.Written(b, 0)) // a busy log's is longer, and the rest unwritten
		}
	}
	return files, size
}

// below returns the size of every file below dir. What goes away meanwhile is not there.
func below(t *testing.T, fsys vfs.FS, dir string) map[string]int64 {
	t.Helper()
	infos, err := fsys.List(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for _, info := range infos {
		name := path.Join(dir, info.Name)
		if info.Dir {
			maps.Copy(found, below(t, fsys, name))
		} else {
			found[name] = info.Size
		}
	}
	return found
}

// matchesDisk waits until segments and bytes are what is on disk.
func (m *meter) matchesDisk(after string, closed ...string) {
	m.t.Helper()
	var got, want string
	if !until(func() bool {
		files, size := m.onDisk(closed...)
		now := readMetrics(m.t, m.registry)
		want = fmt.Sprintf("%v segments of %v bytes", files, size)
		got = fmt.Sprintf("%v segments of %v bytes", now["levee_storage_segments"], now["levee_storage_bytes"])
		return got == want
	}) {
		m.t.Fatalf("%s: the gauges say %s, and there are %s", after, got, want)
	}
}

// disk is a file system in memory that a test can make wait and fail.
type disk struct{ *vfs.Mem }

// where selects operations: of one kind, on paths that contain a part.
type where struct {
	kind vfs.OpKind
	part string
}

func (w where) is(op vfs.Op) bool { return op.Kind == w.kind && strings.Contains(op.Path, w.part) }

// fail makes operations fail until heal.
func (d disk) fail(err error, at ...where) {
	d.SetHook(func(op vfs.Op) error {
		if slices.ContainsFunc(at, func(w where) bool { return w.is(op) }) {
			return err
		}
		return nil
	})
}

func (d disk) heal() { d.SetHook(nil) }

// hold makes operations wait until release, and tells when one does. What waits is released at the end of the test.
func (d disk) hold(t *testing.T, at where) (reached <-chan struct{}, release func()) {
	arrived, open := make(chan struct{}), make(chan struct{})
	var once, twice sync.Once
	d.SetHook(func(op vfs.Op) error {
		if at.is(op) {
			once.Do(func() { close(arrived) })
			<-open
		}
		return nil
	})
	release = func() { twice.Do(func() { d.heal(); close(open) }) }
	t.Cleanup(release)
	return arrived, release
}

// remove removes a file of a server that does not run.
func (d disk) remove(t *testing.T, name string) {
	t.Helper()
	if err := d.Remove(name); err != nil {
		t.Fatal(err)
	}
}

// find returns the files below dir whose path contains each of the parts, sorted.
func (d disk) find(t *testing.T, dir string, parts ...string) []string {
	t.Helper()
	var found []string
	for name := range below(t, d, dir) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(name, p) }) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	if len(found) == 0 {
		t.Fatalf("no file with %q in its path", parts)
	}
	return found
}

// site is where the servers of one scenario run, one after the other.
type site struct {
	t       *testing.T
	dir     string // the lock is there, everything else in memory
	changes map[string]string
	seen    *movements
}

func (s *site) start(d disk, boot string) *meter {
	s.t.Helper()
	m := onBoot(boot)
	m.sync = func(string) error { return nil } // there is nothing below the directory but its lock
	return &meter{s.t, upOn(s.t, settings(s.t, s.dir, s.changes), d, m), d, s.seen}
}

// pack returns a batch of values.
func pack(t *testing.T, p record.ProducerInfo, values ...string) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	for _, v := range values {
		if err := b.Append(record.Record{Value: []byte(v), Timestamp: 1}); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build(p)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// create makes a topic.
func (m *meter) create(spec broker.TopicSpec) {
	m.t.Helper()
	if _, err := m.broker.Load().CreateTopic(m.t.Context(), spec); err != nil {
		m.t.Fatal(err)
	}
}

// send publishes batches one after the other to partition 0, each of which must be taken.
func (m *meter) send(topic string, batches ...[]byte) {
	m.t.Helper()
	for _, b := range batches {
		if _, err := m.broker.Load().PublishBatch(m.t.Context(), topic, 0, b); err != nil {
			m.t.Fatal(err)
		}
	}
}

// refused publishes a batch that must not be taken.
func (m *meter) refused(topic string, batch []byte) {
	m.t.Helper()
	if _, err := m.broker.Load().PublishBatch(m.t.Context(), topic, 0, batch); err == nil {
		m.t.Fatalf("a batch to %s was taken", topic)
	}
}

func (m *meter) subscribe(topic string, start broker.Position) *broker.Subscriber {
	m.t.Helper()
	s, err := m.broker.Load().Subscribe(m.t.Context(), broker.SubscribeSpec{Topic: topic, Start: start})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(s.Close)
	return s
}

func (m *meter) next(s *broker.Subscriber) broker.Event {
	m.t.Helper()
	e, err := s.Next(m.t.Context(), 0)
	if err != nil {
		m.t.Fatal(err)
	}
	return e
}

// frame is what a batch takes in a log.
func frame(batch []byte) float64 { return float64(segfmt.FrameHeaderSize + len(batch)) }

// neverFall are the gauges that only rise, and why.
var neverFall = map[string]string{
	"levee_storage_metadata_copied_index":    "the metadata only goes on",
	"levee_build_info":                       "it says what runs",
	"levee_server_last_run":                  "the run before this one has ended",
	"levee_raft_stopped":                     "only a restart helps",
	"levee_storage_cold_cache_used_bytes":    "there is room for all that this test reads",
	"levee_raft_snapshot_bytes":              "the metadata of this test only grows",
	"levee_storage_recovery_truncated_bytes": "it adds up; its name is not a counter's",
}

// TestEveryMetricMoves makes happen what each metric of docs/metrics.md measures, on servers over a disk that can wait,
// fail, fill up and lose power, and sees the metric follow: counters up, gauges up and down, by the exact amount wherever
// there is one. A metric that none of the scenarios moves fails the test.
func TestEveryMetricMoves(t *testing.T) {
	seen := &movements{rose: map[string]bool{}, fell: map[string]bool{}}
	ran := 0
	scenarios := []struct {
		name    string
		changes map[string]string
		run     func(*site)
	}{
		{"publish", map[string]string{"limits.subscribers": "2"}, movePublish},
		{"subscribe", map[string]string{"limits.subscribers": "2", "limits.subscriber_ring_batches": "1"}, moveSubscribe},
		{"topics", map[string]string{"storage.retention_check": "100ms"}, moveTopics},
		{"unsynced", nil, moveUnsynced},
		{"full", nil, moveFull},
		{"failed flush", nil, moveFailedFlush},
		{"torn tail", nil, moveTornTail},
		{"repairs", nil, moveRepairs},
		{"metadata", nil, moveMetadata},
		{"metadata stops", nil, moveMetadataStops},
		{"grpc", map[string]string{"limits.connections": "2"}, moveGRPC},
		{"http", map[string]string{"limits.connections": "2"}, moveHTTP},
		{"danube", nil, moveDanube},
		{"schemas", nil, moveSchemas},
		{"tiers", nil, moveTiers},
		{"merges", nil, moveMerges},
		{"write buffer", nil, moveBuffer},
		{"degraded", nil, moveDegraded},
		{"subscriptions", map[string]string{"storage.retention_check": "100ms", "limits.subscription_span": "4096"}, moveSubscriptions},
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			ran++
			s.run(&site{t, t.TempDir(), s.changes, seen})
		})
	}
	if ran < len(scenarios) || t.Failed() {
		return // some were not asked for, or did not get to all they move
	}
	all := documentedMetrics(t)
	for name, m := range all {
		switch why, rises := neverFall[name]; {
		case !seen.rose[name]:
			t.Errorf("docs/metrics.md lists %s, and no scenario here makes it move", name)
		case m.kind == "gauge" && !rises && !seen.fell[name]:
			t.Errorf("no scenario here makes the gauge %s fall", name)
		case m.kind != "gauge" && seen.fell[name], rises && seen.fell[name]:
			t.Errorf("%s fell (%s)", name, why)
		}
	}
	for name := range seen.rose {
		if _, is := all[name]; !is {
			t.Errorf("%s moves, and docs/metrics.md does not list it", name)
		}
	}
}
