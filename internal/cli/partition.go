package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/task"
)

type partitionCmd struct {
	Recover partitionRecoverCmd `cmd:"" help:"Have partitions serve again that wait for a lost broker."`
}

type partitionRecoverCmd struct {
	Name       string `arg:"" optional:"" placeholder:"NAME[/P]" help:"The topic, and behind a slash one of its partitions."`
	From       string `placeholder:"DIR" xor:"how" help:"Go on with the lost broker's data directory, or a copy of it. An absolute path on the machine that the broker runs on, which reads it and changes nothing in it."`
	All        bool   `help:"With --from, all partitions of all topics that wait."`
	AcceptLoss bool   `xor:"how" help:"Give up what only the lost broker had. There is no way back."`
}

// Help describes the command.
func (partitionRecoverCmd) Help() string {
	return manual{
		text: "A partition waits for a broker that is lost with its disk where that may have acknowledged records which neither the " +
			"store of objects nor the write buffer has. With --from it goes on with what that broker's data directory has above " +
			"those: nothing is lost, and every record keeps its offset. The directory is to be as that broker left it, whole, and no broker may run " +
			"on it; that a copy is older than that cannot always be noticed. This waits until it was read, and may be repeated. " +
			"With --accept-loss the partition serves " +
			"what there is, and readers are told which offsets are lost. With neither, this says which partitions wait and for whom, and " +
			"exits with 1 if any does. A number behind the last slash is a partition: a topic whose own name is a number needs one, too.",
		example: "levee partition recover orders/0 --from /mnt/old/levee-data\nlevee partition recover --all --from /mnt/old/levee-data\nlevee partition recover orders/0 --accept-loss",
		rows:    "one object a partition", row: waitingJSON{},
	}.String()
}

type waitingJSON struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition" doc:"its number"`
	Broker    string `json:"broker" doc:"the lost one, in words"`
	Since     string `json:"since" doc:"when that was found out, RFC 3339"`
	Accepted  bool   `json:"accepted" doc:"whether its loss was accepted"`
	// Result is nil but with --from.
	Result *takenOverJSON `json:"result,omitempty" doc:"with --from, what it was made again from"`
}

// Run recovers the partitions.
func (c *partitionRecoverCmd) Run(a *app) error {
	switch {
	case c.All && c.From == "":
		return usagef("--all goes with --from DIR only")
	case c.All == (c.Name != ""):
		return usagef("give one of NAME and --all")
	case c.From != "" && !path.IsAbs(c.From):
		return usagef("--from %s: the path is to be absolute: the broker reads it, on its machine", c.From)
	case c.From != "":
		return c.comeBack(a)
	}
	topic, partition := splitPartition(c.Name)
	return a.admin(func(ctx context.Context, admin *client.Admin) error {
		waiting, err := admin.RecoverPartitions(ctx, topic, partition, c.AcceptLoss)
		if err != nil {
			return onTopic(topic, err)
		}
		for _, w := range waiting {
			row := waitingJSON{topic, w.Partition, w.Broker, w.Since.UTC().Format(time.RFC3339), c.AcceptLoss, nil}
			text := "partition %d of %s waits for %s since %s"
			if c.AcceptLoss {
				text = "partition %d of %s waits no more for %s, as it did since %s: what only that had is given up"
			}
			if err := a.print(row, text, w.Partition, topic, w.Broker, row.Since); err != nil {
				return err
			}
		}
		switch {
		case len(waiting) == 0 && !a.json:
			_, err = fmt.Fprintf(a.stdout, "no partition of %s waits for a lost broker\n", topic)
		case len(waiting) > 0 && !c.AcceptLoss:
			err = &exitError{code: exitFailed, hint: "levee partition recover " + c.Name + " --from DIR, with the lost broker's data directory",
				err: fault.New(fault.Unavailable, "%s of %s may have lost records", plural(len(waiting), "partition"), topic)}
		}
		return err
	})
}

