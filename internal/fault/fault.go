// Package fault owns the kinds of error that Levee's clients act on, and the one table that says what each kind is
// on every wire. It decides nothing and knows no other package. Invariant: every error that crosses a listener has
// exactly one kind, and every kind has exactly one row.
package fault

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
)

// Kind says what went wrong, in the terms a client can act on. The zero Kind is Internal: an error nobody
// classified is a bug, and is reported as one.
type Kind uint8

// The kinds. Their order is not part of any format; their names (see Name) are.
const (
	Internal         Kind = iota // a bug, or an error nobody classified
	InvalidArgument              // the request can never succeed as it stands
	NotFound                     // no such namespace, topic or partition
	AlreadyExists                // the name is taken
	Deleted                      // the topic was deleted (or deleted and created again) under this handle
	OutOfRange                   // an offset beyond the end of the log
	Trimmed                      // an offset that retention has removed; details: requested, oldest
	TooLarge                     // a record, batch or message above a limit; details: limit
	Corrupt                      // bytes on disk are not what was written; details: file, position
	Stopped                      // a flush failed: the log takes nothing until the broker has re-read the device
	NoSpace                      // the disk or a quota is full; goes away by itself when there is room
	IO                           // the operating system refused a read or a write
	Unavailable                  // not ready, draining, or the partition is not served here now
	OutcomeUnknown               // the operation may or may not have happened, or may yet happen
	SequenceGap                  // an idempotent producer skipped sequences; details: expected, got
	SequenceConflict             // other bytes under a sequence that is known
	ProducerFenced               // a newer epoch of this producer exists
	Fenced                       // the generation or incarnation named is no longer current
	Conflict                     // what the change was decided on has moved; read again, decide again
	Unsupported                  // understood, but this broker cannot do it
	Exhausted                    // a bound of the broker is reached (connections, subscribers, bytes in flight)
	Canceled                     // the caller gave up
	Timeout                      // the caller's deadline passed
	kinds                        // how many there are; keep last
)

// Row is what a kind is to the outside.
type Row struct {
	Name      string // stable, snake case; what clients see
	GRPC      uint32 // gRPC status code
	HTTP      int    // HTTP status
	Kafka     int16  // Kafka error code
	Exit      int    // exit code of the command line
	Retriable bool   // the same request may succeed later without being changed
}

var table = [kinds]Row{
	Internal:         {"internal", 13, 500, -1, 1, false},
	InvalidArgument:  {"invalid_argument", 3, 400, 42, 1, false},
	NotFound:         {"not_found", 5, 404, 3, 1, false},
	AlreadyExists:    {"already_exists", 6, 409, 36, 1, false},
	Deleted:          {"deleted", 5, 410, 3, 1, false},
	OutOfRange:       {"out_of_range", 11, 416, 1, 3, false},
	Trimmed:          {"trimmed", 11, 410, 1, 3, false},
	TooLarge:         {"too_large", 3, 413, 10, 1, false},
	Corrupt:          {"corrupt", 15, 500, 56, 3, false},
	Stopped:          {"stopped", 14, 503, 56, 1, false},
	NoSpace:          {"no_space", 8, 507, 56, 1, true},
	IO:               {"io", 14, 500, 56, 1, true},
	Unavailable:      {"unavailable", 14, 503, 6, 1, true},
	OutcomeUnknown:   {"outcome_unknown", 2, 504, 7, 1, true},
	SequenceGap:      {"sequence_gap", 9, 409, 45, 1, false},
	SequenceConflict: {"sequence_conflict", 9, 409, 45, 1, false},
	ProducerFenced:   {"producer_fenced", 9, 409, 90, 1, false},
	Fenced:           {"fenced", 9, 409, 74, 1, true},
	Conflict:         {"conflict", 10, 409, -1, 1, true},
	Unsupported:      {"unsupported", 12, 501, 35, 1, false},
	Exhausted:        {"exhausted", 8, 429, 89, 1, true},
	Canceled:         {"canceled", 1, 499, 7, 1, true},
	Timeout:          {"timeout", 4, 504, 7, 1, true},
}

// Row returns k's row of the table.
func (k Kind) Row() Row {
	if k >= kinds {
		return table[Internal]
	}
	return table[k]
}

// String returns the kind's stable name.
func (k Kind) String() string { return k.Row().Name }

// ByName returns the kind with that stable name; ok is false where there is none.
func ByName(name string) (k Kind, ok bool) {
	for i := range table {
		if table[i].Name == name {
			return Kind(i), true
		}
	}
	return Internal, false
}

// All returns every kind, for tests and documents that must name each.
func All() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// Error is an error with a kind. Its text is for people; Kind and Details are for programs.
// It is immutable once it has left the function that made it.
type Error struct {
	Kind    Kind
	Msg     string            // what, where, and what to do
	Details map[string]string // machine-readable facts; nil when there are none
	Err     error             // the cause; nil when there is none
}

// New returns an error of kind k. format may end in %w.
func New(k Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: k, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// With adds one detail and returns e.
func (e *Error) With(key string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]string{}
	}
	e.Details[key] = fmt.Sprint(value)
	return e
}

// Error returns the text for people.
func (e *Error) Error() string { return e.Msg }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// FaultKind makes Error satisfy Classified.
func (e *Error) FaultKind() Kind { return e.Kind }

// FaultDetails makes Error satisfy Detailed.
func (e *Error) FaultDetails() map[string]string { return e.Details }

// Classified is an error type that knows its kind. Packages with typed errors implement it.
type Classified interface {
	error
	FaultKind() Kind
}

// Detailed is an error type with machine-readable facts.
type Detailed interface {
	error
	FaultDetails() map[string]string
}

// KindOf returns the kind of the outermost classified error in err's chain. Context errors count as Canceled and
// Timeout; anything else is Internal.
func KindOf(err error) Kind {
	var c Classified
	switch {
	case errors.As(err, &c):
		return c.FaultKind()
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	}
	return Internal
}

// DetailsOf returns the details of the outermost detailed error in err's chain, or nil. The map must not be changed.
func DetailsOf(err error) map[string]string {
	var d Detailed
	if errors.As(err, &d) {
		return d.FaultDetails()
	}
	return nil
}

// Format renders details as "key=value" pairs in key order, for logs and the command line.
func Format(details map[string]string) string {
	keys := make([]string, 0, len(details))
	for k := range details {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for i, k := range keys {
		keys[i] = k + "=" + details[k]
	}
	return strings.Join(keys, " ")
}
