package faults

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/test/history"
	"github.com/leveemq/levee/test/proc"
)

// calls are the system calls that change what is on disk, as strace names them; those with a slash are patterns.
var calls = []string{"fdatasync", "fsync", "pwrite64", "write", "/^rename", "/^unlink", "ftruncate", "fallocate", "/^mkdir", "openat"}

// mostOf bounds which of a thread's calls of a kind it is: few threads come to many.
var mostOf = map[string]float64{"openat": 20, "pwrite64": 40, "fdatasync": 40, "write": 8}

// killAt returns a command that becomes the broker and kills it at the nth call of a kind that one of its threads makes,
// before the call has an effect.
func killAt(call string, nth int) []string {
	return []string{"strace", "-D", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "signal=none", "-e", "trace=" + call,
		"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, nth)}
}

// drawKill draws a call to be killed at, early ones as often as late ones.
func drawKill(rng *rand.Rand) (call string, under []string) {
	call = calls[rng.IntN(len(calls))]
	most, many := mostOf[call]
	if !many {
		most = 3
	}
	return call, killAt(call, int(math.Exp(rng.Float64()*math.Log(most+0.99))))
}

// needStrace skips a test where no process can be traced.
func needStrace(t *testing.T) {
	t.Helper()
	if err := exec.Command("strace", "-qq", "-e", "trace=none", "true").Run(); err != nil {
		t.Skipf("needs strace (package strace), and leave to trace: %v", err)
	}
}

// TestKillAtSystemCall kills a busy broker at a system call that changes the disk: any of them, while it starts as well
// as while it works.
func TestKillAtSystemCall(t *testing.T) {
	needStrace(t)
	c := Begin(t, Options{})
	for _, mode := range Modes {
		l := c.Load(client.TopicSpec{Name: mode, Partitions: 2, Settings: client.Settings{
			Fsync: &mode, SegmentBytes: new(int64(64 << 10)),
		}})
		l.Start(1+c.Rng.IntN(6), c.Rng)
	}
	cycles, struck := Amount(30, 3, 300), map[string]int{}
	for n := range cycles {
		c.Crash()
		call, under := drawKill(c.Rng)
		if c.runUntilKilled(call, under) {
			struck[call]++
		}
		var replaced [][]Kind
		for _, l := range c.Loads {
			replaced = append(replaced, l.CrashMortals())
		}
		c.Start()
		c.Check(fmt.Sprintf("cycle %d, %s", n, under[len(under)-1]))
		for i, l := range c.Loads {
			for _, k := range replaced[i] {
				l.Add(k)
			}
		}
	}
	c.End()
	c.Report(cycles)
	t.Logf("killed at: %v", struck)
}

// runUntilKilled runs a broker that is to be killed at a call, with publishers at work, and ends it where that does not
// come up soon. It reports whether it did.
func (c *Campaign) runUntilKilled(call string, under []string) (struck bool) {
	c.T.Helper()
	began := time.Now()
	c.Starts++
	c.Broker = proc.Launch(c.T, c.Dir, proc.Options{Under: under})
	c.Broker.Doom()
	if c.Broker.Up() {
		c.Place.Set(c.Broker.GRPC)
	}
	enough := c.Loads[0].After(1000)
	c.Resume()
	timer := time.NewTimer(2 * time.Second) // all publishers may be waiting for one partition
	defer timer.Stop()
	select {
	case <-c.Broker.Exited():
		struck = true
	case <-enough:
	case <-timer.C:
	}
	c.Place.Set("")
	c.strike()
	c.Fault("kill at "+call, began, history.Cost{})
	c.Pause()
	return struck
}
