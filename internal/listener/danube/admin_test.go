package danube

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	admin "github.com/leveemq/levee/api/danube/admin"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

func TestTopicAdmin(t *testing.T) {
	bubble(t, Config{BrokerID: "b1"}, func(f *fixture) {
		ctx := f.ctx
		for _, name := range []string{"/default/a", "default/b"} { // tools send both
			if resp, err := f.topic.CreateTopic(ctx, &admin.NewTopicRequest{Name: name, DispatchStrategy: admin.DispatchStrategy_Reliable}); err != nil || !resp.Success {
				t.Fatalf("got %v, %v", resp, err)
			}
		}
		if _, err := f.topic.CreatePartitionedTopic(ctx, &admin.PartitionedTopicRequest{BaseName: "/default/many", Partitions: 2}); err != nil {
			t.Fatal(err)
		}
		list, err := f.topic.ListNamespaceTopics(ctx, &admin.NamespaceRequest{Name: "default"})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, i := range list.Topics {
			names = append(names, i.Name+" "+i.Delivery)
		}
		want := []string{"/default/a Reliable", "/default/b Reliable", "/default/many-part-0 NonReliable", "/default/many-part-1 NonReliable"}
		if !slices.Equal(names, want) {
			t.Errorf("got %v, want %v", names, want)
		}
		all, err := f.topic.ListBrokerTopics(ctx, &admin.BrokerRequest{BrokerId: list.Topics[0].BrokerId})
		if err != nil || len(all.Topics) != 4 {
			t.Errorf("got %v, %v", all, err)
		}
		if _, err := f.topic.UnloadTopic(ctx, &admin.TopicRequest{Name: "/default/many"}); err != nil || !slices.Equal(f.unloaded, []string{"default/many"}) {
			t.Errorf("unloaded %v, %v", f.unloaded, err)
		}
		f.newConsumer("/default/many-part-1", "c", shared)
		subs, err := f.topic.ListSubscriptions(ctx, &admin.TopicRequest{Name: "/default/many-part-0"})
		if err != nil || !slices.Equal(subs.Subscriptions, []string{"sub"}) {
			t.Errorf("got %v, %v", subs, err)
		}
		desc, err := f.topic.DescribeTopic(ctx, &admin.DescribeTopicRequest{Name: "default/many"})
		if err != nil || desc.Name != "/default/many" || desc.Delivery != "NonReliable" || !slices.Equal(desc.Subscriptions, []string{"sub"}) || desc.SchemaSubject != nil {
			t.Errorf("got %v, %v", desc, err)
		}
		if _, err := f.topic.Unsubscribe(ctx, &admin.SubscriptionRequest{Topic: "/default/many", Subscription: "sub"}); err != nil {
			t.Error(err)
		}
		if _, err := f.topic.DeleteTopic(ctx, &admin.TopicRequest{Name: "/default/a"}); err != nil {
			t.Error(err)
		}
	})
}

