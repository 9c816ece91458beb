package broker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func TestNamespaces(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	_, err := r.CreateTopic(ctx, TopicSpec{Name: "team/a"})
	wantKind(t, err, fault.NotFound, "team")
	if err := r.CreateNamespace(ctx, "team"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, r.CreateNamespace(ctx, "team"), fault.AlreadyExists, "team")
	r.create("team/a")
	r.create("a")
	r.publish("team/a", 0, "theirs")
	r.publish("a", 0, "ours")
	wantHistory(t, r.history("team/a", 0), "0=theirs")
	wantHistory(t, r.history("default/a", 0), "0=ours")
	wantKind(t, r.DeleteNamespace(ctx, "team"), fault.Conflict, "team")
	if got := r.Namespaces(); len(got) != 2 || got[1] != (NamespaceInfo{"team", 1}) {
		t.Fatalf("%+v", got)
	}
	if got, err := r.Topics("team"); err != nil || len(got) != 1 || got[0].Name != "team/a" {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := r.Topics(""); err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	_, err = r.Topics("nope")
	wantKind(t, err, fault.NotFound, "nope")
	if err := r.DeleteTopic(ctx, "team/a"); err != nil {
		t.Fatal(err)
	}
	if err := r.DeleteNamespace(ctx, "team"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, r.DeleteNamespace(ctx, "default"), fault.InvalidArgument)
}

func TestCreateTopicRefusals(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Partitions, c.Limits.TotalPartitions = 8, 10 })
	ctx := context.Background()
	r.create("a", TopicSpec{Partitions: 8})
	r.publish("a", 0, "on disk")
	for _, c := range []struct {
		spec TopicSpec
		kind fault.Kind
		says string
	}{
		{TopicSpec{Name: "a"}, fault.AlreadyExists, "default/a"},
		{TopicSpec{Name: "a-part-0"}, fault.AlreadyExists, "default/a"},
		{TopicSpec{Name: "b", Partitions: 9}, fault.InvalidArgument, "partitions"},
		{TopicSpec{Name: "b", Partitions: -1}, fault.InvalidArgument, "partitions"},
		{TopicSpec{Name: "b", Partitions: 3}, fault.Exhausted, "10"},
		{TopicSpec{Name: "b", Settings: Settings{Fsync: ptr("sometimes")}}, fault.InvalidArgument, "fsync"},
		{TopicSpec{Name: "b", Settings: Settings{SegmentBytes: ptr[int64](1)}}, fault.InvalidArgument, "segment_bytes"},
		{TopicSpec{Name: "b", Settings: Settings{RetentionAge: ptr(time.Microsecond)}}, fault.InvalidArgument, "retention_age_ms"},
		{TopicSpec{Name: "b", Settings: Settings{FsyncInterval: ptr(time.Duration(0))}}, fault.InvalidArgument, "fsync_interval_ms"},
	} {
		_, err := r.CreateTopic(ctx, c.spec)
		wantKind(t, err, c.kind, c.says)
	}
	if topics, _ := r.Counts(); topics != 1 {
		t.Fatalf("%d topics", topics)
	}
}

