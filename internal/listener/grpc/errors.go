package grpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/obs"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	errorDomain   = "levee"     // ErrorInfo.domain of every status of ours
	retriableName = "retriable" // among ErrorInfo.metadata
	// A status travels in HTTP/2 trailers, for which clients set aside little: 8 KiB is common.
	messageChars = 1024
	detailChars  = 512
)

// statusOf returns err as a call's status: the code of its kind, its text, and a google.rpc.ErrorInfo with the kind's
// name as reason and its details and retriability as metadata.
func statusOf(err error) *status.Status {
	e := errorOf(err)
	st := status.New(codes.Code(fault.KindOf(err).Row().GRPC), e.Message)
	info := &errdetails.ErrorInfo{Domain: errorDomain, Reason: e.Kind, Metadata: e.Details}
	if info.Metadata == nil {
		info.Metadata = map[string]string{}
	}
	info.Metadata[retriableName] = strconv.FormatBool(e.Retriable)
	if with, err := st.WithDetails(info); err == nil {
		st = with
	}
	return st
}

// errorOf returns err as a message inside a stream. It shares nothing with err.
func errorOf(err error) *leveev1.Error {
	row := fault.KindOf(err).Row()
	e := &leveev1.Error{Kind: row.Name, Message: clip(err.Error(), messageChars), Retriable: row.Retriable}
	if details := fault.DetailsOf(err); len(details) > 0 {
		e.Details = maps.Clone(details)
		for k, v := range e.Details {
			e.Details[k] = clip(v, detailChars)
		}
	}
	return e
}

// clip makes s fit to be sent: valid UTF-8 (names from a request may not be), and not endless.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// calls is what every call of our services goes through: errors become statuses here, and nowhere else.
type calls struct {
	metrics *metrics
	logger  *slog.Logger
	bugs    obs.Throttle
}

func newCalls(m *metrics, logger *slog.Logger) *calls {
	return &calls{metrics: m, logger: logger, bugs: obs.Throttle{Every: 10 * time.Second}}
}

// wrap returns desc with every handler going through c. Interceptors would not do: gRPC receives the request of a unary
// call outside of them.
func (c *calls) wrap(desc rpc.ServiceDesc) *rpc.ServiceDesc {
	methods, streams := desc.Methods, desc.Streams
	desc.Methods, desc.Streams = nil, nil
	for _, m := range methods {
		handle, name := m.Handler, desc.ServiceName+"/"+m.MethodName
		m.Handler = func(srv any, ctx context.Context, dec func(any) error, i rpc.UnaryServerInterceptor) (any, error) {
			resp, err := handle(srv, ctx, func(v any) error { return (&request{}).receive(dec, v) }, i)
			return resp, c.ended(name, err)
		}
		desc.Methods = append(desc.Methods, m)
	}
	for _, st := range streams {
		handle, name := st.Handler, desc.ServiceName+"/"+st.StreamName
		st.Handler = func(srv any, stream rpc.ServerStream) error {
			return c.ended(name, handle(srv, &receiver{ServerStream: stream}))
		}
		desc.Streams = append(desc.Streams, st)
	}
	return &desc
}

// registrar registers services of other APIs: their calls go through calls, and their streams end when the listener drains.
type registrar struct {
	server   *rpc.Server
	calls    *calls
	draining context.Context // done once it has begun
}

// RegisterService adds a service.
func (r registrar) RegisterService(desc *rpc.ServiceDesc, impl any) {
	bounded := *desc
	bounded.Streams = slices.Clone(desc.Streams)
	for i := range bounded.Streams {
		handle := bounded.Streams[i].Handler
		bounded.Streams[i].Handler = func(srv any, stream rpc.ServerStream) error {
			ctx, cancel := context.WithCancelCause(stream.Context())
			defer cancel(nil)
			defer context.AfterFunc(r.draining, func() { cancel(errDraining) })()
			err := handle(srv, &boundedStream{stream, ctx})
			if stream.Context().Err() == nil && ctx.Err() != nil {
				return errDraining
			}
			return err
		}
	}
	r.server.RegisterService(r.calls.wrap(bounded), impl)
}

// boundedStream is a stream whose context ends when the listener drains.
type boundedStream struct {
	rpc.ServerStream
	ctx context.Context
}

func (s *boundedStream) Context() context.Context { return s.ctx }

// ended turns the error that a call ended with into its status.
func (c *calls) ended(method string, err error) error {
	var already interface{ GRPCStatus() *status.Status }
	if err == nil || errors.As(err, &already) {
		return err
	}
	kind := fault.KindOf(err)
	c.metrics.errors.WithLabelValues(kind.String()).Inc()
	if kind == fault.Internal {
		if held, ok := c.bugs.Allow(method, time.Now()); ok {
			c.logger.Error("grpc: call failed with an error that nobody classified: this is a bug", "method", method, "error", err, "unreported", held)
		}
	}
	return statusOf(err).Err()
}

// invalid is the error of a request that can never succeed.
func invalid(format string, args ...any) error {
	return fault.New(fault.InvalidArgument, "%s", fmt.Sprintf(format, args...))
}

// errDraining is what streams are told when the listener drains.
var errDraining = fault.New(fault.Unavailable, "the broker is about to stop: reconnect to another one, or to this one later")
