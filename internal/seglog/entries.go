package seglog

import (
	"context"
	"fmt"
	"math"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/record"
)

// StartGeneration begins a new generation, above every earlier one: what is appended from now on carries it. Where lost
// is not nil, its offsets, from the log's end on, are declared lost, and the next record comes behind them.
func (l *Log) StartGeneration(ctx context.Context, generation uint32, lost *Range) error {
	return l.exclusive(ctx, func() error {
		c := l.tail.chain
		if generation > math.MaxInt32 {
			return fault.New(fault.InvalidArgument, "%s/%d: generation %d is not allowed: at most %d", l.cfg.Topic, l.cfg.Partition, generation, math.MaxInt32)
		}
		if generation < c.generation || generation <= l.tail.lastGen {
			return fault.New(fault.Fenced, "%s/%d: generation %d is not above the log's, %d", l.cfg.Topic, l.cfg.Partition, generation, max(c.generation, l.tail.lastGen))
		}
		if lost != nil && (lost.From != c.offset || lost.To < lost.From) {
			return fault.New(fault.InvalidArgument, "%s/%d: cannot declare offsets %d to %d lost: the log ends before %d", l.cfg.Topic, l.cfg.Partition, lost.From, lost.To, c.offset)
		}
		durable := l.durable.Load().seq
		buf := segfmt.AppendFrame(l.tail.buf[:0], segfmt.KindGenerationStart, c.seq-1-durable, c.seq, c.offset, generation, segfmt.ControlBatch(nil))
		if lost != nil {
			buf = segfmt.AppendFrame(buf, segfmt.KindLost, c.seq-durable, c.seq+1, lost.To+1, generation, segfmt.LostBatch(lost.From, lost.To))
		}
		l.tail.buf = buf
		defer l.trimBuffer()
		if err := l.write(); err != nil {
			return err
		}
		l.tail.chain.generation = generation
		return l.flushNow() // a generation is on the device before anything happens in it
	})
}

// flushNow makes the tail durable under any mode.
func (l *Log) flushNow() error {
	if l.mode() == OnCommit {
		return nil // write did
	}
	return l.flush()
}

// AppendEntries writes frames that somebody else has ordered: entry ordinals must go on from NextSeq, generations must
// not fall. A data entry's batch gets the next offset and the entry's generation. It returns once they are on the
// device, under any mode.
func (l *Log) AppendEntries(ctx context.Context, entries []Entry) error {
	for i := range entries {
		if entries[i].Kind == segfmt.KindData {
			if _, err := l.admit(entries[i].Batch); err != nil {
				return err
			}
		}
	}
	return l.exclusive(ctx, func() error {
		for len(entries) > 0 {
			n, err := l.appendEntries(entries)
			if err != nil {
				return err
			}
			entries = entries[n:]
		}
		if err := l.flushNow(); err != nil {
			return unflushed(err)
		}
		return nil
	})
}

