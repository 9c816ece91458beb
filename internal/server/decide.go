package server

import (
	"time"

	"github.com/leveemq/levee/internal/seglog"
)

// found is what a start finds out about a data directory before it opens anything in it.
type found struct {
	identity     *identity // nil: there is none
	run          *run      // nil: there is none
	registration uint64    // the number in the directory; 0: none
	peers        uint64    // the newest number that other brokers hold for it; 0: there are none to ask
	boot         string    // of the machine, now; empty: it cannot be read
	empty        bool      // there is neither metadata nor any log
}

// seen returns the newest time that the files know of; zero: none. It may be one before 1970.
func (f *found) seen() time.Time {
	switch i, r := f.identity, f.run; {
	case i != nil && r != nil:
		return time.UnixMilli(max(i.CreatedMs, i.RotatedMs, r.StartedMs, r.ChangedMs))
	case i != nil:
		return time.UnixMilli(max(i.CreatedMs, i.RotatedMs))
	case r != nil:
		return time.UnixMilli(max(r.StartedMs, r.ChangedMs))
	}
	return time.Time{}
}

// verdict says what a data directory may vouch for, and what has to be done before anything in it opens.
type verdict struct {
	because string // the rule that matched, in words
	// newStorage and newVolatile ask for new ids. They are written before the new run is, or a crash in between would
	// make the old run look like one that may keep its ids.
	newStorage, newVolatile bool
	// sync asks to sync every file system below the directory first; flushed says what its outcome means.
	sync  bool
	crash seglog.Crash // what logs must reckon with
}

// decide applies the rules; the first that matches wins. It decides by what it is given alone.
func decide(f found) verdict {
	v := rule(f)
	// A crash that an earlier run had not got over (see run.Unsettled) is still to be reckoned with. What it meant for
	// the ids was done then.
	if f.run != nil {
		v.crash = max(v.crash, crashByName[f.run.Unsettled])
	}
	return v
}

func rule(f found) verdict {
	switch {
	case f.identity == nil && f.empty:
		return verdict{because: "the data directory is new", newStorage: true, newVolatile: true, crash: seglog.CleanStop}
	case f.identity == nil:
		return verdict{because: "the data directory has no identity", newStorage: true, newVolatile: true, crash: seglog.MachineCrash}
	case f.peers > f.registration:
		return verdict{because: "other brokers know a newer state of this data directory: it was restored from an older copy",
			newStorage: true, newVolatile: true, crash: seglog.MachineCrash}
	case f.run != nil && f.run.State == runClean:
		return verdict{because: "the last run stopped cleanly", crash: seglog.CleanStop}
	case f.run != nil && f.run.State == runFailed:
		return verdict{because: "a flush failed in the last run", newVolatile: true, crash: seglog.MachineCrash}
	case f.run != nil && f.boot != "" && f.run.BootID == f.boot:
		return verdict{because: "the last run was killed or crashed, the machine was not", sync: true, crash: seglog.ProcessCrash}
	case f.run == nil:
		return verdict{because: "nothing says how the last run ended", newVolatile: true, crash: seglog.MachineCrash}
	case f.boot == "" || f.run.BootID == "":
		return verdict{because: "the last run did not stop cleanly, and which boot of the machine it was in cannot be told", newVolatile: true, crash: seglog.MachineCrash}
	default:
		return verdict{because: "the machine was restarted without a clean stop", newVolatile: true, crash: seglog.MachineCrash}
	}
}

// flushed returns the verdict once the file systems were synced, with err. Any error means that something of the last
// run may be missing from a device, and nobody can tell what.
func (v verdict) flushed(err error) verdict {
	if err != nil {
		v.because, v.newVolatile, v.crash = "the last run crashed, and syncing what it left failed", true, seglog.MachineCrash
	}
	v.sync = false
	return v
}
