package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/server"
	"github.com/leveemq/levee/internal/vfs"
)

type inspectCmd struct {
	Segments inspectSegmentsCmd `cmd:"" help:"Say what opening a log would find and do."`
	Dump     inspectDumpCmd     `cmd:"" help:"Print the frames of one segment file."`
}

type inspectSegmentsCmd struct {
	Dir                string `arg:"" help:"A broker's data directory, or the directory of one partition."`
	Crash              string `enum:"auto,none,process,machine" default:"auto" placeholder:"KIND" help:"How the last run ended: none, process or machine; auto reads it from the data directory. It decides what a damaged end can be."`
	VerifyAll          bool   `help:"Read sealed segments in full, too, as storage.verify_all_on_open does."`
	RepairChecksumTail bool   `help:"Plan as storage.repair_checksum_tail does."`
}

// Help describes the command.
func (inspectSegmentsCmd) Help() string {
	return manual{
		text: "Reads, changes nothing, needs no broker. Prints each log's segments, what a broker would repair when it opens it, and " +
			"whether it would refuse to. Exits with 3 when one would be refused. What a running broker writes meanwhile may look unfinished.",
		example: "levee inspect segments ./levee-data\nlevee inspect segments ./levee-data/topics/default/orders@1/0 --output json",
		rows:    "one object a log", row: logJSON{},
	}.String()
}

type logJSON struct {
	Dir        string        `json:"dir" doc:"the log's directory"`
	Topic      string        `json:"topic" doc:"namespace/name@incarnation, or raft for the metadata log; empty when the path does not tell"`
	Partition  int32         `json:"partition" doc:"its number"`
	Verdict    string        `json:"verdict" doc:"clean, repair (it opens after the repairs) or refused"`
	Error      string        `json:"error,omitempty" doc:"why it is refused"`
	First      int64         `json:"first" doc:"oldest offset"`
	Next       int64         `json:"next" doc:"offset of the next record"`
	FirstSeq   uint64        `json:"first_seq" doc:"ordinal of the oldest frame"`
	NextSeq    uint64        `json:"next_seq" doc:"ordinal of the next frame"`
	Generation uint32        `json:"generation" doc:"of the newest frame"`
	Segments   []segmentJSON `json:"segments"`
	Repairs    []repairJSON  `json:"repairs"`
	Unknown    []string      `json:"unknown" doc:"names in the directory that are no log's; they are left alone"`
}

type segmentJSON struct {
	Path     string `json:"path" doc:"the file"`
	Base     int64  `json:"base" doc:"its first offset"`
	Next     int64  `json:"next" doc:"the offset after its last"`
	BaseSeq  uint64 `json:"base_seq" doc:"ordinal of its first frame"`
	NextSeq  uint64 `json:"next_seq" doc:"ordinal of the frame after its last"`
	Bytes    int64  `json:"bytes" doc:"size of the file"`
	IsSealed bool   `json:"sealed" doc:"whether nothing is appended to it any more"`
}

type repairJSON struct {
	Op       string `json:"op" doc:"what would be done, for example truncate"`
	Path     string `json:"path" doc:"to which file"`
	Position int64  `json:"position" doc:"at which byte"`
	Bytes    int64  `json:"bytes" doc:"how many"`
	Reason   string `json:"reason" doc:"why"`
}

// foundLog is one log's directory and what its path says about it.
type foundLog struct {
	dir, topic string
	partition  int32
}