// appendEntries writes as many of the entries as one write takes.
func (l *Log) appendEntries(entries []Entry) (int, error) {
	defer l.trimBuffer()
	first := segfmt.FrameHeaderSize + len(entries[0].Batch)
	if end := max(l.tail.end, segfmt.SegmentHeaderSize); end > segfmt.SegmentHeaderSize && end+int64(first) > l.segmentBytes() {
		if err := l.roll(); err != nil {
			return 0, err
		}
	}
	c, durable, n := l.tail.chain, l.durable.Load().seq, 0
	c.generation = l.tail.lastGen
	for _, e := range entries {
		size := segfmt.FrameHeaderSize + len(e.Batch)
		pending := len(l.tail.buf)
		if n > 0 && (pending+size > maxGroupBytes || max(l.tail.end, segfmt.SegmentHeaderSize)+int64(pending+size) > l.segmentBytes()) {
			break
		}
		if e.Seq != c.seq || e.Generation < c.generation {
			return 0, fault.New(fault.Conflict, "%s/%d: entry %d of generation %d does not follow frame %d of generation %d", l.cfg.Topic, l.cfg.Partition, e.Seq, e.Generation, c.seq-1, c.generation)
		}
		offset := c.offset
		if e.Kind == segfmt.KindLost {
			_, to, err := segfmt.ParseLost(e.Batch)
			if err != nil {
				return 0, fault.New(fault.InvalidArgument, "%s/%d: entry %d: %w", l.cfg.Topic, l.cfg.Partition, e.Seq, err)
			}
			offset = to + 1
		}
		l.tail.buf = segfmt.AppendFrame(l.tail.buf, e.Kind, c.seq-1-durable, c.seq, offset, e.Generation, e.Batch)
		f, err := segfmt.ParseFrame(l.tail.buf[pending:])
		if err == nil {
			err = c.accept(&f, l.tail.buf[pending:])
		}
		if err != nil {
			return 0, fault.New(fault.InvalidArgument, "%s/%d: entry %d: %w", l.cfg.Topic, l.cfg.Partition, e.Seq, err)
		}
		if e.Kind == segfmt.KindData && f.Batch.ProducerID >= 0 && f.Batch.BaseSequence >= 0 {
			l.tail.producers.add(&f.Batch, f.Batch.BaseOffset, l.cfg.Now().UnixMilli())
		}
		n++
	}
	if err := l.write(); err != nil {
		return 0, err
	}
	l.tail.chain.generation = max(l.tail.chain.generation, l.tail.lastGen)
	return n, nil
}

// ReadEntries returns frames from the ordinal on, of all kinds, up to about maxBytes but at least one where there is
// one; none at the end. Below FirstSeq the error is a *TrimmedError with ordinals in place of offsets.
func (l *Log) ReadEntries(from uint64, maxBytes int) ([]Entry, error) {
	v := l.view.Load()
	switch {
	case from < v.firstSeq():
		return nil, &TrimmedError{l.cfg.Topic, l.cfg.Partition, int64(from), int64(v.firstSeq())}
	case from >= v.nextSeq:
		return nil, nil
	}
	i := v.segmentOfSeq(from)
	limit, _, _ := v.limits(i)
	p, err := l.locate(v, i, indexTarget{seq: from}, func(f *segfmt.Frame) bool { return f.Seq >= from })
	if err != nil {
		return nil, err
	}
	h, err := l.cfg.Files.acquire(l.cfg.FS, p.seg, false)
	if err != nil {
		return nil, ioError(l.cfg.Topic, l.cfg.Partition, "open", p.seg.path, err)
	}
	defer l.cfg.Files.release(h)
	buf, err := l.readStretch(h, p.pos, limit, maxBytes, nil)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for len(buf) > 0 {
		f, whole, err := l.frameAt(buf, &p)
		if err != nil {
			return nil, err
		}
		if !whole {
			break
		}
		entries = append(entries, Entry{f.Seq, uint32(f.Batch.Generation), f.Kind, buf[segfmt.FrameHeaderSize:f.Size():f.Size()]})
		if err := p.accept(&f, buf[:f.Size()]); err != nil {
			return nil, l.corruptAt(&p, err)
		}
		p.pos += int64(f.Size())
		buf = buf[f.Size():]
	}
	if len(entries) == 0 {
		return nil, l.corruptAt(&p, fmt.Errorf("no whole frame: %w", segfmt.ErrShort))
	}
	return entries, nil
}

// GenerationAt returns the generation of frame seq; also of FirstSeq-1, which a head trim has removed.
func (l *Log) GenerationAt(seq uint64) (uint32, error) {
	v := l.view.Load()
	switch {
	case seq == v.nextSeq-1 && len(v.segs) > 0:
		return v.gen, nil
	case len(v.segs) > 0 && seq+1 == v.firstSeq():
		return v.segs[0].PrevGeneration, nil
	case seq == 0:
		return 0, nil
	}
	entries, err := l.ReadEntries(seq, record.HeaderSize)
	if err != nil {
		return 0, err
	}
	if len(entries) == 0 {
		return 0, &BeyondEndError{l.cfg.Topic, l.cfg.Partition, int64(seq), int64(v.nextSeq)}
	}
	return entries[0].Generation, nil
}
