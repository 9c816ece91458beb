package power

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/device"
	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/proc"
)

// space is one namespace, as the one worker that makes and deletes it knows it.
type space struct {
	name   string
	exists bool
	open   bool // a change was begun, and nobody knows whether it happened
}

// flip makes or deletes namespaces until the broker is gone.
func (s *space) flip(ctx context.Context, admin *client.Admin, changes *atomic.Int64) error {
	for {
		s.open = true
		var err error
		if s.exists {
			err = admin.DeleteNamespace(ctx, s.name)
		} else {
			err = admin.CreateNamespace(ctx, s.name)
		}
		if err != nil {
			return err
		}
		s.exists, s.open = !s.exists, false
		changes.Add(1)
	}
}

// snapshots returns the names of the metadata's snapshots, finished or not.
func snapshots(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "raft", "snapshot"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestPowerCutsAtSnapshots changes the metadata as fast as it can be changed, and cuts the power as soon as a snapshot of
// it appears: every change that was acknowledged is in effect afterwards, whatever of snapshots and log the disk has.
func TestPowerCutsAtSnapshots(t *testing.T) {
	proc.Binary(t) // not on this test's clock
	fs, boot, rng := device.Ext4(t, 256<<20), device.NewBoot(t), faults.Seeded(t)
	spaces := make([]*space, 96)
	for i := range spaces {
		spaces[i] = &space{name: fmt.Sprintf("s%d", i)}
	}
	var changes atomic.Int64
	cuts, unfinished, fresh, open := faults.Amount(6, 1, 60), 0, 0, 0
	b := proc.Start(t, fs.Dir, proc.Options{})
	began := time.Now()
	for n := range cuts {
		before := snapshots(t, fs.Dir)
		ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
		admin := b.Dial().Admin()
		var wg sync.WaitGroup
		for _, s := range spaces {
			wg.Go(func() {
				if err := s.flip(ctx, admin, &changes); client.KindOf(err) != client.KindUnavailable && client.KindOf(err) != client.KindOutcomeUnknown {
					t.Errorf("%s: %v", s.name, err)
				}
			})
		}
		deadline := time.Now().Add(time.Duration(faults.Amount(20, 1, 50)) * time.Second)
		await(t, "a snapshot", func() bool {
			return !slices.Equal(snapshots(t, fs.Dir), before) || time.Now().After(deadline)
		})
		within(rng, 50*time.Millisecond, b.Exited())
		freeze(t, b)
		now := snapshots(t, fs.Dir)
		switch {
		case slices.ContainsFunc(now, func(name string) bool { return strings.HasSuffix(name, ".tmp") }):
			unfinished++
		case !slices.Equal(now, before):
			fresh++
		}
		fs.Cut()
		b.Kill()
		wg.Wait()
		cancel()
		fs.Unmount()
		fs.Mount()
		boot.Again()
		b = proc.Start(t, fs.Dir, proc.Options{})
		open += compare(t, b, spaces)
		if t.Failed() {
			t.Fatalf("this was cut %d; before it: %q", n, now)
		}
	}
	if unfinished+fresh == 0 && cuts > 1 {
		t.Errorf("no snapshot was made in %v, though %d changes were", time.Since(began), changes.Load())
	}
	t.Logf("%d cuts, %.1f s each: %d while a snapshot was being written, %d just after; %d changes acknowledged and in effect, %d cut off",
		cuts, time.Since(began).Seconds()/float64(cuts), unfinished, fresh, changes.Load(), open)
}

// compare compares the namespaces that there are with those known, and returns how many were in doubt.
func compare(t *testing.T, b *proc.Broker, spaces []*space) (open int) {
	t.Helper()
	c := b.Dial()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), proc.Patience)
	defer cancel()
	list, err := c.Admin().Namespaces(ctx)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, ns := range list {
		there[ns.Name] = true
	}
	for _, s := range spaces {
		if there[s.name] != s.exists && !s.open {
			t.Errorf("%s exists: %v, and was known to: %v", s.name, there[s.name], s.exists)
		}
		if s.open {
			open++
		}
		s.exists, s.open = there[s.name], false
	}
	return open
}
