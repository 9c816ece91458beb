package simulation

import "time"

// Faults is what goes wrong beside single messages: at every Every one of these is drawn by its weight, against a weight
// of 100 for nothing. Until ends them: partitions heal, and what happens then shows whether the nodes recover.
type Faults struct {
	Every time.Duration
	Until time.Duration

	ProcessCrash int // of a node
	MachineCrash int // of a node, whose disk loses what was not synced
	CrashAtDisk  int // either, in the middle of one of the node's next operations on its disk
	SyncError    int // one of a node's next syncs fails
	CutOneWay    int // from a node to another
	CutBoth      int
	Isolate      int // a node, from all others
	Heal         int // all cuts
	ClockJump    int // a wall clock, by up to a minute or up to ten years, either way
}

func (w *World) planFaults() {
	f := w.options.Faults
	if f.Every <= 0 {
		return
	}
	for at := f.Every; at < f.Until; at += f.Every {
		w.at(at, w.fault)
	}
	w.at(f.Until, func() {
		w.calm = true
		w.heal()
		for _, n := range w.order {
			n.disk.crashIn, n.disk.failSync = 0, 0
		}
		w.Trace.Step("%s no faults from here on", w.stamp())
	})
}

// fault draws one.
func (w *World) fault() {
	f := w.options.Faults
	switch w.choices.Pick("faults", 100, f.ProcessCrash, f.MachineCrash, f.CrashAtDisk, f.SyncError, f.CutOneWay, f.CutBoth, f.Isolate, f.Heal, f.ClockJump) {
	case 1:
		if n := w.victim(); n != nil {
			w.crash(n, ProcessCrash, n.disk.image(ProcessCrash), "process crash")
		}
	case 2:
		if n := w.victim(); n != nil {
			w.crash(n, MachineCrash, n.disk.image(MachineCrash), "machine crash")
		}
	case 3:
		if n := w.victim(); n != nil {
			n.disk.crashIn = 1 + w.choices.Draw("faults", 12)
			n.disk.kind = []Crash{ProcessCrash, MachineCrash}[w.choices.Draw("faults", 2)]
		}
	case 4:
		if n := w.victim(); n != nil {
			n.disk.failSync = 1 + w.choices.Draw("faults", 4)
		}
	case 5:
		w.cut(w.any(), w.any())
	case 6:
		a, b := w.any(), w.any()
		w.cut(a, b)
		w.cut(b, a)
	case 7:
		a := w.any()
		for _, b := range w.order {
			w.cut(a, b)
			w.cut(b, a)
		}
	case 8:
		if w.cuts > 0 {
			w.Trace.Step("%s heal", w.stamp())
			w.heal()
		}
	case 9:
		if n := w.victim(); n != nil {
			unit := []int64{1000, 10 * 365 * 86400 * 1000 / 60}[w.choices.Draw("faults", 2)]
			n.clock.jumped += int64(w.signed("faults", 60)) * unit
			w.Stats.ClockJumps++
			w.Trace.Step("%s %s wall clock is off by %dms", w.stamp(), n.id, n.clock.jumped)
		}
	}
}

// any draws a node.
func (w *World) any() *node { return w.order[w.choices.Draw("faults", len(w.order))] }

// victim draws a node that may suffer, nil where it is down or there is none.
func (w *World) victim() *node {
	var all []*node
	for _, n := range w.order {
		if !n.o.Steady {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return nil
	}
	if n := all[w.choices.Draw("faults", len(all))]; n.core != nil {
		return n
	}
	return nil
}

func (w *World) cut(from, to *node) {
	if l := w.link(from.id, to.id); from != to && !l.cut {
		l.cut = true
		w.cuts++
		w.Trace.Step("%s cut %s > %s", w.stamp(), from.id, to.id)
	}
}
