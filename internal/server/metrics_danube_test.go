package server

import (
	"context"
	"testing"

	"github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/vfs"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

func moveDanube(s *site) {
	t, ctx := s.t, s.t.Context()
	m := s.start(disk{vfs.NewMem()}, "a")
	m.create(broker.TopicSpec{Name: "a"})
	conn := m.dial(&wire{})
	producers, consumers := danube.NewProducerServiceClient(conn), danube.NewConsumerServiceClient(conn)

	var producer, consumer uint64
	m.during("a producer", func() {
		resp, err := producers.CreateProducer(ctx, &danube.ProducerRequest{
			ProducerName: "p", TopicName: "/default/a", DispatchStrategy: danube.DispatchStrategy_Reliable,
		})
		producer = right(t, resp, err).GetProducerId()
	}, by("levee_danube_producers", 1))
	m.during("a consumer", func() {
		resp, err := consumers.Subscribe(ctx, &danube.ConsumerRequest{TopicName: "/default/a", ConsumerName: "c", Subscription: "s"})
		consumer = right(t, resp, err).GetConsumerId()
	}, by("levee_danube_consumers", 1))
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	var stream rpc.ServerStreamingClient[danube.StreamMessage]
	m.during("receiving", func() {
		got, err := consumers.ReceiveMessages(receiving, &danube.ReceiveRequest{ConsumerId: consumer})
		stream = right(t, got, err)
	}, by("levee_danube_receive_streams", 1))
	message := &danube.StreamMessage{MsgId: &danube.MsgID{ProducerId: producer, TopicName: "/default/a"}, ProducerName: "p"}
	m.during("two messages, one of them with another id", func() {
		for _, id := range []uint64{producer, producer ^ 1} {
			message.MsgId.ProducerId = id
			resp, err := producers.SendMessage(ctx, message)
			right(t, resp, err)
			got, err := stream.Recv()
			right(t, got, err)
		}
	}, by("levee_danube_messages_published_total", 2), by("levee_danube_messages_delivered_total", 2),
		by(`levee_danube_resumed_total{kind="producer"}`, 1), by("levee_danube_producers", 1))
	m.during("a message to nowhere", func() {
		message.MsgId.TopicName = "/default/nothing"
		if _, err := producers.SendMessage(ctx, message); grpcstatus.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
	}, by(`levee_danube_call_errors_total{code="Unavailable"}`, 1), by("levee_danube_messages_published_total", 0))
	m.during("no more receiving", stop, by("levee_danube_receive_streams", -1))
	m.during("health checks when the topic is gone", func() {
		if err := m.broker.Load().DeleteTopic(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		for client, id := range map[danube.HealthCheckRequest_ClientType]uint64{
			danube.HealthCheckRequest_Producer: producer, danube.HealthCheckRequest_Consumer: consumer,
		} {
			resp, err := danube.NewHealthCheckClient(conn).HealthCheck(ctx, &danube.HealthCheckRequest{Client: client, Id: id})
			if right(t, resp, err).GetStatus() != danube.HealthCheckResponse_CLOSE {
				t.Errorf("%v: got %v", client, resp)
			}
		}
	}, by("levee_danube_producers", -1), by("levee_danube_consumers", -1))
}

// right returns v where there is no error.
func right[T any](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}
