package seglog

import (
	"context"
	"fmt"
	"math"
	"time"

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
	return l.putEntries(ctx, entries, l.flushNow)
}

// PutEntries is AppendEntries for what was in a log like this one, and was checked since: the batches' checksums and their
// size are not looked at again. When they are on the device is as the mode says for what is published.
func (l *Log) PutEntries(ctx context.Context, entries []Entry) error {
	return l.putEntries(ctx, entries, func() error { return nil })
}

// lazyInterval is how often Lazily flushes beside what it runs: the device has something to do meanwhile.
const lazyInterval = 20 * time.Millisecond

// Lazily runs what appends frames that can be had again from elsewhere. The log is periodic for as long, and in its own
// mode again when it returns, with all of it on the device. Nobody else may use the log.
func (l *Log) Lazily(ctx context.Context, run func() error) error {
	was := *l.live.Load()
	if err := l.SetMode(ctx, Periodic, lazyInterval); err != nil {
		return err
	}
	why := run()
	if err := l.SetMode(ctx, was.mode, was.fsyncInterval); err != nil {
		return err // it counts more: the log cannot be used
	}
	return why
}

func (l *Log) putEntries(ctx context.Context, entries []Entry, flush func() error) error {
	return l.exclusive(ctx, func() error {
		for len(entries) > 0 {
			n, err := l.appendEntries(entries)
			if err != nil {
				return err
			}
			entries = entries[n:]
		}
		if err := flush(); err != nil {
			return unflushed(err)
		}
		return nil
	})
}

// appendEntries writes as many of the entries as one write takes.
func (l *Log) appendEntries(entries []Entry) (int, error) {
	defer l.trimBuffer()
	// Only records begin a segment. What else there is stays with the record before it, as StartGeneration puts it: an object of
	// those frames is a segment again, and the copy of the next one begins behind them.
	first := segfmt.FrameHeaderSize + len(entries[0].Batch)
	if end := max(l.tail.end, segfmt.SegmentHeaderSize); entries[0].Kind == segfmt.KindData && end > segfmt.SegmentHeaderSize && end+int64(first) > l.segmentBytes() && !l.bare() {
		if err := l.roll(); err != nil {
			return 0, err
		}
	}
	need := 0
	for i := 0; i < len(entries) && need <= keptBuffer/2; i++ {
		need += segfmt.FrameHeaderSize + len(entries[i].Batch)
	}
	l.room(need)
	c, durable, n := l.tail.chain, l.durable.Load().seq, 0
	c.generation = l.tail.lastGen
	for _, e := range entries {
		size := segfmt.FrameHeaderSize + len(e.Batch)
		pending := len(l.tail.buf)
		full := e.Kind == segfmt.KindData && max(l.tail.end, segfmt.SegmentHeaderSize)+int64(pending+size) > l.segmentBytes()
		if n > 0 && (full || pending+size > maxGroupBytes) {
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
		if err == nil && f.Size() != size {
			err = fmt.Errorf("a batch of %d bytes says that it has %d", len(e.Batch), f.Size()-segfmt.FrameHeaderSize)
		}
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
func (l *Log) ReadEntries(from uint64, maxBytes int) (entries []Entry, err error) {
	err = l.NewFrameReader().read(from, maxBytes, nil, func(f *segfmt.Frame, b []byte) {
		entries = append(entries, Entry{f.Seq, uint32(f.Batch.Generation), f.Kind, b[segfmt.FrameHeaderSize:]})
	})
	return entries, err
}

// Frame is one frame as it stands in a segment.
type Frame struct {
	Seq   uint64
	Next  int64 // the offset behind its records
	Bytes []byte
}

// ReadFrames is ReadEntries, but for the frames' own bytes. They belong to the caller.
func (l *Log) ReadFrames(from uint64, maxBytes int) ([]Frame, error) {
	return l.NewFrameReader().Read(from, maxBytes, nil)
}

// FrameReader reads frames, and knows where those stand that follow what it read last: otherwise frames before them have
// to be read to find out. It is used from one goroutine at a time.
type FrameReader struct {
	l     *Log
	place place // where the frame behind the last one stands; seg nil: not known
	epoch uint64
}

// NewFrameReader returns one that knows no place yet.
func (l *Log) NewFrameReader() *FrameReader { return &FrameReader{l: l} }

// Read is Log.ReadFrames. The frames are in what memory returns for a number of bytes, which may be asked more than once;
// nil: in new memory.
func (r *FrameReader) Read(from uint64, maxBytes int, memory func(size int) []byte) (frames []Frame, err error) {
	err = r.read(from, maxBytes, memory, func(f *segfmt.Frame, b []byte) { frames = append(frames, Frame{f.Seq, f.NextOffset(), b}) })
	return frames, err
}

// read gives take each frame from the ordinal on, checked. What it gives is not used again.
func (r *FrameReader) read(from uint64, maxBytes int, memory func(size int) []byte, take func(f *segfmt.Frame, b []byte)) error {
	l := r.l
	v := l.view.Load()
	switch {
	case from < v.firstSeq():
		return &TrimmedError{l.cfg.Topic, l.cfg.Partition, int64(from), int64(v.firstSeq())}
	case from >= v.nextSeq:
		return nil
	}
	i := v.segmentOfSeq(from)
	limit, _, _ := v.limits(i)
	p, err := r.find(v, i, from, limit)
	if err != nil {
		return err
	}
	r.place.seg = nil // until this has gone well
	h, err := l.cfg.Files.acquire(l.cfg.FS, p.seg, false)
	if err != nil {
		return ioError(l.cfg.Topic, l.cfg.Partition, "open", p.seg.path, err)
	}
	defer l.cfg.Files.release(h)
	buf, err := l.readStretch(h, p.pos, limit, maxBytes, memory)
	if err != nil {
		return err
	}
	none := true
	for len(buf) > 0 {
		f, whole, err := l.frameAt(buf, &p)
		if err != nil {
			return err
		}
		if !whole {
			break
		}
		size := f.Size()
		if err := p.accept(&f, buf[:size]); err != nil {
			return l.corruptAt(&p, err)
		}
		take(&f, buf[:size:size])
		none = false
		p.pos += int64(size)
		buf = buf[size:]
	}
	if none {
		return l.corruptAt(&p, fmt.Errorf("no whole frame: %w", segfmt.ErrShort))
	}
	r.place, r.epoch = p, v.epoch
	return nil
}

// find returns where a frame of segment i stands.
func (r *FrameReader) find(v *view, i int, seq uint64, limit int64) (place, error) {
	seg, p := v.segs[i], r.place
	if p.seg != nil && p.seg.file == seg.file && p.seq == seq && p.pos < limit && r.epoch == v.epoch {
		p.seg = seg
		return p, nil
	}
	return r.l.locate(v, i, indexTarget{seq: seq}, func(f *segfmt.Frame) bool { return f.Seq >= seq })
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
