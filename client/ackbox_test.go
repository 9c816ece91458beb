package client

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

func spans(pairs ...int64) (s []span) {
	for i := 0; i < len(pairs); i += 2 {
		s = append(s, span{pairs[i], pairs[i+1]})
	}
	return s
}

func TestMerge(t *testing.T) {
	for _, c := range []struct{ in, want []span }{
		{nil, nil}, {spans(5, 6), spans(5, 6)}, {spans(5, 6, 7, 9), spans(5, 9)}, {spans(7, 9, 1, 1, 5, 6), spans(1, 1, 5, 9)},
		{spans(1, 10, 2, 3, 12, 13), spans(1, 10, 12, 13)},
	} {
		if got := merge(slices.Clone(c.in)); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.in, got, c.want)
		}
	}
}

// Against a model: a set of offsets with the time they were sent at.
func TestSentAcksAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's
	s := sentAcks{below: -1}
	sent, marks := map[int64]uint64{}, uint64(0) // offset: the request to save that covers it
	now := time.Unix(0, 0)
	for range 5000 {
		from := int64(r.IntN(300))
		to := from + int64(r.IntN(5))
		switch r.IntN(6) {
		case 0, 1, 2:
			s.add(spans(from, to), -1, now)
			for o := from; o <= to; o++ {
				sent[o] = 0
			}
			now = now.Add(100 * time.Millisecond)
		case 3:
			s.forget(from, to)
			for o := from; o <= to; o++ {
				delete(sent, o)
			}
		case 4:
			marks++
			s.mark(marks)
			for o := range sent {
				sent[o] = marks
			}
		case 5:
			id := marks - min(marks, uint64(r.IntN(3)))
			s.saved(id)
			for o, m := range sent {
				if m != 0 && m <= id {
					delete(sent, o)
				}
			}
		}
		have, ranges := map[int64]bool{}, 0
		for _, a := range s.all() {
			for o := a.from; o <= a.to; o++ {
				have[o] = true
			}
		}
		for _, c := range s.chunks {
			ranges += len(c.ranges)
		}
		for o := range sent {
			if !have[o] {
				t.Fatalf("offset %d is forgotten", o)
			}
		}
		// An offset that was sent twice may be in an older chunk, too, but never one that nobody sent or that was handed out.
		if ranges != s.ranges {
			t.Fatalf("counts %d ranges, has %d", s.ranges, ranges)
		}
	}
}

func TestSentAcksAreBounded(t *testing.T) {
	s, now := sentAcks{below: -1}, time.Unix(0, 0)
	for i := range int64(200_000) {
		s.add(spans(2*i, 2*i), -1, now)
	}
	if s.ranges > keepRanges || s.ranges < keepRanges-2*chunkRanges {
		t.Errorf("%d ranges are kept", s.ranges)
	}
	all := s.all()
	if last := all[len(all)-1]; last.from != 2*199_999 {
		t.Errorf("the newest is not kept, but %v", last)
	}
	s.add(nil, 7, now)
	s.expire(now.Add(keepSent))
	if s.below != 7 || s.ranges == 0 {
		t.Error("forgotten too early")
	}
	s.expire(now.Add(keepSent + 2*keepTogether))
	if s.below != -1 || s.ranges != 0 || len(s.all()) != 0 {
		t.Errorf("%d ranges and %d are kept for ever", s.ranges, s.below)
	}
}

// What was handed out again is not acknowledged again on a new stream.
func TestSentAcksForget(t *testing.T) {
	b := newAckBox()
	b.handedOut(0, 9)
	b.ack(0, 9)
	b.ackBelow(4)
	b.take(&request{}, time.Unix(0, 0))
	b.handedOut(10, 12)
	b.handedOut(3, 5)
	req := &leveev1.ConsumeRequest{}
	b.again(req, time.Unix(1, 0))
	if got := fmt.Sprint(req.Acks); got != fmt.Sprint([]*leveev1.Range{{To: 2}, {From: 6, To: 9}}) || req.HasAckBelow {
		t.Errorf("got %v", req)
	}
}

