package grpc

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	rpc "google.golang.org/grpc"
)

type subscribeStream = rpc.BidiStreamingServer[leveev1.SubscribeRequest, leveev1.SubscribeResponse]

const defaultDelivery = 1 << 20 // OpenSubscribe.max_bytes where it is 0

// Subscribe delivers one partition from a position on. The call's own goroutine delivers; a second one reads what
// credit the client gives, and ends just after the call, when gRPC has closed the stream.
func (s *streamService) Subscribe(stream subscribeStream) error {
	first, err := stream.Recv()
	switch {
	case errors.Is(err, io.EOF):
		return invalid("subscribe: the stream ended before its first message: send open with a topic and a partition")
	case err != nil:
		return err
	case first.Open == nil:
		return invalid("subscribe: the first message has no open: send open with a topic and a partition")
	}
	maxBytes, err := s.deliveryBytes(first.Open.MaxBytes)
	if err != nil {
		return err
	}
	tab := newCredit()
	if err := tab.give(first.Credit); err != nil {
		return err
	}
	sub, err := s.broker.Subscribe(stream.Context(), specOf(first.Open))
	if err != nil {
		return err
	}
	defer sub.Close()
	info := sub.Info()
	err = stream.Send(&leveev1.SubscribeResponse{Subscribed: &leveev1.Subscribed{
		TopicId: info.TopicID[:], Start: info.Start, End: info.End, Partitions: info.Partitions, Reliable: info.Reliable,
	}})
	if err != nil {
		return err
	}
	open := s.metrics.streams.WithLabelValues("subscribe")
	open.Inc()
	defer open.Dec()

	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.tasks.Context(), func() { cancel(errDraining) })()
	s.tasks.Go("subscription credit", func(context.Context) error {
		readCredit(stream, tab, cancel)
		return nil
	})
	err = deliver(ctx, stream, sub, tab, maxBytes, info.Reliable)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return ended(stream, err)
}

// deliver sends events while there is credit. It returns nil once the client has closed its side and used up what it
// gave. pooled: the batches lie in pooledMemory.
func deliver(ctx context.Context, stream subscribeStream, sub subscriber, tab *credit, maxBytes int, pooled bool) error {
	for {
		left, err := tab.wait(ctx)
		if err != nil || left <= 0 {
			return err
		}
		event, err := sub.Next(ctx, int(min(int64(maxBytes), left)))
		if err != nil {
			return err
		}
		resp := &delivery{}
		switch event.Kind {
		case broker.EventData:
			resp.pooled = pooled
			resp.Delivery = &leveev1.Delivery{Batches: event.Batches, Next: event.Next, Dropped: event.Dropped}
			tab.spend(len(event.Batches))
		case broker.EventLost:
			resp.Lost = &leveev1.Range{From: event.Lost.From, To: event.Lost.To}
		case broker.EventAtEnd:
			resp.AtEnd, resp.CaughtUp = true, event.Next
		default:
			return fault.New(fault.Internal, "subscribe: the broker sent an event of unknown kind %d", event.Kind)
		}
		if err := stream.SendMsg(resp); err != nil {
			return err
		}
	}
}

// delivery is a response whose batches may lie in memory of the codec's pool, which has them back once they are sent.
type delivery struct {
	leveev1.SubscribeResponse
	pooled bool
}

func pooledMemory(size int) []byte { return *codec.Pool.Get(size) }

// ended tells the client why delivery ended. What belongs to a subscription's life is a message and then a good end;
// anything else is the call's error.
func ended(stream subscribeStream, err error) error {
	switch fault.KindOf(err) {
	case fault.Trimmed:
		details := fault.DetailsOf(err)
		requested, err1 := strconv.ParseInt(details["requested"], 10, 64)
		oldest, err2 := strconv.ParseInt(details["oldest"], 10, 64)
		if err1 != nil || err2 != nil {
			return err
		}
		return stream.Send(&leveev1.SubscribeResponse{Trimmed: &leveev1.Trimmed{Requested: requested, Oldest: oldest}})
	case fault.Deleted, fault.Unavailable:
		return stream.Send(&leveev1.SubscribeResponse{Ended: errorOf(err)})
	}
	return err
}

// readCredit adds what the client gives until the stream ends. A client that breaks the rules ends the call, through
// cancel.
func readCredit(stream subscribeStream, tab *credit, cancel context.CancelCauseFunc) {
	for {
		req, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			tab.close()
			return
		case err == nil && req.Open != nil:
			err = invalid("subscribe: open came twice: one stream reads one partition")
		case err == nil:
			err = tab.give(req.Credit)
		}
		if err != nil {
			cancel(err)
			return
		}
	}
}

func specOf(open *leveev1.OpenSubscribe) broker.SubscribeSpec {
	spec := broker.SubscribeSpec{Topic: open.Topic, ID: open.TopicId, Partition: open.Partition, Memory: pooledMemory}
	switch start := open.Start.(type) {
	case *leveev1.OpenSubscribe_Latest:
		spec.Start = broker.Latest()
	case *leveev1.OpenSubscribe_Offset:
		spec.Start = broker.Offset(start.Offset)
	case *leveev1.OpenSubscribe_TimeMs:
		spec.Start = broker.Time(start.TimeMs)
	default:
		spec.Start = broker.Earliest()
	}
	return spec
}
