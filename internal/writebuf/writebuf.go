// Package writebuf owns the port of the write buffer: a server beside the broker that holds the newest frames of each
// partition's log until they are in object storage, so that losing the broker with its disk does not lose them. What is
// behind it is one package each below this one. Beside the port stands a buffer in memory for tests. It never looks into
// a frame, never sends an append again by itself, and never renumbers or skips. Invariant: what is confirmed is there
// without a hole from the floor on, as far as the server knows, and a hole is an error wherever it is met.
package writebuf

import (
	"context"
	"fmt"
)

// ID names one partition of one incarnation of a topic.
type ID struct {
	Topic     [16]byte
	Partition uint32
}

// String is how errors name it.
func (id ID) String() string { return fmt.Sprintf("%x/%d", id.Topic, id.Partition) }

// Entry is one frame of a log.
type Entry struct {
	Seq   uint64
	Frame []byte
}

// Limits of what is taken. Servers script with floating-point numbers, which count exactly up to there.
const (
	MaxSeq   = 1<<53 - 1
	MaxFrame = 64 << 20
)

// Batch is what one append stores.
type Batch struct {
	Generation uint32  // the appender's; above 0
	Floor      uint64  // the first seq that the buffer must hold; above 0. Below what was trimmed it means what was trimmed.
	Entries    []Entry // seqs without a gap; none is empty
}

// State is what a buffer says of one partition.
type State struct {
	Known       bool   // a generation is recorded. Where one was written before, false means that the server lost it.
	Generation  uint32 // the highest that was fenced or appended with
	Floor, Last uint64 // what was recorded with the last change: entries [Floor, Last] belong there. Last = Floor-1: none; both 0: never any
	First, End  uint64 // of the entries that are there; 0 where there are none
	Count       uint64 // how many are there
}

// Whole reports whether the entries that are there are those that were recorded. It cannot know of what the record does
// not know of either: see Buffer.
func (s State) Whole() bool {
	if s.Last < s.Floor || s.Last == 0 {
		return s.Count == 0
	}
	return s.Count == s.Last-s.Floor+1 && s.First == s.Floor && s.End == s.Last
}

// Limit bounds one read. At least one entry is returned where there is one. Zero means a default.
type Limit struct {
	Entries int
	Bytes   int
}

// Defaults of Limit.
const (
	DefaultEntries = 1024
	DefaultBytes   = 1 << 20
)

// WithDefaults fills in what is zero.
func (l Limit) WithDefaults() Limit {
	if l.Entries <= 0 {
		l.Entries = DefaultEntries
	}
	if l.Bytes <= 0 {
		l.Bytes = DefaultBytes
	}
	return l
}

