package raft

import (
	"context"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/record"
)

// Entry is one entry of a log. Its slices belong to whoever made it and must not be changed once appended or read.
type Entry struct {
	Seq   uint64 // 1, 2, 3 …
	Term  uint32 // never falls from entry to entry
	Kind  uint8  // one of segfmt's kinds; only data entries hold a command
	Batch []byte // one record batch; a data entry's holds one record, whose value is the command
}

// Log is where a group keeps its entries. It is safe for concurrent use, except that there is one appender. A log that
// is opened again holds every entry an Append answered with nil, and at most the entries of the last Append beyond them.
type Log interface {
	// Append adds entries, whose Seq must go on where the log ends, and returns once all of them are on the device. The
	// log keeps no slice of theirs. An error of kind stopped or outcome_unknown says that they may be there or not, and
	// that this log takes nothing more until it is opened again; after any other error none of them is there, and the
	// log is as it was.
	Append(ctx context.Context, entries []Entry) error
	// Read returns entries from seq on, in order: at least one where there is one, then as many as fit about maxBytes. At the
	// end of the log it returns none. Below its beginning the error is of kind trimmed. The entries are the caller's.
	Read(from uint64, maxBytes int) ([]Entry, error)
	// Bounds returns the seq of the first entry and of the last. An empty log has last = first - 1.
	Bounds() (first, last uint64)
	// Term returns the term of an entry, also of the one right before the first that is still there. The term before
	// entry 1 is 0.
	Term(seq uint64) (uint32, error)
	// TrimBefore may remove entries below seq, from the beginning on. How many it keeps of them is its own affair.
	TrimBefore(ctx context.Context, seq uint64) error
}

// encodeCommand makes the batch of a data entry.
func encodeCommand(command []byte, nowMs int64) ([]byte, error) {
	b := record.NewBuilder(record.None)
	if err := b.Append(record.Record{Value: command, Timestamp: nowMs}); err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	batch, err := b.Build(record.NoProducer)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return batch, nil
}

// Command returns the command an entry holds; ok is false for entries that hold none by design.
func Command(e Entry) (command []byte, ok bool, err error) {
	switch e.Kind {
	case segfmt.KindData:
	case segfmt.KindGenerationStart, segfmt.KindMembership, segfmt.KindNoop:
		return nil, false, nil
	default:
		return nil, false, fault.New(fault.Corrupt, "entry %d is of kind %s, which a log of commands cannot have", e.Seq, segfmt.KindName(e.Kind))
	}
	records, err := record.Records(e.Batch)
	if err != nil {
		return nil, false, fault.New(fault.Corrupt, "entry %d: %w", e.Seq, err)
	}
	if len(records) != 1 {
		return nil, false, fault.New(fault.Corrupt, "entry %d has %d records instead of one command", e.Seq, len(records))
	}
	return records[0].Value, true, nil
}
