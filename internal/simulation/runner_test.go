package simulation

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var rough = Options{Net: roughNet, Faults: roughDay, Skew: 50, Disk: DiskDelays{Jitter: 2 * time.Millisecond}}

// TestCounterHolds is the runner with a core that is right.
func TestCounterHolds(t *testing.T) {
	start := time.Now()
	n := Explore(t, counterWorld(noBug, rough), Amount(60, 2000))
	t.Logf("%d runs in %v", n, time.Since(start))
}

// TestBrokenCoresAreFound: each bug is found, shrunk to little, and repeated from what is printed.
func TestBrokenCoresAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		bug       bug
		seeds     int
		rule      string
		decisions int
	}{
		"answers before its flush":       {earlyReply, 300, "linearizable", 12},
		"lost update":                    {lostUpdate, 300, "linearizable", 8},
		"name of a new file not durable": {noNameSync, 300, "linearizable", 12},
	} {
		t.Run(name, func(t *testing.T) {
			s := counterWorld(c.bug, rough)
			f := Find(s, 1, c.seeds, Amount(150, 3000))
			if f == nil {
				t.Fatalf("not found with %d seeds", c.seeds)
			}
			t.Logf("%v", f)
			if f.Outcome.Failure.Rule != c.rule || f.Shrunk.Failure == nil || f.Shrunk.Failure.Rule != c.rule {
				t.Fatalf("found %v, shrunk %v", f.Outcome.Failure, f.Shrunk.Failure)
			}
			if n := f.Shrunk.Schedule.Decisions(); n > c.decisions && !testing.Short() {
				t.Errorf("shrunk to %d decisions, expected at most %d", n, c.decisions)
			}
			schedule, err := ParseSchedule(f.Shrunk.Schedule.String())
			if err != nil {
				t.Fatal(err)
			}
			again := Run(s, Replay(schedule), true)
			if again.Hash != f.Shrunk.Hash || again.Failure == nil || *again.Failure != *f.Shrunk.Failure {
				t.Errorf("the printed schedule ran to %v, hash %x, not %x", again.Failure, again.Hash, f.Shrunk.Hash)
			}
			if seed := Run(s, Seeded(f.Seed), false); seed.Hash != f.Outcome.Hash {
				t.Errorf("seed %d ran differently", f.Seed)
			}
			if lines := strings.Count(f.String(), "\n"); lines > 80 && !testing.Short() {
				t.Errorf("%d lines to read", lines)
			}
		})
	}
}

// TestMapOrderIsFound: a core that lets the order of a map be seen does not repeat.
func TestMapOrderIsFound(t *testing.T) {
	different := 0
	n := min(Amount(5, 60), 60)
	for seed := range uint64(n) {
		s := counterWorld(mapOrder, rough)
		first, second := Run(s, Seeded(seed), false), Run(s, Seeded(seed), false)
		if first.Hash != second.Hash {
			different++
		}
	}
	if different == 0 {
		t.Fatalf("%d seeds ran alike twice", n)
	}
	t.Logf("%d of %d seeds ran differently the second time", different, n)
}

// TestSameSeedSameRun is the invariant of the package.
func TestSameSeedSameRun(t *testing.T) {
	s := counterWorld(noBug, rough)
	hashes := map[uint64]bool{}
	n := min(Amount(30, 200), 1000)
	for seed := range uint64(n) {
		a, b := Run(s, Seeded(seed), false), Run(s, Seeded(seed), true)
		c := Run(s, Replay(a.Schedule), false)
		if a.Hash != b.Hash || a.Hash != c.Hash || a.Steps == 0 {
			t.Fatalf("seed %d: hashes %x, %x, and %x by its schedule, of %d steps", seed, a.Hash, b.Hash, c.Hash, a.Steps)
		}
		hashes[a.Hash] = true
	}
	if len(hashes) != n {
		t.Errorf("%d seeds made %d different runs", n, len(hashes))
	}
}
