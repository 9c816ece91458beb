package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/record"
)

// Kinds of Error that callers commonly act on. A broker may send others: its error table is the whole list.
const (
	KindInternal         = "internal"          // a bug, or an error nobody classified
	KindInvalidArgument  = "invalid_argument"  // the request can never succeed as it stands
	KindNotFound         = "not_found"         // no such namespace, topic or partition
	KindAlreadyExists    = "already_exists"    // the name is taken
	KindDeleted          = "deleted"           // the topic was deleted, or deleted and made again, meanwhile
	KindOutOfRange       = "out_of_range"      // an offset beyond the end of the log
	KindTrimmed          = "trimmed"           // retention removed the offset; details: requested, oldest
	KindTooLarge         = "too_large"         // a record, batch or message above a limit
	KindCorrupt          = "corrupt"           // bytes are not the ones that were written
	KindNoSpace          = "no_space"          // the broker's disk or a quota is full
	KindUnavailable      = "unavailable"       // the broker cannot be reached, is starting or is stopping
	KindOutcomeUnknown   = "outcome_unknown"   // it may have happened, or may yet
	KindSequenceGap      = "sequence_gap"      // an idempotent producer's earlier batch is missing
	KindSequenceConflict = "sequence_conflict" // other bytes were stored under an idempotent producer's sequence
	KindProducerFenced   = "producer_fenced"   // a newer instance of this producer exists
	KindFenced           = "fenced"            // another consumer of the same name took over
	KindConflict         = "conflict"          // an exclusive subscription is held, or what a change was decided on has moved
	KindExhausted        = "exhausted"         // a bound of the broker is reached
	KindUnsupported      = "unsupported"       // this broker cannot do it
	KindUnauthenticated  = "unauthenticated"   // no valid credentials
	KindForbidden        = "forbidden"         // valid credentials that do not suffice
	KindCanceled         = "canceled"          // the caller gave up, or closed what it was using
	KindTimeout          = "timeout"           // time ran out, and it certainly did not happen
)

// Error is what a call failed with. It is immutable; errors.As finds it, and errors.Is finds a context's error behind it
// where one was the cause.
type Error struct {
	Kind      string            // stable name; see the Kind constants
	Message   string            // for people
	Retriable bool              // the same call may succeed later without being changed
	Details   map[string]string // facts for programs, e.g. requested and oldest; nil when there are none

	cause error
}

// Error returns the kind and the text for people.
func (e *Error) Error() string { return e.Kind + ": " + e.Message }

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// KindOf returns the kind of the first *Error in err's chain. Errors of contexts count as canceled and timeout, other
// ones as internal; no error has the empty kind.
func KindOf(err error) string {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled):
		return KindCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return KindTimeout
	}
	return KindInternal
}

// domain marks a status detail as a broker's own.
const domain = "levee"

// asError turns what a call returned into an *Error.
func asError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, io.EOF):
		return &Error{Kind: KindUnavailable, Message: "the broker ended the stream", Retriable: true, cause: err}
	case errors.Is(err, context.Canceled):
		return &Error{Kind: KindCanceled, Message: "canceled by the caller", cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Kind: KindTimeout, Message: "the caller's time ran out", Retriable: true, cause: err}
	}
	s, ok := status.FromError(err)
	if !ok {
		return &Error{Kind: KindInternal, Message: err.Error(), cause: err}
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return fromInfo(s.Message(), info)
		}
	}
	return fromCode(s, err)
}

// streamError is asError for a stream that its own side did not cancel: if it was canceled all the same, the broker or
// something between did, and a new stream may fare better.
func streamError(err error) *Error {
	e := asError(err)
	if e.Kind == KindCanceled {
		return &Error{Kind: KindUnavailable, Message: "the stream was canceled on its way", Retriable: true, cause: err}
	}
	return e
}

func fromInfo(message string, info *errdetails.ErrorInfo) *Error {
	e := &Error{Kind: info.GetReason(), Message: message}
	for k, v := range info.GetMetadata() {
		if k == "retriable" {
			e.Retriable, _ = strconv.ParseBool(v)
			continue
		}
		if e.Details == nil {
			e.Details = map[string]string{}
		}
		e.Details[k] = v
	}
	return e
}

// fromCode classifies a status that no broker of ours described: gRPC made it, or something between.
func fromCode(s *status.Status, cause error) *Error {
	e := &Error{Kind: KindInternal, Message: s.Message(), cause: cause}
	switch s.Code() {
	case codes.Unavailable:
		e.Kind, e.Retriable = KindUnavailable, true
	case codes.Internal:
		// A peer or proxy that drops a stream shows as this.
		if strings.Contains(e.Message, "RST_STREAM") || strings.Contains(e.Message, "EOF") {
			e.Kind, e.Retriable = KindUnavailable, true
		}
	case codes.ResourceExhausted:
		e.Kind, e.Retriable = KindExhausted, true
		if strings.Contains(e.Message, "larger than max") {
			e.Kind, e.Retriable = KindTooLarge, false
		}
	case codes.Canceled:
		e.Kind, e.cause = KindCanceled, errors.Join(context.Canceled, cause)
	case codes.DeadlineExceeded:
		e.Kind, e.Retriable, e.cause = KindTimeout, true, errors.Join(context.DeadlineExceeded, cause)
	case codes.InvalidArgument:
		e.Kind = KindInvalidArgument
	case codes.NotFound:
		e.Kind = KindNotFound
	case codes.AlreadyExists:
		e.Kind = KindAlreadyExists
	case codes.OutOfRange:
		e.Kind = KindOutOfRange
	case codes.Unimplemented:
		e.Kind = KindUnsupported
	case codes.Unauthenticated:
		e.Kind = KindUnauthenticated
	case codes.PermissionDenied:
		e.Kind = KindForbidden
	case codes.DataLoss:
		e.Kind = KindCorrupt
	case codes.OK, codes.Unknown, codes.FailedPrecondition, codes.Aborted:
	}
	return e
}

// fromMessage turns an error inside a stream into an *Error.
func fromMessage(m *leveev1.Error) *Error {
	e := &Error{Kind: m.GetKind(), Message: m.GetMessage(), Retriable: m.GetRetriable()}
	if len(m.GetDetails()) > 0 {
		e.Details = maps.Clone(m.GetDetails())
	}
	return e
}

// fromRecord turns an error of package record about bytes that a broker sent into an *Error.
func fromRecord(err error, what string) *Error {
	e := &Error{Kind: KindCorrupt, Message: what + ": " + err.Error(), cause: err}
	var r *record.Error
	if errors.As(err, &r) && r.Kind == record.KindTooLarge {
		e.Kind = KindTooLarge
	}
	return e
}

func newError(kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// gaveUp says that a caller's context ended while something was waited for, and why it was.
func gaveUp(ctx context.Context, what string, last error) *Error {
	e := asError(context.Cause(ctx))
	e = &Error{Kind: e.Kind, Message: what, Retriable: e.Retriable, cause: ctx.Err()}
	if last != nil {
		e.Message += "; last error: " + last.Error()
	}
	return e
}
