package danube

import (
	"context"
	"strconv"

	admin "github.com/leveemq/levee/api/danube/admin"
	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/grpc/codes"
)

// A broker by itself is a cluster of one: it leads, and serves every topic.

type brokerAdmin struct {
	admin.UnimplementedBrokerAdminServer
	*Service
}

// nodeName is the broker's id where Danube's tools want a number as text.
func (s *Service) nodeName() string { return strconv.FormatUint(s.nodeID, 10) }

// ListBrokers lists this broker.
func (s *brokerAdmin) ListBrokers(ctx context.Context, _ *admin.Empty) (*admin.BrokerListResponse, error) {
	return &admin.BrokerListResponse{Brokers: []*admin.BrokerInfo{{
		BrokerId: s.nodeName(), BrokerAddr: s.brokerURL(ctx), BrokerRole: "Cluster_Leader", AdminAddr: s.brokerURL(ctx),
		MetricsAddr: s.cfg.Admin, BrokerStatus: "active",
	}}}, nil
}

// GetLeaderBroker names this broker.
func (s *brokerAdmin) GetLeaderBroker(context.Context, *admin.Empty) (*admin.BrokerResponse, error) {
	return &admin.BrokerResponse{Leader: s.nodeName()}, nil
}

// ListNamespaces lists the namespaces.
func (s *brokerAdmin) ListNamespaces(context.Context, *admin.Empty) (*admin.NamespaceListResponse, error) {
	resp := &admin.NamespaceListResponse{}
	for _, n := range s.broker.Namespaces() {
		resp.Namespaces = append(resp.Namespaces, n.Name)
	}
	return resp, nil
}

// UnloadBroker is refused: there is no broker that topics could go to.
func (s *brokerAdmin) UnloadBroker(context.Context, *admin.UnloadBrokerRequest) (*admin.UnloadBrokerResponse, error) {
	return nil, s.onlyOne("unload broker")
}

// ActivateBroker is refused: this broker is never inactive.
func (s *brokerAdmin) ActivateBroker(context.Context, *admin.ActivateBrokerRequest) (*admin.ActivateBrokerResponse, error) {
	return nil, s.onlyOne("activate broker")
}

// TriggerRebalance is refused: there is nothing to balance.
func (s *brokerAdmin) TriggerRebalance(context.Context, *admin.RebalanceRequest) (*admin.RebalanceResponse, error) {
	return nil, s.onlyOne("rebalance")
}

func (s *brokerAdmin) onlyOne(doing string) error {
	return s.refuse(codes.Unimplemented, "%s: this broker is the only one: topics cannot move", doing)
}

// GetClusterBalance says how topics are spread over one broker: its load is how many it has.
func (s *brokerAdmin) GetClusterBalance(context.Context, *admin.ClusterBalanceRequest) (*admin.ClusterBalanceResponse, error) {
	topics := 0
	for _, n := range s.broker.Namespaces() {
		topics += n.Topics
	}
	load := float64(topics)
	return &admin.ClusterBalanceResponse{
		MeanLoad: load, MaxLoad: load, MinLoad: load, BrokerCount: 1, AssignmentStrategy: "single_broker",
		Brokers: []*admin.BrokerLoadInfo{{BrokerId: s.nodeID, Load: load, TopicCount: uint32(topics)}}, //nolint:gosec // the broker bounds topics
	}, nil
}

type clusterAdmin struct {
	admin.UnimplementedClusterAdminServer
	*Service
}

// ClusterStatus says that this broker decides alone.
func (s *clusterAdmin) ClusterStatus(context.Context, *admin.Empty) (*admin.ClusterStatusResponse, error) {
	return &admin.ClusterStatusResponse{LeaderId: s.nodeID, SelfNodeId: s.nodeID, Voters: []uint64{s.nodeID}}, nil
}

type namespaceAdmin struct {
	admin.UnimplementedNamespaceAdminServer
	*Service
}

// GetNamespaceTopics lists the names of a namespace's topics.
func (s *namespaceAdmin) GetNamespaceTopics(_ context.Context, req *admin.NamespaceRequest) (*admin.TopicListResponse, error) {
	list, err := s.listTopics(req.Name)
	if err != nil {
		return nil, s.fail("GetNamespaceTopics", err, plain)
	}
	resp := &admin.TopicListResponse{}
	for _, t := range list.Topics {
		resp.Topics = append(resp.Topics, t.Name)
	}
	return resp, nil
}

// GetNamespacePolicies says, as JSON, that a namespace limits nothing: limits are the broker's and the topics' here.
func (s *namespaceAdmin) GetNamespacePolicies(_ context.Context, req *admin.NamespaceRequest) (*admin.PolicyResponse, error) {
	if _, err := s.broker.Topics(req.Name); err != nil || req.Name == "" {
		if err == nil {
			err = invalid("namespace policies: name a namespace")
		}
		return nil, s.fail("GetNamespacePolicies", err, plain)
	}
	return &admin.PolicyResponse{Policies: "{}"}, nil
}

// CreateNamespace makes a namespace, unless there is one.
func (s *namespaceAdmin) CreateNamespace(ctx context.Context, req *admin.NamespaceRequest) (*admin.NamespaceResponse, error) {
	err := s.broker.CreateNamespace(ctx, req.Name)
	if fault.KindOf(err) == fault.AlreadyExists {
		err = nil
	}
	return &admin.NamespaceResponse{Success: err == nil}, s.fail("CreateNamespace", err, plain)
}

// DeleteNamespace removes a namespace without topics.
func (s *namespaceAdmin) DeleteNamespace(ctx context.Context, req *admin.NamespaceRequest) (*admin.NamespaceResponse, error) {
	err := s.broker.DeleteNamespace(ctx, req.Name)
	return &admin.NamespaceResponse{Success: err == nil}, s.fail("DeleteNamespace", err, mapping{fault.Conflict: codes.FailedPrecondition})
}
