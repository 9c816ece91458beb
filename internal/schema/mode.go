package schema

import (
	"fmt"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

// Mode says what a new version of a subject has to get along with.
type Mode string

// The modes. The transitive ones look at every version, the others at the latest.
const (
	None               Mode = "none"                // anything goes
	Backward           Mode = "backward"            // the new schema reads what the old one wrote
	BackwardTransitive Mode = "backward_transitive" //
	Forward            Mode = "forward"             // the old schema reads what the new one writes
	ForwardTransitive  Mode = "forward_transitive"  //
	Full               Mode = "full"                // both
	FullTransitive     Mode = "full_transitive"     //
)

// Modes returns all modes.
func Modes() []Mode {
	return []Mode{None, Backward, BackwardTransitive, Forward, ForwardTransitive, Full, FullTransitive}
}

// ParseMode reads the name of a mode in any case.
func ParseMode(name string) (Mode, error) {
	for _, m := range Modes() {
		if strings.EqualFold(string(m), name) {
			return m, nil
		}
	}
	return "", fault.New(fault.InvalidArgument, "there is no compatibility mode %q: use none, backward, forward or full, or one of the last three with _transitive", clip(name)).
		With("reason", "invalid_compatibility")
}

// Transitive reports whether the mode looks at every version.
func (m Mode) Transitive() bool { return strings.HasSuffix(string(m), "_transitive") }
func (m Mode) backward() bool   { return strings.HasPrefix(string(m), "backward") || m.full() }
func (m Mode) forward() bool    { return strings.HasPrefix(string(m), "forward") || m.full() }
func (m Mode) full() bool       { return strings.HasPrefix(string(m), "full") }

// Incompatibility is why a schema may not follow another.
type Incompatibility struct {
	Old       int    // which of the old ones, as an index
	Direction string // "backward": the new one cannot read the old one's data; "forward": the other way round; "": it may not follow at all
	Problem
}

// String says what breaks, in one line.
func (i Incompatibility) String() string {
	text := fmt.Sprintf("%s: %s: %s", i.Path, i.Rule, i.Detail)
	switch i.Direction {
	case "backward":
		text += " (the new schema cannot read what the old one wrote)"
	case "forward":
		text += " (the old schema cannot read what the new one writes)"
	}
	return text
}

// maxProblems bounds what Check returns; nobody reads more.
const maxProblems = 50

// Check returns why next may not follow the old versions, of which the newest is last; nothing where it may.
func Check(mode Mode, next *Parsed, olds []*Parsed) []Incompatibility {
	if mode == None || len(olds) == 0 {
		return nil
	}
	first := len(olds) - 1
	if mode.Transitive() {
		first = 0
	}
	var found []Incompatibility
	add := func(old int, direction string, problems []Problem) {
		for _, p := range problems {
			if len(found) < maxProblems {
				found = append(found, Incompatibility{old, direction, p})
			}
		}
	}
	for i := len(olds) - 1; i >= first; i-- {
		old := olds[i]
		if old.kind != next.kind {
			add(i, "", []Problem{{"/", "schema_type_changed", fmt.Sprintf("the type of the schema was %s and is %s", old.kind, next.kind)}})
			continue
		}
		if old.fingerprint == next.fingerprint {
			continue
		}
		if mode.backward() {
			add(i, "backward", next.impl.reads(old.impl))
		}
		if f, ok := next.impl.(interface {
			follows(older implementation) []Problem
		}); ok {
			add(i, "", f.follows(old.impl))
		}
		if mode.forward() {
			add(i, "forward", old.impl.reads(next.impl))
		}
	}
	return found
}
