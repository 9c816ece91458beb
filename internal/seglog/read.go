package seglog

import (
	"errors"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// readAhead is asked of the kernel behind a large read of a sealed segment: a replay is read once, in order.
const readAhead = 1 << 20

// Reader reads a log in order from one offset on. It remembers where it is, so going on costs no search. It holds no
// file between calls, so it never keeps a removed segment's space. It is not safe for concurrent use.
type Reader struct {
	// Memory, unless nil, gives the memory that chunks' data is read into; what it held does not matter.
	Memory func(size int) []byte
	// Bound, unless nil, returns an offset that nothing at or above is returned of, though the log has it. It may only rise,
	// and is the base of a batch or the end.
	Bound func() int64

	l     *Log
	next  int64
	place place // where the frame that holds next stands; seg nil: not known
	epoch uint64
}

// place is where a frame stands, and what it must continue.
type place struct {
	seg *segment
	pos int64
	chain
}

// NewReader returns a reader that starts at the offset from.
func (l *Log) NewReader(from int64) *Reader { return &Reader{l: l, next: from} }

// Offset returns the offset that Next will go on at.
func (r *Reader) Offset() int64 { return r.next }

// Next returns the batches that follow, whole, up to the bound, at most maxBytes and maxRecords of them but at least
// one where there is one. At the end of the log it returns an empty chunk at once. Every byte returned was checked. The
// error is a *TrimmedError below the oldest offset, a *BeyondEndError above the end, a *CorruptionError for bytes that
// are not what was written, or why the log stopped, once the reader stands at what is known to be on the device.
func (r *Reader) Next(maxBytes, maxRecords int) (Chunk, error) {
	for {
		v := r.l.view.Load()
		end, failure := v.end, r.l.Err()
		if failure != nil {
			end = min(end, r.l.durable.Load().offset)
		}
		bound := end
		if r.Bound != nil {
			bound = min(end, r.Bound())
		}
		switch {
		case failure != nil && (r.next >= end || errors.Is(failure, errClosed)):
			return Chunk{}, failure
		case r.next < v.first:
			return Chunk{}, &TrimmedError{r.l.cfg.Topic, r.l.cfg.Partition, r.next, v.first}
		case r.next > end:
			return Chunk{}, &BeyondEndError{r.l.cfg.Topic, r.l.cfg.Partition, r.next, end}
		case r.next >= bound:
			return Chunk{First: r.next, Next: r.next, End: r.next}, nil
		}
		before, next := r.place, r.next
		chunk, err := r.step(v, bound, maxBytes, maxRecords)
		switch {
		case err != nil && r.l.view.Load() != v && errors.Is(err, vfs.ErrNotExist):
			r.place = place{} // retention does not wait for readers: look again
		case err != nil:
			return Chunk{}, err
		case chunk.Data != nil || chunk.Lost != nil:
			return chunk, nil
		case r.place == before && failure != nil: // the next frame is not known to be on the device
			return Chunk{}, failure
		case r.Bound != nil && r.place == before && r.next == next && before.seg != nil: // the next frame is not below the bound
			return Chunk{First: r.next, Next: r.next, End: r.next}, nil
		}
	}
}

// step reads one stretch of the segment that holds the next offset. The chunk is empty when only frames without
// records stood there.
func (r *Reader) step(v *view, end int64, maxBytes, maxRecords int) (Chunk, error) {
	i := v.segmentOf(r.next)
	seg := v.segs[i]
	limit, segNext, _ := v.limits(i)
	if r.place.seg == nil || r.place.seg.file != seg.file || r.epoch != v.epoch {
		p, err := r.l.locate(v, i, indexTarget{offset: r.next}, func(f *segfmt.Frame) bool { return f.NextOffset() > r.next })
		if err != nil {
			return Chunk{}, err
		}
		r.place, r.epoch = p, v.epoch
	}
	chunk := Chunk{First: r.next, Next: r.next, End: end}
	if r.place.pos >= limit {
		r.next, r.place = max(r.next, segNext), place{}
		return chunk, nil
	}
	h, err := r.l.cfg.Files.acquire(r.l.cfg.FS, seg, false)
	if err != nil {
		return chunk, ioError(r.l.cfg.Topic, r.l.cfg.Partition, "open", seg.path, err)
	}
	defer r.l.cfg.Files.release(h)
	buf, err := r.l.readStretch(h, r.place.pos, limit, maxBytes, r.Memory)
	if err != nil {
		return chunk, err
	}
	if seg.sealed && len(buf) >= 64<<10 {
		if a, ok := h.File.(vfs.Advisor); ok {
			_ = a.WillNeed(r.place.pos+int64(len(buf)), readAhead)
		}
	}
	err = r.collect(&chunk, buf, maxBytes, maxRecords)
	return chunk, err
}

// collect takes whole frames off buf, which was read at r.place, and moves their batches together at its front.
func (r *Reader) collect(chunk *Chunk, buf []byte, maxBytes, maxRecords int) error {
	out := 0
	for at := 0; ; {
		f, whole, err := r.l.frameAt(buf[at:], &r.place)
		if err != nil {
			if out > 0 {
				break // give what is good; the next call meets the bad frame first
			}
			return err
		}
		if !whole && at == 0 {
			return r.l.corruptAt(&r.place, segfmt.ErrShort)
		}
		full := out > 0 && (out+f.Batch.Length > maxBytes || chunk.Records+int(f.Batch.Count) > maxRecords || f.Kind == segfmt.KindLost)
		if !whole || full || f.NextOffset() > chunk.End {
			break
		}
		b := buf[at : at+f.Size()]
		if err := r.place.accept(&f, b); err != nil {
			return r.l.corruptAt(&r.place, err)
		}
		at += f.Size()
		r.place.pos += int64(f.Size())
		if f.NextOffset() <= r.next { // below what was asked for, or without records
			continue
		}
		if f.Kind == segfmt.KindLost {
			chunk.Lost = &Range{r.next, f.NextOffset() - 1}
			r.next = f.NextOffset()
			break
		}
		if out == 0 {
			chunk.First = f.Batch.BaseOffset
		}
		out += copy(buf[out:], b[segfmt.FrameHeaderSize:])
		chunk.Records += int(f.Batch.Count)
		r.next = f.NextOffset()
	}
	if out > 0 {
		chunk.Data = buf[:out]
	}
	chunk.Next = r.next
	return nil
}

// readStretch reads from pos up to about maxBytes, not beyond limit, but at least one whole frame.
func (l *Log) readStretch(h *handle, pos, limit int64, maxBytes int, memory func(int) []byte) ([]byte, error) {
	if memory == nil {
		memory = func(size int) []byte { return make([]byte, size) }
	}
	for n := min(int64(max(maxBytes, 4<<10)), limit-pos); ; {
		buf := memory(int(n))
		if err := vfs.ReadFull(h, buf, pos); err != nil {
			return nil, ioError(l.cfg.Topic, l.cfg.Partition, "read", h.seg.path, err)
		}
		f, err := segfmt.ParseFrame(buf)
		if err != nil || int64(f.Size()) <= n || int64(f.Size()) > limit-pos {
			return buf, nil // what is wrong shows when the frame is looked at
		}
		n = int64(f.Size())
	}
}

// frameAt checks the frame at the start of b, which was read at p. whole is false when b ends inside it.
func (l *Log) frameAt(b []byte, p *place) (f segfmt.Frame, whole bool, err error) {
	f, err = segfmt.ParseFrame(b)
	if errors.Is(err, segfmt.ErrShort) {
		return f, false, nil
	}
	if err != nil {
		return f, false, l.corruptAt(p, err)
	}
	if f.Size() > len(b) {
		return f, false, nil
	}
	if err := segfmt.CheckFrame(&f, b[:f.Size()]); err != nil {
		return f, false, l.corruptAt(p, err)
	}
	return f, true, nil
}

func (l *Log) corruptAt(p *place, cause error) error {
	err := &CorruptionError{Topic: l.cfg.Topic, Partition: l.cfg.Partition, Path: p.seg.path, Position: p.pos, Offset: p.offset, Cause: cause.Error()}
	l.cfg.log().Error("corrupt data met while reading", "error", err)
	return err
}
