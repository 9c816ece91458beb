package seglog

import (
	"github.com/leveemq/levee/internal/segfmt"
)

// Frames gives take the frames of the log that p was made of, from the ordinal on and up to where opening would end it, each
// checked. It changes nothing, and needs no index. What take is given is only lent.
func (p *Plan) Frames(from uint64, take func(f *segfmt.Frame, b []byte) error) error {
	if p.Err != nil {
		return p.Err
	}
	for i, info := range p.Segments {
		if info.NextSeq <= from {
			continue
		}
		if err := p.framesOf(p.segs[i], info, func(f *segfmt.Frame, b []byte) error {
			if f.Seq < from {
				return nil
			}
			return take(f, b)
		}); err != nil {
			return err
		}
	}
	return nil
}

// framesOf gives take the frames of one segment.
func (p *Plan) framesOf(s *segment, info SegmentInfo, take func(f *segfmt.Frame, b []byte) error) error {
	f, err := p.fs.Open(s.path, false)
	if err != nil {
		return p.ioError("open", s.path, err)
	}
	defer f.Close()
	end := p.activeEnd
	if info.Sealed {
		end = s.end
	}
	c := chain{s.BaseSeq, s.BaseOffset, s.PrevGeneration}
	var failed error
	_, bad, err := scanFrames(f, segfmt.SegmentHeaderSize, end, &c, func(_ int64, fr *segfmt.Frame, b []byte) {
		if failed == nil { // what follows is read for nothing: no more than a segment
			failed = take(fr, b)
		}
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return p.ioError("read", s.path, err)
	case bad != nil:
		return p.corrupt(s.path, bad.position, c.offset, bad.cause.Error())
	}
	return nil
}

// PrevGeneration returns the generation of the frame before the log's first one; 0 where there is neither.
func (p *Plan) PrevGeneration() uint32 {
	if len(p.segs) == 0 {
		return 0
	}
	return p.segs[0].PrevGeneration
}
