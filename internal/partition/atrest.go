package partition

import (
	"errors"
	"math"
	"time"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// restingSegment is a segment file of a log that is not open.
type restingSegment struct {
	next      int64 // where the one behind it begins; of the last one the highest offset there may be
	bytes     int64
	createdMs int64
}

// rest looks at the segment files of a log that is not open, oldest first: what it holds waits for an export all the same, and
// for longer, since nothing is exported of it. The length of a file that a crash left may count room that was never written
// to. What cannot be read is left out. It is nil where nothing is copied.
func (p *Partition) rest() (segs []restingSegment) {
	if p.cfg.Tier == nil {
		return nil
	}
	cfg := p.logConfig()
	infos, err := cfg.FS.List(cfg.Dir) // sorted, so by offset
	if err != nil {
		return nil
	}
	for _, info := range infos {
		base, kind, ok := segfmt.ParseName(info.Name)
		if !ok || kind != segfmt.LogSuffix || info.Size <= segfmt.SegmentHeaderSize {
			continue
		}
		s := restingSegment{next: math.MaxInt64, bytes: info.Size, createdMs: info.ModTime.UnixMilli()}
		if h, err := headerOf(cfg.FS, cfg.Dir+"/"+info.Name); err == nil {
			s.createdMs = h.CreatedMs
		}
		if n := len(segs); n > 0 {
			segs[n-1].next = base
		}
		segs = append(segs, s)
	}
	return segs
}

// headerOf reads the header of a segment file.
func headerOf(fs vfs.FS, name string) (h segfmt.SegmentHeader, err error) {
	f, err := fs.Open(name, false)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := vfs.ReadPartOf(f, 0, segfmt.SegmentHeaderSize)
	if err != nil {
		return h, err
	}
	return segfmt.ParseSegmentHeader(b)
}

// setResting has Exposure tell what is in the files of a log that is not open; nil: one is open, or nothing is known.
func (p *Partition) setResting(segs []restingSegment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.resting = segs
}

// resting is Exposure's answer while no log is open.
func (p *Partition) resting() (e Exposure, ok bool) {
	e.Copied = p.copied()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.mu.resting {
		if s.next <= e.Copied {
			continue
		}
		if e.Bytes == 0 {
			e.Age = max(p.cfg.age().Sub(time.UnixMilli(s.createdMs)), 0)
		}
		e.Bytes += s.bytes
	}
	return e, p.mu.resting != nil
}
