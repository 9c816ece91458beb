package danube

import (
	"context"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	api "github.com/leveemq/levee/api/danube"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"google.golang.org/grpc/codes"
)

const (
	// messageBytes is the largest message that Danube's clients receive. A record is encoded a little differently in a
	// message, and has the names of topic, subscription and producer with it: most of that fits into the difference.
	messageBytes = 4 << 20
	recordBytes  = messageBytes - 64<<10

	longestNack = 365 * 24 * time.Hour
	reasonChars = 512
)

type consumerService struct {
	api.UnimplementedConsumerServiceServer
	*Service
}

// Subscribe announces a consumer, and makes the subscription where it is missing.
func (s *consumerService) Subscribe(ctx context.Context, req *api.ConsumerRequest) (*api.ConsumerResponse, error) {
	c, err := s.subscribe(ctx, req)
	if err != nil {
		return nil, s.fail("Subscribe", err, whileSubscribing)
	}
	return &api.ConsumerResponse{RequestId: req.RequestId, ConsumerId: c.id, ConsumerName: req.ConsumerName}, nil
}

func (s *Service) subscribe(ctx context.Context, req *api.ConsumerRequest) (*session, error) {
	if req.ConsumerName == "" || req.Subscription == "" || !utf8.ValidString(req.ConsumerName) || !utf8.ValidString(req.Subscription) {
		return nil, invalid("subscribe to %s: the names of consumer %q and subscription %q must not be empty, and are UTF-8",
			clip(req.TopicName, nameChars), clip(req.ConsumerName, nameChars), clip(req.Subscription, nameChars))
	}
	kind := int(req.SubscriptionType)
	if kind < 0 || kind >= len(typeNumbers) {
		return nil, invalid("subscribe to %s: subscription type %d: it is 0 (exclusive), 1 (shared), 2 (failover) or 3 (key-shared)",
			clip(req.TopicName, nameChars), kind)
	}
	at, err := s.consumable(req.TopicName)
	if err != nil {
		return nil, err
	}
	spec := broker.ConsumerSpec{
		Topic: at.topic, ID: at.id[:], Partition: at.partition, Subscription: req.Subscription, Type: typeNumbers[kind],
		Create: true, Start: broker.Latest(), Name: req.ConsumerName, MaxRecordBytes: recordBytes,
	}
	if spec.Type == broker.KeyShared {
		spec.KeyFilters = req.KeyFilters
	}
	id := consumerID{
		kind: uint8(kind), filters: len(spec.KeyFilters) > 0, topic: topicHash(req.TopicName), group: groupHash(req.Subscription),
	}
	if !at.reliable && s.consumers.isNameless(group{req.TopicName, id.group}) {
		spec.Subscription = namelessSubscription(id.group)
	}
	return s.openSession(ctx, id, req.TopicName, spec)
}

// consumable finds what a name on the wire stands for, which has to be one partition.
func (s *Service) consumable(wire string) (place, error) {
	at, _, err := s.resolve(wire)
	if err == nil && at.partition < 0 {
		err = s.refuse(codes.FailedPrecondition, "subscribe to %s: it has %d partitions: subscribe to each, %s and so on, as TopicPartitions lists them",
			wire, at.partitions, partName(wire, 0))
	}
	return at, err
}

// openSession opens a consumer and keeps it for the stream that comes next. Whoever had its id ends.
func (s *Service) openSession(ctx context.Context, id consumerID, wire string, spec broker.ConsumerSpec) (*session, error) {
	now := s.cfg.Now()
	s.consumers.sweep(now, false)
	c := &session{id: s.consumers.idFor(wire, spec.Name, id, spec.Subscription), wire: wire, spec: spec}
	// One that went on by its id alone has another name to the broker, which would not let it take over.
	if old := s.consumers.get(c.id, now); old != nil && old.resumed {
		s.consumers.drop(old)
	}
	con, err := s.broker.OpenConsumer(ctx, spec)
	if fault.KindOf(err) == fault.Conflict {
		s.consumers.sweep(now, true) // whoever is in the way may be gone
		con, err = s.broker.OpenConsumer(ctx, spec)
	}
	if err != nil {
		if fault.KindOf(err) == fault.Conflict && fault.DetailsOf(err)["type"] != "" {
			return nil, s.refuse(codes.FailedPrecondition, "%s", clip(err.Error(), messageChars))
		}
		return nil, err
	}
	c.mu.waiting = con
	replaced, err := s.consumers.add(c, now)
	if err != nil {
		con.Close()
		return nil, err
	}
	if replaced != nil {
		replaced.end()
	}
	return c, nil
}

// Ack settles one message.
func (s *consumerService) Ack(_ context.Context, req *api.AckRequest) (*api.AckResponse, error) {
	err := s.settle("ack", req.MsgId, req.SubscriptionName, func(at broker.Range) broker.Settlement {
		return broker.Settlement{Acks: []broker.Range{at}, Below: -1}
	})
	if err != nil {
		return nil, s.fail("Ack", err, whileSettling)
	}
	return &api.AckResponse{RequestId: req.RequestId}, nil
}

