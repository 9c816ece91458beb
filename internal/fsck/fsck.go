// Package fsck owns the judgement on what a broker that does not run has stored: its logs, the metadata and the object store,
// each by itself and against the others. It prints nothing, and does not know how a data directory is laid out or locked.
// Without Repair it changes nothing; with it, it writes only what is a function of what was checked (indexes, descriptors
// that objects prove), and removes only objects that can never count. Invariant: nothing that was acknowledged is touched.
package fsck

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/vfs"
)

// Level says how bad a finding is.
type Level uint8

// The levels.
const (
	Note   Level = iota // nothing is wrong; it is good to know
	Repair              // Repair or the next start of the broker puts it right
	Lost                // data is missing, damaged or out of range
)

// String returns the level's name.
func (l Level) String() string { return [...]string{"note", "repair", "lost"}[l] }

// Finding is one thing that is not as it should be, or should be known.
type Finding struct {
	Level    Level
	Area     string // log, index, producers, metadata, snapshot, copy, directory, descriptor, object, cursor
	Kind     string // corrupt, missing, orphan, foreign, …
	Where    string // file, key, or namespace/topic/partition
	Bytes    int64  // of what it is about, where that is known
	Why      string
	Repaired bool
}

// Input is what is checked. Store may be nil.
type Input struct {
	FS                 vfs.FS
	Crash              seglog.Crash // what the logs have to reckon with
	IndexInterval      int64
	RepairChecksumTail bool

	View   *meta.View
	LogDir func(t *meta.Topic, n int32) string
	// Change lets fn change the metadata, with Repair.
	Change func(fn func(meta.Store) error) error

	Store           objstore.Store
	Prefix, Cluster string
	Claim           metatier.ID   // what the directory calls its hold on the data in Store; zero: it has none
	BytesPerSec     int64         // read of objects; 0: no limit
	Grace           time.Duration // orphans that are younger stay

	Repair   bool
	Now      func() time.Time
	Found    func(Finding) // is told of each, in order
	Progress *Progress     // nil: nobody watches
}

// Progress tells from another goroutine how far a check is.
type Progress struct {
	Done, Total atomic.Int64 // bytes
	At          atomic.Pointer[string]
}

func (p *Progress) at(format string, args ...any) {
	if p != nil {
		s := fmt.Sprintf(format, args...)
		p.At.Store(&s)
	}
}

func (p *Progress) add(n int64) {
	if p != nil {
		p.Done.Add(n)
	}
}

// Totals are what was looked at and what was found.
type Totals struct {
	Logs, LogBytes                    int64
	Objects, ObjectBytes, Verified    int64 // Verified: those that count and are right from end to end
	Cursors                           int64
	Foreign                           int64 // files and objects that are not Levee's, or of nothing it knows; left alone
	Orphans, Removed, RemovedBytes    int64 // objects that do not count; removed ones among them
	Rebuilt                           int64 // index files written
	Added                             int64 // descriptors
	Notes, ToRepair, Repaired, Losses int64 // findings
}

// check is one run.
type check struct {
	Input
	totals Totals
	logs   map[tier.Partition]*seglog.Plan
	theirs bool                            // what is in Store is another directory's, or that cannot be told
	proven map[tier.Partition]*meta.Export // with what the bucket proves beyond the metadata
}

// export returns what is exported of a partition, recorded or proven.
func (c *check) export(p tier.Partition) *meta.Export {
	if e := c.proven[p]; e != nil {
		return e
	}
	return c.View.Export(p.TopicID, p.Number)
}

func (c *check) found(f Finding) {
	switch {
	case f.Repaired:
		c.totals.Repaired++
	case f.Level == Note:
		c.totals.Notes++
	case f.Level == Repair:
		c.totals.ToRepair++
	default:
		c.totals.Losses++
	}
	c.Found(f)
}

// Run checks everything. Its error says that it could not look at something, not that something is wrong there.
func Run(ctx context.Context, in Input) (Totals, error) {
	c := &check{Input: in, logs: map[tier.Partition]*seglog.Plan{}, proven: map[tier.Partition]*meta.Export{}}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.expect()
	err := c.each(ctx, func(t *meta.Topic, n int32) {
		c.logs[tier.Partition{TopicID: t.ID, Number: n}] = c.log(t, n)
	})
	if err == nil && c.Store != nil {
		err = c.unrecorded(ctx)
	}
	if err == nil {
		err = c.each(ctx, c.partition)
	}
	if err == nil && c.Store != nil {
		err = c.bucket(ctx)
	}
	return c.totals, err
}

// each calls fn for every partition that has a log.
func (c *check) each(ctx context.Context, fn func(t *meta.Topic, n int32)) error {
	for t := range c.View.Topics("") {
		for n := range int32(len(t.Partitions)) { //nolint:gosec // bounded by meta
			if err := ctx.Err(); err != nil {
				return err
			}
			if t.Dispatch == meta.Reliable {
				fn(t, n)
			}
		}
	}
	return nil
}

// expect counts what there is to read.
func (c *check) expect() {
	if c.Progress == nil {
		return
	}
	for t := range c.View.Topics("") {
		for n := range int32(len(t.Partitions)) { //nolint:gosec // bounded by meta
			if t.Dispatch == meta.Reliable {
				c.Progress.Total.Add(dirBytes(c.FS, c.LogDir(t, n)))
			}
			if e := c.View.Export(t.ID, n); e != nil && c.Store != nil {
				for i := range e.Objects {
					c.Progress.Total.Add(e.Objects[i].Size)
				}
			}
		}
	}
}

func dirBytes(fs vfs.FS, dir string) (n int64) {
	infos, err := fs.List(dir)
	if err != nil {
		return 0 // whoever reads it will say so
	}
	for _, info := range infos {
		n += info.Size
	}
	return n
}

// Plan checks one log by itself, reports what it finds under where, and returns the plan.
func Plan(fs vfs.FS, dir, where string, o seglog.PlanOptions, repair bool, found func(Finding)) (*seglog.Plan, error) {
	p := seglog.MakePlan(fs, dir, o)
	for _, name := range p.Unknown {
		found(Finding{Level: Note, Area: "directory", Kind: "foreign", Where: dir + "/" + name, Why: "it is no log's: left alone"})
	}
	if p.Err != nil {
		found(Finding{Level: Lost, Area: "log", Kind: kindOf(p.Err), Where: where, Why: p.Err.Error()})
		return p, nil
	}
	done := false
	if repair {
		if _, err := p.RebuildIndexes(); err != nil {
			return p, err
		}
		done = true
	}
	for _, r := range p.Repairs {
		f := Finding{Level: Repair, Where: r.Path, Bytes: r.Bytes, Why: r.Reason}
		switch r.Op {
		case "write":
			f.Area, f.Kind, f.Repaired = "index", "stale", done
		case "snapshot":
			f.Area, f.Kind = "producers", "missing"
		case "give-back", "remove":
			f.Level, f.Area, f.Kind = Note, "log", "left_over"
		default:
			f.Area, f.Kind, f.Why = "log", "unfinished", r.Op+fmt.Sprintf(" at byte %d: ", r.Position)+r.Reason
		}
		found(f)
	}
	return p, nil
}

func kindOf(err error) string {
	switch k := fault.KindOf(err); k {
	case fault.Corrupt, fault.Unsupported:
		return k.String()
	}
	return "unreadable"
}
