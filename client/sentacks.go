package client

import (
	"slices"
	"time"
)

// sentAcks remembers acknowledgements that were sent, oldest first, until the broker has said that they are durable, or
// for so long that a broken connection would have been noticed: a new stream begins with them. It is bounded; what is
// forgotten too early is handed out once more when the stream breaks.
type sentAcks struct {
	chunks    []ackChunk
	ranges    int   // of all chunks
	below     int64 // -1: none
	belowSave uint64
	at        time.Time // when below was sent
}

// ackChunk is what was sent within keepTogether.
type ackChunk struct {
	at     time.Time
	save   uint64 // request to save that covers it; 0: none yet
	ranges []span
}

const (
	keepTogether = time.Second
	keepSent     = 45 * time.Second // a dead connection is noticed after 40
	keepRanges   = 32 << 10
	chunkRanges  = 4 << 10
)

// clear drops everything.
func (s *sentAcks) clear() { *s = sentAcks{below: -1} }

// add remembers what is sent now. ranges are sorted.
func (s *sentAcks) add(ranges []span, below int64, now time.Time) {
	if below >= 0 {
		s.below, s.belowSave, s.at = max(s.below, below), 0, now
	}
	if len(ranges) == 0 {
		return
	}
	s.expire(now)
	n := len(s.chunks)
	if n == 0 || s.chunks[n-1].save != 0 || now.Sub(s.chunks[n-1].at) > keepTogether || len(s.chunks[n-1].ranges) > chunkRanges {
		s.chunks = append(s.chunks, ackChunk{at: now})
		n++
	}
	c := &s.chunks[n-1]
	for _, r := range ranges {
		if k := len(c.ranges); k > 0 && c.ranges[k-1].to+1 == r.from {
			c.ranges[k-1].to = r.to
			continue
		}
		c.ranges = append(c.ranges, r)
		s.ranges++
	}
	for s.ranges > keepRanges && len(s.chunks) > 1 {
		s.drop(1)
	}
}

func (s *sentAcks) drop(n int) {
	for _, c := range s.chunks[:n] {
		s.ranges -= len(c.ranges)
	}
	s.chunks = slices.Delete(s.chunks, 0, n)
}

// expire forgets what was sent long ago.
func (s *sentAcks) expire(now time.Time) {
	n := 0
	for n < len(s.chunks) && now.Sub(s.chunks[n].at) > keepSent {
		n++
	}
	s.drop(n)
	if s.below >= 0 && now.Sub(s.at) > keepSent {
		s.below = -1
	}
}

// mark says that a request to save covers everything so far.
func (s *sentAcks) mark(save uint64) {
	for i := range s.chunks {
		s.chunks[i].save = save
	}
	s.belowSave = save
}

// saved forgets what a request to save has covered.
func (s *sentAcks) saved(save uint64) {
	n := 0
	for n < len(s.chunks) && s.chunks[n].save != 0 && s.chunks[n].save <= save {
		n++
	}
	s.drop(n)
	if s.belowSave != 0 && s.belowSave <= save {
		s.below = -1
	}
}

// forget takes offsets out: they were handed out again.
func (s *sentAcks) forget(from, to int64) {
	if from < s.below {
		s.below = -1
	}
	s.ranges = 0
	for i := range s.chunks {
		c := &s.chunks[i]
		var kept []span
		for k, r := range c.ranges {
			if r.to < from || r.from > to {
				if kept != nil {
					kept = append(kept, r)
				}
				continue
			}
			if kept == nil {
				kept = append(make([]span, 0, len(c.ranges)+1), c.ranges[:k]...)
			}
			if r.from < from {
				kept = append(kept, span{r.from, from - 1})
			}
			if r.to > to {
				kept = append(kept, span{to + 1, r.to})
			}
		}
		if kept != nil {
			c.ranges = kept
		}
		s.ranges += len(c.ranges)
	}
}

// all returns everything, sorted.
func (s *sentAcks) all() []span {
	all := make([]span, 0, s.ranges)
	for _, c := range s.chunks {
		all = append(all, c.ranges...)
	}
	return merge(all)
}
