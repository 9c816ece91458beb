package grpc

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type publishClient = rpc.BidiStreamingClient[leveev1.PublishRequest, leveev1.PublishResponse]

func openPublish(t *testing.T, ctx context.Context, f *fixture) publishClient {
	t.Helper()
	st := must(f.client.Publish(ctx))(t)
	if err := st.Send(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: "t", TopicId: []byte("id")}}); err != nil {
		t.Fatal(err)
	}
	if got := must(st.Recv())(t).Opened; got == nil {
		t.Fatal("the first answer has no opened")
	}
	return st
}

// send sends one message with batches of these ids, each of size bytes.
func send(t *testing.T, st publishClient, size int, ids ...uint64) {
	t.Helper()
	req := &leveev1.PublishRequest{}
	for _, id := range ids {
		req.Batches = append(req.Batches, &leveev1.Batch{Id: id, Partition: int32(id % 4), Data: make([]byte, size)})
	}
	if err := st.Send(req); err != nil {
		t.Fatal(err)
	}
}

// acks receives until n answers have come.
func acks(t *testing.T, st publishClient, n int) (got []*leveev1.Ack) {
	t.Helper()
	for len(got) < n {
		got = append(got, must(st.Recv())(t).Acks...)
	}
	return got
}

func wantEnd(t *testing.T, st interface{ RecvMsg(any) error }) {
	t.Helper()
	if err := st.RecvMsg(&leveev1.PublishResponse{}); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the stream's good end", err)
	}
}

func TestPublishOpens(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := must(f.client.Publish(t.Context()))(t)
		// The first message may carry batches already.
		req := &leveev1.PublishRequest{
			Open:    &leveev1.OpenPublish{Topic: "ns/t", TopicId: []byte("id")},
			Batches: []*leveev1.Batch{{Id: 0, Partition: 3, Data: []byte("x")}},
		}
		if err := st.Send(req); err != nil {
			t.Fatal(err)
		}
		o := must(st.Recv())(t).Opened
		if o == nil || len(o.TopicId) != 16 || o.TopicId[0] != 1 || o.Partitions != 4 || !o.Reliable ||
			o.MaxBatchBytes != 16<<20 || o.MaxRecordBytes != 10<<20 {
			t.Errorf("got opened %v", o)
		}
		if f.topic != "ns/t" || string(f.id) != "id" {
			t.Errorf("opened %q with id %q", f.topic, f.id)
		}
		synctest.Wait()
		got := f.pub.all()
		if len(got) != 1 || got[0].partition != 3 || string(got[0].batch) != "x" {
			t.Fatalf("submitted %v", got)
		}
		got[0].done(broker.PublishResult{Offset: 9, LastOffset: 9})
		acks(t, st, 1)
		_ = st.CloseSend()
		wantEnd(t, st)
	})
}

// Batches go on while earlier ones are unanswered, and answers come as they become known.
func TestPublishPipelines(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := openPublish(t, t.Context(), f)
		send(t, st, 10, 1, 2)
		send(t, st, 10, 3)
		synctest.Wait()
		sub := f.pub.all()
		if len(sub) != 3 {
			t.Fatalf("%d batches were submitted, want 3 with none answered", len(sub))
		}
		sub[2].done(broker.PublishResult{Offset: -1, LastOffset: -1, Duplicate: true})
		a := acks(t, st, 1)[0]
		if a.Id != 3 || a.Offset != -1 || !a.Duplicate {
			t.Errorf("got %v", a)
		}
		sub[0].done(broker.PublishResult{Offset: 10, LastOffset: 14, Ranges: []broker.Range{{From: 10, To: 11}, {From: 13, To: 14}}})
		a = acks(t, st, 1)[0]
		if a.Id != 1 || a.Offset != 10 || a.LastOffset != 14 || a.Duplicate || len(a.Ranges) != 2 || a.Ranges[1].From != 13 {
			t.Errorf("got %v", a)
		}
		sub[1].done(broker.PublishResult{Err: fault.New(fault.NoSpace, "disk full").With("free", 0)})
		a = acks(t, st, 1)[0]
		if e := a.Error; a.Id != 2 || len(a.Ranges) != 0 || e == nil || e.Kind != "no_space" || !e.Retriable || e.Message != "disk full" || e.Details["free"] != "0" {
			t.Errorf("got %v", a)
		}
		_ = st.CloseSend()
		wantEnd(t, st)
	})
}

