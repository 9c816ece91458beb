package server

import (
	"fmt"

	"github.com/leveemq/levee/internal/seglog"
)

// The states of a run, as its file spells them.
const (
	runOpen   = "running"      // under way; found at a start, the run before crashed
	runFailed = "fsync_failed" // under way or ended, and a flush failed in it
	runClean  = "clean"        // ended after everything was flushed, and no flush had failed
)

// run says how the last run on a data directory went. It is written before any log opens.
type run struct {
	State string `json:"state"`
	// BootID names the boot of the machine that the run began in; empty where that could not be read.
	BootID string `json:"boot_id"`
	// Unsettled is the crash that logs may still have to be opened after: "" (none), "process" or "machine". It stays
	// until every log was opened, for a second crash before that must not make the first one forgotten.
	Unsettled string `json:"unsettled"`
	StartedMs int64  `json:"started_ms"` // ms since the epoch
	ChangedMs int64  `json:"changed_ms"` // when State or Unsettled got their values
}

func (*run) kind() string { return "run" }

func (*run) advice() string {
	return "put back a copy of it, or move it away: then the broker opens every log as after a power loss, so topics that are not on_commit declare the end of their logs lost"
}

func (r *run) check() error {
	switch r.State {
	case runOpen, runFailed, runClean:
	default:
		return fmt.Errorf("state %q is none of %s, %s, %s", r.State, runOpen, runFailed, runClean)
	}
	if _, ok := crashByName[r.Unsettled]; !ok {
		return fmt.Errorf("unsettled %q is neither process nor machine", r.Unsettled)
	}
	if len(r.BootID) > 100 {
		return fmt.Errorf("boot_id has %d characters", len(r.BootID))
	}
	return nil
}

var crashByName = map[string]seglog.Crash{
	"": seglog.CleanStop, "process": seglog.ProcessCrash, "machine": seglog.MachineCrash,
}

func crashName(c seglog.Crash) string {
	for name, crash := range crashByName {
		if crash == c {
			return name
		}
	}
	return "machine"
}
