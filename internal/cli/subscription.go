package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/leveemq/levee/client"
)

type subscriptionCmd struct {
	Create   subscriptionCreateCmd   `cmd:"" help:"Make a subscription of a topic."`
	Ls       subscriptionLsCmd       `cmd:"" help:"List a topic's subscriptions."`
	Describe subscriptionDescribeCmd `cmd:"" help:"Print a subscription's settings, and where it stands in each partition."`
	Set      subscriptionSetCmd      `cmd:"" help:"Change settings; takes effect at once."`
	Seek     subscriptionSeekCmd     `cmd:"" help:"Move a subscription to another position."`
	Delete   subscriptionDeleteCmd   `cmd:"" help:"Remove a subscription. Its dead letters stay."`
}

// subscriptionArgs name a subscription.
type subscriptionArgs struct {
	Topic        string `arg:"" placeholder:"NAME" help:"The topic: namespace/name, or name in namespace default."`
	Subscription string `arg:"" placeholder:"S" help:"The subscription."`
}

// hinted names what to try where a subscription cannot be had.
func (s *subscriptionArgs) hinted(err error) error {
	if err == nil {
		return nil
	}
	return withHint(err, "levee subscription ls "+s.Topic)
}

// subscriptionJSON is a subscription as ls, create and set print it. Settings are those in effect.
type subscriptionJSON struct {
	Topic      string `json:"topic" doc:"namespace/name"`
	Name       string `json:"name" doc:"of the subscription"`
	Type       string `json:"type" doc:"exclusive, shared, failover or key_shared"`
	Partitions int    `json:"partitions" doc:"of the topic"`
	Backlog    int64  `json:"backlog" doc:"records that are not settled, in all partitions"`
	InFlight   int64  `json:"in_flight" doc:"of them, handed out now"`
	Consumers  int    `json:"consumers" doc:"connected, over all partitions"`
	subscriptionSettingsJSON
	Set       string `json:"set" doc:"names of the settings that are the subscription's own, with commas between; the others are the broker's defaults"`
	CreatedMs int64  `json:"created_ms" doc:"milliseconds since 1970, UTC"`
}

// subscriptionSettingsJSON are settings in effect.
type subscriptionSettingsJSON struct {
	AckTimeoutMs       int64  `json:"ack_timeout_ms" doc:"how long a delivery is held without a heartbeat; 0: for ever"`
	MaxDeliveries      int32  `json:"max_deliveries" doc:"after that many poison decides; 0: no limit"`
	RedeliveryDelayMs  int64  `json:"redelivery_delay_ms" doc:"before a record is handed out again"`
	MaxRedeliveryDelay int64  `json:"max_redelivery_delay_ms" doc:"bound of exponential backoff"`
	Backoff            string `json:"backoff" doc:"fixed or exponential"`
	Poison             string `json:"poison" doc:"dead_letter, block or drop"`
	DeadLetterTopic    string `json:"dead_letter_topic" doc:"where dead letters go"`
	WindowMessages     int32  `json:"window_messages" doc:"unsettled records of one consumer in a partition, at most"`
	WindowBytes        int64  `json:"window_bytes" doc:"the same in bytes"`
	TotalMessages      int32  `json:"total_messages" doc:"unsettled records of all consumers in a partition, at most"`
	TotalBytes         int64  `json:"total_bytes" doc:"the same in bytes"`
	KeyInFlight        int32  `json:"key_in_flight" doc:"key_shared: unsettled records of one key, at most; 0: no limit"`
	OnTrimmed          string `json:"on_trimmed" doc:"fail or skip_to_oldest"`
	ExpireAfterMs      int64  `json:"expire_after_ms" doc:"removed when unused for so long; 0: never"`
}