func TestPublishRefusedBatchIsAnswered(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.pub.refuse = fault.New(fault.InvalidArgument, "bad batch")
		st := openPublish(t, t.Context(), f)
		send(t, st, 1, 8)
		if a := acks(t, st, 1)[0]; a.Id != 8 || a.Error.GetKind() != "invalid_argument" {
			t.Errorf("got %v", a)
		}
		_ = st.CloseSend()
		wantEnd(t, st)
	})
}

func TestPublishStopsReadingWhenTooMuchIsUnanswered(t *testing.T) {
	for name, c := range map[string]struct {
		limits Limits
		size   int
		want   int
	}{
		"batches": {Limits{UnansweredBatches: 4}, 1, 4},
		"bytes":   {Limits{UnansweredBytes: 100}, 60, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, c.limits, func(t *testing.T, f *fixture) {
				st := openPublish(t, t.Context(), f)
				send(t, st, c.size, 1, 2, 3)
				for id := uint64(4); id <= 20; id++ {
					send(t, st, c.size, id)
				}
				_ = st.CloseSend()
				for answered := range 20 {
					synctest.Wait()
					got := f.pub.all()
					if want := min(20, answered+c.want); len(got) != want {
						t.Fatalf("with %d answered, %d were submitted, want %d", answered, len(got), want)
					}
					got[answered].done(broker.PublishResult{Offset: int64(answered)})
				}
				acks(t, st, 20)
				wantEnd(t, st)
			})
		})
	}
}

// A client that sends faster than the broker answers is held back by flow control, not by the broker's memory.
func TestPublishBacksUpToTheClient(t *testing.T) {
	const size, total = 64 << 10, 200
	bubble(t, Limits{UnansweredBytes: 4 * size}, func(t *testing.T, f *fixture) {
		st := openPublish(t, t.Context(), f)
		sent := make(chan int, total)
		go func() {
			for id := range total {
				if st.Send(&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: uint64(id), Data: make([]byte, size)}}}) != nil {
					break
				}
				sent <- id
			}
			_ = st.CloseSend()
			close(sent)
		}()
		synctest.Wait()
		if got := len(f.pub.all()); got != 4 {
			t.Errorf("%d batches were submitted, want 4", got)
		}
		if most := 4 + streamWindow/size + 4; len(sent) > most {
			t.Errorf("the client has sent %d batches, want at most %d", len(sent), most)
		}
		for answered := 0; answered < total; {
			for _, s := range f.pub.all()[answered:] {
				s.done(broker.PublishResult{})
				answered++
			}
			synctest.Wait()
		}
		acks(t, st, total)
		wantEnd(t, st)
	})
}

// A client that never reads its answers is not read for ever either.
func TestPublishBoundedWhenAnswersAreNotRead(t *testing.T) {
	bubble(t, Limits{UnansweredBatches: 100}, func(t *testing.T, f *fixture) {
		f.pub.refuse = fault.New(fault.NoSpace, "%01000d", 0) // wordy answers, at once
		ctx, cancel := context.WithCancel(t.Context())
		st := openPublish(t, ctx, f)
		go func() {
			for id := uint64(1); ; id++ {
				if st.Send(&leveev1.PublishRequest{Batches: []*leveev1.Batch{{Id: id, Data: make([]byte, 1000)}}}) != nil {
					return
				}
			}
		}()
		synctest.Wait() // returns only because everybody waits: the sender for the server, the server for the reader
		cancel()
		synctest.Wait()
		if f.pub.closed != 1 {
			t.Error("the publisher was not closed with its stream")
		}
	})
}

func TestPublishHalfCloseWaitsForAnswers(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := openPublish(t, t.Context(), f)
		send(t, st, 1, 1, 2)
		_ = st.CloseSend()
		synctest.Wait()
		f.pub.all()[1].done(broker.PublishResult{})
		acks(t, st, 1)
		synctest.Wait()
		if f.pub.closed != 0 {
			t.Fatal("the stream ended with a batch unanswered")
		}
		f.pub.all()[0].done(broker.PublishResult{})
		acks(t, st, 1)
		wantEnd(t, st)
		synctest.Wait()
		if f.pub.closed != 1 {
			t.Error("the publisher was not closed with its stream")
		}
	})
}

func TestPublishBrokenStreamDropsAnswers(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		st := openPublish(t, ctx, f)
		send(t, st, 1, 1, 2)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if f.pub.closed != 1 {
			t.Error("the publisher was not closed with its stream")
		}
		for _, s := range f.pub.all() {
			s.done(broker.PublishResult{}) // must neither block nor panic
		}
	})
}

