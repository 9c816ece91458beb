package simulation

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// coreFunc makes a core of a function.
type coreFunc func(now Now, e Event) []Effect

func (f coreFunc) Step(now Now, e Event) []Effect { return f(now, e) }

// TestNetworkDoesWhatItSays counts, over one run, what became of numbered messages.
func TestNetworkDoesWhatItSays(t *testing.T) {
	const sent = 4000
	run := func(net Network) (got []int, s Stats) {
		w := NewWorld(Seeded(7), NewTrace(false), Options{Net: net})
		w.AddNode("a", NodeOptions{Boot: func() Core {
			n := 0
			return coreFunc(func(Now, Event) []Effect {
				if n == sent {
					return nil
				}
				n++
				return []Effect{Send{"b", []byte(fmt.Sprint(n))}, SetTimer{"t", time.Millisecond}}
			})
		}})
		w.AddNode("b", NodeOptions{Boot: func() Core {
			return coreFunc(func(_ Now, e Event) []Effect {
				if r, ok := e.(Receive); ok {
					var n int
					fmt.Sscan(string(r.Body), &n)
					got = append(got, n)
				}
				return nil
			})
		}})
		if err := w.Run(time.Hour, nil); err != nil {
			t.Fatal(err)
		}
		return got, w.Stats
	}
	count := func(got []int) (distinct, late int) {
		seen, high := map[int]bool{}, 0
		for _, n := range got {
			if n < high && !seen[n] {
				late++
			}
			seen[n] = true
			high = max(high, n)
		}
		return len(seen), late
	}

	got, _ := run(Network{})
	if len(got) != sent || !slices.IsSorted(got) {
		t.Errorf("a perfect network delivered %d of %d messages", len(got), sent)
	}
	got, s := run(Network{Jitter: 5 * time.Millisecond, Drop: 10, Double: 10})
	distinct, late := count(got)
	t.Logf("of %d: %d arrived, %d twice, %d after a later one; %+v", sent, distinct, len(got)-distinct, late, s)
	if lost := sent - distinct; lost < sent/20 || lost > sent/8 || lost != s.Dropped {
		t.Errorf("%d lost", lost)
	}
	if double := len(got) - distinct; double < sent/20 || double > sent/8 || double != s.Duplicated {
		t.Errorf("%d came twice", double)
	}
	if late < sent/10 {
		t.Errorf("%d came after a later one", late)
	}
	got, _ = run(Network{Jitter: 5 * time.Millisecond, Drop: 10, Double: 10, Ordered: true})
	if distinct, late := count(got); late != 0 || distinct != len(got) || distinct == sent {
		t.Errorf("an ordered link: %d of %d arrived, %d of them late", distinct, len(got), late)
	}
}