func newSubscriptionJSON(s client.SubscriptionInfo) subscriptionJSON {
	e := s.Effective
	row := subscriptionJSON{
		Topic: s.Topic, Name: s.Name, Type: string(s.Type), Partitions: len(s.Parts), CreatedMs: s.Created.UnixMilli(),
		subscriptionSettingsJSON: subscriptionSettingsJSON{
			AckTimeoutMs: value(milliseconds(e.AckTimeout)), MaxDeliveries: value(e.MaxDeliveries), RedeliveryDelayMs: value(milliseconds(e.RedeliveryDelay)),
			MaxRedeliveryDelay: value(milliseconds(e.MaxRedeliveryDelay)), Backoff: value(e.Backoff), Poison: value(e.Poison),
			DeadLetterTopic: value(e.DeadLetterTopic), WindowMessages: value(e.WindowMessages), WindowBytes: value(e.WindowBytes),
			TotalMessages: value(e.TotalMessages), TotalBytes: value(e.TotalBytes), KeyInFlight: value(e.KeyInFlight), OnTrimmed: value(e.OnTrimmed),
			ExpireAfterMs: value(milliseconds(e.ExpireAfter)),
		},
	}
	for _, p := range s.Parts {
		row.Backlog += p.Backlog
		row.InFlight += int64(p.InFlight)
		row.Consumers += len(p.Consumers)
	}
	var own []string
	for _, d := range subscriptionSettings {
		if d.text(&s.Settings) != "" {
			own = append(own, d.name)
		}
	}
	row.Set = strings.Join(own, ",")
	return row
}

// value returns what p points at, or nothing.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

type subscriptionCreateCmd struct {
	subscriptionArgs
	Type    string   `placeholder:"exclusive|shared|failover|key_shared" enum:"exclusive,shared,failover,key_shared" default:"exclusive" help:"Who is handed what. exclusive: one consumer. failover: one at a time, the next takes over. shared: each record to whoever asks first. key_shared: as shared, records of one key to one consumer, in order. Cannot be changed later."`
	From    position `default:"earliest" placeholder:"POSITION" help:"Where it begins in each partition: earliest, latest, an offset, or @ and a time (@2026-11-29T18:30:00Z)."`
	Setting []string `name:"set" sep:"none" placeholder:"KEY=VALUE" help:"A setting, as levee subscription set takes it; may be given several times."`
}

// Help describes the command.
func (subscriptionCreateCmd) Help() string {
	return manual{
		text: "A subscription remembers what its consumers have handled. Where it begins is decided now: records published from now on " +
			"belong to it, whether anybody consumes it or not. Settings that are not given are the broker's defaults.",
		example: "levee subscription create orders invoices --type shared --set max-deliveries=5\nlevee subscription create orders audit --from latest",
		rows:    "one object", row: subscriptionJSON{},
	}.String()
}

// Run makes the subscription.
func (c *subscriptionCreateCmd) Run(a *app) error {
	settings, unset, err := parseSubscriptionSettings(c.Setting)
	switch {
	case err != nil:
		return err
	case len(unset) > 0:
		return usagef("--set %s=%s: what is not given is the broker's default already", unset[0], unsetValue)
	}
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		s, err := admin.CreateSubscription(ctx, client.SubscriptionSpec{
			Topic: c.Topic, Name: c.Subscription, Type: client.SubscriptionType(c.Type), From: c.From.client(), Settings: settings,
		})
		switch client.KindOf(err) {
		case "":
		case client.KindAlreadyExists:
			return withHint(err, "levee subscription describe "+c.Topic+" "+c.Subscription)
		default:
			return onTopic(c.Topic, err)
		}
		return a.print(newSubscriptionJSON(s), "created %s subscription %s of %s", s.Type, s.Name, s.Topic)
	})
}

type subscriptionLsCmd struct {
	Topic string `arg:"" placeholder:"NAME" help:"The topic: namespace/name, or name in namespace default."`
}

// Help describes the command.
func (subscriptionLsCmd) Help() string {
	return manual{
		text:    "In alphabetical order. The backlog is what is not settled, in flight what consumers hold of it.",
		example: "levee subscription ls orders",
		rows:    "one object a subscription", row: subscriptionJSON{},
	}.String()
}

