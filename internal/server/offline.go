package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"path/filepath"

	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/datadir"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/open"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

// Offline is the data directory of a broker that does not run, locked as its broker would. Nothing but Change writes to it.
type Offline struct {
	Dir     string
	Crash   seglog.Crash // what its logs have to reckon with
	Because string       // why

	fs    vfs.FS
	cfg   *config.Config
	found found
	lock  io.Closer
}

// OpenOffline locks a configuration's data directory, which has to be there. fs is its file system. It is refused with kind
// unavailable while a broker runs, and with corrupt where the files that tell how the last one ended are damaged.
func OpenOffline(cfg *config.Config, fs vfs.FS) (_ *Offline, err error) {
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fault.New(fault.IO, "data_dir = %q: %w", cfg.DataDir, err).With("key", "data_dir")
	}
	o := &Offline{Dir: filepath.ToSlash(dir), fs: fs, cfg: cfg}
	if _, err := fs.List(o.Dir); errors.Is(err, vfs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "there is no data directory %s", o.Dir)
	} else if err != nil {
		return nil, fault.New(fault.IO, "read data directory %s: %w", o.Dir, err)
	}
	o.lock, err = vfs.Lock(o.Dir + "/" + lockFile)
	var locked *vfs.LockedError
	if errors.As(err, &locked) {
		return nil, fault.New(fault.Unavailable, "data directory %s is in use: %w: stop that broker first", o.Dir, err).With("holder", locked.Holder)
	}
	if err != nil {
		return nil, fault.New(fault.IO, "lock data directory %s: %w", o.Dir, err)
	}
	if o.found, err = look(fs, o.Dir, thisMachine(), slog.New(slog.DiscardHandler)); err != nil {
		return nil, errors.Join(err, o.lock.Close())
	}
	v := decide(o.found)
	o.Crash, o.Because = v.crash, v.because
	return o, nil
}

// Close gives the directory back.
func (o *Offline) Close() error { return o.lock.Close() }

// Claim returns what the directory calls its hold on what its broker has stored elsewhere; zero where it has none.
func (o *Offline) Claim() (metatier.ID, error) {
	c, _, err := notes{o.fs, o.Dir}.Claim()
	return c.ID, err
}

// LogDir returns where a partition's log is.
func (o *Offline) LogDir(t *meta.Topic, n int32) string { return datadir.LogDir(o.Dir, t, n) }

// MetadataLog returns where the metadata's log is, and how it is read.
func (o *Offline) MetadataLog() (dir string, options seglog.PlanOptions) {
	return o.Dir + "/" + logDir, seglog.PlanOptions{
		Topic: metadataName, TopicID: metadataID(), Crash: o.Crash, VerifyAll: true, RepairChecksumTail: o.cfg.Storage.RepairChecksumTail, IndexInterval: metadataIndex,
	}
}

// Metadata returns the metadata as a broker would find it now, and which of its snapshots are damaged, though it can do
// without them. It works on a copy in memory.
func (o *Offline) Metadata() (v *meta.View, damaged []error, err error) {
	memory := vfs.NewMem()
	if err := copyTree(o.fs, memory, o.Dir+"/"+metadataDir); err != nil {
		return nil, nil, fault.New(fault.IO, "read the metadata: %w", err)
	}
	if there, err := vfs.Exists(memory, o.Dir+"/"+snapshotDir); err == nil && there {
		if damaged, err = raft.DamagedSnapshots(memory, o.Dir+"/"+snapshotDir); err != nil {
			return nil, nil, err
		}
	}
	err = o.open(memory, o.Crash, func(s meta.Store) error { v = s.View(); return nil })
	if err != nil {
		return nil, damaged, err
	}
	if i := o.found.identity; i != nil && v.Registration(i.Broker) < o.found.registration {
		return nil, damaged, fault.New(fault.Corrupt, "the metadata in %s is older than the rest of %s: it knows of %d starts of broker %s, and %d were counted",
			o.Dir+"/"+metadataDir, o.Dir, v.Registration(i.Broker), i.Broker, o.found.registration)
	}
	return v, damaged, nil
}

