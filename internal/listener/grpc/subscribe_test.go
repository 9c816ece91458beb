package grpc

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	rpc "google.golang.org/grpc"
)

type subscribeClient = rpc.BidiStreamingClient[leveev1.SubscribeRequest, leveev1.SubscribeResponse]

// openSubscribe opens with credit of that many bytes; 0 gives none.
func openSubscribe(t *testing.T, ctx context.Context, f *fixture, open *leveev1.OpenSubscribe, bytes int64) subscribeClient {
	t.Helper()
	st := must(f.client.Subscribe(ctx))(t)
	req := &leveev1.SubscribeRequest{Open: open}
	if bytes != 0 {
		req.Credit = &leveev1.Credit{Bytes: bytes}
	}
	if err := st.Send(req); err != nil {
		t.Fatal(err)
	}
	s := must(st.Recv())(t).Subscribed
	if s == nil || len(s.TopicId) != 16 || s.Start != 5 || s.End != 9 || s.Partitions != 4 || !s.Reliable {
		t.Fatalf("got subscribed %v", s)
	}
	return st
}

func giveCredit(t *testing.T, st subscribeClient, bytes int64) {
	t.Helper()
	if err := st.Send(&leveev1.SubscribeRequest{Credit: &leveev1.Credit{Bytes: bytes}}); err != nil {
		t.Fatal(err)
	}
}

func TestSubscribeStarts(t *testing.T) {
	for name, c := range map[string]struct {
		open *leveev1.OpenSubscribe
		want broker.Position
	}{
		"default":  {&leveev1.OpenSubscribe{}, broker.Earliest()},
		"earliest": {&leveev1.OpenSubscribe{Start: &leveev1.OpenSubscribe_Earliest{Earliest: true}}, broker.Earliest()},
		"latest":   {&leveev1.OpenSubscribe{Start: &leveev1.OpenSubscribe_Latest{Latest: true}}, broker.Latest()},
		"offset":   {&leveev1.OpenSubscribe{Start: &leveev1.OpenSubscribe_Offset{Offset: 12}}, broker.Offset(12)},
		"time":     {&leveev1.OpenSubscribe{Start: &leveev1.OpenSubscribe_TimeMs{TimeMs: 13}}, broker.Time(13)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				c.open.Topic, c.open.TopicId, c.open.Partition = "ns/t", []byte("id"), 2
				st := openSubscribe(t, t.Context(), f, c.open, 0)
				if s := f.spec; s.Topic != "ns/t" || string(s.ID) != "id" || s.Partition != 2 || s.Start != c.want {
					t.Errorf("got %+v, want start %+v", s, c.want)
				}
				_ = st.CloseSend()
				wantEnd(t, st)
			})
		})
	}
}

func TestSubscribeEvents(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := openSubscribe(t, t.Context(), f, &leveev1.OpenSubscribe{}, 1<<20)
		f.sub.events <- broker.Event{Kind: broker.EventData, Batches: []byte("batch"), Next: 7, Dropped: 3}
		f.sub.events <- data(100_000, 8) // sent in parts
		f.sub.events <- broker.Event{Kind: broker.EventLost, Lost: broker.Range{From: 8, To: 9}, Next: 10}
		f.sub.events <- broker.Event{Kind: broker.EventAtEnd, Next: 10}
		if d := must(st.Recv())(t).Delivery; string(d.GetBatches()) != "batch" || d.Next != 7 || d.Dropped != 3 {
			t.Errorf("got %v", d)
		}
		if d := must(st.Recv())(t).Delivery; len(d.GetBatches()) != 100_000 || d.Next != 8 {
			t.Errorf("got %v", d)
		}
		if l := must(st.Recv())(t).Lost; l.GetFrom() != 8 || l.GetTo() != 9 {
			t.Errorf("got %v", l)
		}
		if r := must(st.Recv())(t); !r.AtEnd || r.CaughtUp != 10 {
			t.Errorf("got %v", r)
		}
		f.sub.events <- broker.Event{}
		_, err := st.Recv()
		wantKind(t, err, fault.Internal)
		if f.sub.closed != 1 {
			t.Error("the subscriber was not closed with its stream")
		}
	})
}

