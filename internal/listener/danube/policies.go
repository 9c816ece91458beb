package danube

import (
	"context"
	"math"
	"strings"

	admin "github.com/leveemq/levee/api/danube/admin"
	"github.com/leveemq/levee/internal/broker"
	"google.golang.org/grpc/codes"
)

// Danube's failure policy and dispatch configuration are settings of a subscription. Danube counts redeliveries, the
// broker deliveries; what Danube has no word for, no limit of them, is its largest number.
const noLimit = math.MaxUint32

var (
	backoffs = [...]string{admin.SubscriptionBackoffStrategy_Fixed: "fixed", admin.SubscriptionBackoffStrategy_Exponential: "exponential"}
	poisons  = [...]string{
		admin.SubscriptionPoisonPolicy_DeadLetter: "dead_letter", admin.SubscriptionPoisonPolicy_Block: "block", admin.SubscriptionPoisonPolicy_Drop: "drop",
	}
)

// policySettings are the settings that a failure policy sets.
func policySettings(p *admin.SubscriptionFailurePolicy) (set broker.SubscriptionSettings, unset []string, err error) {
	if int(p.BackoffStrategy) < 0 || int(p.BackoffStrategy) >= len(backoffs) || int(p.PoisonPolicy) < 0 || int(p.PoisonPolicy) >= len(poisons) {
		return set, nil, invalid("failure policy: backoff strategy %d or poison policy %d is unknown", p.BackoffStrategy, p.PoisonPolicy)
	}
	for _, ms := range []uint64{p.AckTimeoutMs, p.BaseRedeliveryDelayMs, p.MaxRedeliveryDelayMs} {
		if ms > math.MaxInt64 {
			return set, nil, invalid("failure policy: %d ms is longer than there is time", ms)
		}
	}
	deliveries := int32(0)
	if p.MaxRedeliveryCount != noLimit {
		deliveries = int32(min(p.MaxRedeliveryCount, math.MaxInt32-1)) + 1 //nolint:gosec // bounded
	}
	ack, base, most := int64(p.AckTimeoutMs), int64(p.BaseRedeliveryDelayMs), int64(p.MaxRedeliveryDelayMs) //nolint:gosec // checked above
	backoff, poison := backoffs[p.BackoffStrategy], poisons[p.PoisonPolicy]
	set = broker.SubscriptionSettings{
		AckTimeoutMs: &ack, MaxDeliveries: &deliveries, RedeliveryDelayMs: &base, MaxRedeliveryDelayMs: &most, Backoff: &backoff, Poison: &poison,
	}
	if p.GetDeadLetterTopic() == "" {
		return set, []string{"dead_letter_topic"}, nil
	}
	topic, err := parseTopic(named(*p.DeadLetterTopic))
	set.DeadLetterTopic = &topic
	return set, nil, err
}

