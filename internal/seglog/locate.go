package seglog

import (
	"context"
	"errors"
	"sort"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// indexTarget is what to look for in an index: an ordinal where it is not zero, an offset otherwise.
type indexTarget struct {
	seq    uint64
	offset int64
}

func (t indexTarget) before(e segfmt.IndexEntry) bool {
	if t.seq != 0 {
		return e.Seq > t.seq
	}
	return e.Offset > t.offset
}

// locate returns the place of the first frame of segment i that want accepts, or the segment's end. The index only says
// where to start looking; it is believed once the frame there is the one that it names.
func (l *Log) locate(v *view, i int, t indexTarget, want func(*segfmt.Frame) bool) (place, error) {
	seg := v.segs[i]
	limit, _, _ := v.limits(i)
	h, err := l.cfg.Files.acquire(l.cfg.FS, seg, false)
	if err != nil {
		return place{}, ioError(l.cfg.Topic, l.cfg.Partition, "open", seg.path, err)
	}
	defer l.cfg.Files.release(h)
	start := place{seg, segfmt.SegmentHeaderSize, chain{seg.BaseSeq, seg.BaseOffset, seg.PrevGeneration}}
	if e, ok := l.lookup(v, i, t); ok && e.Position > start.pos {
		f, err := readFrameHead(h, e.Position, limit)
		switch {
		case err == nil && f.Seq == e.Seq && f.Batch.BaseOffset == e.Offset && f.Kind != segfmt.KindLost:
			start = place{seg, e.Position, chain{e.Seq, e.Offset, 0}}
		case err == nil && f.Kind == segfmt.KindLost && f.Seq == e.Seq: // where it begins is only in its payload
		default:
			l.cfg.log().Warn("an index is wrong; reading the segment from its start", "file", seg.sibling(segfmt.IndexSuffix), "position", e.Position)
		}
	}
	return l.walk(h, start, limit, want)
}

// walk goes from frame to frame until want accepts one.
func (l *Log) walk(h *handle, p place, limit int64, want func(*segfmt.Frame) bool) (place, error) {
	for p.pos < limit {
		buf, err := l.readStretch(h, p.pos, limit, 64<<10, nil)
		if err != nil {
			return p, err
		}
		for at := 0; ; {
			f, whole, err := l.frameAt(buf[at:], &p)
			if err != nil {
				return p, err
			}
			if !whole && at == 0 {
				return p, l.corruptAt(&p, segfmt.ErrShort)
			}
			if !whole {
				break
			}
			if want(&f) {
				return p, nil
			}
			if err := p.accept(&f, buf[at:at+f.Size()]); err != nil {
				return p, l.corruptAt(&p, err)
			}
			at += f.Size()
			p.pos += int64(f.Size())
		}
	}
	return p, nil
}

// lookup returns the last index entry of segment i that is not behind the target.
func (l *Log) lookup(v *view, i int, t indexTarget) (segfmt.IndexEntry, bool) {
	seg := v.segs[i]
	if !seg.sealed {
		n := sort.Search(len(v.index), func(k int) bool { return t.before(v.index[k]) })
		if n == 0 {
			return segfmt.IndexEntry{}, false
		}
		return v.index[n-1], true
	}
	f, count, err := openEntries(l.cfg.FS, seg.sibling(segfmt.IndexSuffix), segfmt.IndexEntrySize)
	if f == nil || err != nil {
		return segfmt.IndexEntry{}, false
	}
	defer f.Close()
	var bad error
	read := func(k int) segfmt.IndexEntry {
		b, err := vfs.ReadPartOf(f, int64(k)*segfmt.IndexEntrySize, segfmt.IndexEntrySize)
		if err != nil {
			bad = err
			return segfmt.IndexEntry{}
		}
		return segfmt.ParseIndexEntry(b)
	}
	n := sort.Search(int(count), func(k int) bool { return t.before(read(k)) })
	if n == 0 || bad != nil {
		return segfmt.IndexEntry{}, false
	}
	return read(n - 1), bad == nil
}

// OffsetForTime returns the offset of the first record with a timestamp at or after ms (milliseconds since the epoch);
// the end of the log where there is none.
func (l *Log) OffsetForTime(ctx context.Context, ms int64) (int64, error) {
	v := l.view.Load()
	for i, seg := range v.segs {
		newest := v.maxTim
		if seg.sealed {
			newest = seg.maxTime
		}
		if newest < ms || newest == segfmt.NoTime {
			continue
		}
		offset, err := l.firstAt(ctx, l.NewReader(l.timeStart(v, i, ms)), v.end, ms)
		var trimmed *TrimmedError
		if errors.As(err, &trimmed) { // retention was faster
			return l.OffsetForTime(ctx, ms)
		}
		return offset, err
	}
	return v.end, nil
}

// timeStart returns an offset in segment i below which every record is older than ms.
func (l *Log) timeStart(v *view, i int, ms int64) int64 {
	seg, times := v.segs[i], v.times
	if seg.sealed {
		b, err := vfs.ReadFile(l.cfg.FS, seg.sibling(segfmt.TimeIndexSuffix), seg.end)
		if err != nil {
			return seg.BaseOffset
		}
		if times, err = segfmt.ParseTimeIndex(b, segfmt.TimeIndexOf(seg.SegmentHeader, seg.headCRC)); err != nil {
			l.cfg.log().Warn("a time index is wrong; reading the segment from its start", "file", seg.sibling(segfmt.TimeIndexSuffix), "error", err)
			return seg.BaseOffset
		}
	}
	start := seg.BaseOffset
	for _, e := range times {
		if e.MaxTimestamp < ms && e.Offset >= start && e.Offset < v.end {
			start = e.Offset
		}
	}
	return start
}

// firstAt reads until it meets a record at or after ms.
func (l *Log) firstAt(ctx context.Context, r *Reader, end, ms int64) (int64, error) {
	for r.next < end {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		chunk, err := r.Next(256<<10, 1<<30)
		if err != nil {
			return 0, err
		}
		for data := chunk.Data; len(data) > 0; {
			batch, rest, err := record.Next(data)
			if err != nil {
				return 0, err
			}
			data = rest
			if info, err := record.ParseHeader(batch); err != nil || info.MaxTimestamp < ms {
				continue
			}
			found := int64(-1)
			if err := record.Each(batch, func(rec record.Record) error {
				if found < 0 && rec.Timestamp >= ms {
					found = rec.Offset
				}
				return nil
			}); err != nil {
				return 0, err
			}
			if found >= 0 {
				return found, nil
			}
		}
	}
	return end, nil
}
