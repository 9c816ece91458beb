package cli

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/leveemq/levee/client"
)

type topicCmd struct {
	Create   topicCreateCmd   `cmd:"" help:"Make a topic."`
	Ls       topicLsCmd       `cmd:"" help:"List the topics."`
	Describe topicDescribeCmd `cmd:"" help:"Print a topic's settings, partitions, and what each fault could lose."`
	Set      topicSetCmd      `cmd:"" help:"Change settings; takes effect at once."`
	Delete   topicDeleteCmd   `cmd:"" help:"Remove a topic and its data. There is no way back."`
	Unload   topicUnloadCmd   `cmd:"" help:"Close a topic's partitions; the next use opens and verifies them again."`
}

// topicFlags are a topic's settings as flags. nil or empty: not given, the broker's default counts.
type topicFlags struct {
	Fsync          string    `enum:",on_commit,periodic,none" default:"" placeholder:"on_commit|periodic|none" help:"When a record is acknowledged: on_commit, once it is on the device; periodic or none, once it is written."`
	FsyncInterval  *duration `placeholder:"D" help:"With periodic: how long written records may wait for their flush."`
	RetentionBytes *byteSize `placeholder:"SIZE" help:"A partition that is larger loses its oldest segments; 0 is no limit."`
	RetentionAge   *duration `placeholder:"D" help:"Segments that were sealed longer ago are removed; 0 is no limit."`
	SegmentBytes   *byteSize `placeholder:"SIZE" help:"Size at which a log begins its next file."`

	ObjectRetentionBytes *byteSize `placeholder:"SIZE" help:"Where segments are exported: a partition of which more is exported loses its oldest objects; 0 is no limit."`
	ObjectRetentionAge   *duration `placeholder:"D" help:"Objects that were exported longer ago are removed; 0 is no limit."`
}

func (f *topicFlags) settings() client.Settings {
	var fsync *string
	if f.Fsync != "" {
		fsync = &f.Fsync
	}
	return client.Settings{
		Fsync: fsync, FsyncInterval: (*time.Duration)(f.FsyncInterval), RetentionBytes: (*int64)(f.RetentionBytes),
		RetentionAge: (*time.Duration)(f.RetentionAge), SegmentBytes: (*int64)(f.SegmentBytes),
		ObjectRetentionBytes: (*int64)(f.ObjectRetentionBytes), ObjectRetentionAge: (*time.Duration)(f.ObjectRetentionAge),
	}
}

// topicJSON is a topic as ls, create and set print it. Settings are those in effect; non-reliable topics have none.
type topicJSON struct {
	Name            string `json:"name" doc:"namespace/name"`
	ID              string `json:"id" doc:"names this topic for good; one made later under the same name has another"`
	Incarnation     uint64 `json:"incarnation" doc:"counts topics of this name"`
	Partitions      int32  `json:"partitions" doc:"how many"`
	Dispatch        string `json:"dispatch" doc:"reliable or non_reliable"`
	Fsync           string `json:"fsync,omitempty" doc:"on_commit, periodic or none; like the next four: in effect, and absent for a non-reliable topic"`
	FsyncIntervalMs *int64 `json:"fsync_interval_ms,omitempty" doc:"milliseconds"`
	RetentionBytes  *int64 `json:"retention_bytes,omitempty" doc:"0 is no limit"`
	RetentionAgeMs  *int64 `json:"retention_age_ms,omitempty" doc:"milliseconds; 0 is no limit"`
	SegmentBytes    *int64 `json:"segment_bytes,omitempty" doc:"bytes"`
	ObjectBytes     *int64 `json:"object_retention_bytes,omitempty" doc:"of what is exported of a partition; like the next: absent is no limit, as 0"`
	ObjectAgeMs     *int64 `json:"object_retention_age_ms,omitempty" doc:"milliseconds"`
	Set             string `json:"set" doc:"names of the settings that are the topic's own, with commas between; the others are the broker's defaults"`
	CreatedMs       int64  `json:"created_ms" doc:"milliseconds since 1970, UTC"`
}

