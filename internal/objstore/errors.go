package objstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/leveemq/levee/internal/fault"
)

// What can go wrong. Adapters wrap these with the operation, the key and the cause.
var (
	// ErrNotFound: there is no object of that key. (A bucket that is not there may look the same to Head and Get.)
	ErrNotFound = fault.New(fault.NotFound, "no such object")
	// ErrExists: the key has an object, which is durable.
	ErrExists = fault.New(fault.AlreadyExists, "the object exists")
	// ErrConflict: the object is not of the version named.
	ErrConflict = fault.New(fault.Conflict, "the object was changed or removed meanwhile")
	// ErrRange: an offset beyond the end of the object.
	ErrRange = fault.New(fault.OutOfRange, "offset beyond the end of the object")
	// ErrInvalid: the request can never succeed as it stands, on this store as it is set up.
	ErrInvalid = fault.New(fault.InvalidArgument, "invalid request to the object store")
	// ErrDenied: the credentials do not allow it. It may pass later: rights are given and tokens renewed.
	ErrDenied = fault.New(fault.Unavailable, "the object store denies access")
	// ErrThrottled: the store refused because of the rate of requests. Nothing has happened; try later, and less.
	ErrThrottled = fault.New(fault.Unavailable, "the object store asks to slow down")
	// ErrUnavailable: the store could not be reached, did not answer in full, or failed. Of a write nothing has happened.
	ErrUnavailable = fault.New(fault.Unavailable, "the object store is not available")
	// ErrOutcomeUnknown: the write may have happened, or may yet happen. Reading the object tells, once it has.
	ErrOutcomeUnknown = fault.New(fault.OutcomeUnknown, "it is not known whether the object store did it")
	// ErrSource: what was to be stored could not be read, or is not what its checksum says. Nothing was stored.
	ErrSource = fault.New(fault.IO, "the bytes to store could not be read")
	// ErrNoSpace: the store is full.
	ErrNoSpace = fault.New(fault.NoSpace, "the object store is full")
	// ErrUnsupported: the store lacks something that this package's promises need.
	ErrUnsupported = fault.New(fault.Unsupported, "the object store cannot do that")
	// ErrCorrupt is what every CorruptError is.
	ErrCorrupt = fault.New(fault.Corrupt, "the object's bytes are not what was stored")
)

// Ended is the error of a call whose context was over before anything was sent.
func Ended(ctx context.Context, op Op, key string) error {
	return fmt.Errorf("%s %s: %w", op, key, ctx.Err())
}

// CorruptError says that the bytes of an object are not those that were stored. Nothing was changed. Reading once more
// tells whether it was the way to here.
type CorruptError struct {
	Key   string
	Off   int64 // where what was checked begins
	Cause error
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("object %s from byte %d: %v", e.Key, e.Off, e.Cause)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Cause }

// Is makes every CorruptError ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == error(ErrCorrupt) }

// FaultKind implements fault.Classified.
func (e *CorruptError) FaultKind() fault.Kind { return fault.Corrupt }

// Retryable reports whether the same call may succeed later without the caller deciding anything anew. After
// ErrOutcomeUnknown it may not simply be repeated: see PutOnce.
func Retryable(err error) bool {
	return errors.Is(err, ErrThrottled) || errors.Is(err, ErrUnavailable)
}

// Op says what a failed request was for, which decides what its failure means.
type Op uint8

// The operations of a Store that ask a server something.
const (
	OpGet Op = iota
	OpHead
	OpList
	OpPutIfAbsent
	OpPutIfMatch
	OpDelete
)

var opNames = [...]string{"get", "head", "list", "put", "replace", "delete"}

// String returns the verb that errors show.
func (op Op) String() string { return opNames[op] }

func (op Op) writes() bool { return op >= OpPutIfAbsent }

// Failure is a request to a server that did not succeed, in the words of HTTP. Adapters make errors of it, so that one
// table says what each status means.
type Failure struct {
	Op     Op
	Key    string
	Status int   // 0: no answer came
	Slow   bool  // the answer's code says that there were too many requests
	Sent   bool  // all of the request may have reached the server
	Cause  error // never nil
}

// Err returns the error for the caller.
func (f Failure) Err() error {
	sentinel := f.sentinel()
	if sentinel == nil {
		return fmt.Errorf("%s %s: %w", f.Op, f.Key, f.Cause)
	}
	return fmt.Errorf("%s %s: %w: %w", f.Op, f.Key, sentinel, f.Cause)
}

// sentinel returns nil where the cause says it all.
func (f Failure) sentinel() error {
	maybe := f.Op.writes() && f.Sent
	switch {
	case f.Slow || f.Status == http.StatusTooManyRequests:
		return ErrThrottled
	case f.Status == 0:
		return f.unanswered(maybe)
	case f.Status == http.StatusUnauthorized || f.Status == http.StatusForbidden:
		return ErrDenied
	case f.Status == http.StatusNotFound:
		return f.missing()
	case f.Status == http.StatusConflict:
		if f.Op == OpPutIfMatch {
			return ErrConflict
		}
		return ErrUnavailable // another request for the key is under way: nothing was done for this one
	case f.Status == http.StatusPreconditionFailed:
		if f.Op == OpPutIfAbsent {
			return ErrExists
		}
		return ErrConflict
	case f.Status == http.StatusRequestedRangeNotSatisfiable:
		return ErrRange
	case f.Status == http.StatusRequestTimeout:
		return ErrUnavailable // the server got no whole request
	case f.Status == http.StatusInsufficientStorage:
		return ErrNoSpace
	case f.Status >= 500 && maybe:
		return ErrOutcomeUnknown
	case f.Status >= 400 && f.Status < 500:
		return ErrInvalid
	}
	if maybe {
		return ErrOutcomeUnknown // a success that cannot be read, or a status nobody has heard of
	}
	return ErrUnavailable
}

func (f Failure) unanswered(maybe bool) error {
	var dial *net.OpError
	switch {
	case errors.As(f.Cause, &dial) && dial.Op == "dial": // nothing was sent
		return ErrUnavailable
	case maybe:
		return ErrOutcomeUnknown
	case errors.Is(f.Cause, context.Canceled), errors.Is(f.Cause, context.DeadlineExceeded), errors.Is(f.Cause, ErrSource):
		return nil
	}
	return ErrUnavailable
}

// missing tells what a 404 is about: the object, or for a put the bucket.
func (f Failure) missing() error {
	switch f.Op {
	case OpPutIfMatch:
		return ErrConflict
	case OpPutIfAbsent, OpList:
		return ErrInvalid
	}
	return ErrNotFound
}