func TestTopicAdminRefuses(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/t", 1, broker.NonReliable)
		f.create("default/many", 2, broker.Reliable)
		for name, c := range map[string]struct {
			call func(context.Context) error
			want codes.Code
		}{
			"delete what is not there": {func(ctx context.Context) error {
				_, err := f.topic.DeleteTopic(ctx, &admin.TopicRequest{Name: "/default/none"})
				return err
			}, codes.NotFound},
			"delete one partition": {func(ctx context.Context) error {
				_, err := f.topic.DeleteTopic(ctx, &admin.TopicRequest{Name: "/default/many-part-1"})
				return err
			}, codes.FailedPrecondition},
			"create it again": {func(ctx context.Context) error {
				_, err := f.topic.CreateTopic(ctx, &admin.NewTopicRequest{Name: "/default/t"})
				return err
			}, codes.AlreadyExists},
			"no partitions": {func(ctx context.Context) error {
				_, err := f.topic.CreatePartitionedTopic(ctx, &admin.PartitionedTopicRequest{BaseName: "/default/x"})
				return err
			}, codes.InvalidArgument},
			"endless partitions": {func(ctx context.Context) error {
				_, err := f.topic.CreatePartitionedTopic(ctx, &admin.PartitionedTopicRequest{BaseName: "/default/x", Partitions: math.MaxUint32})
				return err
			}, codes.InvalidArgument},
			"no such subject": {func(ctx context.Context) error {
				_, err := f.topic.CreateTopic(ctx, &admin.NewTopicRequest{Name: "/default/x", SchemaSubject: proto.String("none")})
				return err
			}, codes.NotFound},
			"another broker": {func(ctx context.Context) error {
				_, err := f.topic.ListBrokerTopics(ctx, &admin.BrokerRequest{BrokerId: "5"})
				return err
			}, codes.NotFound},
			"policy of a non-reliable topic": {func(ctx context.Context) error {
				_, err := f.topic.SetSubscriptionFailurePolicy(ctx, &admin.SetSubscriptionFailurePolicyRequest{
					Topic: "/default/t", Subscription: "sub", FailurePolicy: &admin.SubscriptionFailurePolicy{},
				})
				return err
			}, codes.FailedPrecondition},
			"no policy": {func(ctx context.Context) error {
				_, err := f.topic.SetSubscriptionFailurePolicy(ctx, &admin.SetSubscriptionFailurePolicyRequest{Topic: "/default/many", Subscription: "sub"})
				return err
			}, codes.InvalidArgument},
			"no window": {func(ctx context.Context) error {
				_, err := f.topic.SetSubscriptionDispatchConfig(ctx, &admin.SetSubscriptionDispatchConfigRequest{Topic: "/default/many", Subscription: "sub"})
				return err
			}, codes.InvalidArgument},
			"window of nothing": {func(ctx context.Context) error {
				_, err := f.topic.GetSubscriptionDispatchConfig(ctx, &admin.GetSubscriptionDispatchConfigRequest{Topic: "/default/many", Subscription: "sub"})
				return err
			}, codes.NotFound},
			"namespace in use": {func(ctx context.Context) error {
				_, err := f.namespace.DeleteNamespace(ctx, &admin.NamespaceRequest{Name: "default"})
				return err
			}, codes.FailedPrecondition},
			"move": {func(ctx context.Context) error {
				_, err := f.brokers.UnloadBroker(ctx, &admin.UnloadBrokerRequest{})
				return err
			}, codes.Unimplemented},
			"balance": {func(ctx context.Context) error {
				_, err := f.brokers.TriggerRebalance(ctx, &admin.RebalanceRequest{})
				return err
			}, codes.Unimplemented},
			"activate": {func(ctx context.Context) error {
				_, err := f.brokers.ActivateBroker(ctx, &admin.ActivateBrokerRequest{})
				return err
			}, codes.Unimplemented},
			"add a node": {func(ctx context.Context) error {
				_, err := admin.NewClusterAdminClient(f.conn).AddNode(ctx, &admin.AddNodeRequest{})
				return err
			}, codes.Unimplemented},
			"roles": {func(ctx context.Context) error {
				_, err := admin.NewSecurityAdminClient(f.conn).ListRoles(ctx, &admin.Empty{})
				return err
			}, codes.Unimplemented},
		} {
			t.Run(name, func(t *testing.T) { wantCode(t, c.call(f.ctx), c.want) })
		}
	})
}

