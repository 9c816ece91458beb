package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func TestDeletedAndCreatedAgainStartsEmpty(t *testing.T) {
	for _, dispatch := range []Dispatch{Reliable, NonReliable} {
		t.Run(string(dispatch), func(t *testing.T) {
			r := newRig(t)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			first := r.create("a", TopicSpec{Dispatch: dispatch})
			producer := record.ProducerInfo{ID: 7, Epoch: 0, Sequence: 0}
			if _, err := r.PublishBatch(ctx, "a", 0, pack(t, producer, "one", "two")); err != nil {
				t.Fatal(err)
			}
			p, err := r.OpenPublisher(ctx, "a", first.ID[:])
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			s := r.subscribe("a", 0, Latest())
			ended := make(chan error, 1)
			go func() {
				for {
					if _, err := s.Next(ctx, 0); err != nil {
						ended <- err
						return
					}
				}
			}()
			if err := r.DeleteTopic(ctx, "a"); err != nil {
				t.Fatal(err)
			}
			wantKind(t, <-ended, fault.Deleted, "default/a")
			submit := func() error { return p.Submit(ctx, 0, pack(t, record.NoProducer, "x"), func(PublishResult) {}) }
			wantKind(t, submit(), fault.Deleted, "default/a")
			_, err = r.OpenPublisher(ctx, "a", first.ID[:])
			wantKind(t, err, fault.Deleted)
			_, err = r.OpenPublisher(ctx, "a", nil)
			wantKind(t, err, fault.NotFound)
			wantKind(t, r.DeleteTopic(ctx, "a"), fault.NotFound)

			second := r.create("a", TopicSpec{Dispatch: dispatch})
			if second.Incarnation != 2 || second.ID == first.ID {
				t.Fatalf("%+v after %+v", second, first)
			}
			wantKind(t, submit(), fault.Deleted)
			_, err = r.Subscribe(ctx, SubscribeSpec{Topic: "a", ID: first.ID[:]})
			wantKind(t, err, fault.Deleted, "again")
			s = r.subscribe("a", 0, Earliest())
			// No record, and no memory of the producer either: its first sequence is news.
			res, err := r.PublishBatch(ctx, "a", 0, pack(t, producer, "new"))
			if err != nil || res.Offset != 0 || res.Duplicate {
				t.Fatalf("%+v, %v", res, err)
			}
			e := next(t, s)
			for e.Kind == EventAtEnd {
				e = next(t, s)
			}
			if got := values(t, e, 0); len(got) != 1 || got[0] != "0=new" {
				t.Fatalf("%v", got)
			}
			r.awaitPurged()
			for _, part := range p.t.parts {
				if s := part.Status(); s.State != partition.Closed {
					t.Errorf("the data is gone, the log is %s", s.State)
				}
			}
			r.halt()
			r.start()
			if dispatch == Reliable {
				wantHistory(t, r.history("a", 0), "0=new")
				if infos, err := r.fs.List("/data/topics/default"); err != nil || len(infos) != 1 || infos[0].Name != "a@2" {
					t.Fatalf("%v, %v", infos, err)
				}
			}
			if p := r.Problems(); len(p) > 0 {
				t.Fatalf("%q", p)
			}
		})
	}
}

