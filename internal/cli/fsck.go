package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/fsck"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/server"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/vfs"
)

type fsckCmd struct {
	Config     string   `placeholder:"FILE" variable:"LEVEE_CONFIG" help:"The broker's configuration file, YAML: it says where its object store is."`
	DataDir    string   `placeholder:"DIR" help:"The broker's data directory (./levee-data unless configured)."`
	Repair     bool     `help:"Rebuild indexes, remove objects that can never count, and record those that prove to belong."`
	Grace      duration `default:"24h" placeholder:"D" help:"With --repair: objects that do not count are removed once they are older."`
	ReadRate   byteSize `default:"0" placeholder:"SIZE" help:"Bytes a second to read of objects at most; 0 is no limit."`
	BucketOnly bool     `help:"Look at the object store alone, without a data directory: what it holds, and whether that is whole."`
}

// Help describes the command.
func (fsckCmd) Help() string {
	return manual{
		text: "Checks all that a broker stores: every byte of the logs, their indexes, the metadata, every byte of the objects in the object " +
			"store, and each against the others. The broker has to be stopped. Findings are of three levels: note, nothing is wrong; repair, " +
			"--repair or the next start puts it right; lost, data is missing, damaged or out of range. Exits with 3 where something is lost. " +
			"Without --repair nothing is changed; with it, records that were acknowledged stay as they are.",
		example: "levee fsck --config levee.yaml\nlevee fsck --data-dir /var/lib/levee --repair\nlevee fsck --config levee.yaml --bucket-only --output json",
		rows:    "one object a finding, and one at the end, of level summary", row: fsckJSON{},
	}.String()
}

type fsckJSON struct {
	Level    string      `json:"level" doc:"note, repair, lost; held, what a bucket alone tells of a partition; summary, the last line"`
	Area     string      `json:"area" doc:"log, index, producers, metadata, snapshot, copy (of the metadata, in the bucket), directory, descriptor, object or cursor"`
	Kind     string      `json:"kind" doc:"what it is, for example corrupt, missing, orphan, foreign"`
	Where    string      `json:"where" doc:"a file, an object's key, or namespace/topic/partition"`
	Bytes    int64       `json:"bytes" doc:"how many it is about; 0 where that is not known"`
	Message  string      `json:"message" doc:"in words"`
	Repaired bool        `json:"repaired" doc:"whether it was put right"`
	Held     *heldJSON   `json:"held,omitempty"`
	Totals   *totalsJSON `json:"totals,omitempty"`
}

type heldJSON struct {
	TopicID    string `json:"topic_id" doc:"of level held: the topic's incarnation"`
	Topic      string `json:"topic,omitempty" doc:"its name, where the bucket has a copy of the metadata"`
	Partition  int32  `json:"partition" doc:"its number"`
	First      int64  `json:"first" doc:"oldest offset"`
	Next       int64  `json:"next" doc:"the one after the newest"`
	Generation uint32 `json:"generation" doc:"of the newest object"`
	Objects    int64  `json:"objects" doc:"that count"`
	Left       int64  `json:"left" doc:"objects that do not"`
}

type totalsJSON struct {
	Logs         int64 `json:"logs" doc:"of level summary: logs read, the metadata's among them"`
	LogBytes     int64 `json:"log_bytes" doc:"of their directories"`
	Objects      int64 `json:"objects" doc:"exported segments in the bucket"`
	ObjectBytes  int64 `json:"object_bytes" doc:"of these"`
	Verified     int64 `json:"verified" doc:"objects that count and are right, every byte"`
	Cursors      int64 `json:"cursors" doc:"looked at"`
	Foreign      int64 `json:"foreign" doc:"files and objects that are nothing of this broker's; left alone"`
	Orphans      int64 `json:"orphans" doc:"objects that do not count"`
	Removed      int64 `json:"removed" doc:"of these"`
	RemovedBytes int64 `json:"removed_bytes" doc:"of these"`
	Rebuilt      int64 `json:"rebuilt" doc:"index files written"`
	Added        int64 `json:"added" doc:"objects recorded in the metadata"`
	Notes        int64 `json:"notes" doc:"findings of level note"`
	ToRepair     int64 `json:"to_repair" doc:"findings of level repair that stay"`
	Repaired     int64 `json:"repaired" doc:"findings that were put right"`
	Losses       int64 `json:"losses" doc:"findings of level lost"`
}

