package objstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
)

// Read returns a whole object, checked against its checksum, or ErrInvalid, before memory is taken, when it has more than
// limit bytes.
func Read(ctx context.Context, s Store, key string, limit int64) (data []byte, info Info, err error) {
	body, err := s.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, Info{}, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	if body.Len > limit {
		return nil, Info{}, fmt.Errorf("%w: object %s has %d bytes, at most %d are expected", ErrInvalid, key, body.Len, limit)
	}
	data, err = readBody(body)
	return data, body.Info, err
}

// ReadRange returns the bytes [off, off+n) of an object, ErrRange where it does not have all of them. A part cannot be
// checked against the object's checksum: what is in it needs its own.
func ReadRange(ctx context.Context, s Store, key string, off, n int64) (data []byte, info Info, err error) {
	body, err := s.Get(ctx, key, off, n)
	if err != nil {
		return nil, Info{}, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	if body.Len != n {
		return nil, Info{}, fmt.Errorf("get %s: %w: %d bytes at %d, it has %d", key, ErrRange, n, off, body.Info.Size)
	}
	data, err = readBody(body)
	return data, body.Info, err
}

// readBody reads to the end and not only as many bytes as announced: the end is what checks them.
func readBody(b *Body) ([]byte, error) {
	data := make([]byte, b.Len)
	n, err := io.ReadFull(b, data)
	if err != nil {
		return data[:n], err
	}
	if _, err = b.Read(nil); !errors.Is(err, io.EOF) {
		return data, err
	}
	return data, nil
}

// Verify reads an object back and returns a CorruptError unless it has that size and checksum.
func Verify(ctx context.Context, s Store, key string, size int64, crc uint32) (info Info, err error) {
	body, err := s.Get(ctx, key, 0, -1)
	if err != nil {
		return Info{}, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	if _, err := io.Copy(io.Discard, body); err != nil {
		return Info{}, err
	}
	if body.Len != size || body.sum != crc {
		cause := fmt.Errorf("%d bytes with CRC-32C %08x, expected %d with %08x", body.Len, body.sum, size, crc)
		return Info{}, &CorruptError{Key: key, Cause: cause}
	}
	return body.Info, nil
}

// PutOnce stores an object under a key that stands for its content: where one of the same size and checksum is there
// already, that is success, whether an earlier attempt put it or this one whose answer was lost. ErrExists says that the
// key has another content. After ErrOutcomeUnknown it may be called again.
func PutOnce(ctx context.Context, s Store, key string, src Source) (Info, error) {
	info, err := s.PutIfAbsent(ctx, key, src)
	// A server that refuses before it has read all may close the connection on whoever is still sending: then its answer is
	// lost, and ErrUnavailable may stand for ErrExists, however often it is tried.
	if err == nil || !errors.Is(err, ErrExists) && !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrUnavailable) {
		return info, err
	}
	there, herr := s.Head(ctx, key)
	switch {
	case errors.Is(herr, ErrNotFound):
		return Info{}, err // not there, or not there yet
	case herr != nil:
		return Info{}, errors.Join(err, herr)
	case there.Size != src.Size() || there.HasCRC && there.CRC32C != src.CRC32C():
		return Info{}, fmt.Errorf("put %s: %w: %d bytes with CRC-32C %08x, not %d with %08x",
			key, ErrExists, there.Size, there.CRC32C, src.Size(), src.CRC32C())
	case there.HasCRC:
		return there, nil
	}
	return Verify(ctx, s, key, src.Size(), src.CRC32C()) // it does not say what it is
}

// Probe finds out whether a store does what this package promises, with a small object below dir that it removes again.
// Servers that ignore a condition they do not know overwrite what must not be overwritten, so this belongs before the first use.
// ErrUnsupported names what is missing.
func Probe(ctx context.Context, s Store, dir string) (err error) {
	key := dir + "/probe-" + rand.Text()
	one, two := Bytes([]byte("probe one")), Bytes([]byte("probe two"))
	first, err := s.PutIfAbsent(ctx, key, one)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Delete(ctx, key)) }()
	if _, err := s.PutIfAbsent(ctx, key, two); !errors.Is(err, ErrExists) {
		return lacking(err, "a put on condition that there is no object (If-None-Match) was not refused where there is one")
	}
	second, err := s.PutIfMatch(ctx, key, first.Version, two)
	if err != nil {
		return lacking(err, "a put on condition of the version (If-Match) was refused where the version is right")
	}
	if _, err := s.PutIfMatch(ctx, key, first.Version, one); !errors.Is(err, ErrConflict) {
		return lacking(err, "a put on condition of the version (If-Match) was not refused where the version is an old one")
	}
	data, info, err := Read(ctx, s, key, 1<<10)
	if err != nil {
		return err
	}
	if string(data) != "probe two" || info.Version != second.Version || !info.HasCRC {
		return lacking(nil, "what was put last, its version and checksum are not what is read")
	}
	for found, err := range s.List(ctx, key, "") {
		if err != nil {
			return err
		}
		if found.Key == key && found.Size == info.Size {
			return nil
		}
	}
	return lacking(nil, "what was put is not listed at once")
}

// lacking keeps an error that says something else than that a condition was ignored.
func lacking(err error, what string) error {
	if err != nil && !errors.Is(err, ErrConflict) {
		return err
	}
	return fmt.Errorf("%w: %s", ErrUnsupported, what)
}
