package power

import (
	"fmt"
	"time"

	"github.com/leveemq/levee/test/history"
)

// judge compares one reading of a topic with what its clients knew at a moment of the past, because the broker that was
// read is one whose disk stopped there.
type judge struct {
	load   *load
	topic  *topic
	moment time.Time
	kept   func(*publish) bool // which of what was acknowledged before moment must be there
	broken []string
	acked  int // acknowledged before moment
	lost   int // of those: not there
}

func (j *judge) complain(format string, args ...any) {
	if len(j.broken) < 20 {
		j.broken = append(j.broken, j.topic.name+" "+fmt.Sprintf(format, args...))
	}
}

// read judges what was read of each partition.
func (j *judge) read(entries [][]entry, ends []int64) {
	for p := range entries {
		j.partition(int32(p), entries[p], ends[p])
	}
}

func (j *judge) partition(p int32, entries []entry, end int64) {
	next := int64(0)
	if len(entries) > 0 && j.topic.retention {
		next = entries[0].offset
	} else if j.topic.retention {
		next = end
	}
	first, at := next, map[int64]history.Value{}
	last := map[int32]int32{} // by idempotent producer: its newest
	for _, e := range entries {
		if e.offset != next {
			j.complain("partition %d: after offset %d comes %d, and nobody said what became of those between", p, next-1, e.offset)
		}
		if e.to >= 0 {
			next = e.to + 1
			continue
		}
		next = e.offset + 1
		at[e.offset] = e.value
		j.value(p, e, last)
	}
	if next != end {
		j.complain("partition %d: its end is %d, and the last that was read is %d", p, end, next-1)
	}
	j.load.each(j.topic, p, func(v history.Value, pub *publish) {
		if pub.offset < 0 || !pub.end.Before(j.moment) {
			return
		}
		j.acked++
		got, there := at[pub.offset]
		switch {
		case there && got != v:
			j.complain("partition %d: value %v was acknowledged at offset %d, and %v stands there", p, v, pub.offset, got)
		case there || pub.offset < first:
		case j.kept(pub):
			j.complain("partition %d: value %v was acknowledged at offset %d, %v before the moment, and is lost", p, v, pub.offset, j.moment.Sub(pub.end))
		default:
			j.lost++
		}
	})
}

// value judges one record.
func (j *judge) value(p int32, e entry, last map[int32]int32) {
	l := j.load
	l.mu.Lock()
	defer l.mu.Unlock()
	v := e.value
	if v.Producer < 0 || int(v.Producer) >= len(l.pubs) || v.Seq < 0 || int(v.Seq) >= len(l.pubs[v.Producer]) {
		j.complain("partition %d: offset %d has value %v, which nobody published", p, e.offset, v)
		return
	}
	pub := &l.pubs[v.Producer][v.Seq]
	switch {
	case pub.topic != j.topic || pub.partition != p:
		j.complain("partition %d: offset %d has value %v, which was published to %s partition %d", p, e.offset, v, pub.topic.name, pub.partition)
	case pub.start.After(j.moment):
		j.complain("partition %d: offset %d has value %v, which was published %v after the moment", p, e.offset, v, pub.start.Sub(j.moment))
	}
	if !l.kinds[v.Producer].idempotent {
		return
	}
	if before, any := last[v.Producer]; any && v.Seq <= before {
		j.complain("partition %d: offset %d has value %v of an idempotent producer, behind its %d", p, e.offset, v, before)
	}
	last[v.Producer] = v.Seq
}

// each calls fn for everything that was published to a partition. fn must not call the load.
func (l *load) each(tp *topic, partition int32, fn func(history.Value, *publish)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, list := range l.pubs {
		if len(list) == 0 || list[0].topic != tp {
			continue
		}
		for seq := range list {
			if list[seq].partition == partition {
				fn(history.Value{Producer: int32(id), Seq: int32(seq)}, &list[seq])
			}
		}
	}
}
