package danube

import (
	"context"
	"strings"

	admin "github.com/leveemq/levee/api/danube/admin"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/grpc/codes"
)

type topicAdmin struct {
	admin.UnimplementedTopicAdminServer
	*Service
}

// named is the wire name for what an operator typed: Danube's tools take names with and without the slash in front.
func named(topic string) string {
	if strings.HasPrefix(topic, "/") {
		return topic
	}
	return "/" + topic
}

// deliveryName is Danube's word for a dispatch mode.
func deliveryName(d broker.Dispatch) string {
	if d == broker.Reliable {
		return "Reliable"
	}
	return "NonReliable"
}

// ListNamespaceTopics lists a namespace's topics as clients see them: one with several partitions is those.
func (s *topicAdmin) ListNamespaceTopics(_ context.Context, req *admin.NamespaceRequest) (*admin.TopicInfoListResponse, error) {
	resp, err := s.listTopics(req.Name)
	return resp, s.fail("ListNamespaceTopics", err, plain)
}

// ListBrokerTopics lists all topics, since this broker serves them all.
func (s *topicAdmin) ListBrokerTopics(_ context.Context, req *admin.BrokerRequest) (*admin.TopicInfoListResponse, error) {
	if req.BrokerId != s.nodeName() && req.BrokerId != s.cfg.BrokerID {
		return nil, s.refuse(codes.NotFound, "there is no broker %q: this is %s, and the only one", clip(req.BrokerId, nameChars), s.nodeName())
	}
	resp, err := s.listTopics("")
	return resp, s.fail("ListBrokerTopics", err, plain)
}

func (s *Service) listTopics(namespace string) (*admin.TopicInfoListResponse, error) {
	list, err := s.broker.Topics(namespace)
	if err != nil {
		return nil, err
	}
	resp := &admin.TopicInfoListResponse{}
	for _, t := range list {
		for _, name := range wireNames(t) {
			resp.Topics = append(resp.Topics, &admin.TopicInfo{Name: name, BrokerId: s.nodeName(), Delivery: deliveryName(t.Dispatch)})
		}
	}
	return resp, nil
}

// CreateTopic makes a topic with one partition.
func (s *topicAdmin) CreateTopic(ctx context.Context, req *admin.NewTopicRequest) (*admin.TopicResponse, error) {
	err := s.newTopic(ctx, req.Name, 1, req.DispatchStrategy, req.GetSchemaSubject())
	return &admin.TopicResponse{Success: err == nil}, s.fail("CreateTopic", err, plain)
}

// CreatePartitionedTopic makes a topic with several partitions. With one it is a topic as CreateTopic makes it.
func (s *topicAdmin) CreatePartitionedTopic(ctx context.Context, req *admin.PartitionedTopicRequest) (*admin.TopicResponse, error) {
	err := s.newTopic(ctx, req.BaseName, req.Partitions, req.DispatchStrategy, req.GetSchemaSubject())
	return &admin.TopicResponse{Success: err == nil}, s.fail("CreatePartitionedTopic", err, plain)
}

func (s *topicAdmin) newTopic(ctx context.Context, topic string, partitions uint32, strategy admin.DispatchStrategy, subject string) error {
	name, err := parseTopic(named(topic))
	if err != nil {
		return err
	}
	dispatch, err := dispatchOf(int32(strategy))
	if err != nil {
		return err
	}
	if partitions == 0 || partitions > 1<<20 {
		return invalid("create topic %s: %d partitions: it has one at least, and as many at most as the broker allows a topic", clip(topic, nameChars), partitions)
	}
	if subject != "" {
		if _, err := s.broker.SchemaVersion(subject, latestSchema); err != nil {
			return err
		}
	}
	info, err := s.broker.CreateTopic(ctx, broker.TopicSpec{Name: name, Partitions: int32(partitions), Dispatch: dispatch})
	if err != nil || subject == "" {
		return err
	}
	return s.broker.SetTopicSchema(ctx, info.Name, topicSchema{Subject: subject, Policy: policyNone})
}

