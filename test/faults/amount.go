package faults

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Modes are the fsync Modes of a topic.
var Modes = []string{"on_commit", "periodic", "none"}

// Amount returns how often a test does what it does: normal in CI; short where time is dear, under -short or with
// LEVEE_FAULTS=short, as make test sets it; full with LEVEE_FAULTS=full.
func Amount(normal, short, full int) int {
	switch {
	case os.Getenv("LEVEE_FAULTS") == "full":
		return full
	case testing.Short(), os.Getenv("LEVEE_FAULTS") == "short":
		return short
	}
	return normal
}

// Seeded returns a source of randomness whose seed the test prints; LEVEE_SEED repeats one.
func Seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LEVEE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("LEVEE_SEED: %v", err)
		}
	}
	t.Logf("LEVEE_SEED=%d repeats this", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