func TestPublishRules(t *testing.T) {
	open := &leveev1.OpenPublish{Topic: "t"}
	batch := func(ids ...uint64) (b []*leveev1.Batch) {
		for _, id := range ids {
			b = append(b, &leveev1.Batch{Id: id})
		}
		return b
	}
	for name, reqs := range map[string][]*leveev1.PublishRequest{
		"nothing":               {},
		"no open":               {{Batches: batch(1)}},
		"open twice":            {{Open: open}, {Open: open}},
		"id twice":              {{Open: open}, {Batches: batch(1, 1)}},
		"id falls":              {{Open: open}, {Batches: batch(5)}, {Batches: batch(4)}},
		"id falls from maximum": {{Open: open}, {Batches: batch(1<<64 - 1)}, {Batches: batch(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				st := must(f.client.Publish(t.Context()))(t)
				for _, r := range reqs {
					if err := st.Send(r); err != nil {
						t.Fatal(err)
					}
				}
				_ = st.CloseSend()
				synctest.Wait()
				taken := f.pub.all()
				for _, s := range taken {
					s.done(broker.PublishResult{})
				}
				answered := 0
				for {
					resp, err := st.Recv()
					if err != nil {
						wantKind(t, err, fault.InvalidArgument)
						break
					}
					answered += len(resp.Acks)
				}
				if answered != len(taken) {
					t.Errorf("%d of %d batches that were taken before the mistake were answered", answered, len(taken))
				}
			})
		})
	}
}

func TestPublishOpenFails(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.openErr = fault.New(fault.NotFound, "no topic").With("topic", "t")
		st := must(f.client.Publish(t.Context()))(t)
		_ = st.Send(&leveev1.PublishRequest{Open: &leveev1.OpenPublish{Topic: "t"}})
		_, err := st.Recv()
		if md := wantKind(t, err, fault.NotFound); md["topic"] != "t" || md["retriable"] != "false" {
			t.Errorf("got metadata %v", md)
		}
	})
}

// A drain is told once; what was taken, and what still comes, is answered; the client decides when to close.
func TestPublishDrain(t *testing.T) {
	for name, drain := range map[string]func(f *fixture){
		"listener": func(f *fixture) { f.server.Drain(context.Background()) },
		"broker":   func(f *fixture) { close(f.draining) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				st := openPublish(t, t.Context(), f)
				send(t, st, 1, 1)
				synctest.Wait()
				drained := make(chan struct{})
				go func() {
					drain(f)
					close(drained)
				}()
				if d := must(st.Recv())(t).Draining; d.GetKind() != "unavailable" || !d.Retriable {
					t.Fatalf("got %v, want to be told of the drain", d)
				}
				send(t, st, 1, 2)
				synctest.Wait()
				for _, s := range f.pub.all() {
					s.done(broker.PublishResult{})
				}
				if got := acks(t, st, 2); len(got) != 2 {
					t.Errorf("got %v", got)
				}
				_ = st.CloseSend()
				if resp, err := st.Recv(); !errors.Is(err, io.EOF) {
					t.Errorf("got %v, %v after the last answer; want the end", resp, err)
				}
				<-drained
			})
		})
	}
}

func TestDrainCutsOffWhoDoesNotLeave(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := openPublish(t, t.Context(), f)
		send(t, st, 1, 1)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		f.server.Drain(ctx)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("the drain took %s, want the 5 s it had", took)
		}
		if f.pub.closed != 1 {
			t.Error("the drain is over and the call is not")
		}
		_ = must(st.Recv())(t).Draining
		if _, err := st.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
		f.pub.all()[0].done(broker.PublishResult{})
	})
}

func TestPublishMetrics(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		m := f.server.conns.metrics
		st := openPublish(t, t.Context(), f)
		send(t, st, 1, 1, 2)
		send(t, st, 1, 3)
		synctest.Wait()
		for _, s := range f.pub.all() {
			s.done(broker.PublishResult{})
		}
		acks(t, st, 3)
		for name, c := range map[string][2]float64{
			"streams":  {value(t, m.streams.WithLabelValues("publish")), 1},
			"requests": {value(t, m.publishes.WithLabelValues("stream")), 2},
			"batches":  {value(t, m.batches), 3},
			"conns":    {value(t, m.connections), 1},
		} {
			if c[0] != c[1] {
				t.Errorf("%s: got %v, want %v", name, c[0], c[1])
			}
		}
		if value(t, m.received) == 0 || value(t, m.sent) == 0 {
			t.Error("no bytes were counted")
		}
		_ = st.CloseSend()
		wantEnd(t, st)
		_ = f.conn.Close()
		synctest.Wait()
		if value(t, m.streams.WithLabelValues("publish")) != 0 || value(t, m.connections) != 0 {
			t.Error("an ended stream or connection is still counted")
		}
	})
}
