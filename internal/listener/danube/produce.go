package danube

import (
	"context"
	"math"
	"time"
	"unicode/utf8"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
	"google.golang.org/grpc/codes"
)

type producerService struct {
	api.UnimplementedProducerServiceServer
	*Service
}

// CreateProducer announces a producer, and makes the topic where it is missing.
func (s *producerService) CreateProducer(ctx context.Context, req *api.ProducerRequest) (*api.ProducerResponse, error) {
	p, err := s.createProducer(ctx, req)
	if err != nil {
		return nil, s.fail("CreateProducer", err, whileCreating)
	}
	return &api.ProducerResponse{RequestId: req.RequestId, ProducerId: p.id, ProducerName: p.name}, nil
}

func (s *Service) createProducer(ctx context.Context, req *api.ProducerRequest) (*producer, error) {
	if req.ProducerName == "" || !utf8.ValidString(req.ProducerName) {
		return nil, invalid("create producer: the producer's name %q is empty or not UTF-8", clip(req.ProducerName, nameChars))
	}
	if req.ProducerAccessMode != api.ProducerAccessMode_Shared {
		return nil, fault.New(fault.Unsupported, "create producer: access mode %v is not served: a topic's producers are always shared", req.ProducerAccessMode)
	}
	dispatch, err := dispatchOf(int32(req.DispatchStrategy))
	if err != nil {
		return nil, err
	}
	at, info, err := s.resolve(req.TopicName)
	if fault.KindOf(err) == fault.NotFound && !s.cfg.RequireTopics {
		at, info, err = s.createTopic(ctx, req.TopicName, dispatch)
	}
	if err != nil {
		return nil, err
	}
	if info.Dispatch != dispatch {
		return nil, s.refuse(codes.FailedPrecondition, "create producer: topic %s is %s, not %s: ask for that, or choose another topic",
			req.TopicName, info.Dispatch, dispatch)
	}
	if req.SchemaRef != nil && req.SchemaRef.Subject != "" {
		if err := s.adoptSchema(ctx, at.topic, req.SchemaRef); err != nil {
			return nil, err
		}
	}
	return s.openProducer(ctx, producerID(req.TopicName, req.ProducerName), req.TopicName, req.ProducerName, at)
}

// createTopic makes the topic of a producer that came first. Another producer may make it at the same time.
func (s *Service) createTopic(ctx context.Context, wire string, dispatch broker.Dispatch) (place, broker.TopicInfo, error) {
	name, err := parseTopic(wire)
	if err != nil {
		return place{}, broker.TopicInfo{}, err
	}
	_, err = s.broker.CreateTopic(ctx, broker.TopicSpec{Name: name, Partitions: 1, Dispatch: dispatch})
	at, info, found := s.resolve(wire)
	if found != nil && err != nil {
		return place{}, broker.TopicInfo{}, err
	}
	return at, info, found
}

func dispatchOf(strategy int32) (broker.Dispatch, error) {
	switch api.DispatchStrategy(strategy) {
	case api.DispatchStrategy_NonReliable:
		return broker.NonReliable, nil
	case api.DispatchStrategy_Reliable:
		return broker.Reliable, nil
	}
	return "", invalid("dispatch strategy %d: it is 0 (non-reliable) or 1 (reliable)", strategy)
}

func (s *Service) openProducer(ctx context.Context, id uint64, wire, name string, at place) (*producer, error) {
	if p := s.producers.get(id, s.cfg.Now()); p != nil && p.at == at && p.topic == wire && p.name == name {
		return p, nil
	}
	pub, err := s.broker.OpenPublisher(ctx, at.topic, at.id[:])
	if err != nil {
		return nil, err
	}
	p := &producer{id: id, topic: wire, name: name, at: at, pub: pub}
	if err := s.producers.add(p, s.cfg.Now()); err != nil {
		return nil, err
	}
	return p, nil
}

// SendMessage publishes one message and waits for it.
func (s *producerService) SendMessage(ctx context.Context, m *api.StreamMessage) (*api.MessageResponse, error) {
	p, err := s.sender(ctx, m)
	if err == nil {
		err = s.send(ctx, p, m)
	}
	if err != nil {
		if p != nil && fault.KindOf(err) == fault.Deleted {
			s.producers.drop(p)
		}
		return nil, s.fail("SendMessage", err, whileSending)
	}
	s.metrics.sent.Inc()
	return &api.MessageResponse{RequestId: m.RequestId}, nil
}

