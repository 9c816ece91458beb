package simulation

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
)

// Trace is what a run did, as a hash of every step and, where asked for, as lines to read.
type Trace struct {
	sum   hash.Hash64
	steps int
	keep  bool
	lines []Line
	buf   []byte
}

// Line is a step to read.
type Line struct {
	Text   string
	Detail bool // seldom what a reader looks for: timers, completions
}

// NewTrace returns an empty trace that keeps its lines, or only hashes them.
func NewTrace(keep bool) *Trace { return &Trace{sum: fnv.New64a(), keep: keep} }

// Step adds one step.
func (t *Trace) Step(format string, args ...any) {
	t.buf = append(fmt.Appendf(t.buf[:0], format, args...), '\n')
	t.sum.Write(t.buf)
	t.note(string(t.buf[:len(t.buf)-1]), false)
}

func (t *Trace) note(text string, detail bool) {
	t.steps++
	if t.keep {
		t.lines = append(t.lines, Line{text, detail})
	}
}

// Mix adds to the hash what is too much to read.
func (t *Trace) Mix(b []byte) { t.sum.Write(b) }

// mix is Mix for what most steps consist of: a form that is cheap, and that no other values have.
func (t *Trace) mix(kind byte, number uint64, text string, b []byte) {
	t.buf = append(t.buf[:0], kind)
	t.buf = binary.AppendUvarint(t.buf, number)
	t.buf = binary.AppendUvarint(t.buf, uint64(len(text)))
	t.buf = append(t.buf, text...)
	t.buf = binary.AppendUvarint(t.buf, uint64(len(b)))
	t.sum.Write(t.buf)
	t.sum.Write(b)
}

// Hash returns the hash of all steps so far.
func (t *Trace) Hash() uint64 { return t.sum.Sum64() }

// Steps returns how many steps there were.
func (t *Trace) Steps() int { return t.steps }

// Lines returns the steps, where they were kept.
func (t *Trace) Lines() []Line { return t.lines }
