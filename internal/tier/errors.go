package tier

import (
	"errors"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
)

// CorruptError says that the bytes of a segment file or of an object are not what was written. Nothing was changed.
type CorruptError struct {
	Where    string // the file's path, or the object's key
	Position int64  // byte in it
	Offset   int64  // the offset expected there; -1 when unknown
	Cause    error
}

// Error implements error.
func (e *CorruptError) Error() string {
	where := fmt.Sprintf("%s: byte %d", e.Where, e.Position)
	if e.Offset >= 0 {
		where += fmt.Sprintf(" (offset %d)", e.Offset)
	}
	return fmt.Sprintf("corrupt: %s: %v", where, e.Cause)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Cause }

// FaultKind implements fault.Classified.
func (e *CorruptError) FaultKind() fault.Kind { return fault.Corrupt }

// FaultDetails implements fault.Detailed.
func (e *CorruptError) FaultDetails() map[string]string {
	return map[string]string{"file": e.Where, "position": fmt.Sprint(e.Position)}
}

// MissingError says that an object is gone that the metadata names: what it held is lost unless somebody has a copy. A
// bucket that is not the right one looks the same.
type MissingError struct {
	Key        string
	Base, Next int64 // what it held
	Cause      error
}

// Error implements error.
func (e *MissingError) Error() string {
	return fmt.Sprintf("offsets %d to %d are missing: their object %s is gone (or this is not its bucket): %v", e.Base, e.Next-1, e.Key, e.Cause)
}

// Unwrap returns the cause.
func (e *MissingError) Unwrap() error { return e.Cause }

// FaultKind implements fault.Classified. It is what damage is: asking again does not help.
func (e *MissingError) FaultKind() fault.Kind { return fault.Corrupt }

// FaultDetails implements fault.Detailed.
func (e *MissingError) FaultDetails() map[string]string {
	return map[string]string{"file": e.Key, "position": "0"}
}

// undecodable is the error for bytes that a decoder refused: of another version, or damaged.
func undecodable(where string, position int64, cause error) error {
	if errors.Is(cause, segfmt.ErrVersion) || errors.Is(cause, segfmt.ErrFlags) {
		return fault.New(fault.Unsupported, "%s: %w", where, cause)
	}
	return &CorruptError{Where: where, Position: position, Offset: -1, Cause: cause}
}
