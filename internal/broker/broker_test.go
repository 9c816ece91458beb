package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a broker with what outlives it: the disk and the metadata.
type rig struct {
	*Broker
	t     *testing.T
	fs    *vfs.Mem
	store meta.Store
	reg   *prometheus.Registry
	stop  context.CancelFunc
	ended chan error
	ids   atomic.Uint64
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, fs: vfs.NewMem(), store: meta.NewMemory()}
	if err := r.fs.MkdirAll("/data"); err != nil {
		t.Fatal(err)
	}
	r.start(change...)
	t.Cleanup(r.halt)
	return r
}

// start makes a broker on what is there and waits until it is ready.
func (r *rig) start(change ...func(*Config)) {
	r.t.Helper()
	r.launch(change...)
	select {
	case <-r.opened:
	case err := <-r.ended:
		r.Broker = nil // there is nothing left to halt
		r.t.Fatalf("the broker ended before its partitions were opened: %v", err)
	}
}

func (r *rig) launch(change ...func(*Config)) {
	r.t.Helper()
	r.reg = prometheus.NewRegistry()
	cfg := Config{
		Meta: r.store, FS: r.fs, DataDir: "/data", Registerer: r.reg, OpenParallel: 2,
		NewID: func() (id [16]byte) {
			binary.BigEndian.PutUint64(id[:], r.ids.Add(1))
			return id
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Broker, r.ended = b, make(chan error, 1)
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() { r.ended <- b.Run(ctx) }()
}

// halt stops the broker as its server would and fails the test when that does not end well.
func (r *rig) halt() {
	if r.Broker == nil {
		return
	}
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Errorf("run: %v", err)
	}
	r.Broker = nil
}

// crash stops the broker without its disk hearing of it: what is found afterwards is what choice leaves.
func (r *rig) crash(choice vfs.Chooser) {
	left := r.fs.Crash(choice)
	r.halt()
	r.fs = left
}

func loseAll() vfs.Chooser {
	return vfs.ChooserFunc(func(vfs.Unsynced) vfs.Fate { return vfs.Fate{How: vfs.Lost} })
}

// hold keeps every operation that which accepts until release is closed. entered is closed once one is held.
func (r *rig) hold(which func(vfs.Op) bool) (release, entered chan struct{}) {
	release, entered = make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.fs.SetHook(func(op vfs.Op) error {
		if which(op) {
			once.Do(func() { close(entered) })
			<-release
		}
		return nil
	})
	return release, entered
}

func (r *rig) create(name string, spec ...TopicSpec) TopicInfo {
	r.t.Helper()
	s := TopicSpec{}
	if len(spec) > 0 {
		s = spec[0]
	}
	s.Name = name
	info, err := r.CreateTopic(r.t.Context(), s)
	if err != nil {
		r.t.Fatalf("create %s: %v", name, err)
	}
	return info
}

func (r *rig) publish(topic string, partition int32, values ...string) PublishResult {
	r.t.Helper()
	records := make([]record.Record, len(values))
	for i, v := range values {
		records[i].Value = []byte(v)
	}
	_, res, err := r.Publish(context.Background(), topic, partition, records)
	if err != nil {
		r.t.Fatalf("publish to %s: %v", topic, err)
	}
	return res
}

func (r *rig) subscribe(topic string, partition int32, start Position) *Subscriber {
	r.t.Helper()
	s, err := r.Subscribe(context.Background(), SubscribeSpec{Topic: topic, Partition: partition, Start: start})
	if err != nil {
		r.t.Fatalf("subscribe to %s: %v", topic, err)
	}
	r.t.Cleanup(s.Close)
	return s
}

func next(t *testing.T, s *Subscriber) Event {
	t.Helper()
	e, err := s.Next(context.Background(), 0)
	if err != nil {
		t.Fatalf("next: %v", err)
	}
	return e
}

// values decodes the records of an event from an offset on, as "offset=value".
func values(t *testing.T, e Event, from int64) []string {
	t.Helper()
	var list []string
	for data := e.Batches; len(data) > 0; {
		batch, rest, err := record.Next(data)
		if err != nil {
			t.Fatal(err)
		}
		data = rest
		if _, err := record.Check(batch); err != nil {
			t.Fatal(err)
		}
		if err := record.Each(batch, func(r record.Record) error {
			if r.Offset >= from {
				list = append(list, fmt.Sprintf("%d=%s", r.Offset, r.Value))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// history reads a partition from the oldest record to its end.
func (r *rig) history(topic string, partition int32) (list []string) {
	r.t.Helper()
	s := r.subscribe(topic, partition, Earliest())
	defer s.Close()
	for {
		switch e := next(r.t, s); e.Kind {
		case EventData:
			list = append(list, values(r.t, e, 0)...)
		case EventLost:
			list = append(list, fmt.Sprintf("%d-%d lost", e.Lost.From, e.Lost.To))
		case EventAtEnd:
			return list
		}
	}
}

func wantHistory(t *testing.T, got []string, want string) {
	t.Helper()
	if s := strings.Join(got, " "); s != want {
		t.Fatalf("the partition holds %q, want %q", s, want)
	}
}

func wantKind(t *testing.T, err error, kind fault.Kind, names ...string) {
	t.Helper()
	if err == nil || fault.KindOf(err) != kind {
		t.Fatalf("got %v (%v), want kind %v", err, fault.KindOf(err), kind)
	}
	for _, n := range names {
		if !strings.Contains(err.Error(), n) {
			t.Fatalf("%q does not name %q", err, n)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// await waits until the metadata makes ok true, or for a channel to close.
func (r *rig) await(ok func(*meta.View) bool, or <-chan struct{}) {
	for {
		changed := r.store.Changed()
		if ok(r.store.View()) {
			return
		}
		select {
		case <-changed:
		case <-or:
			return
		}
	}
}

func (r *rig) awaitPurged() { r.awaitPurgedOr(nil) }

func (r *rig) awaitPurgedOr(or <-chan struct{}) {
	r.await(func(v *meta.View) bool {
		for range v.Deletions() {
			return false
		}
		return true
	}, or)
}

// damage flips bytes in the middle of a partition's oldest segment.
func (r *rig) damage(dir string) {
	r.t.Helper()
	infos, err := r.fs.List(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, i := range infos {
		if !strings.HasSuffix(i.Name, ".log") {
			continue
		}
		f, err := r.fs.Open(dir+"/"+i.Name, false)
		if err != nil {
			r.t.Fatal(err)
		}
		_, err = f.WriteAt([]byte("rotten"), 64+16+64)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			r.t.Fatal(err)
		}
		return
	}
	r.t.Fatalf("no segment in %s", dir)
}

func TestConfigNamesEveryProblem(t *testing.T) {
	_, err := New(Config{
		Limits:   Limits{RecordBytes: 100 << 20, BatchBytes: 80 << 20, InFlightBytes: 1, Partitions: 1 << 20},
		Defaults: TopicDefaults{SegmentBytes: 1},
	})
	wantKind(t, err, fault.InvalidArgument, "DataDir", "batch bytes", "record bytes", "in flight", "partitions", "segment_bytes")
}

func TestRestartKeepsEverything(t *testing.T) {
	r := newRig(t)
	r.create("orders", TopicSpec{Partitions: 3})
	r.create("other")
	for p := range int32(3) {
		r.publish("orders", p, fmt.Sprint("a", p), fmt.Sprint("b", p))
	}
	r.halt()
	r.start()
	for p := range int32(3) {
		wantHistory(t, r.history("orders", p), fmt.Sprintf("0=a%d 1=b%d", p, p))
	}
	if topics, parts := r.Counts(); topics != 2 || parts != 4 {
		t.Fatalf("%d topics, %d partitions", topics, parts)
	}
	if err := r.Ready(); err != nil || r.State() != "ready" || !r.Recovered() || len(r.Problems()) > 0 {
		t.Fatalf("%v %s %t %v", err, r.State(), r.Recovered(), r.Problems())
	}
}

func TestCorruptPartitionLeavesOthersServing(t *testing.T) {
	r := newRig(t)
	r.create("a", TopicSpec{Partitions: 2})
	r.create("b")
	for _, p := range []int32{0, 1} {
		r.publish("a", p, "one", "two", "three")
		r.publish("a", p, "four")
	}
	r.publish("b", 0, "x")
	r.halt()
	r.damage("/data/topics/default/a@1/1")
	r.start()

	if err := r.Ready(); err != nil {
		t.Fatal(err)
	}
	_, _, err := r.Publish(context.Background(), "a", 1, []record.Record{{Value: []byte("x")}})
	wantKind(t, err, fault.Corrupt, "default/a", ".log", "byte")
	_, err = r.Subscribe(context.Background(), SubscribeSpec{Topic: "a", Partition: 1})
	wantKind(t, err, fault.Corrupt, "default/a")
	r.publish("a", 0, "five")
	wantHistory(t, r.history("a", 0), "0=one 1=two 2=three 3=four 4=five")
	wantHistory(t, r.history("b", 0), "0=x")

	d, err := r.DescribeTopic(context.Background(), "a")
	if err != nil || d.Parts[0].State != "serving" || !strings.HasPrefix(d.Parts[1].State, "unavailable: corrupt: ") {
		t.Fatalf("%+v, %v", d.Parts, err)
	}
	if p := r.Problems(); len(p) != 1 || !strings.Contains(p[0], "default/a/1 is unavailable: corrupt") {
		t.Fatalf("%q", p)
	}
	if got := r.metric("levee_broker_partitions", "unavailable"); got != 1 {
		t.Fatalf("%v partitions are counted as unavailable", got)
	}
}

func TestStrictStartRefusesACorruptPartition(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.publish("a", 0, "one", "two")
	r.publish("a", 0, "three")
	r.halt()
	r.damage("/data/topics/default/a@1/0")
	r.launch(func(c *Config) { c.StrictStart = true })
	err := <-r.ended
	r.ended <- nil
	wantKind(t, err, fault.Corrupt, "default/a")
	if r.Ready() == nil {
		t.Fatal("ready")
	}
}

func TestPartitionComesBackWhenItsCauseIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a")
		r.publish("a", 0, "one")
		r.halt()
		r.fs.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpList && strings.Contains(op.Path, "a@1") {
				return vfs.ErrIO
			}
			return nil
		})
		r.start()
		if p := r.Problems(); len(p) != 1 || !strings.Contains(p[0], "default/a/0 is unavailable: io") {
			t.Fatalf("%q", p)
		}
		r.fs.SetHook(nil)
		<-time.After(r.cfg.RetentionEvery + time.Second) // on the bubble's clock
		synctest.Wait()
		if p := r.Problems(); len(p) != 0 {
			t.Fatalf("nobody tried again: %q", p)
		}
		wantHistory(t, r.history("a", 0), "0=one")
		r.halt()
	})
}

func TestPublishWaitsForAPartitionThatIsOpening(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.publish("a", 0, "one")
	r.halt()
	hold, entered := r.hold(func(op vfs.Op) bool { return strings.HasPrefix(op.Path, "/data/topics/default/a@1/0/") })
	r.launch()
	<-entered
	wantKind(t, r.Ready(), fault.Unavailable, "0 of 1")
	if d, err := r.DescribeTopic(context.Background(), "a"); err != nil || d.Parts[0].State != "opening" {
		t.Fatalf("%+v, %v", d, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err := r.Publish(ctx, "a", 0, []record.Record{{Value: []byte("given up")}})
	wantKind(t, err, fault.Canceled, "default/a")
	published := make(chan PublishResult)
	go func() {
		_, res, err := r.Publish(context.Background(), "a", 0, []record.Record{{Value: []byte("two")}})
		res.Err = errors.Join(res.Err, err)
		published <- res
	}()
	close(hold)
	if res := <-published; res.Err != nil || res.Offset != 1 {
		t.Fatalf("%+v", res)
	}
	<-r.opened
}

func TestLossyOpenTellsSubscribers(t *testing.T) {
	r := newRig(t)
	r.create("a", TopicSpec{Settings: Settings{Fsync: ptr("periodic"), FsyncInterval: ptr(time.Hour)}})
	r.create("safe")
	r.publish("a", 0, "one")
	r.publish("safe", 0, "one")
	r.crash(loseAll())
	r.start(func(c *Config) { c.Crash = seglog.MachineCrash })
	got := r.history("a", 0)
	if len(got) != 1 || !strings.HasPrefix(got[0], "0-") || !strings.HasSuffix(got[0], " lost") {
		t.Fatalf("%q", got)
	}
	res := r.publish("a", 0, "two")
	wantHistory(t, r.history("a", 0), fmt.Sprintf("0-%d lost %d=two", res.Offset-1, res.Offset))
	wantHistory(t, r.history("safe", 0), "0=one")
	if r.metric("levee_broker_lost_ranges_told_total") == 0 {
		t.Fatal("nobody counted what subscribers were told")
	}
}

// Opening again and again, with crashes in between, as an operator of a flaky machine does.
func TestOpeningProgressesWhileTopicsComeAndGo(t *testing.T) {
	r := newRig(t)
	for i := range 40 {
		r.create(fmt.Sprint("t", i))
		r.publish(fmt.Sprint("t", i), 0, "x")
	}
	r.halt()
	r.launch()
	for i := range 20 {
		if err := r.DeleteTopic(context.Background(), fmt.Sprint("t", i)); err != nil {
			t.Error(err)
		}
		r.create(fmt.Sprint("new", i))
	}
	<-r.opened
	r.awaitPurged()
	for i := range 20 {
		wantHistory(t, r.history(fmt.Sprint("t", 20+i), 0), "0=x")
		wantHistory(t, r.history(fmt.Sprint("new", i), 0), "")
	}
	if p := r.Problems(); len(p) > 0 {
		t.Fatalf("%q", p)
	}
}
