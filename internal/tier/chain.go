package tier

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
)

// chain is what the next frame must continue.
type chain struct {
	seq        uint64 // of the next frame
	offset     int64  // of the next record
	generation uint32 // of the frame before
}

// accept moves the chain past f, whose bytes are b and have been checked, or says why f cannot come next.
func (c *chain) accept(f *segfmt.Frame, b []byte) error {
	g, from := uint32(f.Batch.Generation), f.Batch.BaseOffset
	if f.Kind == segfmt.KindLost {
		var err error
		if from, _, err = segfmt.ParseLost(b[segfmt.FrameHeaderSize:]); err != nil {
			return err
		}
	}
	switch {
	case f.Seq != c.seq:
		return fmt.Errorf("frame %d stands where frame %d must", f.Seq, c.seq)
	case g < c.generation:
		return fmt.Errorf("generation %d follows generation %d", g, c.generation)
	case from != c.offset:
		return fmt.Errorf("offset %d stands where offset %d must", from, c.offset)
	}
	c.seq, c.offset, c.generation = f.Seq+1, f.NextOffset(), g
	return nil
}

// stretch is how much of a segment is read at once while its frames are checked.
const stretch = 1 << 20

// scan reads a whole segment of size bytes and calls each for its frames, which have been checked; what they are stays as
// it is until each returns, whose error ends the scan. Where it returns no error, the chain is what the segment's successor
// must continue.
func scan(ctx context.Context, name string, r io.Reader, size int64, each func(position int64, f *segfmt.Frame, b []byte) error) (segfmt.SegmentHeader, chain, error) {
	in := bufio.NewReaderSize(r, int(min(stretch, max(size, 0))))
	var head [segfmt.SegmentHeaderSize]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return segfmt.SegmentHeader{}, chain{}, readFailed(name, 0, err)
	}
	h, err := parseHeader(name, head[:])
	if err != nil {
		return h, chain{}, err
	}
	c := chain{h.BaseSeq, h.BaseOffset, h.PrevGeneration}
	var large []byte
	for at := int64(segfmt.SegmentHeaderSize); at < size; {
		if err := ctx.Err(); err != nil {
			return h, c, err
		}
		bad := func(cause error) error {
			return &CorruptError{Where: name, Position: at, Offset: c.offset, Cause: cause}
		}
		b, err := in.Peek(int(min(segfmt.MinFrame, size-at)))
		if err != nil {
			return h, c, readFailed(name, at+int64(len(b)), err)
		}
		f, err := segfmt.ParseFrame(b)
		if err != nil {
			return h, c, bad(err)
		}
		if int64(f.Size()) > size-at {
			return h, c, bad(segfmt.ErrShort)
		}
		if f.Size() <= in.Size() {
			if b, err = in.Peek(f.Size()); err == nil {
				_, err = in.Discard(f.Size()) // b stays as it is until the next read
			}
		} else {
			if cap(large) < f.Size() {
				large = make([]byte, f.Size())
			}
			b = large[:f.Size()]
			_, err = io.ReadFull(in, b)
		}
		if err != nil {
			return h, c, readFailed(name, at, err)
		}
		if err := segfmt.CheckFrame(&f, b); err != nil {
			return h, c, bad(err)
		}
		if err := c.accept(&f, b); err != nil {
			return h, c, bad(err)
		}
		if err := each(at, &f, b); err != nil {
			return h, c, err
		}
		at += int64(f.Size())
	}
	return h, c, nil
}

// parseHeader decodes a segment's header. What is no header as it was written is damage, whatever version it seems to have.
func parseHeader(where string, b []byte) (segfmt.SegmentHeader, error) {
	h, err := segfmt.ParseSegmentHeader(b)
	if err == nil && h.Flags != 0 {
		err = fmt.Errorf("%w (%#x)", segfmt.ErrFlags, h.Flags)
	}
	switch {
	case err == nil:
		return h, nil
	case !segfmt.HeaderIntact(b):
		return h, &CorruptError{Where: where, Offset: -1, Cause: err}
	}
	return h, undecodable(where, 0, err)
}

// readFailed says what it means that a segment cannot be read on.
func readFailed(name string, position int64, err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &CorruptError{Where: name, Position: position, Offset: -1, Cause: segfmt.ErrShort}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fault.New(fault.IO, "read %s at byte %d: %w", name, position, err)
}