// Run checks, and repairs where it was told to.
func (c *fsckCmd) Run(a *app) error {
	if c.BucketOnly && c.Repair {
		return usagef("--bucket-only changes nothing: leave out --repair")
	}
	cfg, err := a.loadConfig(c.Config, map[string]string{"data_dir": c.DataDir})
	if err != nil {
		return withHint(err, "levee config show, or levee config check FILE")
	}
	run := &fsckRun{app: a, cfg: cfg, cmd: c, progress: &fsck.Progress{}}
	bar := task.NewGroup(context.WithoutCancel(a.ctx))
	if isTerminal(a.stderr) {
		bar.Go("progress", progress{out: a.stderr, state: run.state}.run)
	}
	var where string
	if c.BucketOnly {
		where, err = run.bucket()
	} else {
		where, err = run.all()
	}
	bar.Stop()
	_ = bar.Wait()
	if perr := errors.Join(run.failed, run.summary(where, err)); err == nil {
		err = perr
	}
	if err == nil && run.totals.Losses > 0 {
		err = &exitError{code: exitData, err: fmt.Errorf("%s: %s lost, damaged or out of range", where, plural(run.totals.Losses, "thing")),
			hint: "levee inspect segments DIR, for the logs; a backup or a replica, for objects"}
	}
	return err
}

// fsckRun is one run of the command.
type fsckRun struct {
	*app
	cfg      *config.Config
	cmd      *fsckCmd
	progress *fsck.Progress
	totals   fsck.Totals
	first    fsck.Totals // what was found before the check proper
	begun    bool        // something was checked
	failed   error       // of the output
}

func (r *fsckRun) state() (done, total int64, detail string) {
	if at := r.progress.At.Load(); at != nil {
		detail = *at
	}
	return r.progress.Done.Load(), r.progress.Total.Load(), detail
}

// found prints a finding.
func (r *fsckRun) found(f fsck.Finding) {
	row := fsckJSON{Level: f.Level.String(), Area: f.Area, Kind: f.Kind, Where: f.Where, Bytes: f.Bytes, Message: f.Why, Repaired: f.Repaired}
	level := row.Level
	if f.Repaired {
		level = "done"
	}
	r.print(row, "%-6s  %s %s: %s: %s", level, f.Area, strings.ReplaceAll(f.Kind, "_", " "), f.Where, f.Why)
}

func (r *fsckRun) print(row fsckJSON, format string, args ...any) {
	if err := r.app.print(row, format, args...); err != nil && r.failed == nil {
		r.failed = err
	}
}

// count is found for what is found before the check proper.
func (r *fsckRun) count(f fsck.Finding) {
	switch {
	case f.Repaired:
		r.first.Repaired++
	case f.Level == fsck.Note:
		r.first.Notes++
	case f.Level == fsck.Repair:
		r.first.ToRepair++
	default:
		r.first.Losses++
	}
	r.found(f)
}

