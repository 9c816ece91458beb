package grpc

import (
	"context"
	"errors"
	"io"
	"strconv"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/task"
	rpc "google.golang.org/grpc"
)

type consumeStream = rpc.BidiStreamingServer[leveev1.ConsumeRequest, leveev1.ConsumeResponse]

// consumer is a *broker.Consumer.
type consumer interface {
	Info() broker.ConsumerInfo
	// Next waits for the next event; one caller at a time. The event's batches are at most maxBytes, or one batch.
	Next(ctx context.Context, maxBytes int) (broker.ConsumerEvent, error)
	// News is Next for who has no room for records: it waits for news only, and returns false once room has something.
	News(ctx context.Context, room <-chan struct{}) (broker.ConsumerEvent, bool, error)
	// Settle and Heartbeat may be called at any time, also after Close. Settle keeps nothing of s, and does not wait for
	// the disk.
	Settle(s broker.Settlement) error
	Heartbeat()
	// Save returns once all that was settled before is durable.
	Save(ctx context.Context) error
	Close()
}

// errSideClosed ends a call whose client has closed its side: it can settle nothing more.
var errSideClosed = errors.New("the client has closed its side")

// Consume makes the caller a consumer of a subscription. The call's own goroutine delivers; a second one takes what the
// client settles, and ends just after the call, when gRPC has closed the stream; a third one, started when it is needed,
// saves.
func (s *streamService) Consume(stream consumeStream) error {
	first := &consumeMessage{}
	switch err := stream.RecvMsg(first); {
	case errors.Is(err, io.EOF):
		return invalid("consume: the stream ended before its first message: send open with a topic, a partition and a subscription")
	case err != nil:
		return err
	case first.Open == nil:
		return invalid("consume: the first message has no open: send open with a topic, a partition and a subscription")
	}
	maxBytes, err := s.deliveryBytes(first.Open.MaxBytes)
	if err != nil {
		return err
	}
	spec, err := consumerSpec(first.Open)
	if err != nil {
		return err
	}
	cons, err := s.broker.OpenConsumer(stream.Context(), spec)
	if err != nil {
		return err
	}
	defer cons.Close()
	open := s.metrics.streams.WithLabelValues("consume")
	open.Inc()
	defer open.Dec()

	c := &consuming{stream: stream, consumer: cons, tab: newCredit(), info: cons.Info()}
	c.saves.group = task.NewGroup(stream.Context())
	if err := c.welcome(); err != nil {
		return err
	}
	// What a client acknowledges as it comes back counts before anything is handed out; but not across a seek, which may
	// have meant the same records to be handed out again.
	if e := first.Open.Epoch; e != 0 && e != c.info.Epoch {
		first.Acks, first.HasAckBelow = nil, false
	}
	if err := c.take(first); err != nil {
		return c.end(err)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.tasks.Context(), func() { cancel(errDraining) })()
	s.tasks.Go("consumer acknowledgements", func(context.Context) error {
		cancel(c.receive(first))
		return nil
	})
	err = c.deliver(ctx, maxBytes)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return c.end(err)
}

// deliveryBytes returns how large a delivery may be for a client that gave max_bytes.
func (s *streamService) deliveryBytes(given int32) (int, error) {
	switch {
	case given < 0:
		return 0, invalid("max_bytes is %d: it must not be negative; 0 is 1 MiB", given)
	case given == 0:
		return defaultDelivery, nil
	}
	return min(int(given), s.bounds.BatchBytes), nil // a client must be able to take one batch of that size anyway
}

// consuming is one call of Consume.
type consuming struct {
	stream   consumeStream
	consumer consumer
	info     broker.ConsumerInfo
	tab      *credit
	saves    saves
	sending  task.Turn // deliveries and answers to saves come from two goroutines
	out      outgoing  // of the goroutine that delivers
}

func (c *consuming) welcome() error {
	i := c.info
	return c.send(c.stream.Context(), &leveev1.ConsumeResponse{Consuming: &leveev1.Consuming{
		TopicId: i.TopicID[:], Partitions: i.Partitions, Type: string(i.Type), Name: clip(i.Name, detailChars), Position: i.Position,
		Reliable: i.Reliable, Active: i.Active, AckTimeoutMs: i.AckTimeout.Milliseconds(), Epoch: i.Epoch,
	}})
}

// send sends one message, a *ConsumeResponse or a *outgoing, which may be used again once it returns.
func (c *consuming) send(ctx context.Context, m any) error {
	if !c.sending.Take(ctx.Done()) {
		return context.Cause(ctx)
	}
	defer c.sending.Give()
	return c.stream.SendMsg(m)
}

// deliver sends records while there is credit, and news at any time, until ctx is done or the consumer ends: it returns why.
func (c *consuming) deliver(ctx context.Context, maxBytes int) error {
	for {
		event, some, err := c.next(ctx, maxBytes)
		if err != nil {
			return err
		}
		if !some {
			continue
		}
		if err := c.out.fill(&event, c.info.Reliable); err != nil {
			return err
		}
		c.tab.spend(len(event.Batches))
		if err := c.send(ctx, &c.out); err != nil {
			return err
		}
	}
}

