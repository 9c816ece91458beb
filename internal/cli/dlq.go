package cli

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/task"
)

type dlqCmd struct {
	Ls      dlqLsCmd      `cmd:"" help:"List what a subscription gave up."`
	Redrive dlqRedriveCmd `cmd:"" help:"Publish it to its topic again."`
	Purge   dlqPurgeCmd   `cmd:"" help:"Give it up for good."`
}

// letterJSON is a dead letter as ls prints it. Keys and values are printed as consume does.
type letterJSON struct {
	Topic           string     `json:"topic" doc:"where it lies, namespace/name"`
	Offset          int64      `json:"offset" doc:"where it lies there"`
	SourcePartition int32      `json:"source_partition" doc:"where it was published"`
	SourceOffset    int64      `json:"source_offset" doc:"at which offset"`
	Reason          string     `json:"reason" doc:"why it was given up"`
	Deliveries      int32      `json:"deliveries" doc:"how often it was handed out"`
	DeadLetteredMs  int64      `json:"dead_lettered_ms" doc:"when it was given up, milliseconds since 1970, UTC"`
	Record          recordJSON `json:"record"`
}

type dlqLsCmd struct {
	subscriptionArgs
	Count int32 `default:"0" placeholder:"N" help:"At most so many, oldest first; 0 is all."`
}

// Help describes the command.
func (dlqLsCmd) Help() string {
	return manual{
		text: "A record becomes a dead letter when its deliveries are used up (max-deliveries). It is listed until it is redriven or purged. " +
			"A topic that was deleted and made again shows none of those of before.",
		example: "levee dlq ls orders invoices\nlevee dlq ls orders invoices --count 10 --output json",
		rows:    "one object a dead letter", row: letterJSON{},
	}.String()
}

// Run prints the dead letters.
func (c *dlqLsCmd) Run(a *app) error {
	if c.Count < 0 {
		return usagef("--count is %d: it is 1 or more, or 0 for all", c.Count)
	}
	return a.atLength(func(ctx context.Context, admin *client.Admin) error {
		t := a.table("OFFSET", "SOURCE", "DELIVERIES", "TIME", "REASON")
		for d, err := range admin.DeadLetters(ctx, c.Topic, c.Subscription, c.Count) {
			if err != nil {
				return errors.Join(t.end(), c.hinted(err))
			}
			row := letterJSON{
				Topic: d.Topic, Offset: d.Offset, SourcePartition: d.SourcePartition, SourceOffset: d.SourceOffset, Reason: d.Reason,
				Deliveries: d.Deliveries, DeadLetteredMs: d.Time.UnixMilli(), Record: newRecordJSON(d.SourcePartition, &d.Record),
			}
			source := count(d.SourcePartition) + "/" + count(d.SourceOffset)
			if err := t.row(row, d.Offset, source, d.Deliveries, d.Time.UTC().Format(time.RFC3339), d.Reason); err != nil {
				return err
			}
		}
		return t.end()
	})
}

// atLength runs a call that may take as long as it likes.
func (a *app) atLength(call func(ctx context.Context, admin *client.Admin) error) error {
	conn, err := a.dial()
	if err != nil {
		return err
	}
	err = call(a.ctx, conn.Admin())
	if a.ctx.Err() != nil && err != nil {
		err = errInterrupted
	}
	return errors.Join(err, conn.Close())
}

// movedJSON is what redrive and purge did.
type movedJSON struct {
	Name    string `json:"name" doc:"of the subscription"`
	Done    string `json:"done" doc:"what was done"`
	Records int64  `json:"records" doc:"to how many dead letters"`
}

type dlqRedriveCmd struct{ subscriptionArgs }

// Help describes the command.
func (dlqRedriveCmd) Help() string {
	return manual{
		text: "Each goes to the partition that it came from, at its end, and every subscription of the topic gets it. It stops at the first " +
			"that cannot be published; that one and those behind it stay dead letters.",
		example: "levee dlq redrive orders invoices",
		rows:    "one object", row: movedJSON{},
	}.String()
}

// Run publishes the dead letters again.
func (c *dlqRedriveCmd) Run(a *app) error {
	return a.atLength(func(ctx context.Context, admin *client.Admin) error {
		bar := task.NewGroup(context.WithoutCancel(ctx))
		var moved atomic.Int64
		if isTerminal(a.stderr) {
			bar.Go("progress", progress{out: a.stderr, state: func() (int64, int64, string) {
				return moved.Load(), 0, plural(moved.Load(), "record") + " redriven"
			}}.run)
		}
		n, err := admin.RedriveDeadLetters(ctx, c.Topic, c.Subscription, moved.Store)
		bar.Stop()
		_ = bar.Wait()
		if err != nil {
			a.note("redriven before that: %s", plural(n, "record"))
			return c.hinted(err)
		}
		return a.print(movedJSON{c.Subscription, "redriven", n}, "redrove %s to %s", plural(n, "record"), c.Topic)
	})
}

type dlqPurgeCmd struct{ subscriptionArgs }

// Help describes the command.
func (dlqPurgeCmd) Help() string {
	return manual{
		text:    "They are not listed and not redriven any more. The records stay in the dead-letter topic until its retention removes them.",
		example: "levee dlq purge orders invoices",
		rows:    "one object", row: movedJSON{},
	}.String()
}

// Run gives the dead letters up.
func (c *dlqPurgeCmd) Run(a *app) error {
	return a.atLength(func(ctx context.Context, admin *client.Admin) error {
		n, err := admin.PurgeDeadLetters(ctx, c.Topic, c.Subscription)
		if err != nil {
			return c.hinted(err)
		}
		return a.print(movedJSON{c.Subscription, "purged", n}, "purged %s of subscription %s of %s", plural(n, "dead letter"), c.Subscription, c.Topic)
	})
}