func TestFailurePolicy(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		f.create("default/t", 1, broker.Reliable)
		f.newConsumer("/default/t", "c", keyShared)
		for _, p := range []*admin.SubscriptionFailurePolicy{
			{MaxRedeliveryCount: 3, AckTimeoutMs: 1000, BaseRedeliveryDelayMs: 10, MaxRedeliveryDelayMs: 100,
				BackoffStrategy: admin.SubscriptionBackoffStrategy_Exponential, PoisonPolicy: admin.SubscriptionPoisonPolicy_Drop,
				DeadLetterTopic: proto.String("/default/dead")},
			{MaxRedeliveryCount: 0, PoisonPolicy: admin.SubscriptionPoisonPolicy_Block},
			{MaxRedeliveryCount: noLimit},
		} {
			if _, err := f.topic.SetSubscriptionFailurePolicy(f.ctx, &admin.SetSubscriptionFailurePolicyRequest{
				Topic: "/default/t", Subscription: "sub", FailurePolicy: p,
			}); err != nil {
				t.Fatal(err)
			}
			got, err := f.topic.GetSubscriptionFailurePolicy(f.ctx, &admin.GetSubscriptionFailurePolicyRequest{Topic: "/default/t", Subscription: "sub"})
			if err != nil || !proto.Equal(got.FailurePolicy, p) || got.SubscriptionType != int32(keyShared) {
				t.Errorf("got %v (%v), want %v", got, err, p)
			}
			set := f.topics["default/t"].subs["sub"].info.Settings
			if want := int32(min(p.MaxRedeliveryCount+1, 4)); *set.MaxDeliveries != want { // a redelivery is not the first delivery
				t.Errorf("%d redeliveries became %d deliveries", p.MaxRedeliveryCount, *set.MaxDeliveries)
			}
		}
		if _, err := f.topic.SetSubscriptionDispatchConfig(f.ctx, &admin.SetSubscriptionDispatchConfigRequest{
			Topic: "/default/t", Subscription: "sub", DispatchConfig: &admin.SubscriptionDispatchConfig{MaxUnackedMessages: 9},
		}); err != nil {
			t.Fatal(err)
		}
		got, err := f.topic.GetSubscriptionDispatchConfig(f.ctx, &admin.GetSubscriptionDispatchConfigRequest{Topic: "/default/t", Subscription: "sub"})
		if err != nil || got.DispatchConfig.MaxUnackedMessages != 9 {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

func TestPolicySettingsRefused(t *testing.T) {
	for _, p := range []*admin.SubscriptionFailurePolicy{
		{BackoffStrategy: 5}, {PoisonPolicy: -1}, {AckTimeoutMs: math.MaxUint64}, {DeadLetterTopic: proto.String("/a/b/c")},
	} {
		if _, _, err := policySettings(p); fault.KindOf(err) != fault.InvalidArgument {
			t.Errorf("%v: %v", p, err)
		}
	}
	if _, unset, err := policySettings(&admin.SubscriptionFailurePolicy{}); err != nil || !slices.Equal(unset, []string{"dead_letter_topic"}) {
		t.Errorf("without a topic for dead letters: %v, %v", unset, err)
	}
}

func TestBrokerAdmin(t *testing.T) {
	bubble(t, Config{BrokerID: "b1", Admin: "127.0.0.1:9040"}, func(f *fixture) {
		f.create("default/t", 1, broker.Reliable)
		list, err := f.brokers.ListBrokers(f.ctx, &admin.Empty{})
		if err != nil || len(list.Brokers) != 1 {
			t.Fatalf("got %v, %v", list, err)
		}
		b := list.Brokers[0]
		if b.BrokerAddr != "http://levee:6650" || b.MetricsAddr != "127.0.0.1:9040" || b.BrokerRole != "Cluster_Leader" || b.BrokerStatus != "active" {
			t.Errorf("got %v", b)
		}
		if leader, err := f.brokers.GetLeaderBroker(f.ctx, &admin.Empty{}); err != nil || leader.Leader != b.BrokerId {
			t.Errorf("got %v, %v", leader, err)
		}
		status, err := admin.NewClusterAdminClient(f.conn).ClusterStatus(f.ctx, &admin.Empty{})
		if err != nil || status.LeaderId != status.SelfNodeId || len(status.Voters) != 1 || status.Voters[0] != status.SelfNodeId || status.SelfNodeId == 0 {
			t.Errorf("got %v, %v", status, err)
		}
		balance, err := f.brokers.GetClusterBalance(f.ctx, &admin.ClusterBalanceRequest{})
		if err != nil || balance.BrokerCount != 1 || balance.Brokers[0].TopicCount != 1 || balance.CoefficientOfVariation != 0 {
			t.Errorf("got %v, %v", balance, err)
		}
	})
}

func TestNamespaceAdmin(t *testing.T) {
	bubble(t, Config{}, func(f *fixture) {
		for range 2 { // Danube makes it unless it is there
			if resp, err := f.namespace.CreateNamespace(f.ctx, &admin.NamespaceRequest{Name: "n"}); err != nil || !resp.Success {
				t.Fatalf("got %v, %v", resp, err)
			}
		}
		list, err := f.brokers.ListNamespaces(f.ctx, &admin.Empty{})
		if err != nil || !slices.Equal(list.Namespaces, []string{"default", "n"}) {
			t.Errorf("got %v, %v", list, err)
		}
		f.create("n/t", 2, broker.Reliable)
		topics, err := f.namespace.GetNamespaceTopics(f.ctx, &admin.NamespaceRequest{Name: "n"})
		if err != nil || strings.Join(topics.Topics, " ") != "/n/t-part-0 /n/t-part-1" {
			t.Errorf("got %v, %v", topics, err)
		}
		if p, err := f.namespace.GetNamespacePolicies(f.ctx, &admin.NamespaceRequest{Name: "n"}); err != nil || p.Policies != "{}" {
			t.Errorf("got %v, %v", p, err)
		}
		_, err = f.namespace.GetNamespacePolicies(f.ctx, &admin.NamespaceRequest{Name: "none"})
		wantCode(t, err, codes.NotFound)
		if err := f.DeleteTopic(f.ctx, "n/t"); err != nil {
			t.Fatal(err)
		}
		if resp, err := f.namespace.DeleteNamespace(f.ctx, &admin.NamespaceRequest{Name: "n"}); err != nil || !resp.Success {
			t.Errorf("got %v, %v", resp, err)
		}
	})
}
