package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

// lockDataDir makes the data directory where there is none, and takes its lock.
func (s *server) lockDataDir(context.Context) error {
	dir, err := filepath.Abs(s.cfg.DataDir)
	if err != nil {
		return fault.New(fault.IO, "data_dir = %q: %w", s.cfg.DataDir, err).With("key", "data_dir")
	}
	s.dir = filepath.ToSlash(dir)
	if err := vfs.MkdirSync(s.fs.FS, s.dir); err != nil {
		return fault.New(fault.IO, "data_dir = %q cannot be made or read: %w; allowed: a directory that this user may write", s.cfg.DataDir, err).With("key", "data_dir")
	}
	s.lock, err = vfs.Lock(s.dir + "/" + lockFile)
	var locked *vfs.LockedError
	switch {
	case errors.As(err, &locked):
		return fault.New(fault.Unavailable, "data_dir = %q is in use: %w; stop that broker first, or give this one a directory of its own", s.cfg.DataDir, err).With("key", "data_dir").With("holder", locked.Holder)
	case err != nil:
		return fault.New(fault.IO, "lock data_dir = %q: %w; allowed: a directory that this user may write", s.cfg.DataDir, err).With("key", "data_dir")
	}
	s.reserve = newReserve(s.fs.FS, s.dir, s.log)
	return nil
}

// holdReserve sees to it that the metadata has room to go on when the disk is full. Where it is full already, the start
// goes on with what room there is.
func (s *server) holdReserve(context.Context) error {
	if err := s.reserve.hold(); err != nil {
		s.log.Warn("there is no room for the metadata's reserve", "path", s.reserve.path, "bytes", reserveBytes, "err", err)
	}
	s.metrics.reserve(s.registry, s.reserve)
	s.tasks.Go("keep the reserve", s.reserve.keep)
	return nil
}

func (s *server) unlock() error {
	if s.lock == nil {
		return nil
	}
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("unlock the data directory: %w", err)
	}
	return nil
}

// claimDataDir judges the last run and writes down that a new one is under way.
func (s *server) claimDataDir(context.Context) (err error) {
	// Its files are flushed past the watch: a failure there is an error of the claim, and is nothing to write down in it.
	if s.claim, err = claimDir(&reserveFS{s.fs.FS, s.reserve}, s.dir, s.machine, s.log); err != nil {
		return err
	}
	v, i := s.claim.verdict, s.claim.identity
	s.metrics.lastRun(v.crash)
	log := s.log.Info
	if v.crash != seglog.CleanStop || v.newVolatile {
		log = s.log.Warn
	}
	log("data directory claimed", "dir", s.dir, "because", v.because, "crash", cmp.Or(crashName(v.crash), "none"), "storage_id", i.Storage, "new_storage_id", v.newStorage,
		"volatile_id", i.Volatile, "new_volatile_id", v.newVolatile)
	s.tasks.Go("keep the run file", s.keepRunFile)
	return nil
}

// onFailedFlush is told of every flush that failed, by whoever asked for it.
func (s *server) onFailedFlush(path string, err error) {
	s.metrics.flushFailures.Inc()
	s.log.Error("a flush failed: the next start will not trust what was written since the one before", "path", path, "err", err)
	s.flushes.raise()
}

// keepRunFile writes a failed flush down at once, as well as it can: if this process is killed later, the next start has
// to know. And now and then it writes down what time it is.
func (s *server) keepRunFile(ctx context.Context) error {
	tick := time.NewTicker(datedEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := s.claim.dated(); err != nil {
				s.log.Warn("could not record the time; it is tried again", "err", err, "after", datedEvery)
			}
		case <-s.flushes.raised:
			if err := s.claim.flushFailed(); err != nil {
				s.log.Error("could not record that a flush failed; it is tried again at the next failure and at the stop", "err", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// datedEvery is how far the time that a crash leaves on disk may be behind.
const datedEvery = time.Hour

// alarm is raised any number of times, from anywhere, and heard at least once after each.
type alarm struct {
	ever   atomic.Bool
	raised chan struct{} // one slot
}

func newAlarm() *alarm { return &alarm{raised: make(chan struct{}, 1)} }

func (a *alarm) raise() {
	a.ever.Store(true)
	select {
	case a.raised <- struct{}{}:
	default: // it is yet to be heard
	}
}

func (a *alarm) everRaised() bool { return a.ever.Load() }

// endClaim writes down how this run ended.
func (s *server) endClaim(report *broker.DrainReport, metadataErr error) error {
	if s.claim == nil {
		return nil
	}
	if s.flushes.everRaised() || report != nil && len(report.Stopped) > 0 {
		if err := s.claim.flushFailed(); err != nil {
			return err
		}
		stopped := []string{}
		if report != nil {
			stopped = report.Stopped
		}
		return fault.New(fault.Stopped, "stopped, but not cleanly: a flush failed in this run (logs that it stopped: %q); the next start reads the logs again and counts what was not flushed as lost", stopped)
	}
	if metadataErr != nil {
		return nil // the run stays one that did not end: that is what it is
	}
	clean, err := s.claim.stopped(s.leftOpen(report))
	if err == nil && !clean {
		err = fault.New(fault.Stopped, "stopped, but not cleanly: a flush failed in this run")
	}
	return err
}

// leftOpen returns the crash that logs which could not be opened in this run have yet to reckon with.
func (s *server) leftOpen(report *broker.DrainReport) seglog.Crash {
	before := s.claim.verdict.crash
	switch {
	case report == nil || !report.Recovered:
		return before
	case !report.Clean:
		return min(before, seglog.ProcessCrash) // what could be lost was written down; their tails are still unread
	default:
		return seglog.CleanStop
	}
}