// Buffer is the buffer of one partition. It is safe for concurrent use; calls take effect one after the other, and an
// append that was called before another returned may take effect after it.
//
// Generations: a change by a generation below the highest that the server has seen is ErrFenced and does nothing.
//
// Durability: nil from a change means that the server has it and, where replicas are configured, as many of them have it
// too. It is no stronger than the server: what it forgets by a crash without persistence, or by a failover to a replica
// that had less, is gone. An append then fails with a LostError; but who takes over finds only what is there, with a
// record that fits it. That is why the log stays the truth while it is there.
//
// Memory: a Buffer remembers the highest generation that it changed something with. Where the server has not seen that one, Read
// and Bounds are ErrForgotten, because what such a server does not have may well have been confirmed. A Fence begins anew.
//
// Errors: every one has a fault.Kind and answers errors.Is for one of the sentinels of this package, or for the context's
// error where the caller gave up and nothing was sent. After ErrUnconfirmed and ErrOutcomeUnknown the same call may simply
// be made again: what is there already is success. Once a call is sent, its context no longer ends it: it answers within
// the time-out that the buffer was set up with. Slices given are not kept after the call.
type Buffer interface {
	// Append stores entries behind those that are there. Entries that are there with the same bytes, or that were trimmed,
	// are success; other bytes under a seq are ErrCorrupt. Where entries from the floor up to the first one given are not
	// all there, nothing is stored: LostError says what to append. Nor is anything where the server has forgotten that this
	// buffer ever changed something, and with it who owns the buffer: LostError then, too, and the owner fences it again.
	Append(ctx context.Context, batch Batch) error

	// Submit is Append without the waiting: done is called once with what Append would have returned, perhaps before Submit
	// returns. Batches take effect in the order in which they were submitted, so many can be on their way; where one fails,
	// those behind it fail too, as lost, unless it was stored after all. The context counts until the batch is in the queue,
	// which is all that Submit waits for. done must not wait, and the slices stay as they are until it is called.
	Submit(ctx context.Context, batch Batch, done func(error))

	// Fence records a generation, so that lower ones are refused, and returns what was there before. It works on a server
	// that is full.
	Fence(ctx context.Context, generation uint32) (before State, err error)

	// Read returns entries from a seq on, in order and without a gap; none at the end. Below what was trimmed it is a
	// TrimmedError. An entry that ought to be there and is not is a MissingError, when it is the next to be returned.
	Read(ctx context.Context, from uint64, limit Limit) ([]Entry, error)

	// Bounds returns what is there.
	Bounds(ctx context.Context) (State, error)

	// Trim removes exactly the entries below a seq. It never takes the floor back.
	Trim(ctx context.Context, generation uint32, below uint64) error

	// Reset removes all entries, to append from the floor again. The generation stays.
	Reset(ctx context.Context, generation uint32) error

	// Delete removes all entries for good: whatever comes late is ErrFenced, but for a Delete, which may be repeated.
	Delete(ctx context.Context, generation uint32) error
}

// Store is a server, or several that act as one.
type Store interface {
	// Buffer returns the buffer of one partition. It asks the server nothing.
	Buffer(id ID) Buffer

	// Check asks the server what it is, and returns ErrUnsupported where it lacks something that the promises above need,
	// and a warning for each setting that weakens them.
	Check(ctx context.Context) ([]Warning, error)

	// Close answers every call under way and gives back connections. Later calls are ErrClosed.
	Close() error
}

// Warning is one thing about a server that can cost entries that were confirmed.
type Warning struct {
	Code string // stable, snake case: eviction, persistence, replicas, unchecked
	Text string // what, and what to do
}

// CheckBatch returns ErrInvalid for a batch that no buffer takes.
func CheckBatch(b Batch) error {
	switch {
	case b.Generation == 0:
		return fmt.Errorf("%w: generation 0", ErrInvalid)
	case b.Floor == 0 || b.Floor > MaxSeq:
		return fmt.Errorf("%w: floor %d", ErrInvalid, b.Floor)
	case len(b.Entries) == 0:
		return fmt.Errorf("%w: no entries", ErrInvalid)
	}
	for i, e := range b.Entries {
		switch {
		case e.Seq == 0 || e.Seq > MaxSeq:
			return fmt.Errorf("%w: seq %d", ErrInvalid, e.Seq)
		case e.Seq != b.Entries[0].Seq+uint64(i):
			return fmt.Errorf("%w: seq %d follows %d", ErrInvalid, e.Seq, b.Entries[i-1].Seq)
		case len(e.Frame) == 0 || len(e.Frame) > MaxFrame:
			return fmt.Errorf("%w: seq %d: frame of %d bytes", ErrInvalid, e.Seq, len(e.Frame))
		}
	}
	return nil
}

// CheckGeneration returns ErrInvalid for 0.
func CheckGeneration(generation uint32) error {
	if generation == 0 {
		return fmt.Errorf("%w: generation 0", ErrInvalid)
	}
	return nil
}

// CheckSeq returns ErrInvalid for what is no seq.
func CheckSeq(seq uint64) error {
	if seq == 0 || seq > MaxSeq+1 {
		return fmt.Errorf("%w: seq %d", ErrInvalid, seq)
	}
	return nil
}
