package broker

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func TestDrainLosesNothingAcknowledged(t *testing.T) {
	r := newRig(t)
	r.create("a", TopicSpec{Partitions: 3, Settings: Settings{Fsync: ptr("none")}})
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	var mu sync.Mutex
	acked := map[string]bool{}
	var wg sync.WaitGroup
	started := make(chan struct{}, 100)
	for n := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				value := fmt.Sprint(n, ".", i)
				p, res, err := r.Publish(context.Background(), "a", int32(n%3), []record.Record{{Value: []byte(value)}})
				if err != nil {
					if fault.KindOf(err) != fault.Unavailable {
						t.Errorf("publish: %v", err)
					}
					return
				}
				mu.Lock()
				acked[fmt.Sprint(p, "/", res.Offset, "=", value)] = true
				mu.Unlock()
				if i == 20 {
					started <- struct{}{}
				}
			}
		}()
	}
	var ended []chan error
	for _, topic := range []string{"a", "fast"} {
		s, c := r.subscribe(topic, 0, Earliest()), make(chan error, 1)
		ended = append(ended, c)
		go func() {
			for {
				if _, err := s.Next(context.Background(), 0); err != nil {
					c <- err
					return
				}
			}
		}()
	}
	for range 8 {
		<-started
	}
	report := r.Drain(context.Background())
	if !report.Clean || len(report.Stopped) > 0 || !report.Recovered {
		t.Fatalf("%+v", report)
	}
	wg.Wait()
	for _, c := range ended {
		wantKind(t, <-c, fault.Unavailable, "stopping")
	}
	ctx := context.Background()
	_, err := r.Subscribe(ctx, SubscribeSpec{Topic: "a"})
	wantKind(t, err, fault.Unavailable)
	_, err = r.OpenPublisher(ctx, "a", nil)
	wantKind(t, err, fault.Unavailable)
	_, err = r.CreateTopic(ctx, TopicSpec{Name: "b"})
	wantKind(t, err, fault.Unavailable)
	_, _, err = r.InitProducer(ctx)
	wantKind(t, err, fault.Unavailable)
	wantKind(t, r.Ready(), fault.Unavailable)
	if _, err := r.DescribeTopic(ctx, "a"); err != nil || r.State() != "draining" {
		t.Fatalf("%v, %s", err, r.State())
	}
	if again := r.Drain(ctx); !again.Clean {
		t.Fatalf("%+v", again)
	}
	// Everything is on the device, although the topic flushes nothing by itself.
	r.crash(loseAll())
	r.start()
	for p := range int32(3) {
		for _, v := range r.history("a", p) {
			delete(acked, fmt.Sprint(p, "/", v))
		}
	}
	if len(acked) > 0 {
		t.Fatalf("%d acknowledged records are gone: %v", len(acked), acked)
	}
}

// Appends that wait for their flush when a drain begins are answered, and a drain that must not wait for ever does not.
func TestDrainWaitsForAnswers(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.publish("a", 0, "one")
	hold, entered := r.hold(func(op vfs.Op) bool { return op.Kind == vfs.OpSync })
	p, err := r.OpenPublisher(context.Background(), "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	answers := make(chan PublishResult, 2)
	submit := func(v string) error {
		return p.Submit(context.Background(), 0, pack(t, record.NoProducer, v), func(r PublishResult) { answers <- r })
	}
	for _, v := range []string{"two", "three"} {
		if err := submit(v); err != nil {
			t.Fatal(err)
		}
	}
	<-entered
	// One that waits for room when the drain begins is refused when it gets it.
	room := r.cfg.Limits.InFlightBytes - r.inFlight.Used()
	if err := r.inFlight.Acquire(context.Background(), room); err != nil {
		t.Fatal(err)
	}
	late := make(chan error)
	go func() { late <- submit("late") }()
	for !r.inFlight.Crowded() {
		runtime.Gosched()
	}
	report := make(chan DrainReport)
	go func() { report <- r.Drain(context.Background()) }()
	<-r.life.Done() // a moment after Draining: only now a submission is refused instead of waiting for room
	wantKind(t, submit("x"), fault.Unavailable)
	r.inFlight.Release(room)
	wantKind(t, <-late, fault.Unavailable, "stopping")
	close(hold)
	for range 2 {
		if res := <-answers; res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	if rep := <-report; !rep.Clean {
		t.Fatalf("%+v", rep)
	}
}

// closing reports whether a drain has begun to close logs.
func (r *rig) closing() bool {
	for _, t := range r.topics.all() {
		for _, p := range t.parts {
			if p.Status().State == partition.Closed {
				return true
			}
		}
	}
	return false
}

func TestDrainWhileOpening(t *testing.T) {
	r := newRig(t)
	for i := range 10 {
		r.create(fmt.Sprint("t", i), TopicSpec{Settings: Settings{Fsync: ptr("none")}})
		r.publish(fmt.Sprint("t", i), 0, "one")
	}
	r.crash(loseAll())
	hold, entered := r.hold(func(op vfs.Op) bool { return op.Kind == vfs.OpList && strings.Contains(op.Path, "/topics/default/") })
	r.launch(func(c *Config) { c.Crash = seglog.MachineCrash; c.OpenParallel = 2 })
	<-entered
	report := make(chan DrainReport)
	go func() { report <- r.Drain(context.Background()) }()
	for !r.closing() { // until then Drain has not looked at what is opened
		runtime.Gosched()
	}
	close(hold)
	// Some logs were not opened when the stop began, so the next run must not be told that the crash is dealt with. (The
	// rest may have been opened since.)
	if rep := <-report; rep.Recovered || len(rep.Stopped) > 0 {
		t.Fatalf("%+v", rep)
	}
	r.halt()
	r.fs.SetHook(nil)
	r.start(func(c *Config) { c.Crash = seglog.MachineCrash })
	for i := range 10 {
		// One that was opened in time is told of the crash twice, which declares more than need be, never less.
		if got := r.history(fmt.Sprint("t", i), 0); len(got) < 1 || !strings.HasPrefix(got[0], "0-") || !strings.HasSuffix(got[0], " lost") {
			t.Fatalf("t%d: %v", i, got)
		}
	}
	if !r.Recovered() {
		t.Fatal("not recovered")
	}
	if rep := r.Drain(context.Background()); !rep.Clean || !rep.Recovered {
		t.Fatalf("%+v", rep)
	}
}

// TestDrainLeavesALogThatHangs has the flush of one log hang: a drain whose time is over closes the others, names that one
// and ends. The log is closed once the disk goes on.
func TestDrainLeavesALogThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, name := range []string{"slow", "other"} {
			r.create(name, TopicSpec{Settings: Settings{Fsync: ptr("none")}})
			r.publish(name, 0, "x")
		}
		release, _ := r.hold(func(op vfs.Op) bool { return op.Kind == vfs.OpSync && strings.Contains(op.Path, "/slow@") })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		report := r.Drain(ctx)
		if took := time.Since(began); took != time.Second+closeStall {
			t.Errorf("the drain took %v", took)
		}
		if report.Clean || len(report.Stopped) > 0 || !slices.Equal(report.Hung, []string{"default/slow/0"}) {
			t.Errorf("%+v", report)
		}
		if s := r.topics.all(); len(s) != 2 {
			t.Fatal(len(s))
		}
		for _, topic := range r.topics.all() {
			if _, open := topic.parts[0].Bounds(); open {
				t.Errorf("%s is not closed", topic.Full)
			}
		}
		close(release)
		r.halt()
	})
}
