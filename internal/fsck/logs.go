package fsck

import (
	"fmt"

	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
)

// log checks a partition's log by itself and returns its plan.
func (c *check) log(t *meta.Topic, n int32) *seglog.Plan {
	where := fmt.Sprintf("%s/%d", t.Name, n)
	dir := c.LogDir(t, n)
	c.Progress.at("log of %s", where)
	size := dirBytes(c.FS, dir)
	p, err := Plan(c.FS, dir, where, seglog.PlanOptions{
		Topic: t.Name.String(), TopicID: t.ID, Partition: n, Crash: c.Crash, VerifyAll: true,
		RepairChecksumTail: c.RepairChecksumTail, IndexInterval: c.IndexInterval, NowMs: c.Now().UnixMilli(),
	}, c.Repair, func(f Finding) {
		switch {
		case f.Kind == "foreign":
			c.totals.Foreign++
		case f.Area == "index" && f.Repaired:
			c.totals.Rebuilt++
		}
		c.found(f)
	})
	if err != nil {
		c.found(Finding{Level: Repair, Area: "index", Kind: "unreadable", Where: dir, Why: "it could not be rebuilt: " + err.Error()})
	}
	c.totals.Logs++
	c.totals.LogBytes += size
	c.Progress.add(size)
	return p
}

// partition checks a partition's log, where it could be read, against the metadata.
func (c *check) partition(t *meta.Topic, n int32) {
	at := tier.Partition{TopicID: t.ID, Number: n}
	p, e := c.logs[at], c.export(at)
	if p.Err != nil {
		return
	}
	for _, f := range against(t, n, p, e, c.Crash) {
		f.Where = fmt.Sprintf("%s/%d", t.Name, n)
		c.found(f)
	}
	c.cursors(t, n, p, e)
}

// holdsFrames reports whether there is anything in a log.
func holdsFrames(p *seglog.Plan) bool { return p.NextSeq > 1 }

// against compares a log with what the metadata says of its partition.
func against(t *meta.Topic, n int32, p *seglog.Plan, e *meta.Export, crash seglog.Crash) (all []Finding) {
	lost := func(kind, format string, args ...any) {
		all = append(all, Finding{Level: Lost, Area: "log", Kind: kind, Why: fmt.Sprintf(format, args...)})
	}
	entry := t.Partitions[n]
	if p.Generation > entry.Generation {
		lost("newer", "the log is at generation %d and the metadata at %d: the metadata is of an earlier time than the log", p.Generation, entry.Generation)
	}
	frontier := e.Frontier()
	switch {
	case !holdsFrames(p):
		if frontier > 0 {
			lost("missing", "there is no log: offsets below %d are exported, and what came after them is gone", frontier)
		} else if entry.Reserved > partition.FirstReservation && crash != seglog.MachineCrash {
			lost("missing", "there is no log, and offsets below %d may have been given out", entry.Reserved)
		}
		return all
	case e == nil:
		return all
	}
	if p.First > frontier {
		lost("missing", "offsets %d to %d are neither exported nor in the log, which begins at %d", frontier, p.First-1, p.First)
	}
	if p.Next < frontier {
		lost("behind", "the log ends at offset %d, and what is exported at %d: the log is of an earlier time", p.Next, frontier)
	}
	bases := map[int64]seglog.SegmentInfo{}
	for _, s := range p.Segments {
		if s.Sealed {
			bases[s.Base] = s
		}
	}
	for i, o := range e.Objects {
		if i > 0 && e.Objects[i-1].Next < o.Base {
			all = append(all, Finding{Level: Note, Area: "object", Kind: "gap", Why: fmt.Sprintf("offsets %d to %d were removed from the log before they were exported", e.Objects[i-1].Next, o.Base-1)})
		}
		s, ok := bases[o.Base]
		if ok && s.Next == o.Next && (s.BaseSeq != o.BaseSeq || s.NextSeq != o.NextSeq) {
			lost("differs", "offsets %d to %d are frames %d to %d in the log and %d to %d in their object", o.Base, o.Next-1, s.BaseSeq, s.NextSeq-1, o.BaseSeq, o.NextSeq-1)
		}
	}
	return all
}

// cursors compares where subscriptions are with what there is to read.
func (c *check) cursors(t *meta.Topic, n int32, p *seglog.Plan, e *meta.Export) {
	oldest, end := p.First, max(p.Next, e.Frontier())
	if first, ok := e.First(); ok && (first < oldest || !holdsFrames(p)) {
		oldest = first
	}
	for s := range c.View.Subscriptions(t.ID) {
		cur, ok := c.View.Cursor(t.ID, s.Name, n)
		where := fmt.Sprintf("%s/%d, subscription %s", t.Name, n, s.Name)
		if !ok {
			c.found(Finding{Level: Lost, Area: "cursor", Kind: "missing", Where: where, Why: "the subscription has no cursor in this partition"})
			continue
		}
		c.totals.Cursors++
		switch reserved := t.Partitions[n].Reserved; {
		case cur.Position > end && cur.Position <= reserved && c.Crash == seglog.MachineCrash:
			c.found(Finding{Level: Repair, Area: "cursor", Kind: "beyond_end", Where: where,
				Why: fmt.Sprintf("it is at offset %d and the log ends at %d: the next start declares lost what is between them", cur.Position, end)})
		case cur.Position > end:
			c.found(Finding{Level: Lost, Area: "cursor", Kind: "beyond_end", Where: where,
				Why: fmt.Sprintf("it is at offset %d and the log ends at %d: records that were consumed are gone, or the metadata is of a later time", cur.Position, end)})
		case cur.Position < oldest:
			c.found(Finding{Level: Note, Area: "cursor", Kind: "below_oldest", Where: where,
				Why: fmt.Sprintf("it is at offset %d and the oldest there is is %d: retention took what is between them", cur.Position, oldest)})
		}
	}
}
