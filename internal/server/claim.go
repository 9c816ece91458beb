package server

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
)

// machine is what a claim needs of the computer besides its files.
type machine struct {
	bootID func() (string, error) // of the running system
	sync   func(dir string) error // writes back every file system below dir
	newID  func() id
	now    func() time.Time
	uptime func() time.Duration // since any moment; no change of the clock changes it
}

// thisMachine is the real one.
func thisMachine() machine {
	began := time.Now()
	return machine{
		bootID: vfs.BootID,
		sync:   vfs.SyncFilesystems,
		newID: func() (i id) {
			_, _ = rand.Read(i[:]) // never fails: the program ends where there is no randomness
			return i
		},
		now:    time.Now,
		uptime: func() time.Duration { return time.Since(began) },
	}
}

// claim is a run's hold on its data directory: it keeps the files identity, run and registration true while the run
// goes on. The caller holds the directory's lock all the time. It is safe for concurrent use.
//
// Invariant: the run file says runClean only if nothing below the directory has changed since everything in it was
// flushed without an error.
type claim struct {
	fs      vfs.FS
	dir     string
	ages    *ageClock // what the files are dated by, so that the next start can go on from there
	verdict verdict   // how the last run was judged

	turn     chan struct{} // holds one token; whoever has it may touch what follows
	identity identity
	number   uint64 // the registration on disk; 0: none
	run      run    // as it is meant to be on disk
}

// look reads the three files and asks the machine. It changes nothing.
func look(fs vfs.FS, dir string, m machine, log *slog.Logger) (found, error) {
	var (
		f    found
		i    identity
		r    run
		g    registration
		errs []error
	)
	for _, s := range []stamped{&i, &r, &g} {
		there, err := readStamp(fs, dir, s)
		if err != nil {
			errs = append(errs, err)
		}
		switch {
		case !there:
		case s == &i:
			f.identity = &i
		case s == &r:
			f.run = &r
		default:
			f.registration = g.Number
		}
	}
	if len(errs) > 0 {
		return found{}, errors.Join(errs...) // all of them at once; the first one's kind counts
	}
	boot, err := m.bootID()
	if err != nil {
		log.Warn("the machine's boot id cannot be read: a crash of this process will count as one of the machine", "err", err)
	}
	f.boot = boot
	f.empty = true
	for _, sub := range []string{metadataDir, topicsDir} {
		there, err := vfs.Exists(fs, dir+"/"+sub)
		if err != nil {
			return found{}, fault.New(fault.IO, "look for data in %s: %w", dir, err).With("file", dir)
		}
		f.empty = f.empty && !there
	}
	return f, nil
}

// claimDir judges the last run on dir and records that a new one is under way. When it returns nil that is on the
// device, and logs may be opened.
func claimDir(fs vfs.FS, dir string, m machine, log *slog.Logger) (*claim, error) {
	f, err := look(fs, dir, m, log)
	if err != nil {
		return nil, err
	}
	v := decide(f)
	if v.sync {
		err := m.sync(dir)
		if v = v.flushed(err); err != nil {
			log.Error("syncing the file systems below the data directory failed: what the last run left may be incomplete", "dir", dir, "err", err)
		}
	}
	start, odd := startOfAges(m.now(), f.seen())
	if odd != "" {
		log.Warn("ages are counted from the last run on: retention keeps what it cannot know to be old; set the machine's clock if it is wrong", "because", odd)
	}
	now := start.UnixMilli()
	c := &claim{fs: fs, dir: dir, ages: newAgeClock(start, m.uptime), verdict: v, turn: make(chan struct{}, 1), number: f.registration}
	c.turn <- struct{}{}
	if f.identity != nil {
		c.identity = *f.identity
	} else {
		c.identity.Broker = firstBroker
	}
	if v.newStorage {
		c.identity.Storage, c.identity.CreatedMs = m.newID(), now
	}
	if v.newVolatile {
		c.identity.Volatile, c.identity.RotatedMs = m.newID(), now
	}
	// The order matters: see verdict.newStorage.
	if v.newStorage || v.newVolatile {
		if err := writeStamp(fs, dir, &c.identity); err != nil {
			return nil, err
		}
	}
	c.run = run{State: runOpen, BootID: f.boot, Unsettled: crashName(v.crash), StartedMs: now, ChangedMs: now}
	if err := writeStamp(fs, dir, &c.run); err != nil {
		return nil, err
	}
	return c, nil
}

// change rewrites the run file with what edit makes of it; edit reports false where nothing is to be written.
func (c *claim) change(edit func(r *run) bool) error {
	<-c.turn
	defer func() { c.turn <- struct{}{} }()
	if !edit(&c.run) {
		return nil
	}
	c.run.ChangedMs = c.ages.now().UnixMilli()
	return writeStamp(c.fs, c.dir, &c.run)
}

// dated writes the run file again, as it is, so that a crash does not make the next start think that no time went by.
func (c *claim) dated() error { return c.change(func(*run) bool { return true }) }

// settled records that every log was opened since the start, so the crash before it has had its last consequence.
func (c *claim) settled() error {
	return c.change(func(r *run) bool {
		changed := r.Unsettled != ""
		r.Unsettled = ""
		return changed
	})
}

// flushFailed records that a flush failed, for good: the next start will not trust what this machine has in memory.
func (c *claim) flushFailed() error {
	return c.change(func(r *run) bool {
		r.State = runFailed
		return true // also when it was tried before: that may have failed
	})
}

// stopped records a clean stop. It must be the last change below the directory, after everything was flushed. open is
// the crash that logs which were not opened in this run have yet to reckon with. It reports false where the run cannot be
// called clean, because a flush had failed.
func (c *claim) stopped(open seglog.Crash) (bool, error) {
	clean := false
	err := c.change(func(r *run) bool {
		if r.State == runOpen {
			r.State, clean = runClean, true
		}
		r.Unsettled = crashName(open)
		return true
	})
	return clean, err
}

// registered records the number that the metadata gave this start.
func (c *claim) registered(number uint64) error {
	<-c.turn
	defer func() { c.turn <- struct{}{} }()
	if err := writeStamp(c.fs, c.dir, &registration{Number: number}); err != nil {
		return err
	}
	c.number = number
	return nil
}

// LastRun says, without changing anything, what logs below the data directory dir would have to reckon with if a broker
// started now, and why. A sync that the start would do first is taken to succeed.
func LastRun(fs vfs.FS, dir string) (crash seglog.Crash, because string, err error) {
	f, err := look(fs, dir, thisMachine(), slog.New(slog.DiscardHandler))
	if err != nil {
		return seglog.MachineCrash, "", err
	}
	v := decide(f)
	return v.crash, v.because, nil
}
