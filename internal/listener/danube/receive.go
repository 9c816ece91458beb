package danube

import (
	"context"
	"errors"
	"time"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// readBytes is what is asked for at a time. What was handed out and waits for a client that does not read is on its
	// ack timeout, and lost to others: so it is little.
	readBytes = 64 << 10
	// Clients call again at once when a stream breaks, some without end. What will not be better at once is said slowly.
	brake = 500 * time.Millisecond
)

type receiveStream = rpc.ServerStreamingServer[api.StreamMessage]

// ReceiveMessages delivers to a consumer until the call or the consumer ends. Unless the client has ended it, it ends
// with UNAVAILABLE: at anything else, a clean end too, some clients stop for good.
func (s *consumerService) ReceiveMessages(req *api.ReceiveRequest, stream receiveStream) error {
	ctx := stream.Context()
	slowly, err := s.receive(ctx, req.ConsumerId, stream)
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if slowly {
		pause(ctx, brake)
	}
	if fault.KindOf(err) == fault.Internal {
		_ = s.fail("ReceiveMessages", err, plain) // says that it is a bug
	}
	return s.refuse(codes.Unavailable, "%s", clip(err.Error(), messageChars))
}

// receive runs a stream. It returns why it ended, and whether trying again at once would end the same way.
func (s *Service) receive(ctx context.Context, id uint64, stream receiveStream) (slowly bool, err error) {
	c := s.consumers.get(id, s.cfg.Now())
	if c == nil {
		if c, err = s.resume(ctx, id); err != nil {
			return true, err
		}
		if c == nil {
			return true, fault.New(fault.Unavailable, "consumer %d is not known here: subscribe again", id)
		}
	}
	con := c.take()
	if con == nil {
		if con, err = s.broker.OpenConsumer(ctx, c.spec); err != nil {
			return true, s.lost(c, err)
		}
	}
	defer con.Close()
	requests, ok := c.begin(con)
	if !ok {
		return true, fault.New(fault.Unavailable, "consumer %d has ended: subscribe again", id)
	}
	s.metrics.streams.Inc()
	d := newDelivery(c.wire, c.spec.Subscription, s.brokerURL(ctx), requests)
	defer func() {
		s.metrics.streams.Dec()
		c.finish(con, d.message.RequestId, s.cfg.Now())
	}()
	err = s.deliver(ctx, con, d, stream)
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.IO: // it is being unloaded, or the broker stops: the next one may work
		return false, err
	}
	return true, s.lost(c, err)
}

// lost forgets a session whose topic or subscription is gone: health checks tell its client to look again.
func (s *Service) lost(c *session, err error) error {
	switch fault.KindOf(err) {
	case fault.Deleted, fault.NotFound:
		s.consumers.drop(c)
		s.forget(c.wire)
	}
	return err
}

// deliver passes on what a consumer is handed out, until it or the stream ends.
func (s *Service) deliver(ctx context.Context, con consumer, d *delivery, stream receiveStream) error {
	for {
		ev, err := con.Next(ctx, readBytes)
		if err != nil {
			return err
		}
		if ev.Kind != broker.ConsumerData {
			continue // Danube has no words for news
		}
		err = each(&ev, func(r *record.Record) error {
			m := d.of(r)
			if m.SizeVT() > messageBytes {
				return s.tooLarge(con, d, r)
			}
			s.metrics.delivered.Inc()
			return stream.Send(m)
		})
		if err != nil {
			return unsent(err)
		}
	}
}

// tooLarge gives back a record that fits by its own size, and does not with all its attributes: its subscription's
// limit of deliveries decides what becomes of it.
func (s *Service) tooLarge(con consumer, d *delivery, r *record.Record) error {
	if held, ok := s.bugs.Allow("too large", time.Now()); ok {
		s.cfg.Logger.Warn("danube: a record is too large for Danube's clients with all its headers, and is handed out again and again unless the subscription limits that",
			"topic", d.id.TopicName, "subscription", d.message.SubscriptionName, "offset", r.Offset, "unreported", held)
	}
	return con.Settle(broker.Settlement{Below: -1, Nacks: []broker.Nack{{
		Range: broker.Range{From: r.Offset, To: r.Offset}, Delay: -1, Reason: "too_large",
	}}})
}

// unsent gives an error of sending a kind: the stream is broken, which is nobody's fault here.
func unsent(err error) error {
	var st interface{ GRPCStatus() *status.Status }
	if errors.As(err, &st) {
		return fault.New(fault.Unavailable, "receive: the stream broke: %w", err)
	}
	return err
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