// Run prints what opening the logs would do.
func (c *inspectSegmentsCmd) Run(a *app) error {
	disk := vfs.ReadOnly{}
	logs, err := findLogs(disk, c.Dir)
	if err != nil {
		return err
	}
	crash, err := c.crash(a, disk, logs)
	if err != nil {
		return err
	}
	refusedLogs := 0
	var first error
	for _, l := range logs {
		if a.ctx.Err() != nil {
			return a.ctx.Err()
		}
		plan := seglog.MakePlan(disk, l.dir, seglog.PlanOptions{
			Topic: l.topic, AnyTopic: true, Partition: l.partition, Crash: crash, VerifyAll: c.VerifyAll, RepairChecksumTail: c.RepairChecksumTail,
		})
		if err := a.printPlan(l, plan); err != nil {
			return err
		}
		if plan.Err != nil {
			refusedLogs++
			if first == nil {
				first = plan.Err
			}
		}
	}
	if refusedLogs > 0 {
		return &exitError{code: exitData, err: fmt.Errorf("a broker would refuse %s of %d: %w", plural(refusedLogs, "log"), len(logs), first),
			hint: "levee inspect dump FILE, with the file named above"}
	}
	return nil
}

// crash returns what the logs must reckon with. Where nothing tells how the last run ended it is the worst: then the
// least is called damage that a crash cannot explain.
func (c *inspectSegmentsCmd) crash(a *app, disk vfs.FS, logs []foundLog) (seglog.Crash, error) {
	switch c.Crash {
	case "none":
		return seglog.CleanStop, nil
	case "process":
		return seglog.ProcessCrash, nil
	case "machine":
		return seglog.MachineCrash, nil
	}
	dataDir := c.Dir
	if len(logs) == 1 && filepath.Clean(logs[0].dir) == filepath.Clean(c.Dir) {
		dataDir = dataDirOf(logs[0])
	}
	if dataDir == "" {
		a.note("%s does not lie in a data directory: taken as after a power loss; say otherwise with --crash", c.Dir)
		return seglog.MachineCrash, nil
	}
	crash, because, err := server.LastRun(disk, dataDir)
	if err != nil {
		return crash, err
	}
	a.note("%s: %s", dataDir, because)
	return crash, nil
}

// dataDirOf returns the data directory that a log's path lies in; "" where the path does not tell.
func dataDirOf(l foundLog) string {
	dir, err := filepath.Abs(l.dir)
	if err != nil {
		return ""
	}
	up := func(n int) string {
		d := dir
		for range n {
			d = filepath.Dir(d)
		}
		return d
	}
	switch {
	case filepath.Base(up(3)) == "topics" && l.topic != "":
		return up(4)
	case filepath.Base(dir) == "log" && filepath.Base(up(1)) == "raft":
		return up(2)
	}
	return ""
}

func (a *app) printPlan(l foundLog, plan *seglog.Plan) error {
	row := logJSON{
		Dir: l.dir, Topic: l.topic, Partition: l.partition, Verdict: "clean", First: plan.First, Next: plan.Next,
		FirstSeq: plan.FirstSeq, NextSeq: plan.NextSeq, Generation: plan.Generation,
		Segments: []segmentJSON{}, Repairs: []repairJSON{}, Unknown: append([]string{}, plan.Unknown...),
	}
	for _, s := range plan.Segments {
		row.Segments = append(row.Segments, segmentJSON{s.Path, s.Base, s.Next, s.BaseSeq, s.NextSeq, s.Bytes, s.Sealed})
	}
	for _, r := range plan.Repairs {
		row.Repairs = append(row.Repairs, repairJSON{r.Op, r.Path, r.Position, r.Bytes, r.Reason})
	}
	if len(row.Repairs) > 0 {
		row.Verdict = "repair"
	}
	if plan.Err != nil {
		row.Verdict, row.Error = "refused", plan.Err.Error()
	}
	if a.json {
		return writeJSON(a.stdout, row)
	}
	_, err := fmt.Fprint(a.stdout, row.text())
	return err
}