// whole resolves a topic for calls that are about all of it. A partition of one that was made with several is not a
// topic that could be deleted or unloaded by itself.
func (s *topicAdmin) whole(doing, topic string) (broker.TopicInfo, error) {
	at, info, err := s.resolve(named(topic))
	if err == nil && at.partitions > 1 && at.partition >= 0 {
		err = s.refuse(codes.FailedPrecondition, "%s %s: it is one of %d partitions of a topic: name that, %s",
			doing, clip(topic, nameChars), at.partitions, wireTopic(at.topic))
	}
	return info, err
}

// DeleteTopic removes a topic.
func (s *topicAdmin) DeleteTopic(ctx context.Context, req *admin.TopicRequest) (*admin.TopicResponse, error) {
	info, err := s.whole("delete", req.Name)
	if err == nil {
		err = s.broker.DeleteTopic(ctx, info.Name)
	}
	return &admin.TopicResponse{Success: err == nil}, s.fail("DeleteTopic", err, plain)
}

// UnloadTopic closes a topic's logs; the next use opens them again.
func (s *topicAdmin) UnloadTopic(ctx context.Context, req *admin.TopicRequest) (*admin.TopicResponse, error) {
	info, err := s.whole("unload", req.Name)
	if err == nil {
		err = s.broker.UnloadTopic(ctx, info.Name)
	}
	return &admin.TopicResponse{Success: err == nil}, s.fail("UnloadTopic", err, plain)
}

// ListSubscriptions lists a topic's subscriptions. One of a topic with several partitions is in all of them.
func (s *topicAdmin) ListSubscriptions(ctx context.Context, req *admin.TopicRequest) (*admin.SubscriptionListResponse, error) {
	_, info, err := s.resolve(named(req.Name))
	var names []string
	if err == nil {
		names, err = s.subscriptionNames(ctx, info)
	}
	return &admin.SubscriptionListResponse{Subscriptions: names}, s.fail("ListSubscriptions", err, plain)
}

func (s *topicAdmin) subscriptionNames(ctx context.Context, t broker.TopicInfo) ([]string, error) {
	list, err := s.broker.Subscriptions(ctx, t.Name)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	return names, nil
}

// Unsubscribe deletes a subscription, from all partitions of its topic.
func (s *topicAdmin) Unsubscribe(ctx context.Context, req *admin.SubscriptionRequest) (*admin.SubscriptionResponse, error) {
	at, _, err := s.resolve(named(req.Topic))
	if err == nil {
		err = s.broker.DeleteSubscription(ctx, at.topic, req.Subscription)
	}
	return &admin.SubscriptionResponse{Success: err == nil}, s.fail("Unsubscribe", err, plain)
}

// DescribeTopic says what there is to know about one topic.
func (s *topicAdmin) DescribeTopic(ctx context.Context, req *admin.DescribeTopicRequest) (*admin.DescribeTopicResponse, error) {
	resp, err := s.describeTopic(ctx, req)
	return resp, s.fail("DescribeTopic", err, plain)
}

func (s *topicAdmin) describeTopic(ctx context.Context, req *admin.DescribeTopicRequest) (*admin.DescribeTopicResponse, error) {
	_, info, err := s.resolve(named(req.Name))
	if err != nil {
		return nil, err
	}
	resp := &admin.DescribeTopicResponse{Name: named(req.Name), BrokerId: s.nodeName(), Delivery: deliveryName(info.Dispatch)}
	if resp.Subscriptions, err = s.subscriptionNames(ctx, info); err != nil {
		return nil, err
	}
	follows, err := s.broker.TopicSchema(info.Name)
	if err != nil || follows.Subject == "" {
		return resp, err
	}
	resp.SchemaSubject = &follows.Subject
	latest, err := s.broker.SchemaVersion(follows.Subject, latestSchema)
	if fault.KindOf(err) == fault.NotFound {
		return resp, nil // the subject was deleted since
	}
	if err != nil {
		return nil, err
	}
	mode, err := s.broker.SchemaCompatibility(follows.Subject)
	if err != nil {
		return nil, err
	}
	version := uint32(latest.Version) //nolint:gosec // counts from 1
	resp.SchemaId, resp.SchemaVersion, resp.SchemaType, resp.CompatibilityMode = &latest.ID, &version, &latest.Type, &mode
	return resp, nil
}
