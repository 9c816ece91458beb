package dispatch

import (
	"time"

	"github.com/leveemq/levee/internal/cursor"
)

// Now is the time of a step.
type Now struct {
	Mono   time.Duration // never goes back
	WallMs int64         // since the epoch; may jump
}

// Type is how consumers share a subscription.
type Type uint8

// The types of subscriptions.
const (
	Exclusive Type = iota // one consumer
	Shared                // whoever asks first
	Failover              // one active consumer, the others stand by
	KeyShared             // each key with one consumer
)

// Poison is what becomes of a record that nobody can process.
type Poison uint8

// The policies.
const (
	DeadLetter Poison = iota // it goes to another topic, which the shell does
	Block                    // the subscription stops at it, until a seek
	Drop                     // it is settled
)

// Window bounds how much is held.
type Window struct {
	Messages int
	Bytes    int64
}

// Backoff is how long a record waits before it is handed out again: Base, or where Exponential Base doubled with each
// delivery, up to Max. A Max of zero is no bound.
type Backoff struct {
	Base, Max   time.Duration
	Exponential bool
}

// Config is what a subscription is like. Zeros of windows, MaxDelayed and MaxSpan stand for the defaults.
type Config struct {
	Type          Type
	AtMostOnce    bool          // what is handed out is settled, and what was read is not there to be read again
	AckTimeout    time.Duration // 0: none
	MaxDeliveries int32         // 0: no limit
	Backoff       Backoff
	Poison        Poison
	Consumer      Window // what one consumer may hold; 1,000 messages, 16 MiB
	Total         Window // what may be handed out and not settled; 50,000 messages, 256 MiB
	LookAhead     Window // what is read before it is asked for; 20,000 messages, 2 MiB, 8 MiB with keys that wait for their consumer
	KeyInFlight   int    // messages of one key with its consumer; 0: no limit
	MaxDelayed    int    // delayed records known one by one; 50,000
	MaxSpan       int64  // how far above the position records are handed out; 16,777,216
	SkipTrimmed   bool   // what was trimmed is skipped; otherwise the subscription fails
}

// WithDefaults returns c with its zeros replaced.
func (c Config) WithDefaults() Config {
	window := func(w *Window, messages int, bytes int64) {
		if w.Messages <= 0 {
			w.Messages = messages
		}
		if w.Bytes <= 0 {
			w.Bytes = bytes
		}
	}
	window(&c.Consumer, 1000, 16<<20)
	window(&c.Total, 50_000, 256<<20)
	if c.Type == KeyShared {
		window(&c.LookAhead, 20_000, 8<<20)
	}
	window(&c.LookAhead, 20_000, 2<<20)
	if c.MaxDelayed <= 0 {
		c.MaxDelayed = 50_000
	}
	if c.MaxSpan <= 0 {
		c.MaxSpan = 4096 * cursor.BlockSize
	}
	return c
}

// ConsumerID is given by the shell, and never again.
type ConsumerID uint64

// Member is what a consumer is like.
type Member struct {
	Name           string // unique: the same name again takes over
	Priority       int32  // failover: lower goes first
	Filters        []string
	Window         Window // zeros: the subscription's
	MaxRecordBytes int    // larger records are not for it; 0: no limit
}

// Item is a run of records in the log. To is above From only where all are alike: no key to tell, not delayed. A run
// may be split anywhere; the bytes are split in proportion.
type Item struct {
	From, To int64
	Bytes    int64
	Key      uint64 // hash of the key
	HasKey   bool
	KeyText  []byte // while NeedsKeys says so; valid during Step only
	DueMs    int64  // not before; 0: at once
}

// Span is a run of records handed out. Count is how often, this one included.
type Span struct {
	From, To int64
	Count    int32
	Bytes    int64
}

// EventKind says what happened.
type EventKind uint8

// The events, each with the fields that it uses.
const (
	Join        EventKind = iota + 1 // Consumer, Member
	Leave                            // Consumer
	Ask                              // Consumer, Bytes: it takes one delivery of about that much; asking again replaces the bytes
	Unask                            // Consumer
	Read                             // Items from where WantsRead said up to Next, where to read on; what no item covers does not exist
	Scanned                          // Items: all there are between what WantsScan said
	Ack                              // Ranges
	AckBelow                         // Offset: all below that was handed out
	Nack                             // Ranges, Delay, Reason, Consumer (0: whoever holds it)
	Heartbeat                        // Consumer
	Tick                             // nothing but time
	Poisoned                         // Ranges, Failed: what DeadLetter asked for is done, or could not be
	Seek                             // Offset
	Trimmed                          // Offset: the oldest there is
	Lost                             // Ranges that no longer exist
	Reconfigure                      // Config, of the same Type
	Discharge                        // Ranges: settled, whether or not they were handed out, without a word
)

// Event is one thing that happened.
type Event struct {
	Kind     EventKind
	Consumer ConsumerID
	Member   Member
	Items    []Item
	Next     int64
	Ranges   []cursor.Range
	Offset   int64
	Bytes    int64
	Delay    time.Duration // -1: the backoff
	Reason   string
	Config   *Config
	Failed   bool
}

// EffectKind says what is to be done.
type EffectKind uint8

// The effects, each with the fields that it uses.
const (
	Refused      EffectKind = iota + 1 // Consumer; Reason is the name of the holder
	Evicted                            // Consumer: its name joined again
	Active                             // Consumer, of a failover subscription
	Standby                            // Consumer, of a failover subscription
	Deliver                            // Consumer, Spans in the order of offsets
	ToDeadLetter                       // From, To, Count, Reason; answered by Poisoned
	Dropped                            // From, To, Count, Reason
	Blocked                            // From, Count, Reason
	Failed                             // From, where it would read on, To, the oldest; Consumer 0: all end
	Skipped                            // From, To: trimmed
	LostRange                          // From, To
	Passed                             // From, To: delayed, and not kept until their time; at most once only
)

// Effect is one thing to be done.
type Effect struct {
	Kind     EffectKind
	Consumer ConsumerID
	Spans    []Span
	From, To int64
	Count    int32
	Reason   string
}

// Reasons why a record is handed out again, or no longer; a Nack may bring others.
const (
	ReasonTimeout  = "ack_timeout"
	ReasonGone     = "consumer_gone"
	ReasonMax      = "max_deliveries"
	ReasonTooLarge = "too_large"
)