// Nothing is asked of the broker without credit, and never more than the client has room for.
func TestSubscribeCredit(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		asked := func(want ...int) {
			t.Helper()
			synctest.Wait()
			if got := f.sub.calls(); !slices.Equal(got, want) {
				t.Fatalf("the broker was asked for %v bytes, want %v", got, want)
			}
		}
		for range 10 {
			f.sub.events <- data(60, 1)
		}
		st := openSubscribe(t, t.Context(), f, &leveev1.OpenSubscribe{MaxBytes: 70}, 0)
		asked()
		giveCredit(t, st, 100)
		asked(70, 40) // 100 and 40 left; then 20 too many were sent
		giveCredit(t, st, 20)
		asked(70, 40)
		giveCredit(t, st, 1)
		asked(70, 40, 1)
		giveCredit(t, st, math.MaxInt64)
		giveCredit(t, st, math.MaxInt64) // does not wrap around
		synctest.Wait()
		if got := len(f.sub.calls()); got != 11 {
			t.Errorf("the broker was asked %d times, want for all 10 and once more", got)
		}
		for range 10 {
			must(st.Recv())(t)
		}
	})
}

func TestSubscribeMaxBytes(t *testing.T) {
	for given, want := range map[int32]int{0: 1 << 20, 5: 5, math.MaxInt32: 16 << 20} {
		bubble(t, Limits{}, func(t *testing.T, f *fixture) {
			openSubscribe(t, t.Context(), f, &leveev1.OpenSubscribe{MaxBytes: given}, math.MaxInt64)
			synctest.Wait()
			if got := f.sub.calls(); len(got) != 1 || got[0] != want {
				t.Errorf("max_bytes %d: the broker was asked for %v, want %d", given, got, want)
			}
		})
	}
}

func TestSubscribeRules(t *testing.T) {
	open, good := &leveev1.OpenSubscribe{}, &leveev1.Credit{Bytes: 1}
	for name, reqs := range map[string][]*leveev1.SubscribeRequest{
		"nothing":         {},
		"no open":         {{Credit: good}},
		"open twice":      {{Open: open}, {Open: open}},
		"max_bytes":       {{Open: &leveev1.OpenSubscribe{MaxBytes: -1}}},
		"credit 0":        {{Open: open, Credit: &leveev1.Credit{}}},
		"credit negative": {{Open: open, Credit: good}, {Credit: &leveev1.Credit{Bytes: -1}}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				st := must(f.client.Subscribe(t.Context()))(t)
				for _, r := range reqs {
					if err := st.Send(r); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if len(reqs) == 0 {
					_ = st.CloseSend()
				}
				for {
					if _, err := st.Recv(); err != nil {
						wantKind(t, err, fault.InvalidArgument)
						return
					}
				}
			})
		})
	}
}

func TestSubscribeEnds(t *testing.T) {
	trimmed := fault.New(fault.Trimmed, "gone").With("requested", 3).With("oldest", 8)
	for name, c := range map[string]struct {
		err  error
		want func(t *testing.T, r *leveev1.SubscribeResponse)
	}{
		"trimmed": {trimmed, func(t *testing.T, r *leveev1.SubscribeResponse) {
			if tr := r.Trimmed; tr.GetRequested() != 3 || tr.GetOldest() != 8 {
				t.Errorf("got %v", r)
			}
		}},
		"deleted": {fault.New(fault.Deleted, "topic deleted"), func(t *testing.T, r *leveev1.SubscribeResponse) {
			if e := r.Ended; e.GetKind() != "deleted" || e.Message != "topic deleted" || e.Retriable {
				t.Errorf("got %v", r)
			}
		}},
		"unavailable": {fault.New(fault.Unavailable, "draining"), func(t *testing.T, r *leveev1.SubscribeResponse) {
			if e := r.Ended; e.GetKind() != "unavailable" || !e.Retriable {
				t.Errorf("got %v", r)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				st := openSubscribe(t, t.Context(), f, &leveev1.OpenSubscribe{}, 1)
				f.sub.events <- c.err
				c.want(t, must(st.Recv())(t))
				wantEnd(t, st)
			})
		})
	}
}