// TestCutsAreOneWay: a cut link passes nothing one way and everything the other.
func TestCutsAreOneWay(t *testing.T) {
	w := NewWorld(Seeded(1), NewTrace(false), Options{})
	got := map[NodeID]int{}
	for _, id := range []NodeID{"a", "b"} {
		other := map[NodeID]NodeID{"a": "b", "b": "a"}[id]
		w.AddNode(id, NodeOptions{Boot: func() Core {
			n := 0
			return coreFunc(func(_ Now, e Event) []Effect {
				if _, ok := e.(Receive); ok {
					got[id]++
					return nil
				}
				if n++; n > 30 {
					return nil
				}
				return []Effect{Send{other, []byte("x")}, SetTimer{"t", time.Millisecond}}
			})
		}})
	}
	w.after(9*time.Millisecond+time.Microsecond, func() { w.cut(w.nodes["a"], w.nodes["b"]) })
	w.after(19*time.Millisecond+time.Microsecond, w.heal)
	if err := w.Run(time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	if got["a"] != 30 || got["b"] != 20 || w.Stats.Cut != 10 {
		t.Errorf("a got %d, b got %d, %d were cut off", got["a"], got["b"], w.Stats.Cut)
	}
}

// TestDiskLosesOnlyWhatIsUnsynced cuts the power many times over two halves of a file: one is synced, one is not.
func TestDiskLosesOnlyWhatIsUnsynced(t *testing.T) {
	safe, risky := bytes.Repeat([]byte("s"), 3000), bytes.Repeat([]byte("r"), 3000)
	var lost, kept, part, unnamed int
	for seed := range uint64(400) {
		w := NewWorld(Seeded(seed), NewTrace(false), Options{})
		var found []File
		w.AddNode("n", NodeOptions{Boot: func() Core {
			done := 0
			return coreFunc(func(_ Now, e Event) []Effect {
				switch e := e.(type) {
				case Boot:
					if e.Crash != Fresh {
						found = e.Files
						return nil
					}
					return []Effect{Disk{ID: 1, Op: DiskWrite, File: "f", Data: safe}, Disk{ID: 2, Op: DiskSync, File: "f"}}
				case DiskDone:
					switch done++; done {
					case 2:
						return []Effect{Disk{ID: 3, Op: DiskSyncDir}}
					case 3:
						return []Effect{Disk{ID: 4, Op: DiskWrite, File: "f", Off: int64(len(safe)), Data: risky}, Disk{ID: 5, Op: DiskWrite, File: "g", Data: risky}, Disk{ID: 6, Op: DiskSync, File: "g"}}
					case 6:
						n := w.nodes["n"]
						w.after(0, func() { w.crash(n, MachineCrash, n.disk.image(MachineCrash), "power cut") })
					}
				}
				return nil
			})
		}})
		if err := w.Run(time.Minute, nil); err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 || found[0].Name != "f" || !bytes.HasPrefix(found[0].Data, safe) {
			t.Fatalf("seed %d lost what was synced: %d files", seed, len(found))
		}
		switch rest := found[0].Data[len(safe):]; {
		case len(rest) == 0:
			lost++
		case bytes.Equal(rest, risky):
			kept++
		default:
			part++
		}
		if len(found) == 1 {
			unnamed++
		} else if len(found[1].Data) != len(risky) {
			t.Fatalf("seed %d: a synced file kept its name and lost its content", seed)
		}
	}
	t.Logf("unsynced bytes: lost %d, kept %d, damaged %d; a synced file without a synced name was gone %d times", lost, kept, part, unnamed)
	if lost < 40 || kept < 40 || part < 40 || unnamed < 40 {
		t.Error("a fate is missing")
	}
}

// TestTimeAndTimers: virtual time never goes back, a node's monotonic clock neither, timers of a node go off in the order
// in which they are due and never early, whatever the wall clock does, and none survives its life.
func TestTimeAndTimers(t *testing.T) {
	jumps, lives := 0, 0
	for seed := range uint64(100) {
		c := Seeded(seed)
		w := NewWorld(c, NewTrace(false), Options{Skew: 50, Faults: Faults{Every: 20 * time.Millisecond, Until: time.Second, ProcessCrash: 5, ClockJump: 30}})
		last := time.Duration(0)
		for _, id := range []NodeID{"a", "b", "c"} {
			w.AddNode(id, NodeOptions{Boot: func() Core {
				lives++
				due := map[string]time.Duration{}
				latest, mono := time.Duration(0), time.Duration(-1)
				set := 0
				return coreFunc(func(now Now, e Event) []Effect {
					if w.Now() < last || now.Mono < mono {
						t.Fatalf("seed %d: time went back", seed)
					}
					last, mono = w.Now(), now.Mono
					if e, ok := e.(Timer); ok {
						at, mine := due[e.Name]
						if !mine || now.Mono < at || at < latest {
							t.Fatalf("seed %d: timer %s, due at %v, went off at %v, after one due at %v", seed, e.Name, at, now.Mono, latest)
						}
						latest = at
						delete(due, e.Name)
					}
					var out []Effect
					for range 1 + c.Draw("timers", 2) {
						if set++; set > 60 {
							break
						}
						name, d := fmt.Sprint(set), time.Duration(1+c.Draw("timers", 40))*time.Millisecond
						due[name] = now.Mono + d
						out = append(out, SetTimer{name, d})
					}
					return out
				})
			}})
		}
		if err := w.Run(time.Minute, nil); err != nil {
			t.Fatal(err)
		}
		jumps += w.Stats.ClockJumps
	}
	if jumps < 100 || lives < 400 {
		t.Errorf("only %d jumps of clocks and %d lives", jumps, lives)
	}
}

// TestOneGoroutine: a world starts none.
func TestOneGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	w := NewWorld(Seeded(1), NewTrace(false), rough)
	w.AddNode("n", NodeOptions{Boot: func() Core {
		return coreFunc(func(Now, Event) []Effect {
			if n := runtime.NumGoroutine(); n > before {
				t.Errorf("%d goroutines, %d before", n, before)
			}
			return []Effect{Disk{ID: 1, Op: DiskWrite, File: "f", Data: []byte("x")}, SetTimer{"t", time.Millisecond}}
		})
	}})
	if err := w.Run(100*time.Millisecond, nil); err == nil {
		t.Error("it went on for ever and the limit did not end it")
	}
	if w.Stats.Boots < 1 || w.Trace.Steps() < 100 {
		t.Errorf("%+v, %d steps", w.Stats, w.Trace.Steps())
	}
}

