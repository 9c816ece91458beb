package config

import (
	"fmt"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

// Problem is one reason why a configuration is refused.
type Problem struct {
	Key     string // the setting; empty when the file as a whole is meant
	Value   string // what it was set to
	Origin  Origin
	Message string // what is wrong, and what is allowed
	Source  string // the lines of the file around it with a caret below the place; empty outside files
}

// String returns the problem in one line, followed by its source lines.
func (p Problem) String() string {
	s := ""
	if p.Key != "" {
		s = p.Key
		if p.Value != "" {
			s += fmt.Sprintf(" = %q", p.Value)
		}
	}
	if p.Origin.Source != FromDefault {
		if s != "" {
			s += " "
		}
		s += "(" + p.Origin.String() + ")"
	}
	if s != "" {
		s += ": "
	}
	s += p.Message
	if p.Source != "" {
		s += "\n" + p.Source
	}
	return s
}

// Invalid says why a configuration is refused: every problem that was found, not only the first.
type Invalid struct {
	Problems []Problem
}

func (e *Invalid) Error() string {
	if len(e.Problems) == 1 {
		return "configuration refused: " + e.Problems[0].String()
	}
	lines := make([]string, 0, len(e.Problems)+1)
	lines = append(lines, fmt.Sprintf("configuration refused, %d problems:", len(e.Problems)))
	for _, p := range e.Problems {
		lines = append(lines, "  "+strings.ReplaceAll(p.String(), "\n", "\n    "))
	}
	return strings.Join(lines, "\n")
}

// FaultKind classifies the error.
func (e *Invalid) FaultKind() fault.Kind { return fault.InvalidArgument }

// FaultDetails returns what is wrong by key.
func (e *Invalid) FaultDetails() map[string]string {
	d := make(map[string]string, len(e.Problems))
	for _, p := range e.Problems {
		k := p.Key
		if k == "" {
			k = "file"
		}
		d[k] = p.Message
	}
	return d
}

func invalidFile(file string, err error) error {
	return fault.New(fault.InvalidArgument, "read configuration file %s: %w", file, err).With("file", file)
}