func newTopicJSON(t client.Topic) topicJSON {
	row := topicJSON{
		Name: t.Name, ID: hex.EncodeToString(t.ID), Incarnation: t.Incarnation, Partitions: t.Partitions, Dispatch: t.Dispatch,
		FsyncIntervalMs: milliseconds(t.Effective.FsyncInterval), RetentionBytes: t.Effective.RetentionBytes,
		RetentionAgeMs: milliseconds(t.Effective.RetentionAge), SegmentBytes: t.Effective.SegmentBytes, CreatedMs: t.Created.UnixMilli(),
		ObjectBytes: t.Effective.ObjectRetentionBytes, ObjectAgeMs: milliseconds(t.Effective.ObjectRetentionAge),
	}
	if t.Effective.Fsync != nil {
		row.Fsync = *t.Effective.Fsync
	}
	var own []string
	for _, s := range settingLines(t) {
		if s.own {
			own = append(own, s.name)
		}
	}
	row.Set = strings.Join(own, ",")
	return row
}

func milliseconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

// settingLine is one setting in words.
type settingLine struct {
	name, value string
	own         bool // the topic's, not the broker's default
}

// settingLines returns the settings in effect, in the order of the flags.
func settingLines(t client.Topic) []settingLine {
	var lines []settingLine
	add := func(name string, own, there bool, value func() string) {
		if there {
			lines = append(lines, settingLine{name, value(), own})
		}
	}
	set, is := t.Settings, t.Effective
	add("fsync", set.Fsync != nil, is.Fsync != nil, func() string { return *is.Fsync })
	add("fsync-interval", set.FsyncInterval != nil, is.FsyncInterval != nil, func() string { return duration(*is.FsyncInterval).String() })
	add("retention-bytes", set.RetentionBytes != nil, is.RetentionBytes != nil, func() string { return limitText(*is.RetentionBytes, byteSize(*is.RetentionBytes)) })
	add("retention-age", set.RetentionAge != nil, is.RetentionAge != nil, func() string { return limitText(int64(*is.RetentionAge), duration(*is.RetentionAge)) })
	add("segment-bytes", set.SegmentBytes != nil, is.SegmentBytes != nil, func() string { return byteSize(*is.SegmentBytes).String() })
	add("object-retention-bytes", set.ObjectRetentionBytes != nil, is.ObjectRetentionBytes != nil, func() string {
		return limitText(*is.ObjectRetentionBytes, byteSize(*is.ObjectRetentionBytes))
	})
	add("object-retention-age", set.ObjectRetentionAge != nil, is.ObjectRetentionAge != nil, func() string {
		return limitText(int64(*is.ObjectRetentionAge), duration(*is.ObjectRetentionAge))
	})
	return lines
}

func limitText(n int64, value fmt.Stringer) string {
	if n == 0 {
		return "no limit"
	}
	return value.String()
}

type topicCreateCmd struct {
	Name       string `arg:"" help:"namespace/name, or name in namespace default; letters, digits, dots, underscores and hyphens."`
	Partitions int32  `default:"1" placeholder:"N" help:"How many partitions; cannot be changed later."`
	Dispatch   string `placeholder:"reliable|non_reliable" enum:"reliable,non_reliable" default:"reliable" help:"reliable: stored, and read by whoever asks later. non_reliable: passed to who is there, never stored, dropped for who is slow. Cannot be changed later."`
	topicFlags
}

// Help describes the command.
func (topicCreateCmd) Help() string {
	return manual{
		text:    "Settings that are not given are the broker's defaults, now and when those change. The namespace must exist.",
		example: "levee topic create orders\nlevee topic create shop/clicks --partitions 8 --fsync periodic --retention-age 7d",
		rows:    "one object", row: topicJSON{},
	}.String()
}

