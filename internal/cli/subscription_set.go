package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leveemq/levee/client"
)

// subscriptionSetting is one setting of a subscription.
type subscriptionSetting struct {
	name string // what people write
	wire string // what the broker calls it
	set  func(s *client.SubscriptionSettings, text string) error
	text func(s *client.SubscriptionSettings) string // "" where it is not set
}

// subscriptionSettings are all of them, in the order they are shown.
var subscriptionSettings = []subscriptionSetting{
	durationSetting("ack-timeout", "ack_timeout_ms", func(s *client.SubscriptionSettings) **time.Duration { return &s.AckTimeout }),
	numberSetting("max-deliveries", "max_deliveries", func(s *client.SubscriptionSettings) **int32 { return &s.MaxDeliveries }),
	durationSetting("redelivery-delay", "redelivery_delay_ms", func(s *client.SubscriptionSettings) **time.Duration { return &s.RedeliveryDelay }),
	durationSetting("max-redelivery-delay", "max_redelivery_delay_ms", func(s *client.SubscriptionSettings) **time.Duration { return &s.MaxRedeliveryDelay }),
	wordSetting("backoff", "backoff", func(s *client.SubscriptionSettings) **string { return &s.Backoff }, "fixed", "exponential"),
	wordSetting("poison", "poison", func(s *client.SubscriptionSettings) **string { return &s.Poison }, "dead_letter", "block", "drop"),
	wordSetting("dead-letter-topic", "dead_letter_topic", func(s *client.SubscriptionSettings) **string { return &s.DeadLetterTopic }),
	numberSetting("window-messages", "window_messages", func(s *client.SubscriptionSettings) **int32 { return &s.WindowMessages }),
	sizeSetting("window-bytes", "window_bytes", func(s *client.SubscriptionSettings) **int64 { return &s.WindowBytes }),
	numberSetting("total-messages", "total_messages", func(s *client.SubscriptionSettings) **int32 { return &s.TotalMessages }),
	sizeSetting("total-bytes", "total_bytes", func(s *client.SubscriptionSettings) **int64 { return &s.TotalBytes }),
	numberSetting("key-in-flight", "key_in_flight", func(s *client.SubscriptionSettings) **int32 { return &s.KeyInFlight }),
	wordSetting("on-trimmed", "on_trimmed", func(s *client.SubscriptionSettings) **string { return &s.OnTrimmed }, "fail", "skip_to_oldest"),
	durationSetting("expire-after", "expire_after_ms", func(s *client.SubscriptionSettings) **time.Duration { return &s.ExpireAfter }),
}

func durationSetting(name, wire string, field func(*client.SubscriptionSettings) **time.Duration) subscriptionSetting {
	return subscriptionSetting{name, wire, func(s *client.SubscriptionSettings, text string) error {
		var d duration
		err := d.UnmarshalText([]byte(text))
		*field(s) = (*time.Duration)(&d)
		return err
	}, func(s *client.SubscriptionSettings) string {
		if d := *field(s); d != nil {
			return duration(*d).String()
		}
		return ""
	}}
}

func numberSetting(name, wire string, field func(*client.SubscriptionSettings) **int32) subscriptionSetting {
	return subscriptionSetting{name, wire, func(s *client.SubscriptionSettings, text string) error {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return fmt.Errorf("%q is not a number from 0 on", text)
		}
		*field(s) = new(int32(n))
		return nil
	}, func(s *client.SubscriptionSettings) string {
		if n := *field(s); n != nil {
			return strconv.Itoa(int(*n))
		}
		return ""
	}}
}

func sizeSetting(name, wire string, field func(*client.SubscriptionSettings) **int64) subscriptionSetting {
	return subscriptionSetting{name, wire, func(s *client.SubscriptionSettings, text string) error {
		var n byteSize
		err := n.UnmarshalText([]byte(text))
		*field(s) = (*int64)(&n)
		return err
	}, func(s *client.SubscriptionSettings) string {
		if n := *field(s); n != nil {
			return byteSize(*n).String()
		}
		return ""
	}}
}

// wordSetting is one of some words, or any where there are none.
func wordSetting(name, wire string, field func(*client.SubscriptionSettings) **string, words ...string) subscriptionSetting {
	return subscriptionSetting{name, wire, func(s *client.SubscriptionSettings, text string) error {
		if len(words) > 0 && !slices.Contains(words, text) {
			return fmt.Errorf("%q is none of %s", text, strings.Join(words, ", "))
		}
		*field(s) = &text
		return nil
	}, func(s *client.SubscriptionSettings) string { return value(*field(s)) }}
}

func settingNames() string {
	names := make([]string, len(subscriptionSettings))
	for i, d := range subscriptionSettings {
		names[i] = d.name
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// parseSubscriptionSettings sorts key=value arguments into what changes and what returns to the default.
func parseSubscriptionSettings(args []string) (set client.SubscriptionSettings, unset []string, err error) {
	seen := map[string]bool{}
	for _, arg := range args {
		key, text, ok := strings.Cut(arg, "=")
		i := slices.IndexFunc(subscriptionSettings, func(d subscriptionSetting) bool { return d.name == key })
		switch {
		case !ok || text == "":
			return set, nil, usagef("%q is not a setting: write key=value, or key=%s", arg, unsetValue)
		case i < 0:
			return set, nil, usagef("%q is no setting of a subscription: there are %s", key, settingNames())
		case seen[key]:
			return set, nil, usagef("%s is given twice", key)
		}
		seen[key] = true
		if text == unsetValue {
			unset = append(unset, subscriptionSettings[i].wire)
		} else if err := subscriptionSettings[i].set(&set, text); err != nil {
			return set, nil, usagef("%s: %v", key, err)
		}
	}
	return set, unset, nil
}

type subscriptionSetCmd struct {
	subscriptionArgs
	Setting []string `arg:"" name:"key=value" help:"A setting with its value; default returns it to the broker's."`
}

// Help describes the command.
func (subscriptionSetCmd) Help() string {
	return manual{
		text: "Settings are ack-timeout (how long a delivery is held without a heartbeat, 0 for ever), max-deliveries (after that many " +
			"poison decides; 0 is no limit), redelivery-delay, max-redelivery-delay and backoff (fixed or exponential: how long a record " +
			"that was given back waits), poison (dead_letter, block or drop), dead-letter-topic, window-messages and window-bytes (what " +
			"one consumer holds of a partition at most), total-messages and total-bytes (what all do), key-in-flight (key_shared: what is " +
			"handed out of one key at most), on-trimmed (fail or skip_to_oldest) and expire-after (removed when unused for so long). All " +
			"given change together or none does.",
		example: "levee subscription set orders invoices ack-timeout=5m max-deliveries=10\nlevee subscription set orders invoices poison=default",
		rows:    "one object", row: subscriptionJSON{},
	}.String()
}

// Run changes the settings.
func (c *subscriptionSetCmd) Run(a *app) error {
	set, unset, err := parseSubscriptionSettings(c.Setting)
	if err != nil {
		return err
	}
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		s, err := admin.SetSubscription(ctx, c.Topic, c.Subscription, set, unset...)
		if err != nil {
			return c.hinted(err)
		}
		var now []string
		for _, d := range subscriptionSettings {
			now = append(now, d.name+"="+d.text(&s.Effective))
		}
		return a.print(newSubscriptionJSON(s), "%s of %s is now %s", s.Name, s.Topic, strings.Join(now, " "))
	})
}
