package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/leveemq/levee/client"
)

type topicDescribeCmd struct {
	Name string `arg:"" help:"The topic."`
}

// Help describes the command.
func (topicDescribeCmd) Help() string {
	return manual{
		text:    "The end of the text says what could be lost: a line for each fault, under the settings in effect.",
		example: "levee topic describe orders",
		rows:    "one object", row: descriptionJSON{},
	}.String()
}

type descriptionJSON struct {
	topicJSON
	PartitionStates []partitionJSON `json:"partition_states"`
	Exposures       []exposureJSON  `json:"exposures"`
}

type partitionJSON struct {
	Partition    int32  `json:"partition" doc:"its number"`
	State        string `json:"state" doc:"serving, opening, or unavailable: and why"`
	First        int64  `json:"first" doc:"oldest offset retained"`
	End          int64  `json:"end" doc:"next offset that readers will see"`
	Durable      int64  `json:"durable" doc:"offsets below it are on the device"`
	Copied       bool   `json:"copied" doc:"sealed segments are copied to a store of objects"`
	CopiedBelow  int64  `json:"copied_below" doc:"where copied: offsets below it have a copy there"`
	ExposedBytes int64  `json:"exposed_bytes" doc:"where copied: of the log above that, which has them alone"`
	ExposedMs    int64  `json:"exposed_ms" doc:"where copied: how long ago the oldest segment of those was begun"`
	Bytes        int64  `json:"bytes" doc:"of its files"`
	Segments     int32  `json:"segments" doc:"how many files"`
	Generation   uint32 `json:"generation" doc:"rises whenever records may have been lost"`
	Subscribers  int32  `json:"subscribers" doc:"reading it now"`

	Buffered  bool           `json:"buffered" doc:"a record is acknowledged once the write buffer has it"`
	Confirmed int64          `json:"confirmed" doc:"where buffered: offsets below it are there, or in a copy"`
	Uncovered *int64         `json:"uncovered,omitempty" doc:"from here on records were acknowledged without the write buffer"`
	TakenOver *takenOverJSON `json:"taken_over,omitempty" doc:"where its records were found when its log was made again, after a broker was lost with its disk"`
}

type takenOverJSON struct {
	At        string     `json:"at" doc:"when, RFC 3339"`
	From      string     `json:"from" doc:"the lost broker, in words"`
	Objects   int64      `json:"objects" doc:"offsets below it were in the store of objects"`
	Replayed  int64      `json:"replayed" doc:"offsets from there on and below it were in the write buffer"`
	Lost      *rangeJSON `json:"lost,omitempty" doc:"offsets that are declared lost"`
	Directory string     `json:"directory,omitempty" doc:"the lost broker's, where that was brought back"`
	Returned  *rangeJSON `json:"returned,omitempty" doc:"offsets that it alone had"`
}

type rangeJSON struct {
	From int64 `json:"from" doc:"the first one"`
	To   int64 `json:"to" doc:"the last one"`
}

func newPartitionJSON(p client.Partition) partitionJSON {
	row := partitionJSON{
		Partition: p.Partition, State: p.State, First: p.First, End: p.End, Durable: p.Durable, Copied: p.Copied, CopiedBelow: p.CopiedBelow,
		ExposedBytes: p.ExposedBytes, ExposedMs: p.ExposedMs, Bytes: p.Bytes, Segments: p.Segments, Generation: p.Generation, Subscribers: p.Subscribers,
		Buffered: p.Buffered, Confirmed: p.Confirmed, Uncovered: p.Uncovered,
	}
	row.TakenOver = newTakenOverJSON(p.TakenOver)
	return row
}

func newTakenOverJSON(t *client.TakenOver) *takenOverJSON {
	if t == nil {
		return nil
	}
	row := &takenOverJSON{At: t.At.UTC().Format(time.RFC3339), From: t.From, Objects: t.Objects, Replayed: t.Replayed, Directory: t.Directory}
	if t.Lost != nil {
		row.Lost = &rangeJSON{t.Lost[0], t.Lost[1]}
	}
	if t.Returned != nil {
		row.Returned = &rangeJSON{t.Returned[0], t.Returned[1]}
	}
	return row
}

type exposureJSON struct {
	Fault string `json:"fault" doc:"what happens"`
	Loses string `json:"loses" doc:"what could be lost then, in words"`
}

