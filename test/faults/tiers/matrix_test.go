package tiers

import (
	"fmt"
	"testing"
	"time"

	"github.com/leveemq/levee/test/faults"
	"github.com/leveemq/levee/test/history"
)

// cycles is how often a cell is struck.
func cycles() int { return faults.Amount(3, 1, 25) }

// some returns the last of the setups, which has most, where tests are to be short: what runs is processes, and those are the
// same under the race detector.
func some(all []setup) []setup {
	if testing.Short() {
		return all[len(all)-1:]
	}
	return all
}

// cell is a fault and what it may cost, in each of some setups.
type cell struct {
	setups []setup
	cost   string // of history's
	loses  bool   // every cycle costs something
	strike func(*rig)
	keeps  bool       // it must not lose anything, though nobody can tell
	after  func(*rig) // looks at what is said of it, before anything is read; nil: nothing is to be said
}

// run strikes again and again in each of the setups.
func (c cell) run(t *testing.T) {
	for _, s := range some(c.setups) {
		t.Run(s.name, func(t *testing.T) {
			r := newRig(t, s, c.cost != history.CostNothing)
			for n := range cycles() {
				before := r.Counts.Lost
				r.cycle(fmt.Sprintf("cycle %d", n), func() {
					r.copied()
					began := time.Now()
					c.strike(r)
					r.Fault(t.Name(), began, history.Cost{MayLose: c.cost})
				}, func() {
					if c.after != nil {
						c.after(r)
					}
				})
				if lost := r.Counts.Lost - before; c.keeps && lost > 0 {
					t.Errorf("cycle %d has cost %d records, and all were kept", n, lost)
				}
				if c.loses && r.Counts.Lost == before {
					t.Errorf("cycle %d has cost nothing: this test proves nothing", n)
				}
			}
			r.end(cycles())
		})
	}
}

// TestRestart stops and starts the broker on the same disk: nothing is lost.
func TestRestart(t *testing.T) {
	cell{setups: setups, strike: func(r *rig) {
		r.Broker.Terminate()
		r.Place.Set("")
		if code := r.Broker.Wait(); code != 0 {
			r.T.Errorf("the stop ended with exit code %d", code)
		}
		r.down = true
	}}.run(t)
}

// TestKill kills the broker and starts it on the same disk: nothing is lost.
func TestKill(t *testing.T) {
	cell{setups: setups, strike: (*rig).kill}.run(t)
}

// TestStoreAway takes the store away for the whole of a run, kills the broker meanwhile, and brings the store back:
// publishing goes on, nothing is lost, and copying goes on by itself.
func TestStoreAway(t *testing.T) {
	for _, s := range some(having(true, false)) {
		t.Run(s.name, func(t *testing.T) {
			r := newRig(t, s, false)
			for n := range cycles() {
				r.objects.down()
				before := r.copied()
				r.enough()
				began := time.Now()
				r.kill()
				r.Fault("kill while the store is away", began, history.Cost{})
				replace := r.clear()
				r.start()
				replace()
				r.goOn()
				if now := r.copied(); now != before {
					t.Errorf("with the store away, offsets that have copies went from %d to %d", before, now)
				}
				if e := r.exposed(); e.Copies.Bytes == 0 || e.Copies.Ms == 0 {
					t.Errorf("with the store away, /readyz says that only the log has %+v", *e.Copies)
				}
				r.objects.up() // until now only the log could be read
				r.Check(fmt.Sprintf("cycle %d", n))
				r.exported()
			}
			r.end(cycles())
		})
	}
}

func only(all []setup, is func(setup) bool) (few []setup) {
	for _, s := range all {
		if is(s) {
			few = append(few, s)
		}
	}
	return few
}