// all checks a data directory and what belongs to it.
func (r *fsckRun) all() (where string, err error) {
	disk := vfs.FS(vfs.ReadOnly{})
	if r.cmd.Repair {
		disk = vfs.OS{}
	}
	dir, err := server.OpenOffline(r.cfg, disk)
	if err != nil {
		switch fault.KindOf(err) {
		case fault.Unavailable:
			return r.cfg.DataDir, &exitError{err: err, hint: "stop the broker, then levee fsck again"}
		case fault.NotFound:
			return r.cfg.DataDir, &exitError{code: exitFailed, err: err, hint: "levee fsck --data-dir DIR, or --config FILE"}
		}
		return r.cfg.DataDir, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	r.note("%s: %s", dir.Dir, dir.Because)
	view, err := r.metadata(dir, disk)
	if err != nil || view == nil {
		return dir.Dir, err
	}
	store, prefix, cluster, err := server.OpenStore(r.ctx, r.cfg, dir.Dir)
	if err != nil {
		return dir.Dir, err
	}
	if store != nil {
		defer func() { err = errors.Join(err, store.Close()) }()
	}
	claim, err := dir.Claim()
	if err != nil {
		return dir.Dir, err
	}
	r.begun = true
	r.totals, err = fsck.Run(r.ctx, fsck.Input{
		FS: disk, Crash: dir.Crash, IndexInterval: r.cfg.Storage.IndexInterval, RepairChecksumTail: r.cfg.Storage.RepairChecksumTail,
		View: view, LogDir: dir.LogDir, Change: dir.Change, Store: store, Prefix: prefix, Cluster: cluster, Claim: claim,
		BytesPerSec: int64(r.cmd.ReadRate), Grace: time.Duration(r.cmd.Grace), Repair: r.cmd.Repair, Found: r.found, Progress: r.progress,
	})
	return dir.Dir, err
}

// metadata checks the metadata, and returns it; nil where it cannot be read, which is reported.
func (r *fsckRun) metadata(dir *server.Offline, disk vfs.FS) (*meta.View, error) {
	logDir, options := dir.MetadataLog()
	r.begun = true
	plan, err := fsck.Plan(disk, logDir, logDir, options, r.cmd.Repair, r.count)
	if err != nil {
		return nil, err
	}
	r.first.Logs++
	r.first.LogBytes += segmentBytes(plan)
	if plan.Err != nil {
		return nil, nil
	}
	view, damaged, err := dir.Metadata()
	for _, why := range damaged {
		r.count(fsck.Finding{Level: fsck.Repair, Area: "snapshot", Kind: "corrupt", Where: dir.Dir, Why: why.Error()})
	}
	if kind := fault.KindOf(err); err != nil && (kind == fault.Corrupt || kind == fault.Unsupported) {
		r.count(fsck.Finding{Level: fsck.Lost, Area: "metadata", Kind: kind.String(), Where: dir.Dir, Why: err.Error()})
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	unaccounted, err := dir.Unaccounted(view)
	for _, what := range unaccounted {
		path, why, _ := strings.Cut(what, ": ")
		r.count(fsck.Finding{Level: fsck.Note, Area: "directory", Kind: "foreign", Where: path, Why: why})
		r.first.Foreign++
	}
	return view, err
}

func segmentBytes(p *seglog.Plan) (n int64) {
	for _, s := range p.Segments {
		n += s.Bytes
	}
	return n
}

// bucket looks at the object store alone.
func (r *fsckRun) bucket() (where string, err error) {
	store, prefix, cluster, err := server.OpenStore(r.ctx, r.cfg, r.cfg.DataDir)
	if err != nil {
		return "the object store", err
	}
	if store == nil {
		return "the object store", &exitError{code: exitFailed, err: errors.New("no object store is configured: storage.mode is none"), hint: "levee fsck --bucket-only --config FILE"}
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	where = strings.TrimPrefix(prefix+"/"+cluster+"/", "/")
	r.begun = true
	r.totals, err = fsck.Bucket(r.ctx, fsck.BucketInput{
		Store: store, Prefix: prefix, Cluster: cluster, BytesPerSec: int64(r.cmd.ReadRate), Found: r.found, Held: r.held, Progress: r.progress,
	})
	return where, err
}

func (r *fsckRun) held(h fsck.Held) {
	row := fsckJSON{Level: "held", Area: "object", Kind: "partition", Where: fmt.Sprintf("%s/%d", h.TopicID, h.Partition), Bytes: h.Bytes,
		Held: &heldJSON{h.TopicID.String(), h.Topic, h.Partition, h.First, h.Next, h.Generation, h.Objects, h.Left}}
	row.Message = fmt.Sprintf("offsets %d to %d, in %s of %s bytes, generation %d", h.First, h.Next-1, plural(h.Objects, "object"), count(h.Bytes), h.Generation)
	if h.Topic != "" {
		row.Message = h.Topic + ", " + row.Message
	}
	r.print(row, "held    %s: %s", row.Where, row.Message)
}

// summary prints the last line, where anything was checked.
func (r *fsckRun) summary(where string, err error) error {
	if !r.begun {
		return nil
	}
	t, f := &r.totals, &r.first
	totals := totalsJSON{
		Logs: t.Logs + f.Logs, LogBytes: t.LogBytes + f.LogBytes, Objects: t.Objects, ObjectBytes: t.ObjectBytes, Verified: t.Verified, Cursors: t.Cursors,
		Foreign: t.Foreign + f.Foreign, Orphans: t.Orphans, Removed: t.Removed, RemovedBytes: t.RemovedBytes, Rebuilt: t.Rebuilt, Added: t.Added,
		Notes: t.Notes + f.Notes, ToRepair: t.ToRepair + f.ToRepair, Repaired: t.Repaired + f.Repaired, Losses: t.Losses + f.Losses,
	}
	r.totals.Losses = totals.Losses
	verdict := "nothing is lost"
	switch {
	case err != nil:
		verdict = "the check did not come to its end"
	case totals.Losses > 0:
		verdict = plural(totals.Losses, "finding") + " of lost, damaged or impossible data"
	}
	message := fmt.Sprintf("%s (%s bytes), %s (%s bytes, %s verified), %s: %s; to repair: %d, repaired: %d, notes: %d",
		plural(totals.Logs, "log"), count(totals.LogBytes), plural(totals.Objects, "object"), count(totals.ObjectBytes), count(totals.Verified),
		plural(totals.Cursors, "cursor"), verdict, totals.ToRepair, totals.Repaired, totals.Notes)
	return r.app.print(fsckJSON{Level: "summary", Where: where, Message: message, Totals: &totals}, "%s: %s", where, message)
}
