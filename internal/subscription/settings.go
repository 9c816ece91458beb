package subscription

import (
	"time"

	"github.com/leveemq/levee/internal/dispatch"
	"github.com/leveemq/levee/internal/meta"
)

// types are what the metadata calls the dispatcher's types.
var types = map[dispatch.Type]meta.SubscriptionType{
	dispatch.Exclusive: meta.Exclusive, dispatch.Shared: meta.Shared, dispatch.Failover: meta.Failover, dispatch.KeyShared: meta.KeyShared,
}

// What counts where a subscription sets nothing itself.
var defaults = meta.SubscriptionSettings{
	AckTimeoutMs: ptrTo[int64](60_000), MaxDeliveries: ptrTo[int32](0), RedeliveryDelayMs: ptrTo[int64](200), MaxRedeliveryDelayMs: ptrTo[int64](60_000),
	Backoff: ptrTo("exponential"), Poison: ptrTo("dead_letter"), DeadLetterTopic: ptrTo(""), WindowMessages: ptrTo[int32](1000), WindowBytes: ptrTo[int64](16 << 20),
	TotalMessages: ptrTo[int32](50_000), TotalBytes: ptrTo[int64](256 << 20), KeyInFlight: ptrTo[int32](0), OnTrimmed: ptrTo("fail"), ExpireAfterMs: ptrTo[int64](0),
}

func ptrTo[T any](v T) *T { return &v }

// Effective returns the settings that count for a subscription: no field is nil.
func Effective(m *meta.Subscription) meta.SubscriptionSettings {
	s := defaults.Merge(m.Settings, nil)
	if m.Settings.DeadLetterTopic == nil {
		s.DeadLetterTopic = ptrTo(m.Topic.String() + "-" + m.Name + "-dlq")
	} else if n, err := meta.DeadLetterName(m.Topic.Namespace, *m.Settings.DeadLetterTopic); err == nil {
		s.DeadLetterTopic = ptrTo(n.String())
	}
	return s
}

// DispatchConfig returns how a subscription's records are dispatched.
func DispatchConfig(m *meta.Subscription) dispatch.Config {
	s := Effective(m)
	c := dispatch.Config{
		AckTimeout: ms(*s.AckTimeoutMs), MaxDeliveries: *s.MaxDeliveries,
		Backoff:     dispatch.Backoff{Base: ms(*s.RedeliveryDelayMs), Max: ms(*s.MaxRedeliveryDelayMs), Exponential: *s.Backoff == "exponential"},
		Consumer:    dispatch.Window{Messages: int(*s.WindowMessages), Bytes: *s.WindowBytes},
		Total:       dispatch.Window{Messages: int(*s.TotalMessages), Bytes: *s.TotalBytes},
		KeyInFlight: int(*s.KeyInFlight), SkipTrimmed: *s.OnTrimmed == "skip_to_oldest",
	}
	for t, name := range types {
		if name == m.Type {
			c.Type = t
		}
	}
	// What is read ahead is memory of each subscription that is in use. Where keys wait for one another it has to be more:
	// one that is held up must not hold up all.
	c.LookAhead = dispatch.Window{Messages: 20_000, Bytes: 2 << 20}
	if c.Type == dispatch.KeyShared {
		c.LookAhead.Bytes = 8 << 20
	}
	switch *s.Poison {
	case "block":
		c.Poison = dispatch.Block
	case "drop":
		c.Poison = dispatch.Drop
	default:
		c.Poison = dispatch.DeadLetter
	}
	return c
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
