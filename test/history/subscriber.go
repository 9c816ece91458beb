package history

import "time"

// Order is what a subscription promises about the order of first deliveries.
type Order uint8

// The orders.
const (
	OrderPartition Order = iota // as in the partition
	OrderKey                    // as in the partition, for the records of each key
	OrderNone
)

var orders = []string{"partition", "key", "none"}

// SubscriptionInfo says what one partition of a subscription is like.
type SubscriptionInfo struct {
	Subscription string
	Topic        string
	Incarnation  uint64
	Partition    int32
	From         int64 // the first offset it is to deliver; -1: wherever it begins
	Order        Order
}

type subID struct {
	name string
	log  logID
}

// delivery is something that a subscription's consumers were given: a record, or a range that they were told about.
type delivery struct {
	at       int64
	from, to int64
	value    Value
	client   uint32
	key      uint32
	attempt  int32
	why      Told // 0: a record
}

// subAck is an acknowledgement by a consumer.
type subAck struct {
	offset     int64
	start, end int64
	client     uint32
	outcome    Outcome
}

// Subscriber is one partition of one subscription, whoever its consumers are. It is safe for concurrent use: deliveries
// to several consumers count in the order in which they are noted.
type Subscriber struct {
	h          *History
	log        *log
	info       SubscriptionInfo
	deliveries []delivery
	acks       []subAck
}

// String names a subscriber in a sentence.
func (s *Subscriber) String() string {
	return "subscription " + s.info.Subscription + " of " + s.log.String()
}

// Subscriber returns a subscription's partition, and adds it when it is new.
func (h *History) Subscriber(info SubscriptionInfo) *Subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.subscriber(info)
}

func (h *History) subscriber(info SubscriptionInfo) *Subscriber {
	id := subID{info.Subscription, logID{info.Topic, info.Incarnation, info.Partition}}
	if s := h.subOf[id]; s != nil {
		return s
	}
	s := &Subscriber{h: h, log: h.log(id.log), info: info}
	h.subOf[id] = s
	h.subs = append(h.subs, s)
	s.log.subs = append(s.log.subs, s)
	h.emit(s.event())
	return s
}

// Deliver notes that a consumer was given a record. attempt counts from 1.
func (s *Subscriber) Deliver(client string, offset int64, v Value, key string, attempt int32) {
	at := s.h.now()
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.deliver(delivery{
		at: at, from: offset, to: offset, value: v, client: s.h.names.id(client), key: s.h.names.id(key), attempt: attempt,
	})
}

func (s *Subscriber) deliver(d delivery) {
	if d.why == 0 {
		s.log.see(d.from, d.value, s)
	}
	s.deliveries = append(s.deliveries, d)
	s.h.note(d.at)
	if s.h.out != nil {
		s.h.emit(s.deliveryEvent(&d))
	}
}

// Told notes that a consumer was told that there is no record for it from one offset to another, both included.
func (s *Subscriber) Told(client string, why Told, from, to int64) {
	at := s.h.now()
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.deliver(delivery{at: at, from: from, to: to, client: s.h.names.id(client), why: why})
}

// Ack notes that a consumer has acknowledged an offset, when that was begun, and what the answer was.
func (s *Subscriber) Ack(client string, offset int64, start time.Duration, outcome Outcome) {
	end := s.h.now()
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.ack(subAck{offset: offset, start: int64(start), end: end, client: s.h.names.id(client), outcome: outcome})
}

func (s *Subscriber) ack(a subAck) {
	s.acks = append(s.acks, a)
	s.h.note(a.end)
	if s.h.out != nil {
		s.h.emit(s.ackEvent(&a))
	}
}
