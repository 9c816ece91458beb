package faults

import (
	"fmt"
	"time"
)

// Counts sums up a history as one reading shows it.
type Counts struct {
	Records     int // in the log
	Acked       int // publishes with outcome OK
	Answered    int // OK, failed or unknown
	Failed      int
	Unknown     int
	Resent      int // acknowledged as duplicates of what the broker had already
	Duplicates  int // values in the log a further time, each after a fault that left its outcome open
	UnknownKept int // outcome unknown, and in the log
}

// String says it in words.
func (n Counts) String() string {
	return fmt.Sprintf("%d records, %d acknowledged and none lost, %d duplicates (each after a fault that left a publish open; none of an idempotent producer), %d re-sent and recognised, %d unknown of which %d are there, %d failed",
		n.Records, n.Acked, n.Duplicates, n.Resent, n.Unknown, n.UnknownKept, n.Failed)
}

// maxViolations bounds how many broken promises one check tells.
const maxViolations = 20

// checker is one check under way.
type checker struct {
	h      *History
	r      Reading
	copies [][]int // by producer and seq: how often the value is in the log
	broken []string
	counts Counts
}

// Check compares a reading with everything that was known before it began, and returns what does not fit. It
// remembers what it saw, for later readings. The promises:
//
//   - offsets count from 0 without a hole, and nothing is declared lost;
//   - an offset that was ever read has the same value again;
//   - every value was published, to that partition, and did not certainly fail;
//   - an acknowledged value stands at its offset;
//   - a value of an idempotent producer stands once, and values of one producer in one partition in their order;
//   - any other value stands a further time only where a fault fell between its publish and its answer: once for each;
//   - acknowledgements of an ordered producer go to rising offsets.
func (h *History) Check(r Reading) ([]string, Counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &checker{h: h, r: r, copies: make([][]int, len(h.publishes))}
	for i := range h.publishes {
		c.copies[i] = make([]int, len(h.publishes[i]))
	}
	for _, lost := range r.Lost {
		c.complain("%s were declared lost", lost)
	}
	for p, entries := range r.Partitions {
		c.offsets(p, entries)
		c.remembered(p, entries)
		c.values(p, entries)
	}
	for _, list := range h.publishes {
		c.producer(list)
	}
	return c.broken, c.counts
}

func (c *checker) complain(format string, args ...any) {
	switch {
	case len(c.broken) < maxViolations:
		c.broken = append(c.broken, fmt.Sprintf(format, args...))
	case len(c.broken) == maxViolations:
		c.broken = append(c.broken, "… and more")
	}
}

func (c *checker) offsets(p int, entries []Entry) {
	for i, e := range entries {
		if e.Offset != int64(i) {
			c.complain("partition %d: record number %d has offset %d", p, i, e.Offset)
			return
		}
	}
}

// remembered compares with what earlier readings saw.
func (c *checker) remembered(p int, entries []Entry) {
	h := c.h
	for len(h.seen) <= p {
		h.seen = append(h.seen, nil)
	}
	seen := h.seen[p]
	if len(entries) < len(seen) {
		c.complain("partition %d ends at offset %d, and was read up to %d before", p, len(entries), len(seen))
	}
	for i, e := range entries {
		if i < len(seen) && e.Value != seen[i] {
			c.complain("partition %d: offset %d has value %v, and had %v before", p, i, e.Value, seen[i])
		}
	}
	for i := len(seen); i < len(entries); i++ {
		h.seen[p] = append(h.seen[p], entries[i].Value)
	}
}

