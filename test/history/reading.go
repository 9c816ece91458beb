package history

import (
	"fmt"
	"math"
)

const forever = math.MaxInt64

// Told is the reason for which a reader was told that offsets have no record for it.
type Told uint8

// What readers are told.
const (
	Trimmed   Told = iota + 1 // old records are gone, as the topic's retention says
	Lost                      // a crash has lost them
	Control                   // a marker of the system stands there
	Compacted                 // a later record replaces them
)

var toldKinds = []string{"", "trimmed", "lost", "control", "compacted"}

// String returns a reason's name.
func (t Told) String() string { return toldKinds[t] }

// segment is a piece of what a reader saw, in order: a range of offsets that are all of one kind.
type segment struct {
	from, to int64
	value    Value // of segOdd
	kind     segmentKind
}

type segmentKind uint8

// The kinds of segments. Those above segOdd are reasons of type Told, segTold more.
const (
	segFirst segmentKind = iota // records read for the first time: the log's table has their values
	segSame                     // records with the values that the table had
	segOdd                      // one record with another value
	segTold
)

func (s *segment) told() Told {
	if s.kind < segTold {
		return 0
	}
	return Told(s.kind - segTold)
}

// Reading is one reading of one partition from one source, from its beginning to what was its end. It belongs to one
// goroutine.
type Reading struct {
	h          *History
	id         int
	log        *log
	source     string
	from       int64 // the offset asked for; -1: wherever it begins
	start, end int64 // end is forever until it has ended
	next       int64 // the offset that will be written next, as the reader was told at the end
	segments   []segment
	written    int // how many segments are complete: the last one, above them, may still grow
}

// String names a reading in a sentence.
func (r *Reading) String() string {
	if r.source == "" {
		return fmt.Sprintf("reading %d", r.id)
	}
	return fmt.Sprintf("reading %d of %s", r.id, r.source)
}

func (r *Reading) ended() bool { return r.end != forever }

// Reading begins a reading. source says who serves it: a broker, a tier, a listener. from is the first offset asked for,
// or -1 for a reading that may begin anywhere. Whatever was acknowledged before this call must be read: of a source that may
// be behind, begin a reading when it has caught up.
func (h *History) Reading(topic string, incarnation uint64, partition int32, source string, from int64) *Reading {
	start := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reading(start, logID{topic, incarnation, partition}, source, from)
}

func (h *History) reading(start int64, id logID, source string, from int64) *Reading {
	r := &Reading{h: h, id: len(h.readings), log: h.log(id), source: source, from: from, start: start, end: forever}
	h.readings = append(h.readings, r)
	r.log.readings = append(r.log.readings, r)
	h.note(start)
	h.emit(r.beginEvent())
	return r
}

// Record notes one record as it was read.
func (r *Reading) Record(offset int64, v Value) {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	r.record(offset, v)
}

func (r *Reading) record(offset int64, v Value) {
	first, same := r.log.see(offset, v, r)
	kind := segOdd
	switch {
	case first:
		kind = segFirst
	case same:
		kind = segSame
	}
	if n := len(r.segments); n > r.written && kind != segOdd {
		if last := &r.segments[n-1]; last.kind == kind && last.to+1 == offset {
			last.to = offset
			r.stream(kind, offset, v)
			return
		}
	}
	r.segment(segment{offset, offset, v, kind})
	r.stream(kind, offset, v)
}

// stream writes a record that has just been read. Those that are known already wait until their range is complete.
func (r *Reading) stream(kind segmentKind, offset int64, v Value) {
	if r.h.out != nil && kind != segSame {
		v := v // else each record would be copied to the heap, streamed or not
		r.h.emit(Event{Op: opRead, Reading: r.id, Offset: offset, Value: &v})
	}
}

// segment begins another segment.
func (r *Reading) segment(s segment) {
	r.flush()
	r.segments = append(r.segments, s)
}

// flush completes the last segment, and streams it if it waited for that.
func (r *Reading) flush() {
	if n := len(r.segments); r.h.out != nil && n > r.written && r.segments[n-1].kind == segSame {
		r.h.emit(r.sameEvent(&r.segments[n-1]))
	}
	r.written = len(r.segments)
}

// Told notes that the reader was told that there is no record for it from one offset to another, both included.
func (r *Reading) Told(why Told, from, to int64) {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	r.told(why, from, to)
}

func (r *Reading) told(why Told, from, to int64) {
	s := segment{from: from, to: to, kind: segTold + segmentKind(why)}
	r.segment(s)
	r.h.emit(r.toldEvent(&s))
}

// End notes that the reading has come to the end of the partition: next is the offset that will be written next.
func (r *Reading) End(next int64) {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	r.finish(r.h.now(), next)
}

func (r *Reading) finish(end, next int64) {
	r.flush()
	r.end, r.next = end, next
	r.h.note(end)
	r.h.emit(r.endEvent())
}

// cover returns the offsets of which the reading saw a record or was told for a reason that keep accepts.
func (r *Reading) cover(keep func(Told) bool) spans {
	var s spans
	for i := range r.segments {
		if g := &r.segments[i]; g.kind < segTold || keep(g.told()) {
			s = s.add(span{g.from, g.to})
		}
	}
	return s
}
