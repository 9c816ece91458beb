package grpc

import (
	"context"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/record"
)

// streams is what the Stream service asks of the broker. All methods are safe for concurrent use, and their errors
// carry a fault kind. *broker.Broker has them but for the types it returns; tests have a fake.
type streams interface {
	InitProducer(ctx context.Context) (id int64, epoch int16, err error)
	Publish(ctx context.Context, topic string, partition int32, records []record.Record) (int32, broker.PublishResult, error)
	PublishBatch(ctx context.Context, topic string, partition int32, batch []byte) (broker.PublishResult, error)
	OpenPublisher(ctx context.Context, topic string, id []byte) (publisher, error)
	Subscribe(ctx context.Context, spec broker.SubscribeSpec) (subscriber, error)
	OpenConsumer(ctx context.Context, spec broker.ConsumerSpec) (consumer, error)
}

// publisher is a *broker.Publisher.
type publisher interface {
	Info() broker.TopicInfo
	// Submit takes one batch. When it returns nil, done is called exactly once, from any goroutine, and the batch must
	// not change until then; otherwise done is never called. It waits while the broker holds too much.
	Submit(ctx context.Context, partition int32, batch []byte, done func(broker.PublishResult)) error
	Close()
}

// subscriber is a *broker.Subscriber.
type subscriber interface {
	Info() broker.SubscriberInfo
	// Next waits for the next event; one caller at a time. The event's batches are at most maxBytes, or one batch.
	Next(ctx context.Context, maxBytes int) (broker.Event, error)
	Close()
}

type brokerStreams struct{ *broker.Broker }

func (b brokerStreams) OpenPublisher(ctx context.Context, topic string, id []byte) (publisher, error) {
	p, err := b.Broker.OpenPublisher(ctx, topic, id)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (b brokerStreams) Subscribe(ctx context.Context, spec broker.SubscribeSpec) (subscriber, error) {
	s, err := b.Broker.Subscribe(ctx, spec)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (b brokerStreams) OpenConsumer(ctx context.Context, spec broker.ConsumerSpec) (consumer, error) {
	c, err := b.Broker.OpenConsumer(ctx, spec)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// streamService answers levee.v1.Stream.
type streamService struct {
	leveev1.UnimplementedStreamServer
	broker  streams
	tasks   *task.Group // outlives calls; its context is done once draining has begun
	limits  Limits
	bounds  broker.Limits // what the broker takes; told to clients
	metrics *metrics
}

// InitProducer gives out a producer id.
func (s *streamService) InitProducer(ctx context.Context, _ *leveev1.InitProducerRequest) (*leveev1.InitProducerResponse, error) {
	id, epoch, err := s.broker.InitProducer(ctx)
	if err != nil {
		return nil, err
	}
	return &leveev1.InitProducerResponse{ProducerId: id, Epoch: int32(epoch)}, nil
}
