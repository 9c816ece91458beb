package broker

import (
	"time"

	"github.com/leveemq/levee/record"
)

// SubscriptionType says who of a subscription's consumers is given what. It is chosen at creation and never changes.
type SubscriptionType string

// The subscription types.
const (
	Exclusive SubscriptionType = "exclusive"  // one consumer; another is refused while it is connected
	Shared    SubscriptionType = "shared"     // each record to one consumer, whoever asks first
	Failover  SubscriptionType = "failover"   // one consumer at a time; the next takes over when it is gone
	KeyShared SubscriptionType = "key_shared" // as Shared, but records of one key to one consumer, in order
)

// SubscriptionSettings are what can be set on a subscription and changed while it exists. nil: not set here, the
// broker's default counts.
type SubscriptionSettings struct {
	AckTimeoutMs         *int64  `json:"ack_timeout_ms,omitempty"`          // how long a delivery may stay unsettled; 0: for ever
	MaxDeliveries        *int32  `json:"max_deliveries,omitempty"`          // after that many Poison decides; 0: no limit
	RedeliveryDelayMs    *int64  `json:"redelivery_delay_ms,omitempty"`     // before a record is handed out again
	MaxRedeliveryDelayMs *int64  `json:"max_redelivery_delay_ms,omitempty"` // bound of the exponential backoff
	Backoff              *string `json:"backoff,omitempty"`                 // fixed or exponential
	Poison               *string `json:"poison,omitempty"`                  // dead_letter, block or drop
	DeadLetterTopic      *string `json:"dead_letter_topic,omitempty"`       // where dead letters go
	WindowMessages       *int32  `json:"window_messages,omitempty"`         // unsettled records of one consumer
	WindowBytes          *int64  `json:"window_bytes,omitempty"`            // the same in bytes
	TotalMessages        *int32  `json:"total_messages,omitempty"`          // unsettled records of a partition
	TotalBytes           *int64  `json:"total_bytes,omitempty"`             // the same in bytes
	KeyInFlight          *int32  `json:"key_in_flight,omitempty"`           // unsettled records of one key; key_shared
	OnTrimmed            *string `json:"on_trimmed,omitempty"`              // fail or skip_to_oldest
	ExpireAfterMs        *int64  `json:"expire_after_ms,omitempty"`         // removed when unused for so long; 0: never
}

// SubscriptionSpec describes a subscription to be created.
type SubscriptionSpec struct {
	Topic    string // namespace/name, or name in namespace "default"; it must be reliable
	Name     string
	Type     SubscriptionType // "": Exclusive
	Start    Position         // where it starts in each partition; resolved to offsets at creation
	Settings SubscriptionSettings
}

// SubscriptionInfo is a subscription as it stands here and now. It is a copy; its pointers may be kept, not written
// through.
type SubscriptionInfo struct {
	Topic     string   // namespace/name
	TopicID   [16]byte // names the topic's incarnation
	Name      string
	Type      SubscriptionType
	Settings  SubscriptionSettings // as set
	Effective SubscriptionSettings // with the broker's defaults filled in: no field is nil
	CreatedMs int64
	Parts     []SubscriptionPart // by number
}

// SubscriptionPart is where a subscription stands in one partition.
type SubscriptionPart struct {
	Partition    int32
	Position     int64  // everything below it is settled
	End          int64  // the next offset readers of the partition will see
	First        int64  // the oldest offset retained
	Backlog      int64  // offsets up to End that are not settled
	Settled      int64  // offsets above Position that are settled
	InFlight     int    // records handed out and not settled
	Redelivering int    // records that wait to be handed out again
	Delayed      int    // records that wait for their time
	State        string // "idle", "active", "blocked: why" or "failed: why"
	Consumers    []ConsumerState
}

// ConsumerState is one connected consumer.
type ConsumerState struct {
	Name           string
	Active         bool // false: standby of a failover subscription
	Unsettled      int  // records it was handed out that are not settled
	UnsettledBytes int64
}

