package dispatch

import "sort"

// run is a part of the look-ahead.
type run struct{ from, to, bytes int64 }

// ring is the look-ahead: runs that were read and not handed out, without keys that matter, by offset.
type ring struct {
	runs  []run
	start int
}

func (r *ring) empty() bool { return r.start == len(r.runs) }

func (r *ring) first() *run { return &r.runs[r.start] }

func (r *ring) add(x run) {
	if r.start > 0 && len(r.runs) == cap(r.runs) && r.start >= len(r.runs)/2 {
		r.runs = r.runs[:copy(r.runs, r.runs[r.start:])]
		r.start = 0
	}
	r.runs = append(r.runs, x)
}

func (r *ring) pop() {
	if r.start++; r.start == len(r.runs) {
		r.reset()
	}
}

func (r *ring) reset() { r.runs, r.start = r.runs[:0], 0 }

func (r *ring) has(off int64) bool {
	runs := r.runs[r.start:]
	i := sort.Search(len(runs), func(i int) bool { return off <= runs[i].to })
	return i < len(runs) && runs[i].from <= off
}

// amount counts messages and bytes.
type amount struct {
	messages, bytes int64
}

func (a *amount) add(messages, bytes int64) {
	a.messages += messages
	a.bytes += bytes
}

func (a *amount) sub(messages, bytes int64) {
	a.messages -= messages
	a.bytes -= bytes
}

// below reports whether there is room for at least one more.
func (a amount) below(w Window) bool { return a.messages < int64(w.Messages) && a.bytes < w.Bytes }
