package seglog

import (
	"context"
	"time"

	"github.com/leveemq/levee/internal/segfmt"
)

// Sealed is a segment that is not appended to any more, as it is copied elsewhere.
type Sealed struct {
	Base, Next       int64 // its offsets: Base to Next-1
	BaseSeq, NextSeq uint64
	Generation       uint32 // of its last frame
	MaxTime          int64  // of its newest record, in milliseconds
	Size             int64  // bytes of its file

	seg *segment
}

// SealedAt returns the oldest sealed segment that ends above an offset; ok is false where there is none. It is the same
// one for as long as retention leaves it.
func (l *Log) SealedAt(offset int64) (s Sealed, ok bool) {
	for _, seg := range l.view.Load().segs {
		if seg.sealed && seg.next > offset {
			return Sealed{seg.BaseOffset, seg.next, seg.BaseSeq, seg.nextSeq, seg.lastGen, seg.maxTime, seg.end, seg}, true
		}
	}
	return s, false
}

// SealedFile is a sealed segment's file. It is safe for concurrent use, and must be closed.
type SealedFile struct {
	h *handle
	l *Log
}

// OpenSealed opens the file of s. It fails with a *TrimmedError where retention has removed it. What was opened stays
// readable.
func (l *Log) OpenSealed(s Sealed) (*SealedFile, error) {
	h, err := l.cfg.Files.acquire(l.cfg.FS, s.seg, false)
	if err != nil {
		if first := l.view.Load().first; first > s.Base {
			return nil, &TrimmedError{Topic: l.cfg.Topic, Partition: l.cfg.Partition, Requested: s.Base, Oldest: first}
		}
		return nil, ioError(l.cfg.Topic, l.cfg.Partition, "open", s.seg.path, err)
	}
	return &SealedFile{h, l}, nil
}

// Path names the file, for errors.
func (f *SealedFile) Path() string { return f.h.seg.path }

// ReadAt implements io.ReaderAt.
func (f *SealedFile) ReadAt(p []byte, off int64) (int, error) { return f.h.ReadAt(p, off) }

// Close lets go of the file.
func (f *SealedFile) Close() error {
	f.l.cfg.Files.release(f.h)
	return nil
}

// bare reports whether the active segment holds frames and no offset yet. Such a one is not sealed for being too small for what
// comes: copies are found by offset, and what it holds would be in none.
func (l *Log) bare() bool {
	return l.tail.active != nil && l.tail.chain.offset == l.tail.active.BaseOffset
}

// SealOlder seals the active segment if it holds records and was begun at least that long ago, so that what it holds is
// copied elsewhere in time. It reports whether it did.
func (l *Log) SealOlder(ctx context.Context, age time.Duration) (sealed bool, err error) {
	v := l.view.Load() // most have nothing to seal
	if n := len(v.segs); n == 0 || v.end == v.segs[n-1].BaseOffset || l.age(v.segs[n-1]) < age {
		return false, nil
	}
	err = l.exclusive(ctx, func() error {
		active := l.tail.active
		if active == nil || l.tail.end <= segfmt.SegmentHeaderSize || l.tail.chain.offset == active.BaseOffset || l.age(active) < age {
			return nil
		}
		sealed = true
		return l.roll()
	})
	return sealed && err == nil, err
}

// Above returns how many bytes of the log hold offsets from one on, and how long ago the first segment of them was begun; 0
// and 0 where there are no such records.
func (l *Log) Above(offset int64) (bytes int64, age time.Duration) {
	v := l.view.Load()
	for i, s := range v.segs {
		end, next, _ := v.limits(i)
		if next <= offset || next == s.BaseOffset {
			continue
		}
		if bytes == 0 {
			age = max(l.age(s), 0)
		}
		bytes += end
	}
	return bytes, age
}

// NewestSegments returns the ordinal of the first frame of the n newest segments; of all of them where there are fewer.
func (l *Log) NewestSegments(n int) uint64 {
	v := l.view.Load()
	if len(v.segs) <= n {
		return v.firstSeq()
	}
	return v.segs[len(v.segs)-n].BaseSeq
}

// age is how long ago a segment was begun.
func (l *Log) age(s *segment) time.Duration { return l.cfg.Now().Sub(time.UnixMilli(s.CreatedMs)) }
