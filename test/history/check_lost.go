package history

import (
	"math"
	"slices"
	"sort"
)

// loss is what one fault has cost one log: the first offset, and when the fault was.
type loss struct {
	log   *log
	fault int // index in checker.faults
}

// losses judges one log's readings, in the order in which they began.
type losses struct {
	c       *checker
	l       *log
	judged  map[int64]bool // offsets that some reading missed, once for all readings
	settled spans          // what readers were told is lost, by readings judged already
	before  spans          // what had been read or delivered when the present reading began
	given   []int          // by subscriber: how many of its deliveries are in before
	first   map[loss]int64
}

// lost checks that what was acknowledged is there: whatever is known to stand at an offset when a reading begins, because
// it was acknowledged, read or delivered, must be in that reading, unless the topic's retention or compaction has
// removed it or a fault was allowed to cost it.
func (c *checker) lost() {
	for _, l := range c.h.logs {
		c.lostIn(l)
	}
	c.unread()
}

func (c *checker) lostIn(l *log) {
	for _, k := range l.acked.chunks {
		k.oldest = forever
	}
	l.acked.each(0, forever, func(offset int64, v Value) {
		i, _ := l.acked.find(offset)
		l.acked.chunks[i].oldest = min(l.acked.chunks[i].oldest, c.h.publish(v).end)
	})
	s := &losses{c: c, l: l, judged: map[int64]bool{}, first: map[loss]int64{}, given: make([]int, len(l.subs))}
	begun := slices.DeleteFunc(slices.Clone(l.readings), func(r *Reading) bool { return !r.ended() })
	ended := slices.Clone(begun)
	slices.SortStableFunc(begun, func(a, b *Reading) int { return int(min(max(a.start-b.start, -1), 1)) })
	slices.SortStableFunc(ended, func(a, b *Reading) int { return int(min(max(a.end-b.end, -1), 1)) })
	for _, r := range begun {
		for len(ended) > 0 && ended[0].end <= r.start {
			for _, g := range ended[0].segments {
				if g.kind < segTold {
					s.before = s.before.add(span{g.from, g.to})
				}
			}
			ended = ended[1:]
		}
		s.delivered(r.start)
		s.reading(r)
	}
	s.prefix()
	s.acknowledged()
}

// delivered adds to before what subscriptions had delivered by a time.
func (s *losses) delivered(at int64) {
	for i, sub := range s.l.subs {
		for ; s.given[i] < len(sub.deliveries) && sub.deliveries[s.given[i]].at <= at; s.given[i]++ {
			if d := &sub.deliveries[s.given[i]]; d.why == 0 {
				s.before = s.before.add(span{d.from, d.from})
			}
		}
	}
}

// reading judges one reading.
func (s *losses) reading(r *Reading) {
	l, info := s.l, s.l.stream
	retained := info.ever(func(t TopicInfo) bool { return t.Retention })
	compacted := info.ever(func(t TopicInfo) bool { return t.Compacted })
	cover := r.cover(func(t Told) bool { return t == Trimmed && retained || t == Compacted && compacted })
	from := r.from
	if from < 0 {
		if len(r.segments) == 0 {
			return // it began at the end: nothing is known of what is before
		}
		from = r.segments[0].from
	}
	for _, g := range s.settled {
		cover = cover.add(g)
	}
	cover.missing(from, math.MaxInt64-1, func(gap span) {
		young := func(k *chunk) bool { return k.oldest <= r.start }
		l.acked.eachChunk(gap.from, gap.to, young, func(offset int64, v Value) {
			if s.c.h.publish(v).end <= r.start {
				s.missing(r, offset, v)
			}
		})
		for _, b := range s.before {
			l.read.each(max(b.from, gap.from), min(b.to, gap.to), func(offset int64, v Value) { s.missing(r, offset, v) })
		}
	})
	for _, g := range r.segments {
		if g.told() == Lost {
			s.told(r, g)
			s.settled = s.settled.add(span{g.from, g.to})
		}
	}
}

// told judges whether anything may be lost at all.
func (s *losses) told(r *Reading, g segment) {
	if s.settled.contains(g.from) && s.settled.contains(g.to) {
		return // by another reading before
	}
	for _, f := range s.c.faults {
		if f.start <= r.end && s.mayLoseSome(f) {
			return
		}
	}
	s.c.complain(CheckLost, "%s: offsets %d to %d were declared lost to %v, and nothing that was done may lose anything", s.l, g.from, g.to, r)
}

// missing judges that a reading has no record at an offset where one was known to stand.
func (s *losses) missing(r *Reading, offset int64, v Value) {
	if s.judged[offset] {
		return
	}
	s.judged[offset] = true
	pub := s.c.h.publish(v)
	if pub == nil {
		return // an invented one is no loss
	}
	acked := pub.outcome == OK && pub.offset == offset
	if f := s.allowed(r, offset, pub, acked); f >= 0 {
		if acked {
			s.c.r.Counts.Lost++
		}
		if !s.tells(r, offset) {
			s.c.complain(CheckHoles, "%s: value %v at offset %d is lost, as it may be, but %v was not told", s.l, v, offset, r)
		}
		at := loss{s.l, f}
		if first, ok := s.first[at]; !ok || offset < first {
			s.first[at] = offset
		}
		return
	}
	what := "was read"
	if acked {
		what = "was acknowledged"
	}
	switch {
	case offset >= r.next:
		s.c.complain(CheckLost, "%s: value %v %s at offset %d and is lost: for %v the log ends at %d", s.l, v, what, offset, r, r.next)
	case s.tells(r, offset):
		s.c.complain(CheckLost, "%s: value %v %s at offset %d and is lost: %v was told that there is nothing", s.l, v, what, offset, r)
	default:
		s.c.complain(CheckLost, "%s: value %v %s at offset %d and is lost: %v did not get it", s.l, v, what, offset, r)
	}
}