// TestFailedSyncIsNotBelieved: after a failed sync a new life reads what the device has.
func TestFailedSyncIsNotBelieved(t *testing.T) {
	w := NewWorld(Seeded(1), NewTrace(false), Options{})
	var found []byte
	w.AddNode("n", NodeOptions{Boot: func() Core {
		return coreFunc(func(_ Now, e Event) []Effect {
			switch e := e.(type) {
			case Boot:
				if e.Crash != Fresh {
					found = e.Files[0].Data
					return nil
				}
				w.nodes["n"].disk.failSync = 1
				return []Effect{Disk{ID: 1, Op: DiskWrite, File: "f", Data: []byte("cached")}, Disk{ID: 2, Op: DiskSync, File: "f"}}
			case DiskDone:
				if e.Err != nil {
					return []Effect{Halt{e.Err.Error()}}
				}
			}
			return nil
		})
	}})
	if err := w.Run(time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	if w.Stats.SyncErrors != 1 || bytes.Contains(found, []byte("cached")) {
		t.Errorf("%d failed syncs; found %q", w.Stats.SyncErrors, found)
	}
}

// TestScheduleText: what is printed is what is read.
func TestScheduleText(t *testing.T) {
	s := Schedule{"a": {1, 0, 0, 3}, "net a>b": {7, 7, 7}, "c": {0, 1 << 31}}
	text := s.String()
	if text != "a=1 0*2 3; c=0 2147483648; net a>b=7*3" {
		t.Error(text)
	}
	again, err := ParseSchedule(text)
	if err != nil || again.String() != text {
		t.Errorf("%v, %v", again, err)
	}
	for _, bad := range []string{"a", "a=x", "a=1*", "a=-1", "a=1*99999999"} {
		if s, err := ParseSchedule(bad); err == nil {
			t.Errorf("%q was read as %v", bad, s)
		}
	}
}

// TestZerosAreMild: the schedule without decisions is a world where nothing goes wrong.
func TestZerosAreMild(t *testing.T) {
	var stats Stats
	o := Run(func(c *Choices, tr *Trace) error {
		w := NewWorld(c, tr, rough)
		w.AddNode("n", NodeOptions{Boot: func() Core {
			n := 0
			return coreFunc(func(Now, Event) []Effect {
				if n++; n > 200 {
					return nil
				}
				return []Effect{Send{"n", []byte("x")}}
			})
		}})
		err := w.Run(time.Minute, nil)
		stats = w.Stats
		return err
	}, Replay(nil), false)
	if o.Failure != nil || stats.Delivered != 200 || stats != (Stats{Sent: 200, Delivered: 200, Boots: 1}) || o.Schedule.Decisions() != 0 {
		t.Errorf("%v, %+v", o.Failure, stats)
	}
	if vfs.KeepNothing.Decide(vfs.Unsynced{}).How == Losses(Replay(nil), "x").Decide(vfs.Unsynced{}).How {
		t.Error("a power loss without decisions loses something")
	}
}
