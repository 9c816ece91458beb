package seglog

import (
	"bytes"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/record"
)

// resend answers a batch of which the first v.known records were there before. The known ones must be what they were,
// as far as they are retained; the others are appended.
func (g *group) resend(r *request, v verdict) error {
	l, info := g.l, r.info
	sent, err := record.Records(r.a.Batch)
	if err != nil {
		return fault.New(fault.InvalidArgument, "%s/%d: %w", l.cfg.Topic, l.cfg.Partition, err)
	}
	ranges, err := l.compare(&info, sent[:v.known], v.ranges)
	if err != nil {
		return err
	}
	if v.known < info.Count {
		rest, err := record.Split(r.a.Batch, int(v.known))
		if err != nil {
			return fault.New(fault.InvalidArgument, "%s/%d: %w", l.cfg.Topic, l.cfg.Partition, err)
		}
		if r.info, err = l.admit(rest); err != nil {
			return err
		}
		if err := g.place(r, rest); err != nil {
			return err
		}
		ranges = extend(ranges, Range{r.a.Offset, r.a.LastOffset})
	}
	r.a.Duplicate = v.known == info.Count
	if len(ranges) == 0 {
		r.a.Offset, r.a.LastOffset = -1, -1
		return nil
	}
	r.a.Offset, r.a.LastOffset = ranges[0].From, ranges[len(ranges)-1].To
	if len(ranges) > 1 || ranges[0].To-ranges[0].From+1 != int64(info.Count) {
		r.a.Ranges = ranges
	}
	return nil
}

// extend adds a range, joined to the last one where they touch.
func extend(rs []Range, r Range) []Range {
	if n := len(rs); n > 0 && rs[n-1].To+1 == r.From {
		rs[n-1].To = r.To
		return rs
	}
	return append(rs, r)
}

// compare looks up where the records sent before stand, and refuses other bytes under their sequences. Records that are
// no longer retained have no range.
func (l *Log) compare(info *record.BatchInfo, sent []record.Record, rs []segfmt.SequenceRange) ([]Range, error) {
	var found []Range
	next := info.BaseSequence // of the record looked for
	for i, r := range rs {
		found, next = l.elsewhere(info, len(sent), r, found, next)
		end := l.tail.chain.offset
		if i+1 < len(rs) {
			end = rs[i+1].Offset
		} else if q := l.tail.producers.byID[info.ProducerID]; q != nil {
			for _, o := range q.Ranges {
				if o.Offset > r.Offset {
					end = o.Offset
					break
				}
			}
		}
		if err := l.eachOfProducer(info, r.Offset, end, func(seq int32, rec record.Record) (bool, error) {
			at := seqDiff(seq, info.BaseSequence)
			if at < 0 || seqDiff(seq, next) < 0 {
				return true, nil
			}
			if at >= int64(len(sent)) {
				return false, nil
			}
			if !sameRecord(&sent[at], &rec) {
				return false, fault.New(fault.SequenceConflict, "%s/%d: producer %d sent other bytes under sequence %d, which stands at offset %d: two producers share an id, or one re-used a sequence",
					l.cfg.Topic, l.cfg.Partition, info.ProducerID, seq, rec.Offset).With("offset", rec.Offset)
			}
			found = extend(found, Range{rec.Offset, rec.Offset})
			next = record.NextSequence(seq, 1)
			return true, nil
		}); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// elsewhere adds the offsets of those records in r that this log has no more, and that have a copy elsewhere: they are kept,
// and where they are the range says. What they hold is not compared.
func (l *Log) elsewhere(info *record.BatchInfo, sent int, r segfmt.SequenceRange, found []Range, next int32) ([]Range, int32) {
	first := l.view.Load().first
	if l.cfg.Copied == nil || r.Offset >= first {
		return found, next
	}
	from := max(seqDiff(next, r.Sequence), 0)
	to := min(int64(r.Count), first-r.Offset, seqDiff(info.BaseSequence, r.Sequence)+int64(sent))
	if from >= to {
		return found, next
	}
	return extend(found, Range{r.Offset + from, r.Offset + to - 1}), record.NextSequence(r.Sequence, int32(to)) //nolint:gosec // within a batch's records
}

// eachOfProducer calls fn for every record of info's producer and epoch with offsets in [from, to) that are retained,
// until fn says false.
func (l *Log) eachOfProducer(info *record.BatchInfo, from, to int64, fn func(seq int32, rec record.Record) (bool, error)) error {
	rd := l.NewReader(max(from, l.view.Load().first))
	for rd.next < to {
		chunk, err := rd.Next(1<<20, 1<<30)
		if err != nil {
			return err
		}
		if chunk.Data == nil && chunk.Lost == nil {
			return nil
		}
		for data := chunk.Data; len(data) > 0; {
			batch, rest, err := record.Next(data)
			if err != nil {
				return fmt.Errorf("%s/%d: %w", l.cfg.Topic, l.cfg.Partition, err)
			}
			data = rest
			b, err := record.ParseHeader(batch)
			if err != nil || b.ProducerID != info.ProducerID || b.ProducerEpoch != info.ProducerEpoch {
				continue
			}
			more, i := true, int32(0)
			err = record.Each(batch, func(rec record.Record) error {
				var err error
				if more {
					more, err = fn(record.NextSequence(b.BaseSequence, i), rec)
				}
				i++
				return err
			})
			if err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// sameRecord compares what a producer sent; timestamps may differ when it built the batch anew.
func sameRecord(a, b *record.Record) bool {
	if !sameBytes(a.Key, b.Key) || !sameBytes(a.Value, b.Value) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if a.Headers[i].Key != b.Headers[i].Key || !sameBytes(a.Headers[i].Value, b.Headers[i].Value) {
			return false
		}
	}
	return true
}

func sameBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
