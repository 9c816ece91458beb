package main

import (
	"os"
	"testing"
	"time"
)

func TestMeasureCountsWhatTheLogAcknowledged(t *testing.T) {
	for _, mode := range []string{"on_commit", "periodic", "none"} {
		dir := t.TempDir()
		r, err := measure(config{dir: dir, mode: mode, label: "engine-levee", batch: 3, conc: 4, size: 100, length: 50 * time.Millisecond})
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

func TestMeasureRefusesAnUnknownMode(t *testing.T) {
	if _, err := measure(config{dir: t.TempDir(), mode: "sometimes"}); err == nil {
		t.Error("no error")
	}
}
