package danube

import (
	"context"
	"strings"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/grpc/metadata"
)

type discovery struct {
	api.UnimplementedDiscoveryServer
	*Service
}

// TopicLookup says that this broker serves a topic: it is the only one.
func (s *discovery) TopicLookup(ctx context.Context, req *api.TopicLookupRequest) (*api.TopicLookupResponse, error) {
	if _, err := s.partitionsOf(req.Topic); err != nil {
		return nil, s.fail("TopicLookup", err, plain)
	}
	url := s.brokerURL(ctx)
	return &api.TopicLookupResponse{
		RequestId: req.RequestId, ResponseType: api.TopicLookupResponse_Connect, ConnectUrl: url, BrokerUrl: url,
	}, nil
}

// TopicPartitions lists what to subscribe to for a topic.
func (s *discovery) TopicPartitions(_ context.Context, req *api.TopicLookupRequest) (*api.TopicPartitionsResponse, error) {
	names, err := s.partitionsOf(req.Topic)
	if err != nil {
		return nil, s.fail("TopicPartitions", err, plain)
	}
	return &api.TopicPartitionsResponse{RequestId: req.RequestId, Partitions: names}, nil
}

// brokerURL is where clients are told to connect to. Danube's are URLs; clients that want a bare address cut them.
func (s *Service) brokerURL(ctx context.Context) string {
	addr := s.cfg.Advertise
	if addr == "" {
		if said := metadata.ValueFromIncomingContext(ctx, ":authority"); len(said) > 0 {
			addr = said[0]
		}
	}
	if strings.Contains(addr, "://") || addr == "" {
		return addr
	}
	if s.cfg.TLS {
		return "https://" + addr
	}
	return "http://" + addr
}

type healthCheck struct {
	api.UnimplementedHealthCheckServer
	*Service
}

// HealthCheck says OK to a producer or consumer that can go on, and CLOSE to one that has to look its topic up again.
func (s *healthCheck) HealthCheck(_ context.Context, req *api.HealthCheckRequest) (*api.HealthCheckResponse, error) {
	now := s.cfg.Now()
	ok := false
	switch req.Client {
	case api.HealthCheckRequest_Producer:
		if p := s.producers.get(req.Id, now); p != nil {
			if ok = s.stands(p.topic, p.at); !ok {
				s.producers.drop(p)
			}
		}
	case api.HealthCheckRequest_Consumer:
		ok = s.consumerStands(req.Id)
	default:
		return nil, s.fail("HealthCheck", invalid("health check: client type %d: it is 0 (producer) or 1 (consumer)", req.Client), plain)
	}
	resp := &api.HealthCheckResponse{Status: api.HealthCheckResponse_OK}
	if !ok {
		resp.Status = api.HealthCheckResponse_CLOSE
	}
	return resp, nil
}

// consumerStands reports whether a consumer can go on as it is. One that was made from its id alone should subscribe
// again, which gives it its name back: its stream ends, since clients look at the answer only when it does.
func (s *Service) consumerStands(id uint64) bool {
	now := s.cfg.Now()
	s.consumers.sweep(now, false)
	c := s.consumers.get(id, now)
	if c == nil {
		return false
	}
	at := place{topic: c.spec.Topic, id: [16]byte(c.spec.ID), partition: c.spec.Partition}
	if !c.resumed && s.stands(c.wire, at) {
		return true
	}
	s.consumers.drop(c)
	return false
}

// stands reports whether a name on the wire still leads where it led.
func (s *Service) stands(wire string, at place) bool {
	now, _, err := s.resolve(wire)
	if err != nil {
		if kind := fault.KindOf(err); kind == fault.NotFound || kind == fault.Deleted {
			s.forget(wire)
			return false
		}
		return true // nobody knows
	}
	return now.topic == at.topic && now.id == at.id && now.partition == at.partition
}

type storage struct {
	api.UnimplementedStorageServiceServer
}

// ListSegmentDescriptors answers with nothing: the broker's segments are not Danube's.
func (*storage) ListSegmentDescriptors(context.Context, *api.ListSegmentDescriptorsRequest) (*api.ListSegmentDescriptorsResponse, error) {
	return &api.ListSegmentDescriptorsResponse{}, nil
}
