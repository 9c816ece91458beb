package server

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/vfs"
)

// unlocked counts how often a lock is given up.
type unlocked int

func (u *unlocked) Close() error { *u++; return nil }

// TestStopLeavesLogsThatHang ends a run whose logs still wait for the disk: the error names them, the run stays one that
// did not end, and nobody else gets the directory before this process has ended.
func TestStopLeavesLogsThatHang(t *testing.T) {
	var lock unlocked
	s := newServer(settings(t, t.TempDir(), nil), Options{}, vfs.NewMem(), thisMachine())
	s.lock = &lock
	err := s.end(t.Context(), &broker.DrainReport{Hung: []string{"default/slow/0"}})
	if fault.KindOf(err) != fault.Stopped || !strings.Contains(err.Error(), "default/slow/0") || lock != 0 {
		t.Errorf("the stop says %v; lock given up: %d times", err, lock)
	}
}

// TestStopDoesNotWaitForEver has the end of a run hang in what is not a topic's log.
func TestStopDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lock unlocked
		s := newServer(settings(t, t.TempDir(), nil), Options{}, vfs.NewMem(), thisMachine())
		s.lock = &lock
		release := make(chan struct{})
		s.tasks.Go("hangs", func(context.Context) error { <-release; return nil })
		began := time.Now()
		patience, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		err := s.end(patience, &broker.DrainReport{})
		if took := time.Since(began); fault.KindOf(err) != fault.Stopped || took != 30*time.Second+lastPatience || lock != 0 {
			t.Errorf("after %v the stop says %v; lock given up: %d times", took, err, lock)
		}
		close(release)
		if err := s.ending.Wait(); err != nil || lock != 1 {
			t.Errorf("once the disk goes on: %v; lock given up: %d times", err, lock)
		}
	})
}