func TestSubscribeFails(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := openSubscribe(t, t.Context(), f, &leveev1.OpenSubscribe{}, 1)
		f.sub.events <- fault.New(fault.Corrupt, "bad bytes").With("file", "a").With("position", 9)
		_, err := st.Recv()
		if md := wantKind(t, err, fault.Corrupt); md["file"] != "a" || md["position"] != "9" || md["retriable"] != "false" {
			t.Errorf("got metadata %v", md)
		}
	})
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		f.openErr = fault.New(fault.Trimmed, "gone").With("requested", 3).With("oldest", 8)
		st := must(f.client.Subscribe(t.Context()))(t)
		_ = st.Send(&leveev1.SubscribeRequest{Open: &leveev1.OpenSubscribe{}})
		_, err := st.Recv()
		if md := wantKind(t, err, fault.Trimmed); md["requested"] != "3" || md["oldest"] != "8" {
			t.Errorf("got metadata %v", md)
		}
	})
}

// A drain ends subscriptions whether they wait for records or for credit.
func TestSubscribeDrain(t *testing.T) {
	for name, bytes := range map[string]int64{"waiting for records": 1, "waiting for credit": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, f *fixture) {
				st := openSubscribe(t, t.Context(), f, &leveev1.OpenSubscribe{}, bytes)
				synctest.Wait()
				start := time.Now()
				f.server.Drain(t.Context())
				if took := time.Since(start); took > time.Second {
					t.Errorf("the drain waited %s for a subscription", took)
				}
				if e := must(st.Recv())(t).Ended; e.GetKind() != "unavailable" {
					t.Errorf("got %v", e)
				}
				wantEnd(t, st)
			})
		})
	}
}

// Who closes its side gets what it gave credit for, and then the end.
func TestSubscribeHalfClose(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		st := openSubscribe(t, t.Context(), f, &leveev1.OpenSubscribe{}, 10)
		_ = st.CloseSend()
		f.sub.events <- data(6, 1)
		f.sub.events <- data(6, 2)
		f.sub.events <- data(6, 3)
		if a, b := must(st.Recv())(t).Delivery.Next, must(st.Recv())(t).Delivery.Next; a != 1 || b != 2 {
			t.Errorf("got deliveries up to %d and %d", a, b)
		}
		if r, err := st.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, %v; want the end: the credit is used up", r, err)
		}
	})
}

func TestSubscribeClientLeaves(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		openSubscribe(t, ctx, f, &leveev1.OpenSubscribe{}, 1)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if f.sub.closed != 1 {
			t.Error("the subscriber was not closed with its stream")
		}
	})
}

// A client that gives credit without end and never reads costs what flow control lets through and one delivery.
func TestSubscribeBoundedWhenNothingIsRead(t *testing.T) {
	const size = 64 << 10
	bubble(t, Limits{}, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		st := openSubscribe(t, ctx, f, &leveev1.OpenSubscribe{}, math.MaxInt64)
		for range cap(f.sub.events) {
			f.sub.events <- data(size, 1)
		}
		synctest.Wait()
		// gRPC takes a message whole when less than 64 KiB of those before it wait to be written.
		if got := len(f.sub.calls()); got < 2 || got > 5 {
			t.Errorf("%d deliveries of %d bytes were begun for a client that reads none, want 2 to 5", got, size)
		}
		giveCredit(t, st, 1) // credit is still read
		cancel()
		synctest.Wait()
		if f.sub.closed != 1 {
			t.Error("the subscriber was not closed with its stream")
		}
	})
}
