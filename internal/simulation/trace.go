package simulation

import (
	"fmt"
	"hash"
	"hash/fnv"
)

// Trace is what a run did, as a hash of every step and, where asked for, as lines to read.
type Trace struct {
	sum   hash.Hash64
	steps int
	keep  bool
	lines []string
	buf   []byte
}

// NewTrace returns an empty trace that keeps its lines, or only hashes them.
func NewTrace(keep bool) *Trace { return &Trace{sum: fnv.New64a(), keep: keep} }

// Step adds one step.
func (t *Trace) Step(format string, args ...any) {
	t.buf = append(fmt.Appendf(t.buf[:0], format, args...), '\n')
	t.sum.Write(t.buf)
	t.steps++
	if t.keep {
		t.lines = append(t.lines, string(t.buf[:len(t.buf)-1]))
	}
}

// Mix adds to the hash what is too much to read.
func (t *Trace) Mix(b []byte) { t.sum.Write(b) }

// Hash returns the hash of all steps so far.
func (t *Trace) Hash() uint64 { return t.sum.Sum64() }

// Steps returns how many steps there were.
func (t *Trace) Steps() int { return t.steps }

// Lines returns the steps, where they were kept.
func (t *Trace) Lines() []string { return t.lines }
