package record

import "fmt"

// Kinds of Error. The strings are stable.
const (
	KindInvalid  = "invalid"   // the bytes are not a batch as its format defines it
	KindCorrupt  = "corrupt"   // the checksum says that the bytes are not the ones that were written
	KindTooLarge = "too_large" // a record or batch is above a limit
)

// Error is what every function of this package fails with. It is immutable.
type Error struct {
	Kind string // one of the Kind constants
	Msg  string // for people
	Err  error  // the cause, e.g. a decompressor's error; nil when there is none
}

// Error returns the text for people.
func (e *Error) Error() string { return "record batch: " + e.Msg }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func invalid(format string, args ...any) error {
	return &Error{Kind: KindInvalid, Msg: fmt.Sprintf(format, args...)}
}

func tooLarge(format string, args ...any) error {
	return &Error{Kind: KindTooLarge, Msg: fmt.Sprintf(format, args...)}
}
