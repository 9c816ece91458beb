package raft

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

// readBytes is how much of the log is read at once when it is applied again.
const readBytes = 1 << 20

// recover brings the machine to the end of the log.
func (g *Group) recover() error {
	start := time.Now()
	dir := g.cfg.SnapshotDir
	if err := vfs.MkdirSync(g.cfg.FS, dir); err != nil {
		return fault.New(fault.IO, "start metadata: %w", err)
	}
	if err := removeUnfinished(g.cfg.FS, dir); err != nil {
		return fmt.Errorf("start metadata: %w", err)
	}
	newest, damaged, err := g.loadSnapshots()
	if err != nil {
		return err
	}
	if err := g.check(newest, damaged); err != nil {
		return err
	}
	o := &g.owner
	o.term = 1
	from := uint64(1)
	if newest != nil {
		if err := g.cfg.Machine.Restore(newest.payload); err != nil {
			return fmt.Errorf("start metadata: snapshot %s: %w", g.fileOf(newest), err)
		}
		from, o.term = newest.seq+1, max(newest.term, 1)
	}
	if err := g.replay(from); err != nil {
		return err
	}
	g.applied.Store(o.last)
	g.cfg.Logger.Info("metadata read", "snapshot_seq", from-1, "log_seq", o.last, "took", time.Since(start))
	return nil
}

// loadSnapshots reads every snapshot and returns the newest that is whole, with its payload, and what is wrong with
// those that are not. All are read, not only the newest: the log may only be trimmed behind one that is known good.
func (g *Group) loadSnapshots() (newest *snapshot, damaged []error, err error) {
	files, err := listSnapshots(g.cfg.FS, g.cfg.SnapshotDir)
	if err != nil {
		return nil, nil, fmt.Errorf("start metadata: %w", err)
	}
	for _, f := range files {
		s, err := readSnapshot(g.cfg.FS, f)
		if fault.KindOf(err) == fault.Unsupported {
			return nil, nil, fmt.Errorf("start metadata: snapshot %s: %w", f.path, err)
		}
		if err != nil {
			g.metrics.snapshotsDamaged.Inc()
			g.cfg.Logger.Error("metadata snapshot is damaged: an older one and more of the log are used instead", "file", f.path, "error", err)
			damaged = append(damaged, fmt.Errorf("snapshot %s: %w", f.path, err))
			continue
		}
		if newest == nil {
			newest = &s
		}
		g.owner.kept = newestKept(g.owner.kept, s.seq)
	}
	return newest, damaged, nil
}

// check refuses a start that would leave something out.
func (g *Group) check(newest *snapshot, damaged []error) error {
	first, last := g.cfg.Log.Bounds()
	if newest == nil {
		if first == 1 {
			return nil
		}
		if len(damaged) > 0 {
			return fault.New(fault.Corrupt, "start metadata: the log begins at entry %d, and no snapshot of what was before it can be read: restore one from a backup: %w",
				first, errors.Join(damaged...))
		}
		return fault.New(fault.Corrupt, "start metadata: the log begins at entry %d, and there is no snapshot of what was before it in %s: restore it from a backup",
			first, g.cfg.SnapshotDir)
	}
	file := g.fileOf(newest)
	switch {
	case newest.seq > last:
		// The log's entries were on the device before the snapshot was begun. If those up to it are gone, others behind
		// it may be as well, and nobody could tell.
		return fault.New(fault.Corrupt, "start metadata: the log ends at entry %d, before snapshot %s: entries are missing, perhaps also later ones; restore the log from a backup",
			last, file)
	case newest.seq+1 < first:
		return fault.New(fault.Corrupt, "start metadata: the log begins at entry %d, and the newest snapshot that can be read, %s, does not reach it: restore a newer one from a backup%s",
			first, file, because(damaged))
	}
	term, err := g.cfg.Log.Term(newest.seq)
	if err != nil {
		return fmt.Errorf("start metadata: term of entry %d: %w", newest.seq, err)
	}
	if term != newest.term {
		return fault.New(fault.Corrupt, "start metadata: snapshot %s is of term %d, and the log's entry is of term %d: they are not of one broker; restore both from one backup", file, newest.term, term)
	}
	if len(newest.members) != 1 || newest.members[0] != (member{g.cfg.ID, roleVoter}) {
		return fault.New(fault.Unsupported, "start metadata: snapshot %s is of a group of %d members that is not this broker alone: this program knows groups of one only", file, len(newest.members))
	}
	return nil
}

func because(damaged []error) string {
	var b strings.Builder
	for _, err := range damaged {
		fmt.Fprintf(&b, "; %v", err)
	}
	return b.String()
}

func (g *Group) fileOf(s *snapshot) string {
	return g.cfg.SnapshotDir + "/" + snapshotName(s.seq, s.term)
}

// replay applies the log from seq on.
func (g *Group) replay(from uint64) error {
	o := &g.owner
	_, last := g.cfg.Log.Bounds()
	for o.last = from - 1; o.last < last; {
		entries, err := g.cfg.Log.Read(o.last+1, readBytes)
		if err != nil {
			return fmt.Errorf("start metadata: read entry %d: %w", o.last+1, err)
		}
		if len(entries) == 0 {
			return fault.New(fault.Corrupt, "start metadata: the log says it ends at entry %d and gives none from %d on", last, o.last+1)
		}
		for _, e := range entries {
			if err := g.replayOne(e); err != nil {
				return fmt.Errorf("start metadata: %w", err)
			}
		}
	}
	return nil
}

func (g *Group) replayOne(e Entry) error {
	o := &g.owner
	if e.Seq != o.last+1 || e.Term < o.term {
		return fault.New(fault.Corrupt, "the log has entry %d of term %d after entry %d of term %d", e.Seq, e.Term, o.last, o.term)
	}
	o.last, o.term = e.Seq, e.Term
	o.entries++
	command, ok, err := Command(e)
	if err != nil || !ok {
		return err
	}
	o.bytes += int64(len(command))
	if _, err := g.cfg.Machine.Apply(e.Seq, command); err != nil {
		return fmt.Errorf("apply entry %d: %w", e.Seq, err)
	}
	return nil
}
