package objstore

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readUnit is how much of a source is read at once to compute a checksum.
const readUnit = 256 << 10

// Source is what a put stores: bytes that can be read again and again, their number and their CRC-32C. It is a value, and
// safe for concurrent use where the reader is.
type Source struct {
	r    io.ReaderAt
	size int64
	crc  uint32
}

// Bytes makes a source of b, which must not be changed until the put has returned.
func Bytes(b []byte) Source {
	return Source{r: bytes.NewReader(b), size: int64(len(b)), crc: crc32.Checksum(b, castagnoli)}
}

// NewSource makes a source of the first size bytes of r, whose CRC-32C the caller knows. A put fails with ErrSource, and
// stores nothing, when they are others.
func NewSource(r io.ReaderAt, size int64, crc uint32) Source {
	return Source{r: r, size: size, crc: crc}
}

// Checksum reads the first size bytes of r for their CRC-32C.
func Checksum(ctx context.Context, r io.ReaderAt, size int64) (uint32, error) {
	var sum uint32
	err := readAll(ctx, r, 0, size, func(b []byte) { sum = crc32.Update(sum, castagnoli, b) })
	return sum, err
}

// Size returns the number of bytes.
func (s Source) Size() int64 { return s.size }

// CRC32C returns their checksum.
func (s Source) CRC32C() uint32 { return s.crc }

// ReadAt implements io.ReaderAt. It checks nothing.
func (s Source) ReadAt(p []byte, off int64) (int, error) { return s.r.ReadAt(p, off) }

// Check returns ErrInvalid for a source that cannot be, ErrSource for one that is empty and should not be.
func (s Source) Check() error {
	if s.r == nil || s.size < 0 {
		return fmt.Errorf("%w: a source without a reader, or of %d bytes", ErrInvalid, s.size)
	}
	if s.size == 0 && s.crc != 0 { // nothing will be read that could find it out
		return checksumError(0, s.crc)
	}
	return nil
}

// Open returns a reader of the whole source. See Upload.
func (s Source) Open(ctx context.Context) *Upload {
	return s.Piece(0, s.size, s.crc).Open(ctx)
}

// Piece is a part of a source, with a checksum of its own.
type Piece struct {
	Off, Size int64
	CRC32C    uint32
	r         io.ReaderAt
}

// Piece names a part whose checksum is known.
func (s Source) Piece(off, size int64, crc uint32) Piece {
	return Piece{Off: off, Size: size, CRC32C: crc, r: s.r}
}

// Pieces cuts the source into pieces of size bytes, the last one shorter, and reads each for its checksum. The last one
// comes only when all of them together have the source's checksum; otherwise ErrSource takes its place.
func (s Source) Pieces(ctx context.Context, size int64) iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		var all uint32
		for off := int64(0); off < s.size; off += size {
			n := min(size, s.size-off)
			var sum uint32
			err := readAll(ctx, s.r, off, n, func(b []byte) {
				sum = crc32.Update(sum, castagnoli, b)
				all = crc32.Update(all, castagnoli, b)
			})
			if err == nil && off+n == s.size && all != s.crc {
				err = checksumError(all, s.crc)
			}
			if !yield(s.Piece(off, n, sum), err) || err != nil {
				return
			}
		}
	}
}

func checksumError(got, want uint32) error {
	return fmt.Errorf("%w: CRC-32C %08x, expected %08x", ErrSource, got, want)
}

func readAll(ctx context.Context, r io.ReaderAt, off, size int64, use func([]byte)) error {
	buf := make([]byte, min(readUnit, size))
	for end := off + size; off < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
		use(buf[:n])
		off += int64(n)
		if n == 0 {
			return readError(err, off)
		}
	}
	return nil
}

func readError(err error, off int64) error {
	if err == nil || err == io.EOF { //nolint:errorlint // io.ReaderAt promises it bare
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: at byte %d: %w", ErrSource, off, err)
}

// Upload reads a piece for whoever sends it. It gives out the last byte only when all of them have the checksum, so that
// a request whose length was announced stays incomplete otherwise. One goroutine reads; Stop may come from another.
type Upload struct {
	ctx   context.Context // of the put that it belongs to
	piece Piece
	turn  chan struct{} // holds one token: its owner may use what follows
	off   int64         // what is read next, from the piece's start
	sum   uint32        // of everything before off
	summed,
	stopped bool
	delivered bool
	err       error // the first one
}

// Open returns a reader of the piece. Its owner must call Stop before the put returns.
func (p Piece) Open(ctx context.Context) *Upload {
	u := &Upload{ctx: ctx, piece: p, turn: make(chan struct{}, 1), summed: true, delivered: p.Size == 0}
	u.turn <- struct{}{}
	return u
}

// Size returns the number of bytes of the piece.
func (u *Upload) Size() int64 { return u.piece.Size }

// CRC32C returns their checksum.
func (u *Upload) CRC32C() uint32 { return u.piece.CRC32C }

// Read implements io.Reader.
func (u *Upload) Read(p []byte) (int, error) {
	<-u.turn
	defer func() { u.turn <- struct{}{} }()
	switch {
	case u.stopped:
		return 0, io.ErrClosedPipe
	case u.err != nil:
		return 0, u.err
	case u.ctx.Err() != nil:
		u.err = u.ctx.Err()
		return 0, u.err
	case u.off == u.piece.Size:
		return 0, io.EOF
	}
	n, err := u.piece.r.ReadAt(p[:min(int64(len(p)), u.piece.Size-u.off)], u.piece.Off+u.off)
	if n == 0 && len(p) > 0 {
		u.err = readError(err, u.piece.Off+u.off)
		return 0, u.err
	}
	if u.summed {
		u.sum = crc32.Update(u.sum, castagnoli, p[:n])
	}
	if u.off += int64(n); u.off == u.piece.Size {
		if u.summed && u.sum != u.piece.CRC32C {
			u.err = checksumError(u.sum, u.piece.CRC32C)
			return 0, u.err
		}
		u.delivered = true
	}
	return n, nil
}

// Seek implements io.Seeker, for clients that measure what they send, or send it again.
func (u *Upload) Seek(offset int64, whence int) (int64, error) {
	<-u.turn
	defer func() { u.turn <- struct{}{} }()
	switch whence {
	case io.SeekCurrent:
		offset += u.off
	case io.SeekEnd:
		offset += u.piece.Size
	}
	if offset < 0 || offset > u.piece.Size {
		return 0, fmt.Errorf("%w: seek to %d of %d", ErrInvalid, offset, u.piece.Size)
	}
	if offset != u.off { // going on elsewhere than at the start means that nothing can be said of the whole
		u.off, u.sum, u.summed = offset, 0, offset == 0
	}
	return offset, nil
}

// Close implements io.Closer and does nothing: clients close what they send, and then may send it again.
func (u *Upload) Close() error { return nil }

// Stop ends the reading, waits for one that is under way, and reports whether the last byte was given out, and what went
// wrong with the reading.
func (u *Upload) Stop() (delivered bool, err error) {
	<-u.turn
	defer func() { u.turn <- struct{}{} }()
	u.stopped = true
	return u.delivered, u.err
}
