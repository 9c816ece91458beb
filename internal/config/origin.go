package config

import "fmt"

// Origin says where a value came from. Its zero value is "default".
type Origin struct {
	Source Source
	Where  string // file name, environment variable or flag; empty for defaults
	Line   int    // in the file; 0 elsewhere
}

// Source is a kind of origin. A higher one wins over a lower one.
type Source uint8

// The sources, weakest first.
const (
	FromDefault Source = iota
	FromFile
	FromEnv
	FromFlag
)

// String returns "default", "levee.yaml:12", "environment LEVEE_DATA_DIR" or "flag --data-dir".
func (o Origin) String() string {
	switch o.Source {
	case FromFile:
		return fmt.Sprintf("%s:%d", o.Where, o.Line)
	case FromEnv:
		return "environment " + o.Where
	case FromFlag:
		return "flag " + o.Where
	}
	return "default"
}
