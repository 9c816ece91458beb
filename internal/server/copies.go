package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/metatier"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
)

// checkPatience is how long a start with metadata of its own waits to hear whether it is still the cluster's. A store that
// is away must not keep a broker down; that the data was taken over is found out later then.
const checkPatience = 5 * time.Second

// ownership is a data directory's hold on the data of its cluster, as far as the directory knows.
type ownership struct {
	ID        metatier.ID    `json:"claim"`
	State     metatier.State `json:"state"`
	From      metatier.ID    `json:"from"`            // whose the data was when taking it began; zeros: nobody's
	FromEpoch uint64         `json:"from_epoch"`      // and in which epoch
	Epoch     uint64         `json:"epoch,omitempty"` // of the record when it last named this directory; 0: it never did
}

func (*ownership) kind() string { return "ownership" }

func (*ownership) advice() string {
	return "put back a copy of it; or begin with an empty data directory, which takes the cluster over with all that was copied"
}

func (o *ownership) check() error {
	switch {
	case o.ID == (metatier.ID{}):
		return errors.New("claim is missing")
	case o.State != metatier.Taking && o.State != metatier.Held:
		return fmt.Errorf("state %q is neither %s nor %s", o.State, metatier.Taking, metatier.Held)
	case (o.From == metatier.ID{}) != (o.FromEpoch == 0):
		return errors.New("from and from_epoch do not go together")
	}
	return nil
}

// notes keeps the ownership in the data directory.
type notes struct {
	fs  vfs.FS
	dir string
}

var _ metatier.Notes = notes{}

// Claim implements metatier.Notes.
func (n notes) Claim() (metatier.Claim, bool, error) {
	var o ownership
	there, err := readStamp(n.fs, n.dir, &o)
	return metatier.Claim(o), there && err == nil, err
}

// Note implements metatier.Notes.
func (n notes) Note(c metatier.Claim) error {
	o := ownership(c)
	return writeStamp(n.fs, n.dir, &o)
}

// copyParts are what taking over and keeping a copy have in common.
func (s *server) copyParts() (metatier.Place, metatier.Self, notes) {
	return metatier.Place{Store: s.store, Prefix: s.cfg.Tier.Prefix, Cluster: s.cfg.Tier.Cluster},
		metatier.Self{Run: s.runID, Broker: s.claim.identity.Broker, Who: whoIs(s.dir), Dir: s.dir},
		notes{&reserveFS{s.fs.FS, s.reserve}, s.dir}
}

// whoIs names this machine and directory, for people.
func whoIs(dir string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "a machine without a name"
	}
	who := strings.ToValidUTF8(host+":"+dir, "?")
	if len(who) > 140 {
		who = strings.ToValidUTF8(who[:140], "")
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return '?'
		}
		return r
	}, who)
}

// takeOver sees to it that a data directory without metadata gets that of its cluster, where there is a copy, before
// anything is opened. It waits for the store as long as it must: to begin with nothing while there is a copy would be to
// forget it.
func (s *server) takeOver(ctx context.Context) error {
	there, err := hasMetadata(s.fs.FS, s.dir)
	if err != nil {
		return err
	}
	if s.store == nil && s.buffer == nil {
		if !there {
			s.log.Info("the data directory holds no metadata, and neither storage.mode nor valkey.mode names a copy: this broker begins with nothing", "dir", s.dir)
		}
		return nil
	}
	place, self, notes := s.copyParts()
	claim, known, err := notes.Claim()
	if err != nil {
		return err
	}
	if there && !(known && claim.State == metatier.Taking) {
		return nil
	}
	began := s.machine.now()
	t := &metatier.Taker{
		Place: place, Self: self, Buffers: s.metadataBuffers(), Notes: notes, Install: s.installMetadata, NewID: s.newCopyID, Now: s.machine.now, Logger: s.log,
		Waiting: func(what string, err error) {
			s.status.starting(fmt.Sprintf("waiting for %s: %v", what, err))
			s.log.Warn("waiting for "+what+": the data directory holds no metadata, and there may be a copy", "err", err)
		},
	}
	taken, err := t.Take(ctx)
	if err != nil {
		return err
	}
	if s.buffer == nil && taken.Before != nil { // whoever had it may have had one
		if err := s.runBuffered(); err != nil {
			return err
		}
		s.unbuffered = true
	}
	if taken.Holes {
		text := lostChanges(taken)
		s.lostChanges.Store(&text)
		s.log.Error(text)
	}
	switch {
	case taken.Before == nil && !taken.Found:
		s.log.Info("the cluster is a new one: neither the data directory nor a copy holds metadata", "cluster", place.Cluster)
	case !taken.Found:
		s.log.Warn("the cluster's data was taken over, and nothing had been copied of its metadata: this broker begins with nothing", "cluster", place.Cluster, "from", taken.Before, "epoch", taken.Epoch)
	default:
		s.log.Warn("the cluster's data was taken over: the metadata is that of its copy, and whoever had it is fenced", "cluster", place.Cluster, "from", taken.Before, "epoch", taken.Epoch,
			"topics", taken.Topics, "took", s.machine.now().Sub(began))
	}
	return nil
}

// lostChanges says what may be missing where the write buffer had lost a part of the metadata, and what to do.
func lostChanges(t metatier.Taken) string {
	return fmt.Sprintf("the metadata was taken over from a write buffer that had lost changes of it, from entry %d on: up to entry %d none counts, %d in all. What they made or changed is missing or as it was before: "+
		"topics that were created (their records are kept, and nobody finds them) or deleted (they are there again), settings, schemas, positions of subscriptions (records are delivered again). "+
		"Compare `levee topic list` and `levee subscription list` with what there should be, and make again what is missing; this is said until the broker is restarted",
		t.Missing.First, t.Missing.Last, t.Missing.Last-t.Missing.First+1)
}

