package simulation

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Scenario is one run: all it does is decided by the choices and noted in the trace. It returns a *Failure where a rule
// was broken. It must not remember anything from one call to the next.
type Scenario func(*Choices, *Trace) error

// Outcome is what a run came to.
type Outcome struct {
	Failure  *Failure
	Hash     uint64
	Steps    int
	Lines    []Line   // where they were kept
	Schedule Schedule // all decisions that were drawn
}

// Run runs a scenario once.
func Run(s Scenario, c *Choices, keep bool) Outcome {
	t := NewTrace(keep)
	err := s(c, t)
	o := Outcome{Hash: t.Hash(), Steps: t.Steps(), Lines: t.Lines(), Schedule: c.Taken()}
	if err != nil && !errors.As(err, &o.Failure) {
		o.Failure = &Failure{"error", err.Error()}
	}
	return o
}

// Found is a failing run and the smallest schedule that fails alike.
type Found struct {
	Seed     uint64
	Outcome  Outcome // of the seed
	Shrunk   Outcome // with its lines
	Attempts int     // runs that shrinking took
}

// Find runs the seeds from first on and returns the first that fails, shrunk; nil where none of n does. A run that does
// not repeat exactly breaks the rule "determinism", and is not shrunk.
func Find(s Scenario, first uint64, n, shrinkBudget int) *Found {
	for seed := first; seed < first+uint64(n); seed++ {
		if o := Run(s, Seeded(seed), false); o.Failure != nil {
			return shrunk(s, seed, o, shrinkBudget)
		}
	}
	return nil
}

func shrunk(s Scenario, seed uint64, o Outcome, budget int) *Found {
	f := &Found{Seed: seed, Outcome: o}
	again := Run(s, Seeded(seed), true)
	if again.Hash != o.Hash || again.Failure == nil || again.Failure.Rule != o.Failure.Rule {
		f.Shrunk = again
		f.Outcome.Failure = &Failure{"determinism", fmt.Sprintf("seed %d ran differently the second time: %v, hash %x; then %v, hash %x", seed, o.Failure, o.Hash, again.Failure, again.Hash)}
		return f
	}
	best := Shrink(o.Schedule, budget, func(c Schedule) (Schedule, bool) {
		f.Attempts++
		got := Run(s, Replay(c), false)
		return got.Schedule, got.Failure != nil && got.Failure.Rule == o.Failure.Rule
	})
	f.Shrunk = Run(s, Replay(best), true)
	return f
}

// widest bounds a line of a printed run; a replay shows all of it.
const widest = 180

// String says what failed, the steps of the shrunk run, and how to repeat both.
func (f *Found) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\nLEVEE_SEED=%d repeats it (%d steps, %d decisions, hash %016x)\n", f.Outcome.Failure, f.Seed, f.Outcome.Steps, f.Outcome.Schedule.Decisions(), f.Outcome.Hash)
	if f.Shrunk.Failure != nil {
		fmt.Fprintf(&b, "shrunk in %d runs to %d decisions: %v\nLEVEE_SCHEDULE='%s' repeats that; its steps:\n", f.Attempts, f.Shrunk.Schedule.Decisions(), f.Shrunk.Failure, f.Shrunk.Schedule)
	}
	for _, line := range f.Shrunk.Lines {
		if !line.Detail {
			text := line.Text
			if len(text) > widest {
				text = text[:widest] + "…"
			}
			b.WriteString("  " + text + "\n")
		}
	}
	return b.String()
}

// Amount is a number of runs in a test's three sizes.
func Amount(short, normal int) int {
	switch {
	case os.Getenv("LEVEE_FAULTS") == "full":
		return 50 * normal
	case testing.Short():
		return short
	}
	return normal
}

// Explore runs a scenario with n seeds, or with the one of LEVEE_SEED or the schedule of LEVEE_SCHEDULE, and fails the
// test with a shrunk schedule where a rule is broken. It returns how many runs there were.
func Explore(t testing.TB, s Scenario, n int) int {
	t.Helper()
	if text := os.Getenv("LEVEE_SCHEDULE"); text != "" {
		schedule, err := ParseSchedule(text)
		if err != nil {
			t.Fatal(err)
		}
		o := Run(s, Replay(schedule), true)
		for _, line := range o.Lines {
			t.Log(line.Text)
		}
		if o.Failure != nil {
			t.Error(o.Failure)
		}
		return 1
	}
	first := uint64(1)
	if text := os.Getenv("LEVEE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("LEVEE_SEED: %v", err)
		}
		first, n = seed, 1
	}
	if f := Find(s, first, n, 3000); f != nil {
		t.Fatalf("%v", f)
	}
	return n
}