// open opens the metadata in a file system for the time of fn.
func (o *Offline) open(fs vfs.FS, crash seglog.Crash, fn func(meta.Store) error) (err error) {
	log, _, err := seglog.Open(seglog.Config{
		FS: fs, Dir: o.Dir + "/" + logDir, SalvageDir: o.Dir + "/" + salvageDir, Topic: metadataName, TopicID: metadataID(),
		Mode: seglog.OnCommit, SegmentBytes: metadataSegmentBytes, IndexInterval: metadataIndex,
		Crash: crash, VerifyAllOnOpen: true, RepairChecksumTail: o.cfg.Storage.RepairChecksumTail,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	state := meta.NewState()
	group, err := raft.Open(raft.Config{Log: newMetaLog(log), FS: fs, SnapshotDir: o.Dir + "/" + snapshotDir, Machine: newMetaMachine(state)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	return fn(newMetaStore(state, group))
}

// Change lets fn change the metadata. The directory is claimed for that as by a broker that starts and stops: what its logs
// have to reckon with stays written down.
func (o *Offline) Change(fn func(meta.Store) error) error {
	c, err := claimDir(o.fs, o.Dir, thisMachine(), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if err := o.open(o.fs, c.verdict.crash, fn); err != nil {
		return err // the run stays one that did not end
	}
	if clean, err := c.stopped(c.verdict.crash); err != nil || !clean {
		return errors.Join(err, fault.New(fault.Stopped, "the data directory is not in a clean state: the next start reads it as after a crash"))
	}
	o.Crash = c.verdict.crash
	return nil
}

// Unaccounted returns, in words, what lies in the directory that neither a broker nor the metadata accounts for.
func (o *Offline) Unaccounted(v *meta.View) ([]string, error) {
	ours := map[string]bool{
		lockFile: true, reserveFile: true, metadataDir: true, topicsDir: true, salvageDir: true, tierDir: true, ".deleted": true,
		(&identity{}).kind(): true, (&run{}).kind(): true, (&registration{}).kind(): true, (&ownership{}).kind(): true, (&buffered{}).kind(): true,
	}
	names, err := o.fs.List(o.Dir)
	if err != nil {
		return nil, fault.New(fault.IO, "read data directory %s: %w", o.Dir, err)
	}
	var found []string
	for _, n := range names {
		if !ours[n.Name] {
			found = append(found, o.Dir+"/"+n.Name+": not a broker's: left alone")
		}
	}
	more, err := datadir.Unaccounted(o.fs, o.Dir, v)
	return append(found, more...), err
}

// OpenStore opens the store that a configuration has sealed segments copied to, and returns it with the first two parts of
// every key; nil where there is none.
func OpenStore(ctx context.Context, cfg *config.Config, dataDir string) (_ objstore.Store, prefix, cluster string, err error) {
	if cfg.Tier.Mode == config.TierNone {
		return nil, "", "", nil
	}
	s := &server{cfg: cfg, dir: dataDir}
	store, err := open.Store(ctx, s.storeConfig())
	if err != nil {
		return nil, "", "", fmt.Errorf("open the store of sealed segments: %w", err)
	}
	return store, cfg.Tier.Prefix, cfg.Tier.Cluster, nil
}

// copyTree copies a directory, where there is one, under its own name.
func copyTree(from, to vfs.FS, dir string) error {
	names, err := from.List(dir)
	if errors.Is(err, vfs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := to.MkdirAll(dir); err != nil {
		return err
	}
	for _, n := range names {
		name := path.Join(dir, n.Name)
		if n.Dir {
			if err := copyTree(from, to, name); err != nil {
				return err
			}
			continue
		}
		b, err := vfs.ReadFile(from, name, 1<<40)
		if err != nil {
			return err
		}
		if err := vfs.WriteFileAtomic(to, name, b); err != nil {
			return err
		}
	}
	return nil
}
