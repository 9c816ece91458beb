package meta

import (
	"slices"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

// SubscriptionType says how a subscription's messages are shared out among its consumers.
type SubscriptionType string

// The types of subscriptions.
const (
	Exclusive SubscriptionType = "exclusive"  // one consumer at a time
	Shared    SubscriptionType = "shared"     // whoever asks first
	Failover  SubscriptionType = "failover"   // one after the other, by priority
	KeyShared SubscriptionType = "key_shared" // each key to one consumer
)

// Values of subscription settings that are words.
const (
	BackoffFixed       = "fixed"          // every redelivery after the same delay
	BackoffExponential = "exponential"    // twice the delay each time, up to the largest
	PoisonDeadLetter   = "dead_letter"    // what was handed out too often goes to the dead-letter topic
	PoisonBlock        = "block"          // it stops the subscription
	PoisonDrop         = "drop"           // it is dropped
	TrimmedFail        = "fail"           // consumers end when retention overtook the subscription
	TrimmedSkip        = "skip_to_oldest" // they go on with the oldest record
)

// maxDelayMs is the longest of every time a subscription may set: ten years, which fits a time.Duration.
const maxDelayMs = 315_360_000_000

// SubscriptionSettings are a subscription's own. What is nil comes from the broker's defaults. One that is part of a
// View must not be changed, nor what its pointers point at.
type SubscriptionSettings struct {
	AckTimeoutMs         *int64  `json:"ack_timeout_ms,omitempty"`          // 0: a message is held until its consumer is gone
	MaxDeliveries        *int32  `json:"max_deliveries,omitempty"`          // 0: no limit
	RedeliveryDelayMs    *int64  `json:"redelivery_delay_ms,omitempty"`     // the first one
	MaxRedeliveryDelayMs *int64  `json:"max_redelivery_delay_ms,omitempty"` // used under exponential
	Backoff              *string `json:"backoff,omitempty"`                 // one of the Backoff… words
	Poison               *string `json:"poison,omitempty"`                  // one of the Poison… words
	DeadLetterTopic      *string `json:"dead_letter_topic,omitempty"`       // see DeadLetterName
	WindowMessages       *int32  `json:"window_messages,omitempty"`         // unsettled at one consumer
	WindowBytes          *int64  `json:"window_bytes,omitempty"`            // unsettled at one consumer
	TotalMessages        *int32  `json:"total_messages,omitempty"`          // unsettled in one partition
	TotalBytes           *int64  `json:"total_bytes,omitempty"`             // unsettled in one partition
	KeyInFlight          *int32  `json:"key_in_flight,omitempty"`           // unsettled of one key; 0: no limit of its own
	OnTrimmed            *string `json:"on_trimmed,omitempty"`              // one of the Trimmed… words
	ExpireAfterMs        *int64  `json:"expire_after_ms,omitempty"`         // without consumers it is deleted after so long; 0: never
}

// subscriptionSetting is one setting: where it is and what it may be. One of the three pointers is not nil.
type subscriptionSetting struct {
	key      string
	word     **string
	long     **int64
	short    **int32
	min, max int64    // of a number
	words    []string // nil: checked elsewhere
}

// table lists all settings in the order they are shown. Its bounds decide what Apply refuses, so they may never change
// for commands that exist.
func (s *SubscriptionSettings) table() []subscriptionSetting {
	const manyMessages, manyBytes = 10_000_000, 1 << 40
	return []subscriptionSetting{
		{key: "ack_timeout_ms", long: &s.AckTimeoutMs, max: maxDelayMs},
		{key: "max_deliveries", short: &s.MaxDeliveries, max: 1_000_000},
		{key: "redelivery_delay_ms", long: &s.RedeliveryDelayMs, max: maxDelayMs},
		{key: "max_redelivery_delay_ms", long: &s.MaxRedeliveryDelayMs, max: maxDelayMs},
		{key: "backoff", word: &s.Backoff, words: []string{BackoffFixed, BackoffExponential}},
		{key: "poison", word: &s.Poison, words: []string{PoisonDeadLetter, PoisonBlock, PoisonDrop}},
		{key: "dead_letter_topic", word: &s.DeadLetterTopic},
		{key: "window_messages", short: &s.WindowMessages, min: 1, max: manyMessages},
		{key: "window_bytes", long: &s.WindowBytes, min: 1, max: manyBytes},
		{key: "total_messages", short: &s.TotalMessages, min: 1, max: manyMessages},
		{key: "total_bytes", long: &s.TotalBytes, min: 1, max: manyBytes},
		{key: "key_in_flight", short: &s.KeyInFlight, max: manyMessages},
		{key: "on_trimmed", word: &s.OnTrimmed, words: []string{TrimmedFail, TrimmedSkip}},
		{key: "expire_after_ms", long: &s.ExpireAfterMs, max: maxDelayMs},
	}
}

func (f subscriptionSetting) set() bool {
	return f.word != nil && *f.word != nil || f.long != nil && *f.long != nil || f.short != nil && *f.short != nil
}

// take makes the setting that of from, set or not.
func (f subscriptionSetting) take(from subscriptionSetting) {
	switch {
	case f.word != nil:
		*f.word = *from.word
	case f.long != nil:
		*f.long = *from.long
	default:
		*f.short = *from.short
	}
}

func (f subscriptionSetting) check() *fault.Error {
	if !f.set() {
		return nil
	}
	if f.word != nil {
		if f.words != nil && !slices.Contains(f.words, **f.word) {
			last := len(f.words) - 1
			return badSetting(f.key, **f.word, strings.Join(f.words[:last], ", ")+" or "+f.words[last])
		}
		return nil
	}
	var n int64
	if f.long != nil {
		n = **f.long
	} else {
		n = int64(**f.short)
	}
	if n < f.min || n > f.max {
		return badSetting(f.key, strconv.FormatInt(n, 10), strconv.FormatInt(f.min, 10)+" to "+strconv.FormatInt(f.max, 10))
	}
	return nil
}

// SubscriptionSettingKeys lists the names of all settings, in the order they are shown.
func SubscriptionSettingKeys() []string {
	var s SubscriptionSettings
	keys := make([]string, 0, 14)
	for _, f := range s.table() {
		keys = append(keys, f.key)
	}
	return keys
}

// Keys lists the names of the settings that are set, in the order they are shown.
func (s SubscriptionSettings) Keys() []string {
	var keys []string
	for _, f := range s.table() {
		if f.set() {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// Merge returns s with the settings that change has taken over and those named in unset removed.
func (s SubscriptionSettings) Merge(change SubscriptionSettings, unset []string) SubscriptionSettings {
	var none SubscriptionSettings
	changes, nothing := change.table(), none.table()
	for i, f := range s.table() {
		if changes[i].set() {
			f.take(changes[i])
		}
		if slices.Contains(unset, f.key) {
			f.take(nothing[i])
		}
	}
	return s
}

// Validate returns an invalid_argument error that names the setting, its value and what is allowed. Listeners call it
// to refuse early; Apply calls it again.
func (s SubscriptionSettings) Validate() error {
	if err := s.check(); err != nil {
		return err
	}
	return nil
}

func (s SubscriptionSettings) check() *fault.Error {
	for _, f := range s.table() {
		if err := f.check(); err != nil {
			return err
		}
	}
	if first, most := s.RedeliveryDelayMs, s.MaxRedeliveryDelayMs; first != nil && most != nil && *most < *first {
		return badSetting("max_redelivery_delay_ms", strconv.FormatInt(*most, 10), "at least redelivery_delay_ms, which is "+strconv.FormatInt(*first, 10))
	}
	if t := s.DeadLetterTopic; t != nil {
		if _, err := DeadLetterName(DefaultNamespace, *t); err != nil {
			return badSetting("dead_letter_topic", *t, "a topic's name, with or without its namespace")
		}
	}
	return nil
}

// checkFor is check, and refuses a dead-letter topic that is the subscription's own: it would feed on itself.
func (s SubscriptionSettings) checkFor(topic Name) *fault.Error {
	if err := s.check(); err != nil {
		return err
	}
	if s.DeadLetterTopic != nil {
		if n, _ := DeadLetterName(topic.Namespace, *s.DeadLetterTopic); n == topic {
			return badSetting("dead_letter_topic", *s.DeadLetterTopic, "another topic than the subscription's own")
		}
	}
	return nil
}

// DeadLetterName reads the value of dead_letter_topic: "namespace/topic", or "topic" in the namespace given, which is
// that of the subscription's topic. Its errors are invalid_argument.
func DeadLetterName(namespace, setting string) (Name, error) {
	if !strings.Contains(setting, "/") {
		setting = namespace + "/" + setting
	}
	return ParseTopic(setting)
}

// checkUnset refuses names that are no settings or also set, and a change that changes nothing.
func (s SubscriptionSettings) checkUnset(unset []string) error {
	known, set := SubscriptionSettingKeys(), s.Keys()
	for _, k := range unset {
		if !slices.Contains(known, k) {
			return fault.New(fault.InvalidArgument, "unset: %q is no setting of a subscription: use %v", k, known).With("key", k)
		}
		if slices.Contains(set, k) {
			return fault.New(fault.InvalidArgument, "%s is both set and unset: do one of the two", k).With("key", k)
		}
	}
	if len(unset)+len(set) == 0 {
		return fault.New(fault.InvalidArgument, "nothing to set on the subscription: name a setting out of %v", known)
	}
	return nil
}