// hasMetadata reports whether a data directory holds a part of a metadata log or a snapshot.
func hasMetadata(fs vfs.FS, dir string) (bool, error) {
	for _, sub := range []string{logDir, snapshotDir} {
		infos, err := fs.List(dir + "/" + sub)
		if err != nil && !errors.Is(err, vfs.ErrNotExist) {
			return false, fault.New(fault.IO, "look for metadata: %w", err)
		}
		for _, info := range infos {
			if strings.HasSuffix(info.Name, ".log") || strings.HasSuffix(info.Name, ".snap") {
				return true, nil
			}
		}
	}
	return false, nil
}

// installMetadata makes an encoded snapshot all that there is of the metadata, with an empty log that goes on behind it.
func (s *server) installMetadata(snapshot []byte) error {
	return installMetadata(&reserveFS{s.fs.FS, s.reserve}, s.dir, snapshot)
}

func installMetadata(fs vfs.FS, dir string, snapshot []byte) (err error) {
	c, err := raft.ParseCopy(snapshot)
	if err != nil {
		return err
	}
	if err := vfs.RemoveAll(fs, dir+"/"+metadataDir); err != nil {
		return fault.New(fault.IO, "remove what an earlier attempt left: %w", err)
	}
	log, _, err := seglog.Open(seglog.Config{
		FS: fs, Dir: dir + "/" + logDir, SalvageDir: dir + "/" + salvageDir, Topic: metadataName, TopicID: metadataID(),
		Mode: seglog.OnCommit, SegmentBytes: metadataSegmentBytes, IndexInterval: metadataIndex, Crash: seglog.CleanStop,
	})
	if err != nil {
		return err
	}
	err = log.Reset(context.Background(), c.Seq+1, int64(c.Seq), c.Term) //nolint:gosec // bounded by the record
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("begin a log behind the copied metadata: %w", err)
	}
	return raft.InstallCopy(fs, dir+"/"+snapshotDir, snapshot)
}

func (s *server) newCopyID() metatier.ID { return metatier.ID(s.machine.newID()) }

// copySource is the metadata as its copies see it.
type copySource struct {
	meta.Store
	group *raft.Group
}

// Term implements metatier.Source.
func (c copySource) Term() uint32 { return c.group.Term() }

// keepMetadata finds out whether the cluster's data is still this directory's, as far as the store tells in time, and keeps
// its copy from now on.
func (s *server) keepMetadata(ctx context.Context) error {
	if s.store == nil {
		return nil
	}
	place, self, notes := s.copyParts()
	claim, known, err := notes.Claim()
	if err != nil {
		return err
	}
	if !known { // the directory is from before there was a copy
		claim = metatier.Claim{ID: s.newCopyID(), State: metatier.Held}
		if err := notes.Note(claim); err != nil {
			return err
		}
	}
	m := s.metadata.Load()
	k := metatier.NewKeeper(metatier.KeeperConfig{
		Place: place, Self: self, Claim: claim.ID, Epoch: claim.Epoch, Source: copySource{m.store, m.group}, NewID: s.newCopyID, Now: s.machine.now,
		Seen: func(epoch uint64) error {
			claim.Epoch = epoch
			return notes.Note(claim)
		},
		Logger: s.log, Registerer: s.registry,
	})
	s.keeper.Store(k)
	patience, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	var gone *metatier.GoneError
	switch err := k.Check(patience); {
	case k.Err() != nil:
		return k.Err()
	case errors.As(err, &gone):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		s.log.Warn("the object store does not tell whether the cluster's data is still this broker's; it goes on, and stops if it finds out that it is not", "err", err)
	}
	k.Start()
	s.tasks.Go("follow the copy of the metadata", func(ctx context.Context) error {
		select {
		case <-k.Fenced():
			return k.Err()
		case <-ctx.Done():
			return nil
		}
	})
	return nil
}

// metadataBuffers are the parts of the write buffer that hold metadata; nil: there is none.
func (s *server) metadataBuffers() *metatier.Buffers {
	if s.buffer == nil {
		return nil
	}
	of := func(partition uint32) writebuf.Buffer {
		return s.buffer.Store.Buffer(writebuf.ID{Topic: metadataID(), Partition: partition})
	}
	return &metatier.Buffers{Log: of(0), Snapshots: of(1), Cluster: s.cfg.Tier.Cluster}
}

// confirmMetadata finds out whether the write buffer's metadata is still this directory's, as far as the server tells in
// time, and has changes confirmed by it from the registration on.
func (s *server) confirmMetadata(ctx context.Context) error {
	if s.buffer == nil {
		return nil
	}
	m := s.metadata.Load()
	c := metatier.NewConfirmer(metatier.ConfirmerConfig{
		Buffers: *s.metadataBuffers(), Dir: s.dir, Log: metaFrames{m.log}, Source: copySource{m.store, m.group}, Timeout: s.buffer.Timeout, Degrade: s.buffer.Degrade,
		Mine: func(ctx context.Context) error {
			if k := s.keeper.Load(); k != nil {
				return k.Mine(ctx)
			}
			return nil
		},
		Logger: s.log, Registerer: s.registry,
	})
	patience, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	err := c.Check(patience)
	switch {
	case c.Err() != nil:
		return c.Err()
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		s.log.Warn("the write buffer does not tell whether its metadata is still this broker's; it goes on, and stops if it finds out that it is not", "err", err)
	}
	c.Start()
	s.confirmer.Store(c)
	s.tasks.Go("follow the write buffer's metadata", func(ctx context.Context) error {
		select {
		case <-c.Fenced():
			return c.Err()
		case <-ctx.Done():
			return nil
		}
	})
	return nil
}