// Publishers and subscribers are at work while their topic is deleted and created again, over and over: each handle
// either works on its own incarnation or answers deleted.
func TestDeleteUnderLoad(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	allowed := func(err error) bool {
		k := fault.KindOf(err)
		return k == fault.Deleted || k == fault.NotFound || k == fault.Canceled || k == fault.OutcomeUnknown
	}
	for range 4 {
		wg.Add(2)
		go func() {
			defer wg.Done()
			for ctx.Err() == nil {
				p, err := r.OpenPublisher(ctx, "a", nil)
				if err != nil {
					if !allowed(err) {
						t.Error(err)
					}
					continue
				}
				for n := 0; ; n++ {
					info := p.Info()
					res, err := p.wait(ctx, 0, pack(t, record.NoProducer, fmt.Sprint(info.Incarnation)))
					if err != nil {
						if !allowed(err) {
							t.Errorf("publish: %v", err)
						}
						break
					}
					if res.Offset < 0 {
						t.Errorf("%+v", res)
					}
				}
				p.Close()
			}
		}()
		go func() {
			defer wg.Done()
			for ctx.Err() == nil {
				s, err := r.Subscribe(ctx, SubscribeSpec{Topic: "a"})
				if err != nil {
					if !allowed(err) {
						t.Error(err)
					}
					continue
				}
				topic, err := r.Topic("a")
				current := err == nil && topic.ID == s.Info().TopicID
				at := int64(0)
				for {
					e, err := s.Next(ctx, 0)
					if err != nil {
						if !allowed(err) {
							t.Errorf("next: %v", err)
						}
						break
					}
					for _, v := range values(t, e, at) {
						if current && v != fmt.Sprintf("%d=%d", at, topic.Incarnation) {
							t.Errorf("incarnation %d delivers %s at %d", topic.Incarnation, v, at)
						}
						at++
					}
				}
				s.Close()
			}
		}()
	}
	for i := range 15 {
		r.create("a")
		s := r.subscribe("a", 0, Earliest())
		for e := next(t, s); e.Next < int64(10*i); e = next(t, s) {
		}
		s.Close()
		if err := r.DeleteTopic(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
	r.awaitPurged()
	if infos, err := r.fs.List("/data/topics/default"); err != nil || len(infos) != 0 {
		t.Fatalf("left on disk: %v, %v", infos, err)
	}
}

// TestRetiredTopicsHaveEnded: whoever closes the logs of a topic that was retired has a reason to give. Without one, what
// waits for the log is told that all is well, and asks again for ever.
func TestRetiredTopicsHaveEnded(t *testing.T) {
	r := newRegistry()
	have := &topic{}
	have.ID[0] = 1
	asked := false
	have.life.Parent = probe{context.Background(), func() {
		if asked = true; len(r.ended) != 0 { // under the registry's mutex, or beside nobody
			t.Error("it is among the retired before it has ended")
		}
	}}
	r.retire(have, errDeleted(meta.Name{Namespace: "default", Topic: "a"}))
	wantKind(t, r.retired(have.ID).ended(), fault.Deleted, "default/a")
	if !asked {
		t.Error("nothing was looked at")
	}
}

// probe is a parent of a life that does something when the life begins to be more than a word, which its end does at the
// latest.
type probe struct {
	context.Context
	look func()
}

func (p probe) Done() <-chan struct{} {
	p.look()
	return p.Context.Done()
}

// TestDeletionSurvivesCrashes cuts power at every change a deletion makes on disk, starts again, and expects the topic
// gone, its data gone, and the one beside it whole.
func TestDeletionSurvivesCrashes(t *testing.T) {
	for cut := 1; ; cut++ {
		r := newRig(t)
		r.create("a", TopicSpec{Partitions: 2, Settings: Settings{SegmentBytes: ptr[int64](64 << 10)}})
		r.create("beside")
		r.publish("beside", 0, "kept")
		for p := range int32(2) {
			for range 3 {
				r.publish("a", p, strings.Repeat("x", 40<<10))
			}
		}
		var left *vfs.Mem
		var mu sync.Mutex
		off := make(chan struct{})
		r.fs.SetHook(func(op vfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind.Changes() && op.N >= cut && left == nil {
				left = r.fs.Crash(vfs.Random(uint64(cut)))
				close(off)
			}
			if left != nil {
				return errors.New("the machine is off")
			}
			return nil
		})
		if err := r.DeleteTopic(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Topic("a"); fault.KindOf(err) != fault.NotFound {
			t.Fatal(err)
		}
		r.awaitPurgedOr(off)
		r.halt()
		if left == nil {
			if cut < 10 {
				t.Fatalf("the deletion made only %d changes", cut)
			}
			return
		}
		r.fs = left
		r.start(func(c *Config) { c.Crash = seglog.MachineCrash })
		r.awaitPurged()
		if infos, err := r.fs.List("/data/topics/default"); err != nil || len(infos) != 1 || infos[0].Name != "beside@1" {
			t.Fatalf("cut at %d: left on disk: %v, %v", cut, infos, err)
		}
		if infos, err := r.layout.List("/data/.deleted"); err != nil || len(infos) != 0 {
			t.Fatalf("cut at %d: left aside: %v, %v", cut, infos, err)
		}
		if p := r.Problems(); len(p) > 0 {
			t.Fatalf("cut at %d: %q", cut, p)
		}
		wantHistory(t, r.history("beside", 0), "0=kept")
		r.create("a")
		r.publish("a", 0, "new")
		wantHistory(t, r.history("a", 0), "0=new")
		r.halt()
	}
}

func TestDataTheMetadataDoesNotKnowIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.publish("a", 0, "one")
	if err := r.DeleteTopic(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	r.awaitPurged()
	r.create("a")
	r.halt()
	unknown := []string{
		"topics/default/a@1", "topics/default/a@3", "topics/default/b@1", "topics/default/a", "topics/default/a@02", "topics/x y", "topics/default/a@x",
		".deleted/0123", "topics/other/c@1",
	}
	for _, d := range unknown {
		if err := r.fs.MkdirAll("/data/" + d + "/0"); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	_, err := r.CreateTopic(context.Background(), TopicSpec{Name: "b"}) // b@1 would be its place
	wantKind(t, err, fault.Conflict, "/data/topics/default/b@1")
	r.create("c")
	problems := r.Problems()
	if len(problems) != len(unknown) {
		t.Fatalf("%d problems, want %d: %q", len(problems), len(unknown), problems)
	}
	for _, d := range unknown {
		if !strings.Contains(strings.Join(problems, "\n"), "/data/"+d+": ") {
			t.Errorf("%s is not reported in %q", d, problems)
		}
		if ok, err := vfs.Exists(r.fs, "/data/"+d+"/0"); !ok || err != nil {
			t.Errorf("%s was touched: %t, %v", d, ok, err)
		}
	}
	if got := r.metric("levee_topic_incarnation_refused_total"); got != 4 {
		t.Errorf("%v incarnations refused", got)
	}
}

// keepsTopics is metadata that records no deletion.
type keepsTopics struct{ meta.Store }

func (s keepsTopics) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if _, is := c.(meta.DeleteTopic); is {
		return meta.Result{}, fault.New(fault.Unavailable, "injected: the metadata takes nothing")
	}
	return s.Store.Propose(ctx, c)
}

// TestDeletionThatIsNotRecordedRemovesNothing covers RET-06: data goes only after the metadata records the deletion.
func TestDeletionThatIsNotRecordedRemovesNothing(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Meta = keepsTopics{c.Meta} })
	r.create("a")
	r.publish("a", 0, "kept")
	wantKind(t, r.DeleteTopic(context.Background(), "a"), fault.Unavailable, "injected")
	r.halt()
	r.start()
	wantHistory(t, r.history("a", 0), "0=kept")
}
