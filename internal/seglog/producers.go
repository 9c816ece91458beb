package seglog

import (
	"sort"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/record"
)

// maxRanges bounds what is remembered of one producer. Past it, every other old range is forgotten: the ones kept
// still fence in where a sequence must stand, and a lookup reads that part of the log (see Log.locate).
const maxRanges = 256

// seqSpan is how many sequences there are: after 2^31-1 comes 0, as Kafka has it.
const seqSpan = int64(1) << 31

// seqDiff returns how far a is ahead of b on the circle of sequences: negative when it is behind.
func seqDiff(a, b int32) int64 {
	d := (int64(a) - int64(b)) % seqSpan
	switch {
	case d >= seqSpan/2:
		d -= seqSpan
	case d < -seqSpan/2:
		d += seqSpan
	}
	return d
}

// producers is what one log knows of its idempotent producers. It is pure; the committer owns it.
type producers struct {
	byID  map[int64]*segfmt.Producer // nil as long as there is none
	group bool                       // a group is being built that may be taken back
	undo  map[int64]*segfmt.Producer // state before it, of the producers that it touches; a nil one is new
}

func newProducers(s *segfmt.Producers) *producers {
	p := &producers{}
	if s != nil {
		p.byID = make(map[int64]*segfmt.Producer, len(s.Producers))
		for i := range s.Producers {
			c := s.Producers[i]
			p.byID[c.ID] = &c
		}
	}
	return p
}

// verdict is what the log must do with a batch of an idempotent producer.
type verdict struct {
	known  int32                  // how many of its records, from the first, were there before
	ranges []segfmt.SequenceRange // what may hold them; none where they are no longer retained
}

// check decides about a batch. It changes nothing.
func (p *producers) check(b *record.BatchInfo) (verdict, error) {
	if b.BaseSequence < 0 || b.ProducerEpoch < 0 {
		return verdict{}, fault.New(fault.InvalidArgument, "producer %d: an idempotent batch needs an epoch and a first sequence of at least 0; got %d and %d", b.ProducerID, b.ProducerEpoch, b.BaseSequence)
	}
	s := p.byID[b.ProducerID]
	switch {
	case s == nil || b.ProducerEpoch > s.Epoch:
		if b.BaseSequence != 0 {
			return verdict{}, gapError(b, 0)
		}
		return verdict{}, nil
	case b.ProducerEpoch < s.Epoch:
		return verdict{}, fault.New(fault.ProducerFenced, "producer %d: epoch %d has been replaced by epoch %d: this producer must stop", b.ProducerID, b.ProducerEpoch, s.Epoch).With("epoch", s.Epoch)
	}
	ahead := seqDiff(b.BaseSequence, s.LastSequence)
	if ahead > 1 {
		return verdict{}, gapError(b, record.NextSequence(s.LastSequence, 1))
	}
	if ahead == 1 {
		return verdict{}, nil
	}
	v := verdict{known: int32(min(1-ahead, int64(b.Count)))}
	last := record.NextSequence(b.BaseSequence, v.known-1)
	for i, r := range s.Ranges {
		next := record.NextSequence(s.LastSequence, 1)
		if i+1 < len(s.Ranges) {
			next = s.Ranges[i+1].Sequence
		}
		if seqDiff(next, b.BaseSequence) > 0 && seqDiff(r.Sequence, last) <= 0 {
			v.ranges = append(v.ranges, r)
		}
	}
	return v, nil
}

func gapError(b *record.BatchInfo, want int32) error {
	return fault.New(fault.SequenceGap, "producer %d: sequence %d does not follow: expected %d; records before it are missing", b.ProducerID, b.BaseSequence, want).
		With("expected", want).With("got", b.BaseSequence)
}

// add notes a batch that goes into the log at offset. rollback takes back everything since the last settle.
func (p *producers) add(b *record.BatchInfo, offset, nowMs int64) {
	if p.byID == nil {
		p.byID = map[int64]*segfmt.Producer{}
	}
	s := p.byID[b.ProducerID]
	if p.group {
		if _, noted := p.undo[b.ProducerID]; !noted {
			if p.undo == nil {
				p.undo = map[int64]*segfmt.Producer{}
			}
			p.undo[b.ProducerID] = s
			if s != nil { // later changes go to a copy
				c := *s
				c.Ranges = append(make([]segfmt.SequenceRange, 0, len(s.Ranges)+1), s.Ranges...)
				s = &c
				p.byID[b.ProducerID] = s
			}
		}
	}
	if s == nil || s.Epoch != b.ProducerEpoch {
		s = &segfmt.Producer{ID: b.ProducerID, Epoch: b.ProducerEpoch}
		p.byID[b.ProducerID] = s
	}
	s.LastSequence, s.LastMs = record.NextSequence(b.BaseSequence, b.Count-1), nowMs
	if n := len(s.Ranges); n > 0 {
		r := &s.Ranges[n-1]
		if record.NextSequence(r.Sequence, r.Count) == b.BaseSequence && r.Offset+int64(r.Count) == offset && int64(r.Count)+int64(b.Count) < seqSpan/4 {
			r.Count += b.Count
			return
		}
	}
	s.Ranges = append(s.Ranges, segfmt.SequenceRange{Sequence: b.BaseSequence, Count: b.Count, Offset: offset})
	if len(s.Ranges) > maxRanges {
		s.Ranges = thin(s.Ranges)
	}
}

// thin forgets every other range of the older half.
func thin(rs []segfmt.SequenceRange) []segfmt.SequenceRange {
	kept := rs[:0:0]
	for i, r := range rs {
		if i >= len(rs)/2 || i%2 == 0 {
			kept = append(kept, r)
		}
	}
	return kept
}

// begin starts a group that rollback may take back; settle keeps it.
func (p *producers) begin()  { p.group = true }
func (p *producers) settle() { p.group, p.undo = false, nil }

func (p *producers) rollback() {
	for id, s := range p.undo {
		if s == nil {
			delete(p.byID, id)
		} else {
			p.byID[id] = s
		}
	}
	p.settle()
}

// expire forgets producers that have been idle since before the time given.
func (p *producers) expire(beforeMs int64) {
	for id, s := range p.byID {
		if s.LastMs < beforeMs {
			delete(p.byID, id)
		}
	}
}

// snapshot returns the state as of offset, without ranges whose records are all below first, and without sequences
// too old to be told from new ones.
func (p *producers) snapshot(offset, first int64) *segfmt.Producers {
	s := &segfmt.Producers{Offset: offset, Producers: make([]segfmt.Producer, 0, len(p.byID))}
	for _, q := range p.byID {
		c := *q
		c.Ranges = nil
		for i, r := range q.Ranges {
			gone := r.Offset+int64(r.Count) <= first && i+1 < len(q.Ranges) && q.Ranges[i+1].Offset <= first
			if !gone && seqDiff(q.LastSequence, r.Sequence) >= 0 {
				c.Ranges = append(c.Ranges, r)
			}
		}
		s.Producers = append(s.Producers, c)
	}
	sort.Slice(s.Producers, func(i, j int) bool { return s.Producers[i].ID < s.Producers[j].ID })
	return s
}