// next waits for what may be sent now. It returns false where the client gave credit meanwhile.
func (c *consuming) next(ctx context.Context, maxBytes int) (event broker.ConsumerEvent, some bool, err error) {
	left := c.tab.now()
	if left <= 0 {
		return c.consumer.News(ctx, c.tab.wake)
	}
	event, err = c.consumer.Next(ctx, int(min(int64(maxBytes), left)))
	return event, err == nil, err
}

// end tells the client why delivery ended. What belongs to a consumer's life is a message and then a good end; anything
// else is the call's error. Nothing is sent any more once it returns.
func (c *consuming) end(err error) error {
	if errors.Is(err, errSideClosed) {
		c.saves.finish()
		return c.saves.group.Wait() // what was to be saved is answered
	}
	c.saves.group.Stop()
	_ = c.saves.group.Wait() // it fails only with what ended the call
	switch fault.KindOf(err) {
	case fault.Trimmed:
		details := fault.DetailsOf(err)
		requested, err1 := strconv.ParseInt(details["requested"], 10, 64)
		oldest, err2 := strconv.ParseInt(details["oldest"], 10, 64)
		if err1 != nil || err2 != nil {
			return err
		}
		return c.stream.Send(&leveev1.ConsumeResponse{Trimmed: &leveev1.Trimmed{Requested: requested, Oldest: oldest}})
	case fault.Deleted, fault.Unavailable, fault.Fenced:
		return c.stream.Send(&leveev1.ConsumeResponse{Ended: errorOf(err)})
	}
	return err
}

func consumerSpec(open *leveev1.OpenConsume) (broker.ConsumerSpec, error) {
	spec := broker.ConsumerSpec{
		Topic: open.Topic, ID: open.TopicId, Partition: open.Partition, Subscription: open.Subscription,
		Type: broker.SubscriptionType(open.Type), Create: open.Create, Name: open.Name, Priority: open.Priority,
		KeyFilters: open.KeyFilters, WindowMessages: int(open.WindowMessages), WindowBytes: open.WindowBytes,
		MaxRecordBytes: int(open.MaxRecordBytes), Memory: pooledMemory, Epoch: open.Epoch,
	}
	switch start := open.Start.(type) {
	case *leveev1.OpenConsume_Latest:
		spec.Start = broker.Latest()
	case *leveev1.OpenConsume_Offset:
		spec.Start = broker.Offset(start.Offset)
	case *leveev1.OpenConsume_TimeMs:
		spec.Start = broker.Time(start.TimeMs)
	default:
		spec.Start = broker.Earliest()
	}
	for name, n := range map[string]int64{
		"window_messages": int64(open.WindowMessages), "window_bytes": open.WindowBytes, "max_record_bytes": int64(open.MaxRecordBytes),
	} {
		if n < 0 {
			return spec, invalid("consume: %s is %d: it must not be negative", name, n)
		}
	}
	return spec, nil
}

// outgoing is the message that deliveries are sent in, one after another.
type outgoing struct {
	leveev1.ConsumeResponse
	pooled bool // its batches lie in memory of the codec's pool

	delivered leveev1.Delivered
	ranges    []leveev1.Range
	counts    []leveev1.Deliveries
}

// fill makes o say what event does. pooled: the batches of events with data lie in pooledMemory.
func (o *outgoing) fill(event *broker.ConsumerEvent, pooled bool) error {
	o.Delivered, o.Lost, o.Skipped, o.Active, o.Standby, o.pooled = nil, nil, nil, false, false, false
	switch event.Kind {
	case broker.ConsumerData:
		o.pooled = pooled
		o.Delivered = &o.delivered
		o.delivered.Batches = event.Batches
		o.handOut(event)
	case broker.ConsumerActive:
		o.Active = true
	case broker.ConsumerStandby:
		o.Standby = true
	case broker.ConsumerLost:
		o.Lost = &leveev1.Range{From: event.Range.From, To: event.Range.To}
	case broker.ConsumerSkipped:
		o.Skipped = &leveev1.Range{From: event.Range.From, To: event.Range.To}
	default:
		return fault.New(fault.Internal, "consume: the broker sent an event of unknown kind %d", event.Kind)
	}
	return nil
}

func (o *outgoing) handOut(event *broker.ConsumerEvent) {
	if n := len(event.Offsets); n > len(o.ranges) {
		o.ranges = make([]leveev1.Range, 2*n)
	}
	if n := len(event.Counts); n > len(o.counts) {
		o.counts = make([]leveev1.Deliveries, 2*n)
	}
	d := &o.delivered
	d.Offsets, d.Counts = d.Offsets[:0], d.Counts[:0]
	for i, r := range event.Offsets {
		o.ranges[i].From, o.ranges[i].To = r.From, r.To
		d.Offsets = append(d.Offsets, &o.ranges[i])
	}
	for i, n := range event.Counts {
		o.counts[i].From, o.counts[i].To, o.counts[i].Count = n.From, n.To, n.Deliveries
		d.Counts = append(d.Counts, &o.counts[i])
	}
}