// Every flush and save is answered once, whatever happens.
func TestAckBoxAnswers(t *testing.T) {
	answered := func(c <-chan error) (err error, ok bool) {
		select {
		case err := <-c:
			return err, true
		default:
			return nil, false
		}
	}
	b, req, now := newAckBox(), &request{}, time.Unix(0, 0)
	b.ack(1, 1)
	flush, save := b.flush(), b.save()
	if !b.urgent() || b.nextSave() != 0 {
		t.Error("a save was to be sent before what it is to cover")
	}
	b.take(req, now)
	late := b.flush()
	if id := b.nextSave(); id != 1 || b.nextSave() != 0 {
		t.Errorf("save %d", id)
	}
	b.flushed()
	if err, ok := answered(flush); !ok || err != nil {
		t.Errorf("%v, %v", err, ok)
	}
	if _, ok := answered(late); ok {
		t.Error("a flush was answered by a message that was taken before it")
	}
	b.broken()
	if id := b.nextSave(); id != 2 {
		t.Errorf("save %d: it was not asked again", id)
	}
	b.saved(1, nil) // of the stream before: no
	if _, ok := answered(save); ok {
		t.Error("a save was answered by another's answer")
	}
	var more []<-chan error
	for range 10 {
		more = append(more, b.save())
		b.nextSave()
	}
	if b.asking > mostSaves || b.unasked == 0 {
		t.Errorf("%d are asked for, %d wait", b.asking, b.unasked)
	}
	b.saved(2, errors.New("disk"))
	if err, ok := answered(save); !ok || err == nil {
		t.Errorf("%v, %v", err, ok)
	}
	b.fail(errors.New("over"))
	for _, c := range append(more, late, b.save(), b.flush()) {
		if err, ok := answered(c); !ok || err == nil || err.Error() != "over" {
			t.Errorf("%v, %v", err, ok)
		}
	}
	if b.ack(2, 2); !b.empty() && b.pending != 1 {
		t.Error("not empty")
	}
}

// A broker takes a bounded number of ranges in one message: the rest goes into the next ones, and who waits for all of it
// to be sent, or saved, waits for the last.
func TestMoreRangesThanAMessageHolds(t *testing.T) {
	const n = 5*mostRanges/2 + 1
	for _, reopened := range []bool{false, true} {
		b := newAckBox()
		for i := range int64(n) {
			b.ack(2*i, 2*i)
			b.nack(&leveev1.Nack{Range: &leveev1.Range{From: 2*i + 1, To: 2*i + 1}})
		}
		flushed := b.flush()
		b.save()
		var got []span
		nacks, messages := 0, 0
		note := func(m *leveev1.ConsumeRequest) {
			for _, a := range m.GetAcks() {
				got = append(got, span{a.GetFrom(), a.GetTo()})
			}
			nacks += len(m.GetNacks())
			if messages++; len(m.GetAcks()) > mostRanges || len(m.GetNacks()) > mostRanges {
				t.Errorf("message %d holds %d and %d", messages, len(m.GetAcks()), len(m.GetNacks()))
			}
		}
		if reopened {
			first := &leveev1.ConsumeRequest{}
			b.again(first, time.Unix(0, 0))
			note(first)
			b.early = 0
		}
		for b.pending > 0 {
			if id := b.nextSave(); id != 0 {
				t.Fatalf("a save is asked for with %d pending", b.pending)
			}
			req := &request{}
			b.take(req, time.Unix(0, 0))
			note(&req.message)
			b.flushed()
			if len(flushed) != 0 != (b.pending == 0) {
				t.Fatalf("flushed %d with %d pending", len(flushed), b.pending)
			}
		}
		wantNacks := n
		if reopened {
			wantNacks = 0 // what was held on the stream before is handed out again anyway
		}
		if len(got) != n || nacks != wantNacks || messages != 3 || b.nextSave() == 0 {
			t.Errorf("%d acknowledgements and %d nacks of %d in %d messages", len(got), nacks, n, messages)
		}
		for i, s := range got {
			if s != (span{2 * int64(i), 2 * int64(i)}) {
				t.Fatalf("acknowledgement %d is of %v", i, s)
			}
		}
		if kept := b.sent.all(); len(kept) == 0 || len(kept) > keepRanges+mostRanges {
			t.Errorf("%d are sent again", len(kept))
		}
	}
}
