package grpc

import (
	"context"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/record"
	rpc "google.golang.org/grpc"
)

// deadLetters is what the Admin service asks of the broker about dead letters. each is called for one after another, and
// its error ends the call. It is a *broker.Broker.
type deadLetters interface {
	// DeadLetters calls back for at most so many, or for all with 0.
	DeadLetters(ctx context.Context, topic, name string, most int, each func(broker.DeadLetter) error) error
	RedriveDeadLetters(ctx context.Context, topic, name string, each func(broker.DeadLetter) error) (int, error)
	PurgeDeadLetters(ctx context.Context, topic, name string) (int, error)
}

const (
	letterBytes   = 256 << 10 // of records in one message, unless one has more
	letterCount   = 1000      // letters in one message
	progressEvery = 200 * time.Millisecond
)

// ListDeadLetters sends dead letters, some at a time.
func (a *adminService) ListDeadLetters(req *leveev1.ListDeadLettersRequest, stream rpc.ServerStreamingServer[leveev1.ListDeadLettersResponse]) error {
	if req.Most < 0 {
		return invalid("list dead letters: most is %d: it must not be negative; 0 is all", req.Most)
	}
	resp, bytes := &leveev1.ListDeadLettersResponse{}, 0
	err := a.deadLetters.DeadLetters(stream.Context(), req.Topic, req.Name, int(req.Most), func(d broker.DeadLetter) error {
		size := d.Record.Size()
		if len(resp.Letters) > 0 && (bytes+size > letterBytes || len(resp.Letters) == letterCount) {
			if err := stream.Send(resp); err != nil {
				return err
			}
			resp, bytes = &leveev1.ListDeadLettersResponse{}, 0
		}
		resp.Letters = append(resp.Letters, deadLetterOf(d))
		bytes += size
		return nil
	})
	if err != nil || len(resp.Letters) == 0 {
		return err
	}
	return stream.Send(resp)
}

// RedriveDeadLetters publishes dead letters again and tells how far it is.
func (a *adminService) RedriveDeadLetters(req *leveev1.RedriveDeadLettersRequest, stream rpc.ServerStreamingServer[leveev1.RedriveDeadLettersResponse]) error {
	told, n := time.Now(), int64(0)
	redriven, err := a.deadLetters.RedriveDeadLetters(stream.Context(), req.Topic, req.Name, func(broker.DeadLetter) error {
		n++
		if time.Since(told) < progressEvery {
			return nil
		}
		told = time.Now()
		return stream.Send(&leveev1.RedriveDeadLettersResponse{Redriven: n})
	})
	if err != nil {
		return err
	}
	return stream.Send(&leveev1.RedriveDeadLettersResponse{Redriven: int64(redriven), Done: true})
}

// PurgeDeadLetters gives dead letters up.
func (a *adminService) PurgeDeadLetters(ctx context.Context, req *leveev1.PurgeDeadLettersRequest) (*leveev1.PurgeDeadLettersResponse, error) {
	n, err := a.deadLetters.PurgeDeadLetters(ctx, req.Topic, req.Name)
	if err != nil {
		return nil, err
	}
	return &leveev1.PurgeDeadLettersResponse{Purged: int64(n)}, nil
}

func deadLetterOf(d broker.DeadLetter) *leveev1.DeadLetter {
	return &leveev1.DeadLetter{
		Topic: d.Topic, Offset: d.Offset, SourcePartition: d.SourcePartition, SourceOffset: d.SourceOffset,
		Reason: clip(d.Reason, messageChars), Deliveries: d.Deliveries, TimeMs: d.TimeMs, Record: recordOf(d.Record),
	}
}

func recordOf(r record.Record) *leveev1.Record {
	out := &leveev1.Record{Key: r.Key, HasKey: r.Key != nil, Value: r.Value, TimestampMs: r.Timestamp}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, &leveev1.Header{Key: clip(h.Key, record.MaxBatchBytes), Value: h.Value})
	}
	return out
}
