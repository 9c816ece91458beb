package record

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy/xerial"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is how a batch's records are compressed. The numbers are those in a batch's attributes.
type Codec uint8

// The codecs.
const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
	codecs // how many there are; keep last
)

var codecNames = [codecs]string{"none", "gzip", "snappy", "lz4", "zstd"}

// String returns the codec's name as ParseCodec takes it.
func (c Codec) String() string {
	if c < codecs {
		return codecNames[c]
	}
	return "unknown"
}

// ParseCodec returns the codec with that name: none, gzip, snappy, lz4 or zstd. The empty name means none.
func ParseCodec(name string) (Codec, error) {
	if name == "" {
		return None, nil
	}
	for c, n := range codecNames {
		if n == name {
			return Codec(c), nil //nolint:gosec // below codecs
		}
	}
	return None, invalid("unknown compression %q: use none, gzip, snappy, lz4 or zstd", name)
}

// A compressor costs tens to hundreds of kilobytes to make, which is more than most batches hold: all are pooled. None
// of them keeps a goroutine, so the collector may drop them.
var (
	gzipWriters  = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}
	gzipReaders  = sync.Pool{New: func() any { return new(gzip.Reader) }}
	lz4Writers   = sync.Pool{New: newLZ4Writer}
	lz4Readers   = sync.Pool{New: func() any { return lz4.NewReader(nil) }}
	zstdEncoders = sync.Pool{New: newZstdEncoder}
	zstdDecoders = sync.Pool{New: newZstdDecoder}
)

func newLZ4Writer() any {
	w := lz4.NewWriter(nil)
	// 64 KiB is what Kafka's own client writes: readers need little memory.
	if err := w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ConcurrencyOption(1)); err != nil {
		panic("record: lz4 options: " + err.Error())
	}
	return w
}

func newZstdEncoder() any {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithWindowSize(1<<20), zstd.WithZeroFrames(true))
	if err != nil {
		panic("record: zstd options: " + err.Error())
	}
	return e
}

func newZstdDecoder() any {
	// DecodeAll never decodes beyond the capacity it is given, so every caller has its own limit.
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxDecompressedBytes), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("record: zstd options: " + err.Error())
	}
	return d
}

// compress appends src, compressed, to dst.
func compress(dst []byte, codec Codec, src []byte) ([]byte, error) {
	switch codec {
	case None:
		return append(dst, src...), nil
	case Gzip:
		w, _ := gzipWriters.Get().(*gzip.Writer)
		defer gzipWriters.Put(w)
		return compressStream(dst, src, w)
	case Snappy:
		return append(dst, xerial.Encode(nil, src)...), nil
	case LZ4:
		w, _ := lz4Writers.Get().(*lz4.Writer)
		defer lz4Writers.Put(w)
		return compressStream(dst, src, w)
	case Zstd:
		e, _ := zstdEncoders.Get().(*zstd.Encoder)
		defer zstdEncoders.Put(e)
		return e.EncodeAll(src, dst), nil
	}
	return nil, invalid("unknown compression %d", codec)
}

func compressStream(dst, src []byte, w interface {
	io.WriteCloser
	Reset(io.Writer)
}) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	w.Reset(buf)
	_, err := w.Write(src)
	if err == nil {
		err = w.Close()
	}
	w.Reset(nil)
	if err != nil {
		return nil, &Error{Kind: KindInvalid, Msg: "compressing failed: " + err.Error(), Err: err}
	}
	return buf.Bytes(), nil
}

// decompress returns src unpacked, at most limit bytes of it: more is an error of kind too_large. It uses dst's memory
// where that suffices (its contents do not matter) and never claims memory for bytes that have not proved to be there,
// beyond a small multiple of what has.
func decompress(dst []byte, codec Codec, src []byte, limit int) ([]byte, error) {
	switch codec {
	case Gzip:
		r, _ := gzipReaders.Get().(*gzip.Reader)
		defer gzipReaders.Put(r)
		if err := r.Reset(bytes.NewReader(src)); err != nil {
			return nil, badBlock(codec, err)
		}
		return readAll(dst, codec, r, limit)
	case Snappy:
		return unpackSnappy(dst, src, limit)
	case LZ4:
		r, _ := lz4Readers.Get().(*lz4.Reader)
		defer func() {
			r.Reset(nil)
			lz4Readers.Put(r)
		}()
		r.Reset(bytes.NewReader(src))
		return readAll(dst, codec, r, limit)
	case Zstd:
		d, _ := zstdDecoders.Get().(*zstd.Decoder)
		defer zstdDecoders.Put(d)
		return unpackZstd(dst, d, src, limit)
	}
	return nil, invalid("unknown compression %d", codec)
}

// readAll reads r to its end into dst's memory, which it doubles as needed.
func readAll(dst []byte, codec Codec, r io.Reader, limit int) ([]byte, error) {
	dst = dst[:0]
	for {
		if len(dst) == cap(dst) {
			dst = grow(dst, 2*len(dst))
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst) > limit:
			return nil, overLimit(codec, limit)
		case errors.Is(err, io.EOF):
			return dst, nil
		case err != nil:
			return nil, badBlock(codec, err)
		}
	}
}

// unpackZstd decodes with ever more memory, up to limit. The size a frame states is taken on trust only where it is
// likely: a few bytes can state anything. Each attempt costs four times the one before, so the failed ones cost a third
// of the last.
func unpackZstd(dst []byte, d *zstd.Decoder, src []byte, limit int) ([]byte, error) {
	room := max(cap(dst), 64<<10, 8*len(src))
	var h zstd.Header
	if err := h.Decode(src); err == nil && h.HasFCS {
		if h.FrameContentSize > uint64(limit) { //nolint:gosec // limits are positive
			return nil, overLimit(Zstd, limit)
		}
		if stated := int(h.FrameContentSize); stated <= 64*len(src) { //nolint:gosec // below limit
			room = max(stated, cap(dst))
		}
	}
	for {
		room = min(room, limit)
		if cap(dst) < room {
			dst = make([]byte, 0, room)
		}
		out, err := d.DecodeAll(src, dst[:0:room])
		switch {
		case err == nil:
			return out, nil
		case !errors.Is(err, zstd.ErrDecoderSizeExceeded):
			return nil, badBlock(Zstd, err)
		case room == limit:
			return nil, overLimit(Zstd, limit)
		}
		room *= 4
	}
}

func grow(b []byte, size int) []byte {
	grown := make([]byte, len(b), max(size, 4<<10))
	copy(grown, b)
	return grown
}

func overLimit(codec Codec, limit int) error {
	return tooLarge("its records, %s-compressed, unpack to more than %d bytes", codec, limit)
}

func badBlock(codec Codec, err error) error {
	return &Error{Kind: KindInvalid, Msg: "its records are not a " + codec.String() + " block: " + err.Error(), Err: err}
}
