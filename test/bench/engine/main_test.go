package main

import (
	"os"
	"testing"
	"time"
)

func TestMeasureCountsWhatTheLogAcknowledged(t *testing.T) {
	for _, mode := range []string{"on_commit", "periodic", "none"} {
		dir := t.TempDir()
		r, err := measure(config{dir: dir, mode: mode, label: "engine-levee", batch: 3, conc: 4, size: 100, logs: 1, length: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if r.Msgs < 3 || r.Msgs%3 != 0 || r.P50 <= 0 || r.P50 > r.P999 {
			t.Errorf("%s: %+v", mode, r)
		}
		if mode == "on_commit" && (r.RecsPerFlush < 1 || r.RecsPerFlush > 12) {
			t.Errorf("%.1f records a flush; four workers append three each", r.RecsPerFlush)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", mode, left, err)
		}
	}
}

func TestWorkersAreSpreadOverLogs(t *testing.T) {
	r, err := measure(config{dir: t.TempDir(), mode: "on_commit", batch: 1, conc: 6, size: 100, logs: 3, length: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// Two workers share a log, and no flush serves more than one.
	if r.Partitions != 3 || r.Msgs < 6 || r.RecsPerFlush <= 0 || r.RecsPerFlush > 2 {
		t.Errorf("%+v", r)
	}
}

func TestMeasureRefusesWhatItCannotDo(t *testing.T) {
	for _, c := range []config{
		{mode: "sometimes", conc: 1, logs: 1}, {mode: "none", conc: 2, logs: 3}, {mode: "none", conc: 2},
	} {
		c.dir = t.TempDir()
		if _, err := measure(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}