// Nack gives one message back.
func (s *consumerService) Nack(_ context.Context, req *api.NackRequest) (*api.NackResponse, error) {
	nack := broker.Nack{Delay: -1, Reason: clip(req.GetReason(), reasonChars)}
	if req.DelayMs != nil {
		nack.Delay = time.Duration(min(*req.DelayMs, uint64(longestNack.Milliseconds()))) * time.Millisecond //nolint:gosec // bounded
	}
	err := s.settle("nack", req.MsgId, req.SubscriptionName, func(at broker.Range) broker.Settlement {
		nack.Range = at
		return broker.Settlement{Below: -1, Nacks: []broker.Nack{nack}}
	})
	if err != nil {
		return nil, s.fail("Nack", err, whileSettling)
	}
	return &api.NackResponse{RequestId: req.RequestId}, nil
}

// settle settles one message for a subscription, whichever consumer it was handed to. A message that was not delivered
// changes nothing.
func (s *Service) settle(doing string, id *api.MsgID, subscription string, settlement func(broker.Range) broker.Settlement) error {
	if id == nil {
		return invalid("%s: it has no msg_id: send back that of the message", doing)
	}
	at, err := s.placeFor(id.TopicName)
	if err != nil {
		return err
	}
	if !at.reliable || at.partition < 0 || id.TopicOffset > math.MaxInt64 {
		return nil // at most once: what was delivered is settled; the others were delivered to nobody
	}
	offset := int64(id.TopicOffset)
	err = s.broker.SettleFor(at.topic, at.partition, subscription, settlement(broker.Range{From: offset, To: offset}))
	if kind := fault.KindOf(err); kind != fault.NotFound && kind != fault.Deleted {
		return err
	}
	// The topic may have become another one since its place was found, at most once.
	s.forget(id.TopicName)
	again, lookErr := s.placeFor(id.TopicName)
	if lookErr != nil || again == at {
		return err
	}
	if !again.reliable || again.partition < 0 {
		return nil
	}
	return s.broker.SettleFor(again.topic, again.partition, subscription, settlement(broker.Range{From: offset, To: offset}))
}

// Names of what goes on in this process by its id alone.
func namelessSubscription(hash uint32) string { return fmt.Sprintf("danube-%05x", hash) }
func namelessConsumer(id uint64) string       { return fmt.Sprintf("danube-%016x", id) }

// resume makes a session for an id that another process gave out, if it says enough; nil: it does not.
func (s *Service) resume(ctx context.Context, id uint64) (*session, error) {
	select { // looking through all topics is for one at a time
	case s.resuming <- struct{}{}:
		defer func() { <-s.resuming }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	now := s.cfg.Now()
	if c := s.consumers.get(id, now); c != nil {
		return c, nil
	}
	parts := splitID(id)
	if parts.filters || id != parts.number() {
		return nil, nil
	}
	wire, spec, err := s.owner(ctx, parts)
	if spec == nil || err != nil {
		return nil, err
	}
	spec.Name, spec.MaxRecordBytes = namelessConsumer(id), recordBytes
	c := &session{id: id, wire: wire, spec: *spec, resumed: true}
	if _, err := s.consumers.add(c, now); err != nil {
		return nil, err
	}
	s.metrics.resumed.WithLabelValues("consumer").Inc()
	return c, nil
}

// owner finds the subscription that an id belongs to; nil: there is none, or more than one.
func (s *Service) owner(ctx context.Context, id consumerID) (wire string, spec *broker.ConsumerSpec, err error) {
	list, err := s.broker.Topics("")
	if err != nil {
		return "", nil, err
	}
	found := 0
	for _, t := range list {
		for n, name := range wireNames(t) {
			if topicHash(name) != id.topic {
				continue
			}
			group, ok, err := s.groupOf(ctx, name, t, id)
			if err != nil {
				return "", nil, err
			}
			if ok {
				found++
				wire = name
				spec = &broker.ConsumerSpec{
					Topic: t.Name, ID: t.ID[:], Partition: int32(n), Subscription: group, //nolint:gosec // the broker bounds partitions
					Type: typeNumbers[id.kind], Create: !t.Reliable(), Start: broker.Latest(),
				}
			}
		}
	}
	if found != 1 {
		return "", nil, nil
	}
	return wire, spec, nil
}

// groupOf finds a topic's one subscription with the hash and type that an id has.
func (s *Service) groupOf(ctx context.Context, wire string, t broker.TopicInfo, id consumerID) (name string, ok bool, err error) {
	if !t.Reliable() {
		s.consumers.nameless(group{wire, id.group})
		return namelessSubscription(id.group), true, nil
	}
	list, err := s.broker.Subscriptions(ctx, t.Name)
	if err != nil {
		if kind := fault.KindOf(err); kind == fault.NotFound || kind == fault.Deleted {
			return "", false, nil
		}
		return "", false, err
	}
	found := 0
	for i := range list {
		if groupHash(list[i].Name) == id.group && list[i].Type == typeNumbers[id.kind] {
			name = list[i].Name
			found++
		}
	}
	return name, found == 1, nil
}