// values looks at what is in the log: does it belong there, and in this order?
func (c *checker) values(p int, entries []Entry) {
	c.counts.Records += len(entries)
	last := map[int32]int32{} // by idempotent producer: the value before
	for _, e := range entries {
		v := e.Value
		if v.Producer < 0 || int(v.Producer) >= len(c.h.publishes) || v.Seq < 0 || int(v.Seq) >= len(c.h.publishes[v.Producer]) {
			c.complain("partition %d: offset %d has value %v, which nobody published", p, e.Offset, v)
			continue
		}
		c.copies[v.Producer][v.Seq]++
		pub := &c.h.publishes[v.Producer][v.Seq]
		if int(pub.Partition) != p {
			c.complain("partition %d: offset %d has value %v, which was published to partition %d", p, e.Offset, v, pub.Partition)
		}
		if pub.Outcome == Failed {
			c.complain("partition %d: offset %d has value %v, whose publish had failed: %s", p, e.Offset, v, pub.Error)
		}
		if !c.h.producers[v.Producer].Idempotent {
			continue
		}
		if before, any := last[v.Producer]; any && v.Seq <= before {
			c.complain("partition %d: offset %d has value %v of an idempotent producer, behind its %d", p, e.Offset, v, before)
		}
		last[v.Producer] = v.Seq
	}
}

// producer looks at one producer's publishes: what became of each?
func (c *checker) producer(list []Publish) {
	acked := map[int32]int64{} // by partition: the offset before
	for i := range list {
		p := &list[i]
		who := c.h.producers[p.Value.Producer]
		c.count(p)
		if p.Outcome == OK {
			if p.End <= c.r.Start {
				c.acked(p)
			}
			if before, any := acked[p.Partition]; any && p.Offset <= before && (who.Idempotent || who.Ordered) {
				c.complain("partition %d: value %v was acknowledged at offset %d, the one before it at %d", p.Partition, p.Value, p.Offset, before)
			}
			acked[p.Partition] = p.Offset
		}
		switch extra := c.copies[p.Value.Producer][p.Value.Seq] - 1; {
		case extra <= 0:
		case who.Idempotent:
			c.complain("partition %d: value %v of an idempotent producer stands %d times", p.Partition, p.Value, extra+1)
		case extra > c.faultsDuring(p):
			c.complain("partition %d: value %v stands %d times, and only %d faults fell between its publish and its answer (%s, outcome %d)",
				p.Partition, p.Value, extra+1, c.faultsDuring(p), p.Error, p.Outcome)
		default:
			c.counts.Duplicates += extra
		}
	}
}

func (c *checker) count(p *Publish) {
	switch p.Outcome {
	case Pending:
		return
	case OK:
		c.counts.Acked++
		if p.Duplicate {
			c.counts.Resent++
		}
	case Failed:
		c.counts.Failed++
	case Unknown:
		c.counts.Unknown++
		if c.copies[p.Value.Producer][p.Value.Seq] > 0 {
			c.counts.UnknownKept++
		}
	}
	c.counts.Answered++
}

func (c *checker) acked(p *Publish) {
	if int(p.Partition) >= len(c.r.Partitions) {
		c.complain("value %v was acknowledged in partition %d, which was not read", p.Value, p.Partition)
		return
	}
	entries := c.r.Partitions[p.Partition]
	switch {
	case p.Offset < 0:
		c.complain("partition %d: value %v was acknowledged without an offset, though nothing was removed", p.Partition, p.Value)
	case p.Offset >= int64(len(entries)):
		c.complain("partition %d: value %v was acknowledged at offset %d and is lost: the log ends at %d", p.Partition, p.Value, p.Offset, len(entries))
	case entries[p.Offset].Value != p.Value:
		c.complain("partition %d: value %v was acknowledged at offset %d and is lost: %v stands there", p.Partition, p.Value, p.Offset, entries[p.Offset].Value)
	}
}

// faultsDuring returns how many faults fell between a publish and its answer.
func (c *checker) faultsDuring(p *Publish) int {
	n := 0
	end := p.End
	if p.Outcome == Pending {
		end = time.Duration(1<<63 - 1)
	}
	for _, f := range c.h.faults {
		if f.End >= p.Start && f.Start <= end {
			n++
		}
	}
	return n
}
