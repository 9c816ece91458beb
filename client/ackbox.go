package client

import (
	"slices"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

// span is a range of offsets, both included.
type span struct{ from, to int64 }

// ackBox holds what a partition's stream has to tell the broker: acknowledgements and nacks that are not sent, and those
// acknowledgements that were sent and may not have arrived. Its methods do no I/O and know no clock; it is guarded by the
// subscription's mutex.
type ackBox struct {
	epoch   uint64 // Consuming.epoch of the stream that they are of
	acks    []span
	below   int64 // -1: none
	nacks   []*leveev1.Nack
	pending int       // how many acknowledgements and nacks wait
	since   time.Time // the first of them does
	early   int       // how many are in the first message of a stream that has not opened
	newest  int64     // highest offset that was ever handed out; -1: none

	sent sentAcks

	flushes []chan error // waiting for what is pending to be sent
	taken   int          // as many of flushes wait only for the message that is being sent
	saves   []saving     // those that are not asked for come last
	unasked int          // how many are not
	asking  int          // requests to save that are not answered
	saveID  uint64       // the last one used
	failed  error        // nothing is sent any more, and why
}

// saving is somebody who waits for a save.
type saving struct {
	id   uint64 // of the request, once it was asked for
	done chan error
}

// mostSaves bounds the requests to save that are not answered: each answers everybody who waits by then.
const mostSaves = 4

func newAckBox() ackBox { return ackBox{below: -1, newest: -1, sent: sentAcks{below: -1}} }

// ack acknowledges offsets and returns how much is pending.
func (b *ackBox) ack(from, to int64) int {
	if n := len(b.acks); n > 0 && b.acks[n-1].to+1 == from {
		b.acks[n-1].to = to
	} else {
		b.acks = append(b.acks, span{from, to})
	}
	b.pending++
	return b.pending
}

func (b *ackBox) ackBelow(offset int64) int {
	b.below = max(b.below, offset)
	b.pending++
	return b.pending
}

func (b *ackBox) nack(n *leveev1.Nack) int {
	b.nacks = append(b.nacks, n)
	b.pending++
	return b.pending
}

// handedOut notes that offsets were handed out. If they had been acknowledged that does not count any more: the
// acknowledgement came too late, or the subscription was moved.
func (b *ackBox) handedOut(from, to int64) {
	if from <= b.newest {
		b.sent.forget(from, to)
	}
	b.newest = max(b.newest, to)
}

// urgent reports whether what is pending is not to wait for more.
func (b *ackBox) urgent() bool {
	return len(b.flushes) > 0 || b.unasked > 0 && b.asking < mostSaves
}

// take moves what is pending into req, as much as one message may hold.
func (b *ackBox) take(req *request, now time.Time) {
	b.acks = merge(b.acks)
	n, k := min(len(b.acks), mostRanges), min(len(b.nacks), mostRanges)
	b.sent.add(b.acks[:n], b.below, now)
	req.acks(b.acks[:n])
	if b.below >= 0 {
		req.message.HasAckBelow, req.message.AckBelow = true, b.below
	}
	req.message.Nacks = b.nacks[:k:k]
	b.acks, b.below, b.nacks = append(b.acks[:0], b.acks[n:]...), -1, b.nacks[k:]
	if len(b.nacks) == 0 {
		b.nacks = nil
	}
	if b.pending = len(b.acks) + len(b.nacks); b.pending == 0 {
		b.taken = len(b.flushes)
	}
}

// mostRanges bounds the ranges of acknowledgements, and the nacks, of one message: the broker takes 65,536 of both.
const mostRanges = 16 << 10

// again makes the first message of a stream say what the broker may not know, and what is pending. Nacks are not among
// it: what was handed out on the stream before, the broker hands out again anyway.
func (b *ackBox) again(req *leveev1.ConsumeRequest, now time.Time) {
	b.sent.expire(now)
	b.acks = merge(b.acks)
	n := min(len(b.acks), mostRanges) // the rest comes after it
	b.sent.add(b.acks[:n], b.below, now)
	b.early += b.pending
	b.acks, b.below, b.nacks = append(b.acks[:0], b.acks[n:]...), -1, nil
	b.pending = len(b.acks)
	for _, a := range b.sent.all() {
		req.Acks = append(req.Acks, &leveev1.Range{From: a.from, To: a.to})
	}
	if b.sent.below >= 0 {
		req.HasAckBelow, req.AckBelow = true, b.sent.below
	}
}

// empty reports whether nothing waits to be sent or answered.
func (b *ackBox) empty() bool {
	return b.pending == 0 && b.early == 0 && len(b.flushes) == 0 && len(b.saves) == 0
}

// flush returns what tells once everything that is pending was sent.
func (b *ackBox) flush() <-chan error {
	done := make(chan error, 1)
	if b.failed != nil {
		done <- b.failed
		return done
	}
	b.flushes = append(b.flushes, done)
	return done
}

// flushed says that what was taken was sent.
func (b *ackBox) flushed() {
	for _, done := range b.flushes[:b.taken] {
		done <- nil
	}
	b.flushes = slices.Delete(b.flushes, 0, b.taken)
	b.taken = 0
}

// save returns what tells once everything acknowledged so far is durable.
func (b *ackBox) save() <-chan error {
	done := make(chan error, 1)
	if b.failed != nil {
		done <- b.failed
		return done
	}
	b.saves = append(b.saves, saving{done: done})
	b.unasked++
	return done
}

// nextSave returns the number of a request to save that is to be sent now, behind everything that was pending; 0: none.
func (b *ackBox) nextSave() uint64 {
	if b.unasked == 0 || b.asking >= mostSaves || b.pending > 0 {
		return 0
	}
	b.saveID++
	for i := len(b.saves) - b.unasked; i < len(b.saves); i++ {
		b.saves[i].id = b.saveID
	}
	b.unasked = 0
	b.asking++
	b.sent.mark(b.saveID)
	return b.saveID
}

// saved takes the answer to a request to save. Answers come in the order of requests.
func (b *ackBox) saved(id uint64, err error) {
	n := 0
	for n < len(b.saves)-b.unasked && b.saves[n].id <= id {
		b.saves[n].done <- err
		n++
	}
	b.saves = slices.Delete(b.saves, 0, n)
	b.asking = max(b.asking-1, 0)
	if err == nil {
		b.sent.saved(id)
	}
}

// broken says that the stream is gone: what it did not answer is to be asked again.
func (b *ackBox) broken() {
	b.taken, b.asking, b.unasked = 0, 0, len(b.saves)
}

// fail answers everybody who waits: nothing is sent any more.
func (b *ackBox) fail(err error) {
	b.failed = err
	for _, done := range b.flushes {
		done <- err
	}
	for _, s := range b.saves {
		s.done <- err
	}
	b.flushes, b.saves, b.taken, b.asking, b.unasked = nil, nil, 0, 0, 0
}

// merge sorts spans and joins those that touch.
func merge(spans []span) []span {
	if len(spans) < 2 {
		return spans
	}
	slices.SortFunc(spans, func(a, b span) int {
		switch {
		case a.from < b.from:
			return -1
		case a.from > b.from:
			return 1
		}
		return 0
	})
	n := 0
	for _, s := range spans[1:] {
		if s.from <= spans[n].to+1 {
			spans[n].to = max(spans[n].to, s.to)
			continue
		}
		n++
		spans[n] = s
	}
	return spans[:n+1]
}