func TestSettingsTakeEffectAtOnce(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Defaults.RetentionBytes = 1 << 30 })
	ctx := context.Background()
	info := r.create("a")
	if e := info.Effective; *e.Fsync != "on_commit" || *e.RetentionBytes != 1<<30 || info.Settings.RetentionBytes != nil {
		t.Fatalf("%+v", e)
	}
	r.publish("a", 0, "one")
	syncs := 0
	var mu sync.Mutex
	r.fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync && strings.HasSuffix(op.Path, ".log") {
			mu.Lock()
			syncs++
			mu.Unlock()
		}
		return nil
	})
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		n := syncs
		syncs = 0
		return n
	}
	info, err := r.SetTopic(ctx, "a", Settings{Fsync: ptr("none"), RetentionAge: ptr(time.Hour)}, nil)
	if err != nil || *info.Effective.Fsync != "none" || *info.Effective.RetentionAge != time.Hour {
		t.Fatalf("%+v, %v", info, err)
	}
	count()
	r.publish("a", 0, "two")
	if n := count(); n != 0 {
		t.Fatalf("%d flushes for a publish under none", n)
	}
	info, err = r.SetTopic(ctx, "a", Settings{Fsync: ptr("on_commit")}, []string{SettingRetentionAge})
	if err != nil || *info.Effective.Fsync != "on_commit" || info.Settings.RetentionAge != nil {
		t.Fatalf("%+v, %v", info, err)
	}
	if n := count(); n == 0 {
		t.Fatal("what was acknowledged under none was not flushed on the way to on_commit")
	}
	r.publish("a", 0, "three")
	if n := count(); n == 0 {
		t.Fatal("no flush for a publish under on_commit")
	}
	r.fs.SetHook(nil)
	_, err = r.SetTopic(ctx, "a", Settings{}, nil)
	wantKind(t, err, fault.InvalidArgument, "default/a")
	_, err = r.SetTopic(ctx, "a", Settings{}, []string{"color"})
	wantKind(t, err, fault.InvalidArgument, "color")
	_, err = r.SetTopic(ctx, "nope", Settings{Fsync: ptr("none")}, nil)
	wantKind(t, err, fault.NotFound, "nope")
	r.crash(loseAll())
	r.start(func(c *Config) { c.Crash = seglog.MachineCrash })
	wantHistory(t, r.history("a", 0), "0=one 1=two 2=three")
}

// Settings that another broker changed reach the partitions here.
func TestSettingsFollowTheMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		info := r.create("a", TopicSpec{Settings: Settings{Fsync: ptr("none")}})
		synctest.Wait()
		m, ok := r.store.View().TopicByID(info.ID)
		if !ok || m.Partitions[0].Reserved != partition.FirstReservation {
			t.Fatalf("a topic that acknowledges early has %+v", m)
		}
		if _, err := r.store.Propose(t.Context(), meta.SetTopic{
			Name: m.Name, ID: m.ID, Version: m.Version, Settings: meta.Settings{RetentionBytes: ptr[int64](5)},
		}); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second) // on the bubble's clock
		synctest.Wait()
		if got := r.topics.get(m.Name).parts[0].Retention(); got.Bytes != 5 {
			t.Fatalf("%+v", got)
		}
		r.halt()
	})
}

// A topic must not come to say on_commit while acknowledged data is not on the device.
func TestOnCommitNeedsTheFlush(t *testing.T) {
	r := newRig(t)
	r.create("a", TopicSpec{Partitions: 2, Settings: Settings{Fsync: ptr("none")}})
	r.publish("a", 0, "one")
	r.publish("a", 1, "one")
	r.fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync && strings.Contains(op.Path, "a@1/1/") {
			return vfs.ErrIO
		}
		return nil
	})
	_, err := r.SetTopic(context.Background(), "a", Settings{Fsync: ptr("on_commit")}, nil)
	wantKind(t, err, fault.Stopped, "default/a", "partition 1")
	if info, err := r.Topic("a"); err != nil || *info.Effective.Fsync != "none" {
		t.Fatalf("%+v, %v", info, err)
	}
	r.fs.SetHook(nil)
	r.publish("a", 0, "two")
}

func TestUnloadTopic(t *testing.T) {
	r := newRig(t)
	r.create("a", TopicSpec{Partitions: 2})
	r.publish("a", 0, "one")
	s := r.subscribe("a", 0, Latest())
	next(t, s)
	ended := make(chan error)
	go func() {
		_, err := s.Next(context.Background(), 0)
		ended <- err
	}()
	if err := r.UnloadTopic(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, <-ended, fault.Unavailable)
	d, err := r.DescribeTopic(context.Background(), "a")
	if err != nil || !strings.HasPrefix(d.Parts[0].State, "unloaded") || len(d.Parts) != 2 {
		t.Fatalf("%+v, %v", d, err)
	}
	r.publish("a", 0, "two")
	wantHistory(t, r.history("a", 0), "0=one 1=two")
	wantKind(t, r.UnloadTopic(context.Background(), "b"), fault.NotFound)
}