func (l *logJSON) text() string {
	var b strings.Builder
	name := l.Dir
	if l.Topic != "" {
		name = fmt.Sprintf("%s, partition %d (%s)", l.Topic, l.Partition, l.Dir)
	}
	switch l.Verdict {
	case "refused":
		fmt.Fprintf(&b, "%s: REFUSED: %s\n", name, l.Error)
	case "repair":
		fmt.Fprintf(&b, "%s: opens after %s\n", name, plural(len(l.Repairs), "repair"))
	default:
		fmt.Fprintf(&b, "%s: opens as it is\n", name)
	}
	if l.Verdict != "refused" {
		fmt.Fprintf(&b, "  offsets %d up to %d, frames %d up to %d, generation %d\n", l.First, l.Next, l.FirstSeq, l.NextSeq, l.Generation)
	}
	for _, s := range l.Segments {
		state := "active"
		if s.IsSealed {
			state = "sealed"
		}
		holds := "no record"
		if s.Next > s.Base {
			holds = fmt.Sprintf("offsets %d to %d", s.Base, s.Next-1)
		}
		fmt.Fprintf(&b, "  %s  %s, %s bytes, %s\n", filepath.Base(s.Path), holds, count(s.Bytes), state)
	}
	for _, r := range l.Repairs {
		fmt.Fprintf(&b, "  would %s %s", r.Op, filepath.Base(r.Path))
		if r.Bytes > 0 || r.Position > 0 {
			fmt.Fprintf(&b, " at byte %d (%s)", r.Position, plural(r.Bytes, "byte"))
		}
		fmt.Fprintf(&b, ": %s\n", r.Reason)
	}
	for _, name := range l.Unknown {
		fmt.Fprintf(&b, "  %s is no log's file and would be left alone\n", name)
	}
	return b.String()
}

// findLogs returns the logs of a data directory, or the one log that dir is.
func findLogs(disk vfs.FS, dir string) ([]foundLog, error) {
	names, err := disk.List(dir)
	if err != nil {
		return nil, fault.New(kindOfIO(err), "read directory %s: %w", dir, err)
	}
	if has(names, "topics") || has(names, "raft") {
		logs, err := findTopicLogs(disk, filepath.Join(dir, "topics"))
		if err != nil {
			return nil, err
		}
		metadata := filepath.Join(dir, "raft", "log")
		if _, err := disk.Stat(metadata); err == nil {
			logs = append([]foundLog{{dir: metadata, topic: "raft"}}, logs...)
		}
		return logs, nil
	}
	for _, n := range names {
		if _, kind, ok := segfmt.ParseName(n.Name); ok && kind == segfmt.LogSuffix || n.Name == segfmt.MarkName {
			return []foundLog{nameLog(dir)}, nil
		}
	}
	return nil, &exitError{code: exitFailed, hint: "levee inspect segments DIR, with a broker's --data-dir",
		err: fmt.Errorf("%s is neither a data directory (no topics/ or raft/ in it) nor a partition's (no segment file in it)", dir)}
}

// findTopicLogs walks topics/<namespace>/<name>@<incarnation>/<partition>.
func findTopicLogs(disk vfs.FS, dir string) ([]foundLog, error) {
	var logs []foundLog
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		names, err := disk.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fault.New(kindOfIO(err), "read directory %s: %w", dir, err)
		}
		for _, n := range names {
			path := filepath.Join(dir, n.Name)
			switch {
			case !n.Dir:
			case depth == 2:
				logs = append(logs, nameLog(path))
			default:
				if err := walk(path, depth+1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return logs, walk(dir, 0)
}

// nameLog reads topic and partition off the end of a path, where it has the shape of a partition's.
func nameLog(dir string) foundLog {
	l := foundLog{dir: dir}
	clean := filepath.Clean(dir)
	n, err := strconv.ParseInt(filepath.Base(clean), 10, 32)
	topic := filepath.Dir(clean)
	if err == nil && n >= 0 && strings.Contains(filepath.Base(topic), "@") {
		l.partition = int32(n)
		l.topic = filepath.Base(filepath.Dir(topic)) + "/" + filepath.Base(topic)
	}
	return l
}

func has(names []vfs.Info, name string) bool {
	for _, n := range names {
		if n.Name == name && n.Dir {
			return true
		}
	}
	return false
}

// kindOfIO tells data that is not there from data that cannot be read.
func kindOfIO(err error) fault.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.NotFound
	case errors.Is(err, context.Canceled):
		return fault.Canceled
	}
	return fault.IO
}