// Run prints the topic.
func (c *topicDescribeCmd) Run(a *app) error {
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		d, err := admin.DescribeTopic(ctx, c.Name)
		if err != nil {
			return onTopic(c.Name, err)
		}
		if !a.json {
			_, err := fmt.Fprint(a.stdout, describe(d))
			return err
		}
		row := descriptionJSON{topicJSON: newTopicJSON(d.Topic), PartitionStates: []partitionJSON{}, Exposures: []exposureJSON{}}
		for _, p := range d.PartitionStates {
			row.PartitionStates = append(row.PartitionStates, newPartitionJSON(p))
		}
		for _, e := range d.Exposures {
			row.Exposures = append(row.Exposures, exposureJSON(e))
		}
		return writeJSON(a.stdout, row)
	})
}

// describeCopies says what only the logs have; nothing where they are not copied.
func describeCopies(partitions []client.Partition) string {
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	alone := "BYTES IN THE LOG ALONE"
	if slices.ContainsFunc(partitions, func(p client.Partition) bool { return p.Buffered }) {
		alone = "BYTES NOT COPIED YET" // the write buffer has them
	}
	fmt.Fprintf(tab, "PARTITION\tCOPIED BELOW\t%s\tSINCE\n", alone)
	copied := false
	for _, p := range partitions {
		since := "-"
		if p.ExposedBytes > 0 {
			since = (time.Duration(p.ExposedMs) * time.Millisecond).Round(time.Second).String()
		}
		if p.Copied {
			copied = true
			fmt.Fprintf(tab, "%d\t%d\t%d\t%s\n", p.Partition, p.CopiedBelow, p.ExposedBytes, since)
		}
	}
	_ = tab.Flush()
	if !copied {
		return ""
	}
	return "\n" + b.String()
}

// describeBuffer says what the write buffer has; nothing where there is none.
func describeBuffer(partitions []client.Partition) string {
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "PARTITION\tIN THE WRITE BUFFER BELOW\tBEHIND\tACKNOWLEDGED WITHOUT IT FROM")
	buffered := false
	for _, p := range partitions {
		uncovered := "-"
		if p.Uncovered != nil {
			uncovered = fmt.Sprint(*p.Uncovered)
		}
		if p.Buffered {
			buffered = true
			fmt.Fprintf(tab, "%d\t%d\t%d\t%s\n", p.Partition, p.Confirmed, max(p.End-p.Confirmed, 0), uncovered)
		}
	}
	_ = tab.Flush()
	if !buffered {
		return ""
	}
	return "\n" + b.String()
}

// describeTakeovers says what became of partitions whose broker was lost with its disk.
func describeTakeovers(partitions []client.Partition) string {
	var b strings.Builder
	for _, p := range partitions {
		t := p.TakenOver
		if t == nil {
			continue
		}
		fmt.Fprintf(&b, "\npartition %d was taken over from %s at %s: below %d from objects, below %d from the write buffer", p.Partition, t.From, t.At.UTC().Format(time.RFC3339), t.Objects, t.Replayed)
		switch {
		case t.Returned != nil:
			fmt.Fprintf(&b, ", %d to %d of those from %s", t.Returned[0], t.Returned[1], t.Directory)
		case t.Directory != "":
			fmt.Fprintf(&b, ", nothing from %s", t.Directory)
		}
		if t.Lost != nil {
			fmt.Fprintf(&b, "; offsets %d to %d are lost", t.Lost[0], t.Lost[1])
		}
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	return b.String()
}

// describe returns a topic in words.
func describe(d client.TopicDescription) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %s, made %s, incarnation %d\n", d.Name, d.Dispatch, plural(d.Partitions, "partition"), d.Created.UTC().Format(time.RFC3339), d.Incarnation)
	if lines := settingLines(d.Topic); len(lines) > 0 {
		b.WriteString("\nsettings\n")
		tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, s := range lines {
			from := "the broker's default"
			if s.own {
				from = "set on the topic"
			}
			fmt.Fprintf(tab, "  %s\t%s\t%s\n", s.name, s.value, from)
		}
		_ = tab.Flush() // into memory
	}
	b.WriteString("\n")
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "PARTITION\tSTATE\tFIRST\tEND\tDURABLE\tBYTES\tSEGMENTS\tGENERATION\tSUBSCRIBERS")
	for _, p := range d.PartitionStates {
		fmt.Fprintf(tab, "%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", p.Partition, p.State, p.First, p.End, p.Durable, p.Bytes, p.Segments, p.Generation, p.Subscribers)
	}
	_ = tab.Flush()
	b.WriteString(describeCopies(d.PartitionStates))
	b.WriteString(describeBuffer(d.PartitionStates))
	b.WriteString(describeTakeovers(d.PartitionStates))
	b.WriteString("\nwhat could be lost if …\n")
	for _, e := range d.Exposures {
		fmt.Fprintf(&b, "  %s: %s\n", e.Fault, e.Loses)
	}
	return b.String()
}