// tells reports whether a reading was told anything of an offset.
func (s *losses) tells(r *Reading, offset int64) bool {
	return slices.ContainsFunc(r.segments, func(g segment) bool {
		return g.kind >= segTold && g.from <= offset && offset <= g.to
	})
}

// allowed returns the fault that may have cost a record, or -1.
func (s *losses) allowed(r *Reading, offset int64, pub *publish, acked bool) int {
	answered := pub.end
	if !acked {
		answered = pub.start // nobody vouches for it: it may have come at any time after
	}
	info := s.l.stream.info(answered)
	for i, f := range s.c.faults {
		switch {
		case f.start > r.end:
			return -1
		case f.cost.MayLose == CostNothing || acked && pub.end > f.end || pub.start > f.end:
		case f.cost.MayLose == CostUncopied:
			if !s.copied(offset, f.start) && !s.survived(offset, f, r) {
				return i
			}
		case info.Fsync == FsyncOnCommit:
		case acked && info.Fsync == FsyncPeriodic && pub.end < f.start-int64(info.Interval)-int64(f.cost.Slack):
		case acked && s.synced(pub.end, f.start):
		case s.survived(offset, f, r):
		default:
			return i
		}
	}
	return -1
}

// mayLoseSome reports whether a fault may cost this log anything.
func (s *losses) mayLoseSome(f fault) bool {
	return f.cost.MayLose == CostUncopied || f.cost.MayLose == CostUnsynced && s.l.stream.info(f.start).Fsync != FsyncOnCommit
}

// copied reports whether an offset was known to have a copy before a fault.
func (s *losses) copied(offset, fault int64) bool {
	return slices.ContainsFunc(s.l.copies, func(c copied) bool { return c.at <= fault && offset < c.next })
}

// synced reports whether all that was acknowledged by then was known to be on the device before a fault.
func (s *losses) synced(answered, fault int64) bool {
	return slices.ContainsFunc(s.l.syncs, func(at int64) bool { return answered <= at && at <= fault })
}

// survived reports whether an offset was read between a fault and the beginning of a reading.
func (s *losses) survived(offset int64, f fault, r *Reading) bool {
	return slices.ContainsFunc(s.l.readings, func(other *Reading) bool {
		return other.start >= f.end && other.end <= r.start && reads(other, offset)
	})
}

func reads(r *Reading, offset int64) bool {
	return slices.ContainsFunc(r.segments, func(g segment) bool {
		return g.kind < segTold && g.from <= offset && offset <= g.to
	})
}

// prefix checks that what survived a fault comes before what it has cost: of the records that were acknowledged before
// the fault, and so are of one generation, none stands behind a lost one.
func (s *losses) prefix() {
	for at, first := range s.first { // seldom more than one
		f := s.c.faults[at.fault]
		young := func(k *chunk) bool { return k.oldest <= f.start }
		s.l.acked.eachChunk(first+1, forever, young, func(offset int64, v Value) {
			if s.c.h.publish(v).end > f.start {
				return
			}
			for _, r := range s.l.readings {
				if r.start >= f.end && reads(r, offset) {
					s.c.complain(CheckLost, "%s: value %v at offset %d survived a fault (%s) that has cost the record at %d before it", s.l, v, offset, f.kind, first)
					return
				}
			}
		})
	}
}

// acknowledged looks for acknowledgements in ranges that were declared lost: those that came after the declaration have
// not been judged yet.
func (s *losses) acknowledged() {
	for _, g := range s.settled {
		s.l.acked.each(g.from, g.to, func(offset int64, v Value) {
			for _, r := range s.l.readings {
				if r.ended() && s.tells(r, offset) {
					s.missing(r, offset, v)
					return
				}
			}
		})
	}
}

// unread looks for what nobody has read back. A partition of which that is true altogether, while others of its topic
// were read, is an oversight of the test or of the broker.
func (c *checker) unread() {
	begun := make([]int64, len(c.h.logs)) // by log: when the last complete reading began
	read := map[*stream]bool{}
	for i, l := range c.h.logs {
		begun[i] = -1
		for _, r := range l.readings {
			if r.ended() {
				begun[i] = max(begun[i], r.start)
				read[l.stream] = true
			}
		}
	}
	complained := map[*log]bool{}
	for _, p := range c.h.producers {
		p.each(func(v Value, pub *publish) {
			if pub.outcome != OK {
				return
			}
			var l *log
			if pub.log >= 0 {
				l = c.h.logs[pub.log]
			}
			switch {
			case l == nil:
				c.complain(CheckLost, "value %v was acknowledged, and nobody knows in which partition", v)
			case pub.offset < 0 && !l.stream.ever(func(t TopicInfo) bool { return t.Retention || t.Compacted }):
				c.complain(CheckLost, "%s: value %v was acknowledged without an offset, though nothing is ever removed", l, v)
			case begun[pub.log] >= pub.end:
			case c.o.AllRead:
				c.complain(CheckLost, "%s: value %v was acknowledged at offset %d, and no complete reading was begun after that", l, v, pub.offset)
			case begun[pub.log] < 0 && read[l.stream] && !complained[l]:
				complained[l] = true
				c.complain(CheckLost, "%s: value %v was acknowledged at offset %d, and of all partitions this one was not read", l, v, pub.offset)
			default:
				c.r.Counts.Unread++
			}
		})
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
