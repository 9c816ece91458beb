package objstore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Body is the content that Get returns: exactly Len bytes, or an error. A whole object that is read to its end is checked
// against its checksum, where it has one: then the error is a CorruptError instead of io.EOF. One goroutine reads.
type Body struct {
	Info Info
	Off  int64 // of the first byte in the object
	Len  int64

	ctx  context.Context // of the Get that it belongs to
	r    io.ReadCloser
	left int64
	sum  uint32
	err  error
}

// NewBody returns n bytes from off on of an object, which r gives. For adapters.
func NewBody(ctx context.Context, info Info, off, n int64, r io.ReadCloser) *Body {
	return &Body{Info: info, Off: off, Len: n, ctx: ctx, r: r, left: n}
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case b.left == 0:
		b.err = b.end()
		return 0, b.err
	case b.ctx.Err() != nil:
		b.err = fmt.Errorf("get %s: %w", b.Info.Key, b.ctx.Err())
		return 0, b.err
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	if b.whole() {
		b.sum = crc32.Update(b.sum, castagnoli, p[:n])
	}
	b.left -= int64(n)
	switch {
	case b.left == 0: // what comes behind does not matter
	case err == nil:
	default:
		b.err = b.failed(err)
	}
	if n > 0 {
		return n, nil // the error comes next
	}
	return 0, b.err
}

// failed says what an error in the middle means: the rest may come with another request.
func (b *Body) failed(err error) error {
	at := b.Off + b.Len - b.left
	switch {
	case b.ctx.Err() != nil:
		err = b.ctx.Err()
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrUnavailable):
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w: %w with %d bytes to come", ErrUnavailable, io.ErrUnexpectedEOF, b.left)
	default:
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("get %s at byte %d: %w", b.Info.Key, at, err)
}

// whole says that there is a checksum for what it gives.
func (b *Body) whole() bool { return b.Off == 0 && b.Len == b.Info.Size && b.Info.HasCRC }

func (b *Body) end() error {
	if b.whole() && b.sum != b.Info.CRC32C {
		return &CorruptError{Key: b.Info.Key, Cause: fmt.Errorf("CRC-32C %08x, stored with %08x", b.sum, b.Info.CRC32C)}
	}
	return io.EOF
}

// Close implements io.Closer. It may come before the end.
func (b *Body) Close() error { return b.r.Close() }