// policyOf is the failure policy that effective settings amount to.
func policyOf(e *broker.SubscriptionSettings) *admin.SubscriptionFailurePolicy {
	p := &admin.SubscriptionFailurePolicy{MaxRedeliveryCount: noLimit}
	if n := value(e.MaxDeliveries); n > 0 {
		p.MaxRedeliveryCount = uint32(n - 1) //nolint:gosec // not negative
	}
	p.AckTimeoutMs = uint64(max(0, value(e.AckTimeoutMs)))                 //nolint:gosec // not negative
	p.BaseRedeliveryDelayMs = uint64(max(0, value(e.RedeliveryDelayMs)))   //nolint:gosec // not negative
	p.MaxRedeliveryDelayMs = uint64(max(0, value(e.MaxRedeliveryDelayMs))) //nolint:gosec // not negative
	for i, name := range backoffs {
		if name == value(e.Backoff) {
			p.BackoffStrategy = admin.SubscriptionBackoffStrategy(i) //nolint:gosec // two of them
		}
	}
	for i, name := range poisons {
		if name == value(e.Poison) {
			p.PoisonPolicy = admin.SubscriptionPoisonPolicy(i) //nolint:gosec // three of them
		}
	}
	if topic := value(e.DeadLetterTopic); topic != "" {
		if !strings.Contains(topic, "/") {
			topic = "default/" + topic
		}
		topic = wireTopic(topic)
		p.DeadLetterTopic = &topic
	}
	return p
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// SetSubscriptionFailurePolicy sets what becomes of messages that fail.
func (s *topicAdmin) SetSubscriptionFailurePolicy(ctx context.Context, req *admin.SetSubscriptionFailurePolicyRequest) (*admin.SubscriptionResponse, error) {
	err := s.setPolicy(ctx, req)
	return &admin.SubscriptionResponse{Success: err == nil}, s.fail("SetSubscriptionFailurePolicy", err, plain)
}

func (s *topicAdmin) setPolicy(ctx context.Context, req *admin.SetSubscriptionFailurePolicyRequest) error {
	if req.FailurePolicy == nil {
		return invalid("set failure policy: it has none")
	}
	set, unset, err := policySettings(req.FailurePolicy)
	if err != nil {
		return err
	}
	return s.setSubscription(ctx, req.Topic, req.Subscription, set, unset)
}

func (s *topicAdmin) setSubscription(ctx context.Context, topic, name string, set broker.SubscriptionSettings, unset []string) error {
	at, _, err := s.resolve(named(topic))
	if err != nil {
		return err
	}
	if !at.reliable {
		return s.refuse(codes.FailedPrecondition, "topic %s is not reliable: its subscriptions have nothing to set", clip(topic, nameChars))
	}
	_, err = s.broker.SetSubscription(ctx, at.topic, name, set, unset)
	return err
}

// GetSubscriptionFailurePolicy says what becomes of messages that fail, the broker's defaults among it.
func (s *topicAdmin) GetSubscriptionFailurePolicy(ctx context.Context, req *admin.GetSubscriptionFailurePolicyRequest) (*admin.GetSubscriptionFailurePolicyResponse, error) {
	info, err := s.subscription(ctx, req.Topic, req.Subscription)
	if err != nil {
		return nil, s.fail("GetSubscriptionFailurePolicy", err, plain)
	}
	return &admin.GetSubscriptionFailurePolicyResponse{
		FailurePolicy: policyOf(&info.Effective), SubscriptionType: typeNumber(info.Type),
	}, nil
}

func (s *topicAdmin) subscription(ctx context.Context, topic, name string) (broker.SubscriptionInfo, error) {
	at, _, err := s.resolve(named(topic))
	if err != nil {
		return broker.SubscriptionInfo{}, err
	}
	return s.broker.DescribeSubscription(ctx, at.topic, name)
}

// SetSubscriptionDispatchConfig sets how much one consumer may hold.
func (s *topicAdmin) SetSubscriptionDispatchConfig(ctx context.Context, req *admin.SetSubscriptionDispatchConfigRequest) (*admin.SubscriptionResponse, error) {
	err := s.setDispatch(ctx, req)
	return &admin.SubscriptionResponse{Success: err == nil}, s.fail("SetSubscriptionDispatchConfig", err, plain)
}

func (s *topicAdmin) setDispatch(ctx context.Context, req *admin.SetSubscriptionDispatchConfigRequest) error {
	n := req.GetDispatchConfig().GetMaxUnackedMessages()
	if n == 0 || n > math.MaxInt32 {
		return invalid("set dispatch configuration: max_unacked_messages is %d: it is 1 at least, and %d at most", n, math.MaxInt32)
	}
	window := int32(n)
	return s.setSubscription(ctx, req.Topic, req.Subscription, broker.SubscriptionSettings{WindowMessages: &window}, nil)
}

// GetSubscriptionDispatchConfig says how much one consumer may hold.
func (s *topicAdmin) GetSubscriptionDispatchConfig(ctx context.Context, req *admin.GetSubscriptionDispatchConfigRequest) (*admin.GetSubscriptionDispatchConfigResponse, error) {
	info, err := s.subscription(ctx, req.Topic, req.Subscription)
	if err != nil {
		return nil, s.fail("GetSubscriptionDispatchConfig", err, plain)
	}
	return &admin.GetSubscriptionDispatchConfigResponse{DispatchConfig: &admin.SubscriptionDispatchConfig{
		MaxUnackedMessages: uint32(max(0, value(info.Effective.WindowMessages))), //nolint:gosec // not negative
	}}, nil
}
