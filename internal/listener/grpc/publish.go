package grpc

import (
	"context"
	"errors"
	"io"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/task"
	rpc "google.golang.org/grpc"
)

type publishStream = rpc.BidiStreamingServer[leveev1.PublishRequest, leveev1.PublishResponse]

// Publish is one pipeline into one topic. The call's own goroutine reads and submits; a second one answers. They meet
// in an outbox, and the reader waits there while too much is unanswered.
func (s *streamService) Publish(stream publishStream) error {
	first, err := stream.Recv()
	switch {
	case errors.Is(err, io.EOF):
		return invalid("publish: the stream ended before its first message: send open with a topic")
	case err != nil:
		return err
	case first.Open == nil:
		return invalid("publish: the first message has no open: send open with a topic")
	}
	pub, err := s.broker.OpenPublisher(stream.Context(), first.Open.Topic, first.Open.TopicId)
	if err != nil {
		return err
	}
	defer pub.Close()
	info := pub.Info()
	err = stream.Send(&leveev1.PublishResponse{Opened: &leveev1.Opened{
		TopicId: info.ID[:], Partitions: info.Partitions, Reliable: info.Reliable(),
		MaxBatchBytes: int64(s.bounds.BatchBytes), MaxRecordBytes: int64(s.bounds.RecordBytes),
	}})
	if err != nil {
		return err
	}
	open := s.metrics.streams.WithLabelValues("publish")
	open.Inc()
	defer open.Dec()

	box := newOutbox(s.limits.UnansweredBatches, s.limits.UnansweredBytes)
	defer box.close()
	g := task.NewGroup(stream.Context())
	g.Go("publish answers", func(ctx context.Context) error {
		return box.deliver(ctx, s.tasks.Context().Done(), stream.Send)
	})
	// What was taken is answered even where the client has broken the rules after it.
	failed := s.take(g.Context(), stream, pub, box, first)
	box.finish()
	if err := g.Wait(); failed == nil {
		failed = err
	}
	return failed
}

// take submits what the client sends, beginning with req, until it has sent everything.
func (s *streamService) take(ctx context.Context, stream publishStream, pub publisher, box *outbox, first *leveev1.PublishRequest) error {
	requests := s.metrics.publishes.WithLabelValues("stream")
	req := &message{}
	req.Batches = first.Batches
	last, seen := uint64(0), false
	for {
		if len(req.Batches) > 0 {
			requests.Inc()
			s.metrics.batches.Add(float64(len(req.Batches)))
		}
		for i, b := range req.Batches {
			if seen && b.Id <= last {
				return invalid("publish: batch %d came after batch %d: ids must rise within a stream", b.Id, last)
			}
			last, seen = b.Id, true
			if err := s.submit(ctx, pub, box, b, req.memory); err != nil {
				return err
			}
			req.Batches[i] = nil // the broker has it; this message may wait for room for its next one
		}
		if err := box.room(ctx); err != nil {
			return err
		}
		switch err := stream.RecvMsg(req); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case req.Open != nil:
			return invalid("publish: open came twice: one stream publishes to one topic")
		}
	}
}

// submit hands one batch to the broker once there is room for it. An error is the stream's; what is wrong with the
// batch is its answer.
func (s *streamService) submit(ctx context.Context, pub publisher, box *outbox, b *leveev1.Batch, memory *memory) error {
	if err := box.room(ctx); err != nil {
		return err
	}
	size := len(b.Data)
	box.add(size)
	sub := newSubmitted(box, b.Id, size, memory)
	err := pub.Submit(ctx, b.Partition, b.Data, sub.done)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	sub.answer(broker.PublishResult{Err: err})
	return nil
}