// Run makes the topic.
func (c *topicCreateCmd) Run(a *app) error {
	if c.Partitions < 1 {
		return usagef("--partitions is %d: it is 1 or more", c.Partitions)
	}
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		t, err := admin.CreateTopic(ctx, client.TopicSpec{Name: c.Name, Partitions: c.Partitions, Dispatch: c.Dispatch, Settings: c.settings()})
		if err != nil {
			if client.KindOf(err) == client.KindNotFound {
				namespace, _, _ := strings.Cut(c.Name, "/")
				return withHint(err, "levee namespace create "+namespace)
			}
			return onTopic(c.Name, err)
		}
		return a.print(newTopicJSON(t), "created topic %s with %s", t.Name, plural(t.Partitions, "partition"))
	})
}

type topicLsCmd struct {
	Namespace string `placeholder:"NAME" help:"Only the topics of this namespace."`
}

// Help describes the command.
func (topicLsCmd) Help() string {
	return manual{
		text:    "In alphabetical order, with the settings in effect.",
		example: "levee topic ls\nlevee topic ls --namespace shop --output json",
		rows:    "one object a topic", row: topicJSON{},
	}.String()
}

// Run prints the topics.
func (c *topicLsCmd) Run(a *app) error {
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		topics, err := admin.Topics(ctx, c.Namespace)
		if err != nil {
			return withHint(err, "levee namespace ls")
		}
		t := a.table("NAME", "PARTITIONS", "DISPATCH", "FSYNC", "RETENTION")
		for _, topic := range topics {
			row := newTopicJSON(topic)
			fsync, retention := row.Fsync, "-"
			if fsync == "" {
				fsync = "-"
			} else {
				retention = retentionText(topic.Effective)
			}
			if err := t.row(row, row.Name, row.Partitions, row.Dispatch, fsync, retention); err != nil {
				return err
			}
		}
		return t.end()
	})
}

func retentionText(s client.Settings) string {
	var parts []string
	if s.RetentionBytes != nil && *s.RetentionBytes > 0 {
		parts = append(parts, byteSize(*s.RetentionBytes).String())
	}
	if s.RetentionAge != nil && *s.RetentionAge > 0 {
		parts = append(parts, duration(*s.RetentionAge).String())
	}
	if len(parts) == 0 {
		return "no limit"
	}
	return strings.Join(parts, ", ")
}

type topicDeleteCmd struct {
	Name string `arg:"" help:"The topic."`
}

// Help describes the command.
func (topicDeleteCmd) Help() string {
	return manual{
		text:    "Publishers and consumers of the topic are told that it is gone. A topic made later under the same name is another one.",
		example: "levee topic delete orders",
		rows:    "one object", row: doneJSON{},
	}.String()
}

// Run removes the topic.
func (c *topicDeleteCmd) Run(a *app) error {
	err := a.admin(func(ctx context.Context, admin *client.Admin) error { return admin.DeleteTopic(ctx, c.Name) })
	if err != nil {
		return withHint(err, "levee topic ls")
	}
	return a.print(doneJSON{c.Name, "deleted"}, "deleted topic %s", c.Name)
}

type topicUnloadCmd struct {
	Name string `arg:"" help:"The topic."`
}

// Help describes the command.
func (topicUnloadCmd) Help() string {
	return manual{
		text:    "Opening a partition again checks its log as a start of the broker would: this is how to try again after a repair by hand.",
		example: "levee topic unload orders",
		rows:    "one object", row: doneJSON{},
	}.String()
}

// Run unloads the topic.
func (c *topicUnloadCmd) Run(a *app) error {
	err := a.admin(func(ctx context.Context, admin *client.Admin) error { return admin.UnloadTopic(ctx, c.Name) })
	if err != nil {
		return withHint(err, "levee topic ls")
	}
	return a.print(doneJSON{c.Name, "unloaded"}, "unloaded topic %s", c.Name)
}