// sender returns the producer that a message comes from. One that this process does not know (another one announced it,
// or it was forgotten) is made from what the message says.
func (s *Service) sender(ctx context.Context, m *api.StreamMessage) (*producer, error) {
	if m.MsgId == nil || m.MsgId.ProducerId == 0 {
		return nil, invalid("send: the message has no msg_id with a producer_id: create a producer first")
	}
	id, topic := m.MsgId.ProducerId, m.MsgId.TopicName
	p := s.producers.get(id, s.cfg.Now())
	if p != nil && (topic == "" || topic == p.topic) {
		return p, nil
	}
	if topic == "" || m.ProducerName == "" || !utf8.ValidString(m.ProducerName) {
		return nil, fault.New(fault.Unavailable, "send: producer %d is not known here, and the message does not say who it is: create the producer again", id)
	}
	at, _, err := s.resolve(topic)
	if err != nil {
		return nil, err
	}
	if p, err = s.openProducer(ctx, id, topic, m.ProducerName, at); err == nil {
		s.metrics.resumed.WithLabelValues("producer").Inc()
	}
	return p, err
}

// sending is what publishing one message needs, pooled: the batch lies in the builder's memory until it is answered.
type sending struct {
	builder *record.Builder
	bytes   []byte // of what a record wants as bytes and a message has as strings
	headers []record.Header
	answer  chan broker.PublishResult
	done    func(broker.PublishResult)
}

func (s *Service) newSending() *sending {
	if x, ok := s.sendings.Get().(*sending); ok {
		return x
	}
	x := &sending{builder: record.NewBuilder(record.None), answer: make(chan broker.PublishResult, 1)}
	x.done = func(r broker.PublishResult) { x.answer <- r }
	return x
}

const keptScratch = 64 << 10 // what a pooled sending keeps at most

func (s *Service) recycle(x *sending) {
	x.builder.Reset()
	if cap(x.bytes) > keptScratch {
		x.bytes = nil
	}
	clear(x.headers)
	s.sendings.Put(x)
}

func (s *Service) send(ctx context.Context, p *producer, m *api.StreamMessage) error {
	x := s.newSending()
	r, err := x.record(m, p.name, s.cfg.Now())
	if err == nil {
		err = x.builder.Append(r)
	}
	if err != nil {
		s.recycle(x)
		return asFault(err)
	}
	batch, err := x.builder.Seal(record.NoProducer)
	if err != nil {
		s.recycle(x)
		return asFault(err)
	}
	if err := p.pub.Submit(ctx, p.partitionFor(r.Key), batch, x.done); err != nil {
		s.recycle(x)
		return err
	}
	select {
	case result := <-x.answer:
		s.recycle(x)
		return result.Err
	case <-ctx.Done(): // the broker still has the batch: what it lies in is the collector's
		return fault.New(fault.KindOf(ctx.Err()), "send to %s: gave up waiting (%w): the message may have been written, or may yet be", p.topic, context.Cause(ctx))
	}
}

// record is m as a record. It aliases m and x. A negative time would not fit; nobody lives then.
func (x *sending) record(m *api.StreamMessage, producer string, now time.Time) (record.Record, error) {
	if m.PublishTime > math.MaxInt64 {
		return record.Record{}, invalid("send: publish_time %d: it is in ms since 1970", m.PublishTime)
	}
	r := record.Record{Value: m.Payload, Timestamp: int64(m.PublishTime)}
	if r.Value == nil {
		r.Value = []byte{} // nil would delete, which Danube does not know
	}
	if r.Timestamp == 0 {
		r.Timestamp = now.UnixMilli()
	}
	if err := x.fill(m, producer, now); err != nil {
		return record.Record{}, err
	}
	r.Headers = x.headers
	if m.RoutingKey != nil {
		r.Key = x.bytesOf(*m.RoutingKey)
	}
	return r, nil
}

// asFault gives what package record says its kind.
func asFault(err error) error {
	if fault.KindOf(err) != fault.Internal {
		return err
	}
	return fault.New(fault.TooLarge, "send: %w", err)
}