// ConsumerSpec describes a consumer of a subscription's one partition.
type ConsumerSpec struct {
	Topic        string // namespace/name, or name in namespace "default"
	ID           []byte // not empty: refuse another incarnation of the topic than this (kind deleted)
	Partition    int32
	Subscription string
	Type         SubscriptionType // "": whatever it is; another than the subscription's is refused (kind conflict)
	Create       bool             // make the subscription where it is missing, at Start and with Type
	Start        Position
	// Name is the consumer's, unique in the subscription: the same one joining again takes over from the consumer that
	// has it, which ends with kind fenced. "": one is made up.
	Name           string
	Priority       int32    // failover: lower goes first
	KeyFilters     []string // globs of path.Match: take records with a matching key only; empty: all
	WindowMessages int      // how many unsettled records it may hold; 0: the subscription's
	WindowBytes    int64    // the same in bytes; 0: the subscription's
	MaxRecordBytes int      // it cannot take a larger record; 0: it takes any
	// Memory, unless nil, gives the memory that batches are read into. What it held does not matter; an event with data
	// hands it on, from its start, and the broker keeps nothing of it.
	Memory func(size int) []byte
}

// ConsumerInfo is what a consumer was given when it opened.
type ConsumerInfo struct {
	Topic        string // namespace/name
	TopicID      [16]byte
	Partition    int32
	Partitions   int32 // of the topic
	Subscription string
	Type         SubscriptionType
	Name         string // as asked for, or made up
	Position     int64  // everything below it is settled
	Reliable     bool   // false: at most once, what is delivered is settled
	Active       bool   // false: standby of a failover subscription
	// AckTimeout is how long a delivery may stay unsettled without a heartbeat; 0: for ever.
	AckTimeout time.Duration
}

// ConsumerEventKind says what a ConsumerEvent is.
type ConsumerEventKind uint8

// The kinds of consumer event.
const (
	ConsumerData    ConsumerEventKind = iota + 1 // Batches, Offsets, Counts, Records
	ConsumerActive                               // from now on this consumer is the active one
	ConsumerStandby                              // from now on another one is
	ConsumerLost                                 // Range was lost in a crash; it counts as settled
	ConsumerSkipped                              // Range was removed by retention before it was settled, and is skipped
)

// ConsumerEvent is one thing a consumer is told.
type ConsumerEvent struct {
	Kind ConsumerEventKind
	// Batches are whole record batches, back to back. They hold every record of Offsets, and may hold others: skip
	// those. They belong to the receiver on reliable topics; on non-reliable ones they are shared with others and must
	// not be written to.
	Batches []byte
	Offsets []Range         // what is handed out, ascending
	Counts  []DeliveryCount // of those handed out more than once, ascending
	Records int             // how many offsets are handed out
	Range   Range           // ConsumerLost and ConsumerSkipped only
}

// DeliveryCount says how often the offsets of a range, both ends included, were handed out, this time among them.
type DeliveryCount struct {
	From, To   int64
	Deliveries int32
}

// Settlement says what became of records that were handed out. Offsets that were never handed out, or are settled
// already, are passed over and counted.
type Settlement struct {
	Acks  []Range // done
	Below int64   // everything below it that was handed out is done; -1: nothing
	Nacks []Nack
}

// Nack gives records back: they are to be handed out again.
type Nack struct {
	Range  Range
	Delay  time.Duration // until then; negative: what the subscription's backoff says
	Reason string        // goes with a record that becomes a dead letter
}

// DeadLetter is a record that a subscription gave up.
type DeadLetter struct {
	Topic           string // where it lies, as namespace/name
	Offset          int64  // where it lies there
	SourcePartition int32
	SourceOffset    int64
	Reason          string
	Deliveries      int32         // how often it was handed out
	TimeMs          int64         // when it became a dead letter
	Record          record.Record // as it was published
}