// comeBack goes on with a lost broker's directory. What fails holds up no other partition.
func (c *partitionRecoverCmd) comeBack(a *app) error {
	return a.patientAdmin(func(ctx context.Context, admin *client.Admin) error {
		topics, partition, err := c.topics(ctx, admin)
		var failed error
		waited := 0
		for _, topic := range topics {
			waiting, err := admin.RecoverPartitions(ctx, topic, partition, false)
			if err == nil && len(waiting) == 0 && !c.All {
				_, err = admin.ReturnPartitions(ctx, topic, partition, c.From) // what was given up before is told as an error
			}
			waited += len(waiting)
			failed = errors.Join(failed, onTopic(topic, err))
			for _, w := range waiting {
				if err := c.returnOne(ctx, a, admin, topic, w.Partition); err != nil {
					failed = errors.Join(failed, onTopic(topic, err))
				}
				if ctx.Err() != nil {
					return failed
				}
			}
		}
		if err = errors.Join(err, failed); err == nil && waited == 0 && !a.json {
			_, err = fmt.Fprintf(a.stdout, "no partition of %s waits for a lost broker\n", cmp.Or(c.Name, "any topic"))
		}
		return err
	})
}

// topics returns those that the command is about, and of which partition, or -1.
func (c *partitionRecoverCmd) topics(ctx context.Context, admin *client.Admin) (names []string, partition int32, err error) {
	if !c.All {
		name, partition := splitPartition(c.Name)
		return []string{name}, partition, nil
	}
	all, err := admin.Topics(ctx, "")
	for _, t := range all {
		names = append(names, t.Name)
	}
	return names, -1, err
}

func (c *partitionRecoverCmd) returnOne(ctx context.Context, a *app, admin *client.Admin, topic string, partition int32) error {
	bar := task.NewGroup(context.WithoutCancel(ctx))
	if isTerminal(a.stderr) {
		began := time.Now()
		bar.Go("progress", progress{out: a.stderr, state: func() (int64, int64, string) {
			return 0, 0, fmt.Sprintf("partition %d of %s: the broker reads %s, for %s so far", partition, topic, c.From, time.Since(began).Round(time.Second))
		}}.run)
	}
	back, err := admin.ReturnPartitions(ctx, topic, partition, c.From)
	bar.Stop()
	_ = bar.Wait()
	if err != nil {
		return fmt.Errorf("partition %d of %s goes on waiting: %w", partition, topic, err)
	}
	for _, w := range back {
		row := waitingJSON{topic, w.Partition, w.Broker, w.Since.UTC().Format(time.RFC3339), false, newTakenOverJSON(w.Report)}
		if err := a.print(row, "partition %d of %s serves again: %s", w.Partition, topic, returnedText(w.Report)); err != nil {
			return err
		}
	}
	return nil
}

// returnedText says what came back.
func returnedText(t *client.TakenOver) string {
	text := "what became of it is not known any more"
	switch {
	case t == nil:
	case t.Returned != nil:
		text = fmt.Sprintf("%s came back from %s, %d to %d", plural(int(t.Returned[1]-t.Returned[0]+1), "offset"), t.Directory, t.Returned[0], t.Returned[1])
	case t.Directory != "":
		text = t.Directory + " had nothing that it lacked"
	default:
		text = fmt.Sprintf("its records below offset %d are there", t.Replayed)
	}
	if t != nil && t.Lost != nil {
		text += fmt.Sprintf("; offsets %d to %d are lost: that broker had acknowledged before its flush, and its machine crashed", t.Lost[0], t.Lost[1])
	}
	return text
}

// splitPartition takes NAME or NAME/P apart; -1: no partition.
func splitPartition(name string) (topic string, partition int32) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		if n, err := strconv.ParseInt(name[i+1:], 10, 32); err == nil && n >= 0 && strconv.FormatInt(n, 10) == name[i+1:] {
			return name[:i], int32(n)
		}
	}
	return name, -1
}
