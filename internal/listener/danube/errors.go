package danube

import (
	"errors"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	messageChars = 1024 // a status travels in trailers, for which clients set aside little
	nameChars    = 256
)

// mapping says which code a kind of error has in one call, where it is not the one of the fault table. Danube's clients
// try again after UNAVAILABLE, DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED, looking the topic up and announcing themselves
// again after a few tries; every other code goes to whoever uses the client, and often ends it.
type mapping map[fault.Kind]codes.Code

var (
	plain = mapping{}
	// A producer whose topic is gone is to announce itself again, which says the rest.
	whileSending = mapping{fault.Deleted: codes.Unavailable, fault.NotFound: codes.Unavailable, fault.Fenced: codes.Unavailable}
	// A topic that cannot have this name or mode is a decision for people.
	whileCreating = mapping{fault.AlreadyExists: codes.FailedPrecondition, fault.Conflict: codes.FailedPrecondition, fault.Deleted: codes.Unavailable}
	// The same name as a consumer that is connected is refused by exclusive subscriptions.
	whileSubscribing = mapping{fault.Conflict: codes.PermissionDenied, fault.Deleted: codes.Unavailable, fault.Fenced: codes.Unavailable}
	whileSettling    = mapping{fault.NotFound: codes.Internal, fault.Deleted: codes.Internal}
)

// fail makes the status that a call ends with. Errors that are statuses already stay what they are.
func (s *Service) fail(call string, err error, m mapping) error {
	if err == nil {
		return nil
	}
	var already interface{ GRPCStatus() *status.Status }
	if errors.As(err, &already) {
		return err
	}
	kind := fault.KindOf(err)
	code, ok := m[kind]
	if !ok {
		code = codes.Code(kind.Row().GRPC)
	}
	if kind == fault.InvalidArgument && strings.HasPrefix(fault.DetailsOf(err)["reason"], "schema_") && m[fault.NotFound] == codes.Unavailable {
		code = codes.PermissionDenied // Danube's word for a message that its schema refuses
	}
	s.metrics.errors.WithLabelValues(code.String()).Inc()
	if kind == fault.Internal {
		if held, ok := s.bugs.Allow(call, time.Now()); ok {
			s.cfg.Logger.Error("danube: call failed with an error that nobody classified: this is a bug", "call", call, "error", err, "unreported", held)
		}
	}
	return status.Error(code, clip(err.Error(), messageChars))
}

// refuse makes a status that no error of the broker stands behind.
func (s *Service) refuse(code codes.Code, format string, args ...any) error {
	s.metrics.errors.WithLabelValues(code.String()).Inc()
	return status.Errorf(code, format, args...)
}

func invalid(format string, args ...any) error {
	return fault.New(fault.InvalidArgument, format, args...)
}

// clip makes s fit to be sent: valid UTF-8 (names from a request may not be), and not endless.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
