package broker

import (
	"time"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/subscription"
	"github.com/leveemq/levee/record"
)

// SubscriptionType says who of a subscription's consumers is given what. It is chosen at creation and never changes.
type SubscriptionType = meta.SubscriptionType

// The subscription types.
const (
	Exclusive = meta.Exclusive // one consumer; another is refused while it is connected
	Shared    = meta.Shared    // each record to one consumer, whoever asks first
	Failover  = meta.Failover  // one consumer at a time; the next takes over when it is gone
	KeyShared = meta.KeyShared // as Shared, but records of one key to one consumer, in order
)

// SubscriptionSettings are what can be set on a subscription and changed while it exists. nil: not set here, the
// broker's default counts.
type SubscriptionSettings = meta.SubscriptionSettings

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
	State        string // "idle", "active", "strained: why", "blocked: why" or "failed: why"
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
	// Epoch is that of ConsumerInfo where a consumer comes back; 0: it does not. While the subscription was not moved by a
	// seek since, what the consumer acknowledges counts also where an earlier run of the broker had handed it out.
	Epoch uint64
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
	Epoch        uint64 // moves with each seek; 0: nothing is kept
	Position     int64  // everything below it is settled
	Reliable     bool   // false: at most once, what is delivered is settled
	Active       bool   // false: standby of a failover subscription
	// AckTimeout is how long a delivery may stay unsettled without a heartbeat; 0: for ever.
	AckTimeout time.Duration
}

// What a consumer is told, and says. See package subscription.
type (
	ConsumerEvent     = subscription.Event
	ConsumerEventKind = subscription.EventKind
	DeliveryCount     = subscription.Count
	Settlement        = subscription.Settlement
	Nack              = subscription.Nack
)

// The kinds of consumer event.
const (
	ConsumerData    = subscription.Data    // Batches, Offsets, Counts, Records
	ConsumerActive  = subscription.Active  // from now on this consumer is the active one
	ConsumerStandby = subscription.Standby // from now on another one is
	ConsumerLost    = subscription.Lost    // Range was lost in a crash; it counts as settled
	ConsumerSkipped = subscription.Skipped // Range was removed by retention before it was settled, and is skipped
)

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
