package broker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/leveemq/levee/internal/datadir"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
)

func TestNonReliableDeliversToWhoIsThere(t *testing.T) {
	r := newRig(t)
	info := r.create("fast", TopicSpec{Dispatch: NonReliable, Partitions: 2})
	if info.Reliable() || info.Effective != (Settings{}) {
		t.Fatalf("%+v", info)
	}
	if res := r.publish("fast", 0, "nobody", "hears"); res.Offset != 0 || res.LastOffset != 1 {
		t.Fatalf("%+v", res)
	}
	s1, s2, other := r.subscribe("fast", 0, Earliest()), r.subscribe("fast", 0, Offset(99)), r.subscribe("fast", 1, Latest())
	if i := s1.Info(); i.Start != 2 || i.End != 2 || i.Reliable || i.Partitions != 2 {
		t.Fatalf("%+v", i)
	}
	r.publish("fast", 0, "a", "b")
	r.publish("fast", 0, "c")
	r.publish("fast", 1, "elsewhere")
	for _, s := range []*Subscriber{s1, s2} {
		e := next(t, s)
		if got := strings.Join(values(t, e, 0), " "); got != "2=a 3=b 4=c" || e.Next != 5 || e.Records != 3 || e.Dropped != 0 {
			t.Fatalf("%q %+v", got, e)
		}
	}
	if got := strings.Join(values(t, next(t, other), 0), " "); got != "0=elsewhere" {
		t.Fatalf("%q", got)
	}
	if infos, err := r.fs.List("/data"); err != nil || len(infos) != 1 || infos[0].Name != datadir.DeletedDir {
		t.Fatalf("a topic that stores nothing left %v, %v", infos, err)
	}
	r.halt()
	r.start()
	if res := r.publish("fast", 0, "x"); res.Offset != 0 {
		t.Fatalf("after a restart: %+v", res)
	}
}

// A subscriber that never reads costs the publisher nothing and the broker a bounded amount; the others get everything.
func TestSlowSubscriberIsBounded(t *testing.T) {
	const ringBytes, batches = 8 << 10, 1000
	r := newRig(t, func(c *Config) { c.Limits.RingBytes = ringBytes })
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	slow, quick := r.subscribe("fast", 0, Latest()), r.subscribe("fast", 0, Latest())
	value := strings.Repeat("x", 100)
	for i := range batches {
		r.publish("fast", 0, fmt.Sprint(i, value), value)
		e := next(t, quick)
		for e.Kind == EventAtEnd {
			e = next(t, quick)
		}
		if e.Dropped != 0 || e.Next != int64(2*i+2) {
			t.Fatalf("the quick one: %+v", e)
		}
	}
	ring := slow.feed.(*fanFeed).ring
	if bytes, count := ring.Waiting(); bytes > ringBytes || count > 100 {
		t.Fatalf("%d batches, %d bytes wait for a subscriber that may have %d", count, bytes, ringBytes)
	}
	e := next(t, slow)
	got := values(t, e, 0)
	if e.Next != 2*batches || e.Dropped+int64(len(got)) != 2*batches || e.Dropped == 0 {
		t.Fatalf("%d delivered, %d said to be dropped, of %d", len(got), e.Dropped, 2*batches)
	}
	if !strings.HasPrefix(got[0], fmt.Sprint(e.Dropped, "=")) {
		t.Fatalf("not the oldest were dropped: %d of them, and it goes on with %.20s", e.Dropped, got[0])
	}
	if m := r.metric("levee_broker_non_reliable_dropped_records_total"); m != float64(e.Dropped) {
		t.Fatalf("%v dropped by the metric, %d by the event", m, e.Dropped)
	}
}

func TestManyPublishersOfANonReliableTopic(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.RingBytes, c.Limits.RingBatches = 64<<20, 1<<20 })
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	const publishers, each = 16, 200
	s := r.subscribe("fast", 0, Latest())
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				if _, _, err := r.Publish(context.Background(), "fast", 0, []record.Record{{Value: fmt.Append(nil, p, ".", i)}}); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	last := map[string]int{}
	for at := int64(0); at < publishers*each; {
		for _, v := range values(t, next(t, s), 0) {
			var offset int64
			var p string
			var i int
			if _, err := fmt.Sscanf(strings.NewReplacer("=", " ", ".", " ").Replace(v), "%d %s %d", &offset, &p, &i); err != nil {
				t.Fatal(err)
			}
			if offset != at || i != last[p] {
				t.Fatalf("%s at %d, expected number %d of that publisher", v, at, last[p])
			}
			last[p]++
			at++
		}
	}
	wg.Wait()
}

// What a subscriber is handed is shared, so nothing the broker does later may change it.
func TestSharedBatchesDoNotChange(t *testing.T) {
	r := newRig(t)
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	s := r.subscribe("fast", 0, Latest())
	p, err := r.OpenPublisher(context.Background(), "fast", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	batch := pack(t, record.NoProducer, "kept")
	if err := p.Submit(context.Background(), 0, batch, func(PublishResult) {}); err != nil {
		t.Fatal(err)
	}
	clear(batch) // the publisher's again
	if got := values(t, next(t, s), 0); got[0] != "0=kept" {
		t.Fatalf("%v", got)
	}
}

func TestNonReliableTopicsTakeNoSettings(t *testing.T) {
	r := newRig(t)
	_, err := r.CreateTopic(context.Background(), TopicSpec{Name: "fast", Dispatch: NonReliable, Settings: Settings{Fsync: ptr("none")}})
	wantKind(t, err, fault.InvalidArgument, "fast", "fsync")
	_, err = r.CreateTopic(context.Background(), TopicSpec{Name: "fast", Dispatch: "sometimes"})
	wantKind(t, err, fault.InvalidArgument, "sometimes")
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	_, err = r.SetTopic(context.Background(), "fast", Settings{RetentionBytes: ptr[int64](1)}, nil)
	wantKind(t, err, fault.InvalidArgument, "fast")
	if err := r.UnloadTopic(context.Background(), "fast"); err != nil {
		t.Fatal(err)
	}
}
