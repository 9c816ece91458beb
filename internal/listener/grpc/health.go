package grpc

import (
	"context"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthService answers grpc.health.v1: SERVING between the broker being ready and the drain. gRPC's own server would
// need to be told of changes, and its watchers would hold up a drain until it is cut off; this one asks.
type healthService struct {
	healthpb.UnimplementedHealthServer
	life     lifecycle
	ready    <-chan struct{} // closed once the broker was seen ready
	draining <-chan struct{}
}

func known(service string) bool {
	switch service {
	case "", leveev1.Stream_ServiceDesc.ServiceName, leveev1.Admin_ServiceDesc.ServiceName:
		return true
	}
	return false
}

func (h *healthService) now() healthpb.HealthCheckResponse_ServingStatus {
	if isClosed(h.draining) || h.life.Ready() != nil {
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVING
}

// Check answers for one service, or for all with "".
func (h *healthService) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if !known(req.GetService()) {
		return nil, status.Errorf(codes.NotFound, "unknown service %q", clip(req.GetService(), detailChars))
	}
	return &healthpb.HealthCheckResponse{Status: h.now()}, nil
}

// List answers for all services.
func (h *healthService) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	now := &healthpb.HealthCheckResponse{Status: h.now()}
	return &healthpb.HealthListResponse{Statuses: map[string]*healthpb.HealthCheckResponse{
		"": now, leveev1.Stream_ServiceDesc.ServiceName: now, leveev1.Admin_ServiceDesc.ServiceName: now,
	}}, nil
}

// Watch says the state and each change of it. It ends after saying NOT_SERVING for a drain.
func (h *healthService) Watch(req *healthpb.HealthCheckRequest, stream rpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	last := healthpb.HealthCheckResponse_UNKNOWN
	ready := h.ready
	for {
		draining := isClosed(h.draining) // before the state is read: then it was NOT_SERVING, and was said
		now := healthpb.HealthCheckResponse_SERVICE_UNKNOWN
		if known(req.GetService()) {
			now = h.now()
		}
		if now != last {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			last = now
		}
		if draining {
			return statusOf(errDraining).Err()
		}
		select {
		case <-ready:
			ready = nil
		case <-h.draining:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}
