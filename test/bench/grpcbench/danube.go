package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/client"
)

// echo answers a message of Danube's API and does nothing with it.
type echo struct {
	api.UnimplementedProducerServiceServer
}

// SendMessage acknowledges one message.
func (*echo) SendMessage(_ context.Context, m *api.StreamMessage) (*api.MessageResponse, error) {
	return &api.MessageResponse{RequestId: m.RequestId}, nil
}

// danube measures 64 callers of SendMessage on one connection, as a Danube client has it: on topics of each kind, and
// where nothing is done with the message.
func (b *bench) danube(broker string) {
	const callers = 64
	s := shape{kind: "unary", size: 128, batch: 1, conc: callers, window: 1}
	prepare(broker)
	for _, topic := range []string{"bare", "non_reliable", "periodic", "on_commit"} {
		addr, cpu := broker, func() float64 { return cpuOf(*pid) }
		if topic == "bare" {
			addr, cpu = b.addr, b.serverCPU
		}
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(err)
		calls := api.NewProducerServiceClient(conn)
		wire, id := "/default/danube-"+topic, uint64(1)
		if topic != "bare" {
			req := &api.ProducerRequest{TopicName: wire, ProducerName: "p", DispatchStrategy: api.DispatchStrategy_Reliable}
			if topic == "non_reliable" {
				req.DispatchStrategy = api.DispatchStrategy_NonReliable
			}
			resp, err := calls.CreateProducer(context.Background(), req)
			must(err)
			id = resp.ProducerId
		}
		var n atomic.Uint64
		b.timed(row{Label: "danube:" + topic, Mode: "unary", Style: "sync"}, s, cpu, func(s shape, end time.Time) (int64, []time.Duration) {
			return each(s, func() (int64, []time.Duration) {
				payload := make([]byte, s.size)
				var latencies []time.Duration
				for t := time.Now(); t.Before(end); t = time.Now() {
					_, err := calls.SendMessage(context.Background(), &api.StreamMessage{
						RequestId: n.Add(1), MsgId: &api.MsgID{ProducerId: id, TopicName: wire, BrokerAddr: addr}, Payload: payload,
						PublishTime: uint64(t.UnixMilli()), ProducerName: "p",
					})
					must(err)
					latencies = append(latencies, time.Since(t))
				}
				return int64(len(latencies)), latencies
			})
		})
		must(conn.Close())
	}
}

// prepare makes the topics, anew.
func prepare(broker string) {
	ctx := context.Background()
	c, err := client.Dial(broker)
	must(err)
	for topic, spec := range map[string]client.TopicSpec{
		"non_reliable": {Dispatch: client.NonReliable},
		"periodic":     {Dispatch: client.Reliable, Settings: client.Settings{Fsync: new("periodic")}},
		"on_commit":    {Dispatch: client.Reliable, Settings: client.Settings{Fsync: new("on_commit")}},
	} {
		spec.Name = "danube-" + topic
		if err := c.Admin().DeleteTopic(ctx, spec.Name); err != nil && client.KindOf(err) != client.KindNotFound {
			must(err)
		}
		_, err := c.Admin().CreateTopic(ctx, spec)
		must(err)
	}
	must(c.Close())
}

// cpuOf returns a process's CPU seconds, to the hundredth of a second that the kernel tells; 0 without one.
func cpuOf(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	s := string(stat)
	f := strings.Fields(s[strings.LastIndex(s, ")")+2:]) // the name before may hold anything
	var user, system float64
	_, err = fmt.Sscan(f[11]+" "+f[12], &user, &system)
	must(err)
	return (user + system) / 100
}
