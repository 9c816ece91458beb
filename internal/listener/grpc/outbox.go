package grpc

import (
	"context"
	"sync"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
)

// acksPerResponse keeps a response below what clients receive by default (4 MiB) when each answer is a wordy error.
const acksPerResponse = 1024

// outbox holds the answers of one publish stream between the broker, which gives them whenever a flush is done, and
// the one goroutine that sends them. A batch counts against the bounds from when it is submitted until its answer was
// handed to gRPC, so a client that does not read its answers is not read either. Nothing is allocated per record.
type outbox struct {
	maxBatches int
	maxBytes   int64
	wake       chan struct{} // holds a token when deliver has something to look at
	freed      chan struct{} // holds a token when room may have become free

	mu       sync.Mutex
	answered []answer // waiting to be sent; guarded by mu
	batches  int      // unanswered; guarded by mu
	bytes    int64    // in them; guarded by mu
	finished bool     // nothing more will be added; guarded by mu
	closed   bool     // nobody will send: answers are dropped; guarded by mu
}

type answer struct {
	id   uint64
	size int
	broker.PublishResult
}

func newOutbox(maxBatches int, maxBytes int64) *outbox {
	return &outbox{maxBatches: maxBatches, maxBytes: maxBytes, wake: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// room waits until the bounds allow for another batch. One caller at a time, the one that adds.
func (o *outbox) room(ctx context.Context) error {
	for {
		o.mu.Lock()
		full := o.batches >= o.maxBatches || o.bytes >= o.maxBytes
		o.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-o.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// add counts a batch as unanswered.
func (o *outbox) add(size int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.batches++
	o.bytes += int64(size)
}

// answer puts in what became of a batch that was added. It never blocks.
func (o *outbox) answer(id uint64, size int, r broker.PublishResult) {
	o.mu.Lock()
	if !o.closed {
		o.answered = append(o.answered, answer{id, size, r})
	}
	o.mu.Unlock()
	signal(o.wake)
}

// finish says that nothing more will be added: deliver returns once everything is answered.
func (o *outbox) finish() {
	o.mu.Lock()
	o.finished = true
	o.mu.Unlock()
	signal(o.wake)
}

// close drops the answers that are there and those to come.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.answered = true, nil
}

// deliver sends answers until the outbox is finished and empty, in each message all that came since the last. It tells
// the client once when draining is closed.
func (o *outbox) deliver(ctx context.Context, draining <-chan struct{}, send func(*leveev1.PublishResponse) error) error {
	var spare []answer
	resp := &leveev1.PublishResponse{} // gRPC encodes a message before Send returns, so one serves for all
	for {
		if isClosed(draining) {
			draining = nil // told; a nil channel never closes
			if err := send(&leveev1.PublishResponse{Draining: errorOf(errDraining)}); err != nil {
				return err
			}
		}
		batch, more := o.swap(spare)
		if !more {
			return nil
		}
		if len(batch) == 0 {
			select {
			case <-o.wake:
			case <-draining:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		for rest := batch; len(rest) > 0; {
			part := rest[:min(len(rest), acksPerResponse)]
			rest = rest[len(part):]
			if err := send(fill(resp, part)); err != nil {
				return err
			}
			o.release(part)
		}
		clear(batch) // errors and ranges
		spare = batch[:0]
	}
}

// swap takes what is answered and leaves spare in its place. more is false when there will never be anything again.
func (o *outbox) swap(spare []answer) (batch []answer, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.answered) == 0 {
		return nil, !o.finished || o.batches > 0
	}
	batch, o.answered = o.answered, spare
	return batch, true
}

// release gives back the room of batches whose answers were sent.
func (o *outbox) release(sent []answer) {
	o.mu.Lock()
	for i := range sent {
		o.batches--
		o.bytes -= int64(sent[i].size)
	}
	o.mu.Unlock()
	signal(o.freed)
}

// fill makes resp say answers, using the acks it already has.
func fill(resp *leveev1.PublishResponse, answers []answer) *leveev1.PublishResponse {
	had := resp.Acks[:cap(resp.Acks)]
	resp.Acks = resp.Acks[:0]
	for i := range answers {
		var ack *leveev1.Ack
		if i < len(had) {
			ack = had[i]
		}
		if ack == nil {
			ack = &leveev1.Ack{}
		}
		a := &answers[i]
		ack.Id, ack.Offset, ack.LastOffset, ack.Duplicate = a.id, a.Offset, a.LastOffset, a.Duplicate
		ack.Ranges, ack.Error = nil, nil
		for _, r := range a.Ranges {
			ack.Ranges = append(ack.Ranges, &leveev1.Range{From: r.From, To: r.To})
		}
		if a.Err != nil {
			ack.Error = errorOf(a.Err)
			ack.Offset, ack.LastOffset = 0, 0
		}
		resp.Acks = append(resp.Acks, ack)
	}
	return resp
}