// Run prints the subscriptions.
func (c *subscriptionLsCmd) Run(a *app) error {
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		all, err := admin.Subscriptions(ctx, c.Topic)
		if err != nil {
			return onTopic(c.Topic, err)
		}
		t := a.table("NAME", "TYPE", "BACKLOG", "IN FLIGHT", "CONSUMERS", "STATE")
		for _, s := range all {
			row := newSubscriptionJSON(s)
			if err := t.row(row, row.Name, row.Type, row.Backlog, row.InFlight, row.Consumers, stateText(s.Parts)); err != nil {
				return err
			}
		}
		return t.end()
	})
}

// stateText returns the state that matters most of all partitions.
func stateText(parts []client.SubscriptionPart) string {
	state := "idle"
	for _, p := range parts {
		switch {
		case p.State != "idle" && p.State != "active":
			return fmt.Sprintf("partition %d %s", p.Partition, p.State)
		case p.State == "active":
			state = "active"
		}
	}
	return state
}

type subscriptionDescribeCmd struct{ subscriptionArgs }

// Help describes the command.
func (subscriptionDescribeCmd) Help() string {
	return manual{
		text: "Below the position everything is settled; above it, settled counts what is, too. A blocked or failed partition hands " +
			"nothing out until the subscription is moved.",
		example: "levee subscription describe orders invoices",
		rows:    "one object", row: subscriptionDescriptionJSON{},
	}.String()
}

type subscriptionDescriptionJSON struct {
	subscriptionJSON
	Parts []subscriptionPartJSON `json:"parts"`
}

type subscriptionPartJSON struct {
	Partition    int32               `json:"partition" doc:"its number"`
	State        string              `json:"state" doc:"idle, active, blocked: or failed: and why"`
	Position     int64               `json:"position" doc:"everything below it is settled"`
	End          int64               `json:"end" doc:"next offset that readers will see"`
	First        int64               `json:"first" doc:"oldest offset retained"`
	Backlog      int64               `json:"backlog" doc:"offsets up to the end that are not settled"`
	Settled      int64               `json:"settled" doc:"offsets above the position that are"`
	InFlight     int32               `json:"in_flight" doc:"handed out and not settled"`
	Redelivering int32               `json:"redelivering" doc:"waiting to be handed out again"`
	Delayed      int32               `json:"delayed" doc:"waiting for their time"`
	Consumers    []consumerStateJSON `json:"consumers"`
}

type consumerStateJSON struct {
	Name           string `json:"name" doc:"of the consumer"`
	Active         bool   `json:"active" doc:"false: standby of a failover subscription"`
	Unsettled      int32  `json:"unsettled" doc:"records it was handed out"`
	UnsettledBytes int64  `json:"unsettled_bytes" doc:"the same in bytes"`
}

// Run prints the subscription.
func (c *subscriptionDescribeCmd) Run(a *app) error {
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		s, err := admin.DescribeSubscription(ctx, c.Topic, c.Subscription)
		if err != nil {
			return c.hinted(err)
		}
		if !a.json {
			_, err := fmt.Fprint(a.stdout, describeSubscription(s))
			return err
		}
		row := subscriptionDescriptionJSON{subscriptionJSON: newSubscriptionJSON(s), Parts: []subscriptionPartJSON{}}
		for _, p := range s.Parts {
			part := subscriptionPartJSON{
				Partition: p.Partition, State: p.State, Position: p.Position, End: p.End, First: p.First, Backlog: p.Backlog, Settled: p.Settled,
				InFlight: p.InFlight, Redelivering: p.Redelivering, Delayed: p.Delayed, Consumers: []consumerStateJSON{},
			}
			for _, m := range p.Consumers {
				part.Consumers = append(part.Consumers, consumerStateJSON(m))
			}
			row.Parts = append(row.Parts, part)
		}
		return writeJSON(a.stdout, row)
	})
}

