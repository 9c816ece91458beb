package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/raft"
	"github.com/leveemq/levee/internal/seglog"
)

// The metadata's log is a log like any other. It is small, and only whole segments are given back behind a snapshot.
const (
	metadataName         = "raft/metadata" // in errors and logs; raft is the directory
	metadataSegmentBytes = 8 << 20
	metadataIndex        = 4 << 10
)

// metadata is the cluster's facts: a log, the agreement on it, and the state that comes of it.
type metadata struct {
	log     *seglog.Log
	group   *raft.Group
	store   meta.Store
	files   *seglog.Files // descriptors that all logs of this server share
	metrics *seglog.Metrics
}

// openMetadata recovers the metadata. Damage stops the start: nothing in the directory means anything without it.
func (s *server) openMetadata(context.Context) (err error) {
	disk := &reserveFS{s.fs, s.reserve}
	m := &metadata{files: seglog.NewFiles(s.cfg.Storage.OpenFiles), metrics: seglog.NewMetrics(s.registry)}
	log, report, err := seglog.Open(seglog.Config{
		FS: disk, Dir: s.dir + "/" + logDir, SalvageDir: s.dir + "/" + salvageDir, Topic: metadataName, TopicID: metadataID(),
		Mode: seglog.OnCommit, SegmentBytes: metadataSegmentBytes, IndexInterval: metadataIndex,
		Crash: s.claim.verdict.crash, VerifyAllOnOpen: true, RepairChecksumTail: s.cfg.Storage.RepairChecksumTail,
		Files: m.files, Metrics: m.metrics, Logger: s.log, Now: s.claim.ages.now,
	})
	if err != nil {
		return fmt.Errorf("the metadata cannot be read, and no broker can start without: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, log.Close())
		}
	}()
	m.log = log
	state := meta.NewState()
	m.group, err = raft.Open(raft.Config{
		Log: metaLog{log, &s.confirmer}, FS: disk, SnapshotDir: s.dir + "/" + snapshotDir, Machine: newMetaMachine(state),
		Logger: s.log, Registerer: s.registry, Now: s.machine.now,
	})
	if err != nil {
		return fmt.Errorf("the metadata cannot be recovered, and no broker can start without: %w", err)
	}
	store := metaStore{state: state, group: m.group, confirmer: &s.confirmer, log: s.log}
	if s.cfg.Valkey.Degrade { // otherwise nothing is acknowledged without the write buffer
		store.keeper = &s.keeper
	}
	m.store = store
	s.metadata.Store(m)
	v := m.store.View()
	s.log.Info("metadata recovered", "index", v.Index(), "topics", v.TopicCount(), "truncated_bytes", report.Truncated, "salvaged", report.Salvaged)
	return nil
}

// metadataID marks the segments of the metadata's log as such.
func metadataID() [16]byte { return [16]byte([]byte("levee metadata 1")) }

// err returns why the metadata takes no changes; nil while it does.
func (m *metadata) err() error {
	return m.group.Err()
}

// closeMetadata answers what was begun, flushes the log and closes it.
func (s *server) closeMetadata() error {
	m := s.metadata.Load()
	if m == nil {
		return nil
	}
	var unconfirmed error
	if c := s.confirmer.Load(); c != nil {
		unconfirmed = c.Stop() // first: the group may wait for it
	}
	if err := errors.Join(unconfirmed, m.group.Close(), m.log.Close()); err != nil {
		return fmt.Errorf("close the metadata: %w", err)
	}
	return nil
}

// register counts this start in the metadata and notes the number beside it.
func (s *server) register(ctx context.Context) error {
	m, id, had := s.metadata.Load(), s.claim.identity.Broker, s.claim.number
	dir := s.dir + "/" + metadataDir
	known := m.store.View().Registration(id)
	if known < had {
		return fault.New(fault.Corrupt,
			"the metadata in %s is older than the rest of %s: it knows of %d starts of broker %s, and %d were counted; put its newest copy back, or begin with nothing in a new data directory",
			dir, s.dir, known, id, had).With("file", dir)
	}
	r, err := m.store.Propose(ctx, meta.RaiseRegistration{Broker: id, From: known})
	if err != nil {
		return fmt.Errorf("register this start: %w", err)
	}
	if c := s.confirmer.Load(); c != nil {
		c.Enable() // not before: a broker whose write buffer is away is to serve what it has
	}
	return s.claim.registered(r.Registration)
}
