package simulation

import (
	"fmt"
	"strings"
)

// traceEvent notes an event: its fields in the hash, and words for it only where somebody will read them.
func (w *World) traceEvent(id NodeID, e Event) {
	t := w.Trace
	t.mix('<', uint64(w.now), string(id), nil)
	switch e := e.(type) {
	case Boot:
		t.mix('b', uint64(e.Crash), "", nil)
		for _, f := range e.Files {
			t.mix('f', 0, f.Name, f.Data)
		}
	case Receive:
		t.mix('r', 0, string(e.From), e.Body)
	case Request:
		t.mix('q', e.ID, string(e.From), e.Body)
	case Response:
		t.mix('a', e.ID, string(e.From), e.Body)
	case Timer:
		t.mix('t', 0, e.Name, nil)
	case DiskDone:
		problem := ""
		if e.Err != nil {
			problem = e.Err.Error()
		}
		t.mix('d', e.ID, problem, e.Data)
	}
	if !t.keep {
		t.steps++
		return
	}
	text, detail := describeEvent(e)
	t.note(fmt.Sprintf("%s %s < %s", w.stamp(), id, text), detail)
}

// traceEffect is traceEvent for an effect.
func (w *World) traceEffect(id NodeID, f Effect) {
	t := w.Trace
	t.mix('>', uint64(w.now), string(id), nil)
	switch f := f.(type) {
	case Send:
		t.mix('s', 0, string(f.To), f.Body)
	case Call:
		t.mix('c', f.ID, string(f.To), f.Body)
	case Reply:
		t.mix('p', f.ID, string(f.To), f.Body)
	case SetTimer:
		t.mix('t', uint64(f.After), f.Name, nil)
	case StopTimer:
		t.mix('n', 0, f.Name, nil)
	case Disk:
		t.mix('d', f.ID, f.File, f.Data)
		t.mix(byte(f.Op), uint64(f.Off), "", nil)
	case Halt:
		t.mix('h', 0, f.Reason, nil)
	}
	if !t.keep {
		t.steps++
		return
	}
	text, detail := describeEffect(f)
	t.note(fmt.Sprintf("%s %s > %s", w.stamp(), id, text), detail)
}

// describeEvent says what a node is told, and whether it is a detail.
func describeEvent(e Event) (text string, detail bool) {
	switch e := e.(type) {
	case Boot:
		names := make([]string, len(e.Files))
		for i, f := range e.Files {
			names[i] = fmt.Sprintf("%s (%d bytes)", f.Name, len(f.Data))
		}
		return fmt.Sprintf("boot after %s: %s", [...]string{"nothing", "process crash", "machine crash"}[e.Crash], strings.Join(names, ", ")), e.Crash == Fresh
	case Receive:
		return fmt.Sprintf("%s: %s", e.From, shown(e.Body)), false
	case Request:
		return fmt.Sprintf("%s asks #%d: %s", e.From, e.ID, shown(e.Body)), false
	case Response:
		return fmt.Sprintf("%s answers #%d: %s", e.From, e.ID, shown(e.Body)), false
	case Timer:
		return "timer " + e.Name, true
	case DiskDone:
		if e.Err != nil {
			return fmt.Sprintf("disk #%d: %v", e.ID, e.Err), false
		}
		return fmt.Sprintf("disk #%d done %s", e.ID, shown(e.Data)), true
	}
	return fmt.Sprintf("%T", e), false
}

// describeEffect says what a node wants, and whether it is a detail. What is sent is one: its arrival is none.
func describeEffect(f Effect) (text string, detail bool) {
	switch f := f.(type) {
	case Send:
		return fmt.Sprintf("to %s: %s", f.To, shown(f.Body)), true
	case Call:
		return fmt.Sprintf("call %s #%d: %s", f.To, f.ID, shown(f.Body)), true
	case Reply:
		return fmt.Sprintf("reply to %s #%d: %s", f.To, f.ID, shown(f.Body)), true
	case SetTimer:
		return fmt.Sprintf("timer %s in %v", f.Name, f.After), true
	case StopTimer:
		return "no timer " + f.Name, true
	case Disk:
		return strings.TrimSuffix(fmt.Sprintf("disk #%d: %s %s at %d: %s", f.ID, f.Op, f.File, f.Off, shown(f.Data)), ": "), false
	case Halt:
		return "halt: " + f.Reason, true
	}
	return fmt.Sprintf("%T", f), false
}

// shown is a body in full, and on one line: however long: a replay shows everything.
func shown(b []byte) string {
	for _, c := range b {
		if c < ' ' || c > '~' {
			return fmt.Sprintf("%q", b)
		}
	}
	return string(b)
}
