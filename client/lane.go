package client

import (
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// eagerInFlight is how many batches of a partition may be on their way before a batch that is not full waits for more
// records. With one or two the broker's flush would run empty between answers; with many, batches stay so small that
// their cost outweighs the records'.
const eagerInFlight = 4

// batch is records on their way to one partition. The producer's mutex guards it, except data, which is the sender's.
type batch struct {
	lane      *lane
	builder   *record.Builder
	data      []byte // encoded, in the builder's memory; the same bytes for every attempt
	attempts  int    // how many streams it was given to
	callbacks []func(Ack, error)
	size      int64 // of its records, as the budget counts
	begun     time.Time
	flushes   []*flush

	producer record.ProducerInfo
	numbered bool   // producer is set: from here on the batch has this identity and no other
	id       uint64 // on the present stream, while in flight there; else 0
	unknown  bool   // some attempt may have stored it
	refusal  *Error // why the last attempt failed

	done bool // answered; waits for those before it
	ack  *leveev1.Ack
	err  *Error
}

// flush is one wait for batches to be answered.
type flush struct {
	left int // guarded by the producer's mutex
	done chan struct{}
}

func (f *flush) settle() {
	if f.left--; f.left == 0 {
		close(f.done)
	}
}

// answer calls the callbacks with what became of their records.
func (b *batch) answer() {
	if b.err != nil {
		for _, fn := range b.callbacks {
			if fn != nil {
				fn(Ack{}, b.err)
			}
		}
		return
	}
	ranges := b.ack.GetRanges()
	next := b.ack.GetOffset()
	if len(ranges) > 0 {
		next = ranges[0].GetFrom()
	}
	for _, fn := range b.callbacks {
		if fn != nil {
			fn(Ack{Partition: b.lane.partition, Offset: next, Duplicate: b.ack.GetDuplicate()}, nil)
		}
		switch {
		case next < 0: // no longer retained: nobody knows the offsets
		case len(ranges) > 1 && next == ranges[0].GetTo():
			ranges = ranges[1:]
			next = ranges[0].GetFrom()
		default:
			next++
		}
	}
}

// lane is the way to one partition: batches leave it in the order in which they were begun. The producer's mutex
// guards it.
type lane struct {
	partition   int32
	open        *batch   // being filled; nil: none
	queue       []*batch // full or sent, in order, the first one not answered
	next        int      // queue[:next] has been given to the present stream, or is done
	outstanding int      // batches in flight on the present stream

	// held: a batch was refused. Nothing is sent until all others in flight are answered; then all that is not stored is
	// sent again, in order, after a while.
	held     bool
	probing  bool      // what was refused goes alone first: many would be refused as well
	attempts int       // refusals in a row
	retryAt  time.Time // not before
	ready    bool      // in the producer's list of lanes to look at

	identity   record.ProducerInfo // what the next batch is numbered with
	identified bool                // identity can be used
}

// sendable reports whether take would find a batch, apart from the time.
func (l *lane) sendable(maxInFlight int) bool {
	if l.probing {
		maxInFlight = 1
	}
	if l.held || l.outstanding >= maxInFlight {
		return false
	}
	return l.next < len(l.queue) || l.open != nil && l.outstanding < eagerInFlight
}

// seal ends the batch being filled and puts it into the queue.
func (l *lane) seal() {
	l.queue = append(l.queue, l.open)
	l.open = nil
}

// firstPending returns the first batch that is not answered, or nil.
func (l *lane) firstPending() *batch {
	for _, b := range l.queue {
		if !b.done {
			return b
		}
	}
	return nil
}

// rewind makes everything that is not answered be sent again, in order.
func (l *lane) rewind() {
	l.next, l.outstanding, l.held = 0, 0, false
	l.skipDone()
}

func (l *lane) skipDone() {
	for l.next < len(l.queue) && l.queue[l.next].done {
		l.next++
	}
}

// abandon fails from and every later batch that shares its producer identity: the broker would refuse them, as one
// before them is missing. The lane needs a new identity then.
func (l *lane) abandon(from int, why *Error) {
	l.queue[from].fail(why)
	for _, b := range l.queue[from+1:] {
		switch {
		case !b.numbered || b.done:
		case b.err != nil:
			b.fail(b.err)
		case b.unknown || b.id != 0:
			b.fail(&Error{
				Kind: KindOutcomeUnknown, Retriable: true, cause: why,
				Message: "sent, but a batch before it was given up: " + why.Error(),
			})
		default:
			b.fail(&Error{
				Kind: KindSequenceGap, Retriable: true, cause: why,
				Message: "not stored, because a batch before it was given up: " + why.Error(),
			})
		}
	}
	l.identified = false
}

// fail settles b without success. That the last attempt was refused says nothing of one before it that may have stored
// the batch; but of a topic that is gone, so is the batch.
func (b *batch) fail(err *Error) {
	if b.unknown && err.Kind != KindOutcomeUnknown && err.Kind != KindDeleted {
		err = &Error{Kind: KindOutcomeUnknown, cause: err, Message: "an attempt before may have stored it, and the last one was refused: " + err.Error()}
	}
	b.done, b.err, b.id = true, err, 0
}
