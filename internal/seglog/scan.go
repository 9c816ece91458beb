package seglog

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// chain is what the next frame of a log must continue. Invariant: frames are contiguous in seq and offset, and
// generations never fall.
type chain struct {
	seq        uint64 // of the next frame
	offset     int64  // of the next record
	generation uint32 // of the frame before
}

// accept moves the chain past f, whose bytes are b and have been checked.
func (c *chain) accept(f *segfmt.Frame, b []byte) error {
	if err := c.follows(f); err != nil {
		return err
	}
	if g := uint32(f.Batch.Generation); g < c.generation {
		return fmt.Errorf("generation %d follows generation %d", g, c.generation)
	}
	want := c.offset
	if f.Kind == segfmt.KindLost {
		from, to, err := segfmt.ParseLost(b[segfmt.FrameHeaderSize:])
		if err != nil {
			return err
		}
		if from != c.offset {
			return fmt.Errorf("declares offsets lost from %d where %d must follow", from, c.offset)
		}
		want = to + 1
	}
	if f.Batch.BaseOffset != want {
		return fmt.Errorf("offset %d stands where offset %d must", f.Batch.BaseOffset, want)
	}
	c.seq, c.offset, c.generation = f.Seq+1, f.NextOffset(), uint32(f.Batch.Generation)
	return nil
}

// follows reports that f is not the next frame.
func (c *chain) follows(f *segfmt.Frame) error {
	if f.Seq != c.seq {
		return fmt.Errorf("frame %d stands where frame %d must: frames are missing or from another time", f.Seq, c.seq)
	}
	return nil
}

// badFrame says where a scan met bytes that are no frame, and why.
type badFrame struct {
	position int64
	short    bool // the file ends inside it: what a write that was cut off looks like
	cause    error
}

var scanBuffers = sync.Pool{New: func() any { b := make([]byte, 1<<20); return &b }}

// scanFrames reads frames of f from position to size. For each frame that checks and continues the chain it calls fn,
// whose slice is only lent. It returns where it stopped: at size with no badFrame, or at the first bad one. The error
// is the file system's.
func scanFrames(f vfs.File, position, size int64, c *chain, fn func(position int64, fr *segfmt.Frame, b []byte)) (int64, *badFrame, error) {
	pooled := scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(pooled)
	buf := *pooled
	have, at := 0, 0 // buf[at:have] is read and not yet looked at; position is where buf[at] stands
	fill := func(want int) error {
		have = copy(buf, buf[at:have])
		at = 0
		if want > len(buf) {
			buf = append(make([]byte, 0, want), buf[:have]...)[:want]
		}
		n := int(min(int64(len(buf)-have), size-position-int64(have)))
		got, err := f.ReadAt(buf[have:have+n], position+int64(have))
		have += got
		if got < n && (err == nil || errors.Is(err, io.EOF)) {
			err = io.ErrUnexpectedEOF // shorter than its size said: somebody cut it meanwhile
		}
		if got == n {
			err = nil
		}
		return err
	}
	for position < size {
		if have-at < segfmt.MinFrame && size-position > int64(have-at) {
			if err := fill(segfmt.MinFrame); err != nil {
				return position, nil, err
			}
		}
		fr, err := segfmt.ParseFrame(buf[at:have])
		if err != nil {
			return position, &badFrame{position, errors.Is(err, segfmt.ErrShort), err}, nil
		}
		if int64(fr.Size()) > size-position {
			if err := c.follows(&fr); err != nil { // not the write that a crash cut off
				return position, &badFrame{position, false, err}, nil
			}
			return position, &badFrame{position, true, segfmt.ErrShort}, nil
		}
		if have-at < fr.Size() {
			if err := fill(fr.Size()); err != nil {
				return position, nil, err
			}
		}
		b := buf[at : at+fr.Size()]
		if err := segfmt.CheckFrame(&fr, b); err != nil {
			return position, &badFrame{position, false, err}, nil
		}
		if err := c.accept(&fr, b); err != nil {
			return position, &badFrame{position, false, err}, nil
		}
		fn(position, &fr, b)
		at += fr.Size()
		position += int64(fr.Size())
	}
	return position, nil, nil
}
