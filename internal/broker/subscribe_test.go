package broker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

func TestPositions(t *testing.T) {
	r := newRig(t)
	r.create("a")
	ctx := context.Background()
	for i := range 3 { // offsets 2i and 2i+1 at time 1000(i+1)
		ms := int64(1000 * (i + 1))
		if _, _, err := r.Publish(ctx, "a", 0, []record.Record{
			{Value: fmt.Append(nil, "a", i), Timestamp: ms}, {Value: fmt.Append(nil, "b", i), Timestamp: ms},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		start Position
		at    int64
	}{
		{Earliest(), 0}, {Latest(), 6}, {Offset(0), 0}, {Offset(3), 3}, {Offset(6), 6}, {Time(0), 0}, {Time(1000), 0}, {Time(1001), 2},
		{Time(3000), 4}, {Time(3001), 6}, {Time(-5), 0},
	} {
		s := r.subscribe("a", 0, c.start)
		if i := s.Info(); i.Start != c.at || i.End != 6 || i.Topic != "default/a" || !i.Reliable || i.Partitions != 1 {
			t.Errorf("%+v: %+v", c.start, i)
		}
		e := next(t, s)
		if c.at == 6 {
			if e.Kind != EventAtEnd || e.Next != 6 {
				t.Errorf("%+v: %+v", c.start, e)
			}
			continue
		}
		if got := values(t, e, c.at); !strings.HasPrefix(got[0], fmt.Sprint(c.at, "=")) {
			t.Errorf("%+v begins with %s", c.start, got[0])
		}
	}
	_, err := r.Subscribe(ctx, SubscribeSpec{Topic: "a", Start: Offset(7)})
	wantKind(t, err, fault.OutOfRange, "default/a", "7", "6")
	_, err = r.Subscribe(ctx, SubscribeSpec{Topic: "a", Start: Offset(-1)})
	wantKind(t, err, fault.InvalidArgument)
	_, err = r.Subscribe(ctx, SubscribeSpec{Topic: "a", Start: Position{Kind: 9}})
	wantKind(t, err, fault.InvalidArgument)
	if got := r.metric("levee_broker_subscribers"); got != 11 {
		t.Errorf("%v subscribers: those refused must not be counted", got)
	}
}

func TestEndIsToldOncePerArrival(t *testing.T) {
	r := newRig(t)
	for _, dispatch := range []Dispatch{Reliable, NonReliable} {
		topic := string(dispatch)
		r.create(topic, TopicSpec{Dispatch: dispatch})
		s := r.subscribe(topic, 0, Earliest())
		for i := range int64(3) {
			if e := next(t, s); e.Kind != EventAtEnd || e.Next != i {
				t.Fatalf("%s: %+v", topic, e)
			}
			got := make(chan Event)
			go func() { got <- next(t, s) }() // waits: it has been told of the end
			r.publish(topic, 0, "x")
			if e := <-got; e.Kind != EventData || e.Next != i+1 || e.Records != 1 {
				t.Fatalf("%s: %+v", topic, e)
			}
		}
	}
}

func TestNextEndsWithItsContextAndGoesOn(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	for _, topic := range []string{"a", "fast"} {
		s := r.subscribe(topic, 0, Latest())
		next(t, s)
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_, err := s.Next(ctx, 0)
		wantKind(t, err, fault.Timeout)
		cancel()
		r.publish(topic, 0, "x")
		if e := next(t, s); e.Kind != EventData || values(t, e, 0)[0] != "0=x" {
			t.Fatalf("%+v", e)
		}
	}
}

func TestCloseEndsNext(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.create("fast", TopicSpec{Dispatch: NonReliable})
	for _, topic := range []string{"a", "fast"} {
		s := r.subscribe(topic, 0, Latest())
		errs := make(chan error)
		go func() {
			for {
				if _, err := s.Next(context.Background(), 0); err != nil {
					errs <- err
					return
				}
			}
		}()
		s.Close()
		s.Close()
		wantKind(t, <-errs, fault.Canceled, topic)
	}
	if got := r.metric("levee_broker_subscribers"); got != 0 {
		t.Fatalf("%v subscribers", got)
	}
}

func TestSmallReadsStillMove(t *testing.T) {
	r := newRig(t)
	r.create("a")
	for i := range 20 {
		r.publish("a", 0, fmt.Sprint(i), strings.Repeat("x", 500))
	}
	s := r.subscribe("a", 0, Offset(1))
	at := int64(1)
	for at < 40 {
		e, err := s.Next(context.Background(), 1)
		if err != nil || e.Kind != EventData {
			t.Fatalf("%+v, %v", e, err)
		}
		got := values(t, e, at)
		if len(got) == 0 || !strings.HasPrefix(got[0], fmt.Sprint(at, "=")) || e.Next != at+int64(len(got)) {
			t.Fatalf("at %d: %v, next %d", at, got, e.Next)
		}
		at = e.Next
	}
}

func TestTrimmedPositions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.create("a", TopicSpec{Settings: Settings{SegmentBytes: ptr[int64](64 << 10)}})
		for range 8 {
			r.publish("a", 0, strings.Repeat("x", 30<<10))
		}
		s, slow := r.subscribe("a", 0, Earliest()), r.subscribe("a", 0, Offset(0))
		next(t, slow)
		if _, err := r.SetTopic(context.Background(), "a", Settings{RetentionBytes: ptr[int64](64 << 10)}, nil); err != nil {
			t.Fatal(err)
		}
		<-time.After(31 * time.Second) // one tick of retention, on the bubble's clock
		synctest.Wait()
		d, err := r.DescribeTopic(context.Background(), "a")
		if err != nil || d.Parts[0].First < 4 || d.Parts[0].End != 8 {
			t.Fatalf("%+v, %v", d.Parts, err)
		}
		first := d.Parts[0].First
		_, err = r.Subscribe(context.Background(), SubscribeSpec{Topic: "a", Start: Offset(0)})
		wantKind(t, err, fault.Trimmed, "default/a")
		if got := fault.DetailsOf(err); got["requested"] != "0" || got["oldest"] != fmt.Sprint(first) {
			t.Fatalf("%v", got)
		}
		// The one that asked for whatever is oldest goes there; the one that has read on is told.
		if e := next(t, s); e.Kind != EventData || !strings.HasPrefix(values(t, e, 0)[0], fmt.Sprint(first, "=")) {
			t.Fatalf("%+v", e)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for {
			if _, err = slow.Next(ctx, 0); err != nil {
				break
			}
		}
		wantKind(t, err, fault.Trimmed)
		r.halt()
	})
}

func TestStoppedLogEndsSubscribersWhereItIsKnownGood(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.publish("a", 0, "one")
	s := r.subscribe("a", 0, Earliest())
	r.fs.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			return vfs.ErrIO
		}
		return nil
	})
	_, _, err := r.Publish(context.Background(), "a", 0, []record.Record{{Value: []byte("two")}})
	wantKind(t, err, fault.OutcomeUnknown, "default/a")
	if e := next(t, s); strings.Join(values(t, e, 0), " ") != "0=one" {
		t.Fatalf("%+v", e)
	}
	for err = nil; err == nil; {
		var e Event
		if e, err = s.Next(context.Background(), 0); e.Kind == EventData {
			t.Fatalf("a record that was never acknowledged was delivered: %v", values(t, e, 0))
		}
	}
	wantKind(t, err, fault.Stopped)
	if p := r.Problems(); len(p) != 1 || !strings.Contains(p[0], "stopped") {
		t.Fatalf("%q", p)
	}
	r.fs.SetHook(nil)
	if d := r.Drain(context.Background()); d.Clean || len(d.Stopped) != 1 || !strings.Contains(d.Stopped[0], "default/a/0") {
		t.Fatalf("%+v", d)
	}
}
