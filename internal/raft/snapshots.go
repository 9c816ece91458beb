package raft

import (
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

// keep is how many snapshots there are once there were enough: the newest, and one to fall back to.
const keep = 2

// snapshotResult is what became of a snapshot.
type snapshotResult struct {
	seq uint64
	err error
}

// snapshotIfDue takes hold of the state and starts a task that writes it down, unless one does already. Commands go on
// meanwhile.
func (g *Group) snapshotIfDue(ctx context.Context) {
	o := &g.owner
	due := o.entries >= g.cfg.SnapshotEntries || o.bytes >= g.cfg.SnapshotBytes
	if !due || o.writing || o.entries == 0 || o.entries < o.retryAt || g.Err() != nil || ctx.Err() != nil {
		return
	}
	s := snapshot{seq: o.last, term: o.term, members: []member{{g.cfg.ID, roleVoter}}}
	state := g.cfg.Machine.Snapshot()
	kept := slices.Clone(o.kept)
	o.writing, o.captured = true, owed{o.entries, o.bytes}
	g.tasks.Go("raft snapshot", func(ctx context.Context) error {
		g.written <- snapshotResult{s.seq, g.writeSnapshot(ctx, s, state, kept)} // room for the one there is
		return nil
	})
}

// snapshotWritten takes note of what the task did.
func (g *Group) snapshotWritten(r snapshotResult) {
	o := &g.owner
	o.writing = false
	if r.err != nil {
		g.metrics.snapshotFailures.Inc()
		// Not with every command, and well before the log has twice the length it should.
		o.retryAt = o.entries + max(g.cfg.SnapshotEntries/10, 1)
		g.cfg.Logger.Error("metadata snapshot failed: the log cannot be trimmed; the next is tried after more commands",
			"seq", r.seq, "error", r.err, "retry_after_commands", o.retryAt-o.entries)
		return
	}
	g.metrics.snapshots.Inc()
	o.entries -= o.captured.entries
	o.bytes -= o.captured.bytes
	o.retryAt = 0
	o.kept = newestKept(o.kept, r.seq)
}

func newestKept(kept []uint64, seq uint64) []uint64 {
	kept = append(slices.Clone(kept), seq)
	slices.Sort(kept)
	kept = slices.Compact(kept)
	return kept[max(0, len(kept)-keep):]
}

// writeSnapshot writes the state down, then removes what it makes superfluous: first older snapshots, then the log
// behind the older of the two that stay, so that a start can do without the newest.
func (g *Group) writeSnapshot(ctx context.Context, s snapshot, state func() ([]byte, error), kept []uint64) error {
	payload, err := state()
	if err != nil {
		return fmt.Errorf("write down the state at entry %d: %w", s.seq, err)
	}
	if err := ctx.Err(); err != nil {
		return err // the group closes; the log has everything
	}
	s.payload = payload
	name := path.Join(g.cfg.SnapshotDir, snapshotName(s.seq, s.term))
	if err := vfs.WriteFileAtomic(g.cfg.FS, name, s.encode()); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	g.metrics.snapshotBytes.Set(float64(len(payload)))
	g.cfg.Logger.Info("metadata snapshot written", "file", name, "bytes", len(payload))
	kept = newestKept(kept, s.seq)
	if len(kept) < keep {
		return nil
	}
	// From here on the snapshot is good, whatever happens: what stays too long is removed after the next one. The older
	// one's name is durable as well, also where the last run ended before it could make it so: one sync of the directory
	// served both.
	if err := g.removeBelow(kept[0]); err != nil {
		g.cfg.Logger.Warn("old metadata snapshots stay", "error", err)
	}
	if err := g.cfg.Log.TrimBefore(ctx, kept[0]+1); err != nil && ctx.Err() == nil {
		g.cfg.Logger.Warn("metadata log stays longer than needed", "error", err)
	}
	return nil
}

// removeBelow removes the snapshots below seq, damaged ones too: they can serve no start any more.
func (g *Group) removeBelow(seq uint64) error {
	files, err := listSnapshots(g.cfg.FS, g.cfg.SnapshotDir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.seq < seq {
			if err := vfs.RemoveAll(g.cfg.FS, f.path); err != nil {
				return fmt.Errorf("remove snapshot: %w", err)
			}
		}
	}
	return nil
}

type snapshotFile struct {
	path string
	seq  uint64
	term uint32
}

// listSnapshots returns the snapshots of a directory, newest first.
func listSnapshots(fsys vfs.FS, dir string) ([]snapshotFile, error) {
	infos, err := fsys.List(dir)
	if err != nil {
		return nil, fault.New(fault.IO, "list snapshots: %w", err)
	}
	var files []snapshotFile
	for _, info := range infos {
		if seq, term, ok := parseSnapshotName(info.Name); ok && !info.Dir {
			files = append(files, snapshotFile{path.Join(dir, info.Name), seq, term})
		}
	}
	slices.Reverse(files) // names are listed in order, and sort as seqs do
	return files, nil
}

// removeUnfinished removes what a crash left of snapshots that were being written.
func removeUnfinished(fsys vfs.FS, dir string) error {
	infos, err := fsys.List(dir)
	if err != nil {
		return fault.New(fault.IO, "list snapshots: %w", err)
	}
	for _, info := range infos {
		whole, unfinished := strings.CutSuffix(info.Name, tmpSuffix)
		if _, _, ok := parseSnapshotName(whole); !ok || !unfinished || info.Dir {
			continue
		}
		if err := vfs.RemoveAll(fsys, path.Join(dir, info.Name)); err != nil {
			return fault.New(fault.IO, "remove unfinished snapshot: %w", err)
		}
	}
	return nil
}

// readSnapshot reads and checks one file.
func readSnapshot(fsys vfs.FS, f snapshotFile) (s snapshot, err error) {
	b, err := vfs.ReadFile(fsys, f.path, math.MaxInt64)
	if err != nil {
		return snapshot{}, fault.New(fault.IO, "%w", err)
	}
	s, err = decodeSnapshot(b)
	if err != nil {
		return snapshot{}, err
	}
	if s.seq != f.seq || s.term != f.term {
		return snapshot{}, fault.New(fault.Corrupt, "it holds the snapshot of entry %d of term %d", s.seq, s.term)
	}
	return s, nil
}
