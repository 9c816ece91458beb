package grpc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"google.golang.org/protobuf/proto"
)

// All that is answered while one message is being sent goes into the next.
func TestOutboxAggregates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newOutbox(4096, 1<<20)
		sending, sent := make(chan int), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- box.deliver(t.Context(), nil, func(r *leveev1.PublishResponse) error {
				sending <- len(r.Acks)
				<-sent
				return nil
			})
		}()
		answerSome := func(from, n int) {
			for i := from; i < from+n; i++ {
				box.add(1)
				box.answer(uint64(i), 1, broker.PublishResult{})
			}
		}
		want := func(n int) {
			t.Helper()
			if got := <-sending; got != n {
				t.Errorf("a message has %d answers, want %d", got, n)
			}
		}
		synctest.Wait() // it waits
		answerSome(0, 1)
		want(1)
		answerSome(1, 500)
		sent <- struct{}{}
		want(500)
		answerSome(501, acksPerResponse+7)
		box.finish()
		sent <- struct{}{}
		want(acksPerResponse)
		sent <- struct{}{}
		want(7)
		sent <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestOutboxEnds(t *testing.T) {
	broken := errors.New("broken")
	fail := func(*leveev1.PublishResponse) error { return broken }
	box := newOutbox(1, 1)
	box.add(1)
	box.answer(1, 1, broker.PublishResult{})
	if err := box.deliver(t.Context(), nil, fail); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if err := box.deliver(ctx, nil, fail); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if err := box.room(ctx); !errors.Is(err, broken) { // its answer was not sent, so it still counts
		t.Errorf("got %v", err)
	}
	box.close()
	box.answer(2, 1, broker.PublishResult{})
	if len(box.answered) != 0 {
		t.Error("a closed outbox keeps answers")
	}
}

// Acks are used again: nothing of the answer before may be left in one.
func TestOutboxAcksForget(t *testing.T) {
	full := broker.PublishResult{Offset: 1, LastOffset: 2, Duplicate: true, Ranges: []broker.Range{{From: 1, To: 1}}}
	resp := fill(&leveev1.PublishResponse{}, []answer{{1, 1, full}, {2, 1, broker.PublishResult{Err: errors.New("x")}}, {3, 1, full}})
	resp = fill(resp, []answer{{4, 1, broker.PublishResult{}}, {5, 1, broker.PublishResult{}}})
	want := &leveev1.PublishResponse{Acks: []*leveev1.Ack{{Id: 4}, {Id: 5}}}
	if !proto.Equal(resp, want) {
		t.Errorf("got %v, want %v", resp, want)
	}
}

// In the steady state an answer costs no memory.
func TestOutboxAllocatesNothing(t *testing.T) {
	answers := make([]answer, 100)
	resp := &leveev1.PublishResponse{}
	fill(resp, answers)
	if n := testing.AllocsPerRun(100, func() {
		fill(resp, answers[:50])
		fill(resp, answers)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkOutbox(b *testing.B) {
	box := newOutbox(4096, 1<<30)
	done := make(chan error, 1)
	go func() {
		done <- box.deliver(context.Background(), nil, func(*leveev1.PublishResponse) error { return nil })
	}()
	b.ReportAllocs()
	for b.Loop() {
		_ = box.room(context.Background())
		box.add(100)
		box.answer(1, 100, broker.PublishResult{Offset: 1})
	}
	box.finish()
	<-done
}