// A topic is unloaded again and again under its publishers: whoever comes too late for one log gets the next, what was
// queued in a log that closes is answered either way, and nothing acknowledged is lost.
func TestUnloadUnderLoad(t *testing.T) {
	r := newRig(t)
	r.create("a", TopicSpec{Settings: Settings{Fsync: ptr("none")}})
	ctx, cancel := context.WithCancel(context.Background())
	acked := make([][]string, 4)
	var wg sync.WaitGroup
	for n := range acked {
		wg.Add(1)
		go func() {
			defer wg.Done()
			p, err := r.OpenPublisher(context.Background(), "a", nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			for i := 0; ctx.Err() == nil; i++ {
				value := fmt.Sprint(n, ".", i)
				done := make(chan PublishResult, 1)
				if err := p.Submit(context.Background(), 0, pack(t, record.NoProducer, value), func(r PublishResult) { done <- r }); err != nil {
					t.Errorf("submit: %v", err)
					return
				}
				switch res := <-done; {
				case res.Err == nil:
					acked[n] = append(acked[n], fmt.Sprint(res.Offset, "=", value))
				case fault.KindOf(res.Err) != fault.Unavailable:
					t.Error(res.Err)
				}
			}
		}()
	}
	for range 100 {
		if err := r.UnloadTopic(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
	held := map[string]bool{}
	for _, v := range r.history("a", 0) {
		held[v] = true
	}
	for _, list := range acked {
		for _, v := range list {
			if !held[v] {
				t.Fatalf("%s was acknowledged and is not there", v)
			}
		}
	}
}

// slowStore answers a creation only after its caller has gone.
type slowStore struct {
	*meta.Memory
}

func (s *slowStore) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	r, err := s.Memory.Propose(context.WithoutCancel(ctx), c)
	switch c.(type) {
	case meta.CreateTopic, meta.DeleteTopic:
		if ctx.Err() != nil {
			return meta.Result{}, fault.New(fault.OutcomeUnknown, "nobody knows")
		}
	}
	return r, err
}

// A creation or deletion whose answer was lost is found out about without anybody asking again.
func TestRegistryFollowsTheMetadata(t *testing.T) {
	r := &rig{t: t, fs: vfs.NewMem(), store: &slowStore{Memory: meta.NewMemory()}}
	if err := r.fs.MkdirAll("/data"); err != nil {
		t.Fatal(err)
	}
	r.start()
	defer r.halt()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := r.CreateTopic(gone, TopicSpec{Name: "a"})
	wantKind(t, err, fault.OutcomeUnknown)
	r.publish("a", 0, "one") // a lookup asks the metadata
	s := r.subscribe("a", 0, Earliest())
	if err := r.DeleteTopic(gone, "a"); fault.KindOf(err) != fault.OutcomeUnknown {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		_, err = s.Next(context.Background(), 0)
	}
	wantKind(t, err, fault.Deleted)
	r.awaitPurged()

	// Deleted and created again before anybody looked.
	first := r.create("b")
	s = r.subscribe("b", 0, Earliest())
	name := meta.Name{Namespace: "default", Topic: "b"}
	for _, c := range []meta.Command{
		meta.DeleteTopic{Name: name, ID: first.ID},
		meta.CreateTopic{Name: name, ID: meta.TopicID{99}, Partitions: 1, Dispatch: Reliable},
	} {
		if _, err := r.store.Propose(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}
	for err = nil; err == nil; {
		_, err = s.Next(context.Background(), 0)
	}
	wantKind(t, err, fault.Deleted, "again")
	r.awaitPurged()
	if info, err := r.Topic("b"); err != nil || info.ID != [16]byte{99} {
		t.Fatalf("%+v, %v", info, err)
	}
	r.publish("b", 0, "new")
	wantHistory(t, r.history("b", 0), "0=new")
}
