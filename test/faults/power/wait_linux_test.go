package power

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leveemq/levee/test/proc"
)

// work lets publishers work for a random time between 30 ms and most, short ones as often as long ones.
func (l *load) work(most time.Duration) {
	const least = 30 * time.Millisecond
	timer := time.NewTimer(time.Duration(float64(least) * math.Exp(l.rng.Float64()*math.Log(float64(most)/float64(least)))))
	defer timer.Stop()
	<-timer.C
}

// within waits for a random time, or until the broker has exited.
func within(rng *rand.Rand, most time.Duration, exited <-chan struct{}) {
	timer := time.NewTimer(time.Duration(rng.Int64N(int64(most))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-exited:
	}
}

// freeze stops the broker where it is: what it has asked the kernel for may get done, but it does nothing more itself.
func freeze(t *testing.T, b *proc.Broker) {
	t.Helper()
	if err := syscall.Kill(b.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", b.PID()))
	if err != nil {
		t.Fatal(err)
	}
	// One has to take the signal; once it has stopped, none of the others gets out of the kernel any more.
	await(t, "the broker to stop", func() bool {
		for _, name := range threads {
			text, err := os.ReadFile(name)
			if _, state, found := strings.Cut(string(text), ") "); err == nil && found && state[0] == 'T' {
				return true
			}
		}
		return false
	})
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	const patience = time.Minute
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}
