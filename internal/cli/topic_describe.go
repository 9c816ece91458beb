package cli

import (
	"context"
	"fmt"
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
	Partition   int32  `json:"partition" doc:"its number"`
	State       string `json:"state" doc:"serving, opening, or unavailable: and why"`
	First       int64  `json:"first" doc:"oldest offset retained"`
	End         int64  `json:"end" doc:"next offset that readers will see"`
	Durable     int64  `json:"durable" doc:"offsets below it are on the device"`
	Bytes       int64  `json:"bytes" doc:"of its files"`
	Segments    int32  `json:"segments" doc:"how many files"`
	Generation  uint32 `json:"generation" doc:"rises whenever records may have been lost"`
	Subscribers int32  `json:"subscribers" doc:"reading it now"`
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
			row.PartitionStates = append(row.PartitionStates, partitionJSON(p))
		}
		for _, e := range d.Exposures {
			row.Exposures = append(row.Exposures, exposureJSON(e))
		}
		return writeJSON(a.stdout, row)
	})
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
	b.WriteString("\nwhat could be lost if …\n")
	for _, e := range d.Exposures {
		fmt.Fprintf(&b, "  %s: %s\n", e.Fault, e.Loses)
	}
	return b.String()
}
