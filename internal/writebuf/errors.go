package writebuf

import (
	"fmt"

	"github.com/leveemq/levee/internal/fault"
)

// What can go wrong. Adapters wrap these with the operation, the partition and the cause.
var (
	// ErrFenced: a higher generation was seen, or the buffer was deleted. Nothing was done, and never will be.
	ErrFenced = fault.New(fault.Fenced, "a higher generation owns the buffer")
	// ErrUnconfirmed: the server has it, and too few replicas said in time that they have it. They may yet.
	ErrUnconfirmed = fault.New(fault.OutcomeUnknown, "too few replicas have confirmed")
	// ErrOutcomeUnknown: it was sent, or a part of it, and no answer came.
	ErrOutcomeUnknown = fault.New(fault.OutcomeUnknown, "it is not known whether the write buffer has it")
	// ErrUnavailable: the server could not be reached, or answered that it serves nobody now. Nothing was done.
	ErrUnavailable = fault.New(fault.Unavailable, "the write buffer is not available")
	// ErrReadOnly: the server takes no writes now: a replica, a full disk, too few replicas of its own. Nothing was done.
	ErrReadOnly = fault.New(fault.Unavailable, "the write buffer takes no writes")
	// ErrFull: the server has no memory left. Nothing was done.
	ErrFull = fault.New(fault.NoSpace, "the write buffer is full")
	// ErrDenied: the credentials do not allow it. Nothing was done.
	ErrDenied = fault.New(fault.Unavailable, "the write buffer denies access")
	// ErrForeign: a key holds what this package did not write. Nothing was done.
	ErrForeign = fault.New(fault.Corrupt, "a key of the write buffer holds something else")
	// ErrCorrupt: other bytes are stored under a seq. Of an append, nothing was stored.
	ErrCorrupt = fault.New(fault.Corrupt, "the write buffer has another frame under this seq")
	// ErrLost is what every LostError is.
	ErrLost = fault.New(fault.Conflict, "the write buffer lost entries")
	// ErrMissing is what every MissingError is.
	ErrMissing = fault.New(fault.Corrupt, "entries are missing in the write buffer")
	// ErrTrimmed is what every TrimmedError is.
	ErrTrimmed = fault.New(fault.Trimmed, "the entries were trimmed")
	// ErrForgotten: the server has not seen the generation that this buffer changed something with: it lost it, or another
	// server answers. What else it says of the partition means nothing; a fence tells what there is.
	ErrForgotten = fault.New(fault.Unavailable, "the write buffer has not seen the generation that was written")
	// ErrInvalid: the call can never succeed as it stands.
	ErrInvalid = fault.New(fault.InvalidArgument, "invalid call of the write buffer")
	// ErrUnsupported: the server lacks something that this package's promises need.
	ErrUnsupported = fault.New(fault.Unsupported, "the server cannot be a write buffer")
	// ErrRefused: the server answered with an error that has no sentinel of its own, so it is not known how far it came.
	ErrRefused = fault.New(fault.OutcomeUnknown, "the write buffer refused")
	// ErrClosed: the store was closed before the call was sent.
	ErrClosed = fault.New(fault.Unavailable, "the write buffer is closed")
)

// LostError refuses an append, because entries below it that belong into the buffer are not there. Nothing was stored.
type LostError struct {
	ID    ID
	Seq   uint64 // the first that was to be appended
	Next  uint64 // append from here on instead
	Reset bool   // after a Reset: what is there has holes, and entries can only be added at the end
}

// Error implements error.
func (e *LostError) Error() string {
	how := ""
	if e.Reset {
		how = " after a reset"
	}
	return fmt.Sprintf("append %s seq %d: %v: append from seq %d%s", e.ID, e.Seq, ErrLost, e.Next, how)
}

// Is makes every LostError ErrLost.
func (e *LostError) Is(target error) bool { return target == error(ErrLost) }

// FaultKind implements fault.Classified.
func (e *LostError) FaultKind() fault.Kind { return ErrLost.Kind }

// Range is a range of seqs, both ends included.
type Range struct{ First, Last uint64 }

// MissingError ends a read at entries that belong there and are not.
type MissingError struct {
	ID      ID
	Missing []Range // in order; what one page of the read has seen
}

// Error implements error.
func (e *MissingError) Error() string {
	return fmt.Sprintf("read %s: %v: seqs %v", e.ID, ErrMissing, e.Missing)
}

// Is makes every MissingError ErrMissing.
func (e *MissingError) Is(target error) bool { return target == error(ErrMissing) }

// FaultKind implements fault.Classified.
func (e *MissingError) FaultKind() fault.Kind { return ErrMissing.Kind }

// TrimmedError refuses a read below what was trimmed.
type TrimmedError struct {
	ID                ID
	Requested, Oldest uint64
}

// Error implements error.
func (e *TrimmedError) Error() string {
	return fmt.Sprintf("read %s from seq %d: %v: the oldest is %d", e.ID, e.Requested, ErrTrimmed, e.Oldest)
}

// Is makes every TrimmedError ErrTrimmed.
func (e *TrimmedError) Is(target error) bool { return target == error(ErrTrimmed) }

// FaultKind implements fault.Classified.
func (e *TrimmedError) FaultKind() fault.Kind { return ErrTrimmed.Kind }

// CheckKnown returns ErrForgotten where a server's state is older than what was written: wrote is the highest generation of a
// change that succeeded, 0 for none.
func CheckKnown(s State, wrote uint32) error {
	if wrote == 0 || s.Known && s.Generation >= wrote {
		return nil
	}
	return fmt.Errorf("%w: %d was written, and it knows of %d", ErrForgotten, wrote, s.Generation)
}

// Page makes the answer of Read of what a server returned: s is its state (First and End are not looked at), got the
// entries from seq from on in the server's order, and all tells that nothing follows them. Every adapter answers by it, so
// that one place decides what a hole is.
func Page(id ID, s State, from uint64, got []Entry, all bool) ([]Entry, error) {
	if s.Known && s.Floor > 0 && from < s.Floor {
		return nil, &TrimmedError{ID: id, Requested: from, Oldest: s.Floor}
	}
	next, good := from, 0
	var missing []Range
	for _, e := range got {
		if e.Seq < next {
			return nil, fmt.Errorf("read %s: %w: seq %d where %d was expected", id, ErrForeign, e.Seq, next)
		}
		if e.Seq > next {
			missing = append(missing, Range{next, e.Seq - 1})
		} else if missing == nil {
			good++
		}
		next = e.Seq + 1
	}
	if all && next <= s.Last {
		missing = append(missing, Range{next, s.Last})
	}
	if good == 0 && missing != nil {
		return nil, &MissingError{ID: id, Missing: missing}
	}
	return got[:good], nil
}