// describeSubscription returns a subscription in words.
func describeSubscription(s client.SubscriptionInfo) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s: %s, made %s\n\nsettings\n", s.Name, s.Topic, s.Type, s.Created.UTC().Format("2006-01-02T15:04:05Z07:00"))
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, d := range subscriptionSettings {
		from := "the broker's default"
		if d.text(&s.Settings) != "" {
			from = "set on the subscription"
		}
		fmt.Fprintf(tab, "  %s\t%s\t%s\n", d.name, d.text(&s.Effective), from)
	}
	_ = tab.Flush() // into memory
	b.WriteString("\n")
	tab = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "PARTITION\tPOSITION\tEND\tBACKLOG\tIN FLIGHT\tREDELIVERING\tDELAYED\tSTATE")
	for _, p := range s.Parts {
		fmt.Fprintf(tab, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", p.Partition, p.Position, p.End, p.Backlog, p.InFlight, p.Redelivering, p.Delayed, p.State)
	}
	_ = tab.Flush()
	b.WriteString("\n")
	tab = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "CONSUMER\tPARTITION\tHOLDS\tBYTES\tSTATE")
	for _, p := range s.Parts {
		for _, c := range p.Consumers {
			state := "active"
			if !c.Active {
				state = "standby"
			}
			fmt.Fprintf(tab, "%s\t%d\t%d\t%d\t%s\n", c.Name, p.Partition, c.Unsettled, c.UnsettledBytes, state)
		}
	}
	_ = tab.Flush()
	return b.String()
}

type subscriptionSeekCmd struct {
	subscriptionArgs
	Position  position `arg:"" placeholder:"POSITION" help:"earliest, latest, an offset, or @ and a time (@2026-11-29T18:30:00Z)."`
	Partition int32    `default:"-1" placeholder:"P" help:"Move it in this partition only; without it, in all."`
}

// Help describes the command.
func (subscriptionSeekCmd) Help() string {
	return manual{
		text: "What lies below the position counts as settled afterwards, and everything above it is handed out again, also to consumers " +
			"that are connected. A partition that was blocked or failed goes on.",
		example: "levee subscription seek orders invoices earliest\nlevee subscription seek orders invoices @2026-11-29T18:30:00Z --partition 2",
		rows:    "one object", row: doneJSON{},
	}.String()
}

// Run moves the subscription.
func (c *subscriptionSeekCmd) Run(a *app) error {
	var partitions []int32
	switch {
	case c.Partition < -1:
		return usagef("--partition is %d: it is 0 or more", c.Partition)
	case c.Partition >= 0:
		partitions = []int32{c.Partition}
	}
	err := a.admin(func(ctx context.Context, admin *client.Admin) error {
		return admin.SeekSubscription(ctx, c.Topic, c.Subscription, c.Position.client(), partitions...)
	})
	if err != nil {
		return c.hinted(err)
	}
	return a.print(doneJSON{c.Subscription, "moved"}, "moved subscription %s of %s to %s", c.Subscription, c.Topic, c.Position)
}

type subscriptionDeleteCmd struct{ subscriptionArgs }

// Help describes the command.
func (subscriptionDeleteCmd) Help() string {
	return manual{
		text:    "Its consumers are told. Where it stood is forgotten; one made later under the same name begins anew.",
		example: "levee subscription delete orders invoices",
		rows:    "one object", row: doneJSON{},
	}.String()
}

// Run removes the subscription.
func (c *subscriptionDeleteCmd) Run(a *app) error {
	err := a.admin(func(ctx context.Context, admin *client.Admin) error {
		return admin.DeleteSubscription(ctx, c.Topic, c.Subscription)
	})
	if err != nil {
		return c.hinted(err)
	}
	return a.print(doneJSON{c.Subscription, "deleted"}, "deleted subscription %s of %s", c.Subscription, c.Topic)
}
