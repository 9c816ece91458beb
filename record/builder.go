package record

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ProducerInfo marks a batch as an idempotent producer's. Mind that its zero value names producer 0: a batch of nobody's
// is built with NoProducer.
type ProducerInfo struct {
	ID       int64
	Epoch    int16
	Sequence int32 // of the first record
}

// NoProducer marks a batch as not from an idempotent producer.
var NoProducer = ProducerInfo{ID: -1, Epoch: -1, Sequence: -1}

// Builder makes batches. One Builder makes one batch after another, with Reset in between, reusing its memory. It is not
// safe for concurrent use.
type Builder struct {
	codec  Codec
	plain  []byte // room for a header, then the records; nil: none yet
	packed []byte // the same with the records compressed
	count  int32
	first  int64 // timestamp of the first record
	newest int64 // largest timestamp
}

// NewBuilder returns a Builder of batches compressed with codec. A batch that compression does not make smaller is built
// uncompressed.
func NewBuilder(codec Codec) *Builder { return &Builder{codec: codec} }

// Append adds a copy of r; its Offset is ignored. It fails with kind too_large, and adds nothing, when the batch would
// exceed MaxBatchBytes before compression.
func (b *Builder) Append(r Record) error {
	if size := r.Size(); size > MaxBatchBytes-b.Len() || b.count == math.MaxInt32 {
		return tooLarge("a record of %d bytes does not fit into a batch that has %d of at most %d", size, b.Len(), MaxBatchBytes)
	}
	if b.count == 0 {
		b.first, b.newest = r.Timestamp, r.Timestamp
	}
	b.newest = max(b.newest, r.Timestamp)
	delta := r.Timestamp - b.first
	if len(b.plain) == 0 {
		b.plain = append(b.plain, emptyHeader[:]...)
	}
	p := binary.AppendVarint(b.plain, int64(r.bodySize(delta, b.count)))
	p = append(p, 0) // attributes: none are defined
	p = binary.AppendVarint(p, delta)
	p = binary.AppendVarint(p, int64(b.count))
	p = appendBytes(p, r.Key)
	p = appendBytes(p, r.Value)
	p = binary.AppendVarint(p, int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		p = append(binary.AppendVarint(p, int64(len(h.Key))), h.Key...)
		p = appendBytes(p, h.Value)
	}
	b.plain = p
	b.count++
	return nil
}

// appendBytes appends the length of v and v itself; nil is absent.
func appendBytes(p, v []byte) []byte {
	if v == nil {
		return binary.AppendVarint(p, -1)
	}
	return append(binary.AppendVarint(p, int64(len(v))), v...)
}

// Len returns the bytes the batch has so far, before compression.
func (b *Builder) Len() int { return max(HeaderSize, len(b.plain)) }

// Count returns the records appended since the last Reset.
func (b *Builder) Count() int { return int(b.count) }

// Build returns the batch, in memory that is the caller's. Base offset and generation are not set (0 and -1). The same
// records and producer give the same bytes. It fails when nothing was appended. Appending may go on afterwards.
func (b *Builder) Build(p ProducerInfo) ([]byte, error) {
	batch, err := b.Seal(p)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(batch), nil
}

// Seal is Build without the copy: the batch lies in the Builder's memory, and is what it is until the next call of any
// of its methods but Len and Count.
func (b *Builder) Seal(p ProducerInfo) ([]byte, error) {
	if b.count == 0 {
		return nil, invalid("it holds no record")
	}
	info := BatchInfo{
		Generation:      -1,
		Attributes:      int16(b.codec),
		LastOffsetDelta: b.count - 1,
		FirstTimestamp:  b.first,
		MaxTimestamp:    b.newest,
		ProducerID:      p.ID,
		ProducerEpoch:   p.Epoch,
		BaseSequence:    p.Sequence,
		Count:           b.count,
	}
	if b.codec == None {
		return putHeader(b.plain, info), nil
	}
	packed, err := compress(append(b.packed[:0], emptyHeader[:]...), b.codec, b.plain[HeaderSize:])
	if err != nil {
		return nil, err
	}
	b.packed = packed
	if len(packed) >= len(b.plain) {
		info.Attributes &^= attrCodec
		return putHeader(b.plain, info), nil
	}
	return putHeader(packed, info), nil
}

// Reset forgets the records. Batches built before are not touched.
func (b *Builder) Reset() {
	b.plain, b.count = b.plain[:0], 0
	if cap(b.plain) > maxPooledBuffer { // one huge batch must not keep its memory for good
		b.plain = nil
	}
	if cap(b.packed) > maxPooledBuffer {
		b.packed = nil
	}
}

// emptyHeader keeps the place of a header in front of records.
var emptyHeader [HeaderSize]byte

// seal compresses plain records with info's codec and puts info in front.
func seal(info BatchInfo, plain []byte) ([]byte, error) {
	packed, err := compress(append(make([]byte, 0, HeaderSize+len(plain)), emptyHeader[:]...), info.Codec(), plain)
	if err != nil {
		return nil, err
	}
	return putHeader(packed, info), nil
}

// putHeader writes info over the first HeaderSize bytes of the batch b, and returns b; Length and CRC of info are
// computed.
func putHeader(b []byte, info BatchInfo) []byte {
	raw := kmsg.RecordBatch{
		FirstOffset:          info.BaseOffset,
		Length:               int32(len(b) - lengthOverhead), //nolint:gosec // payloads are bounded
		PartitionLeaderEpoch: info.Generation,
		Magic:                magic,
		Attributes:           info.Attributes,
		LastOffsetDelta:      info.LastOffsetDelta,
		FirstTimestamp:       info.FirstTimestamp,
		MaxTimestamp:         info.MaxTimestamp,
		ProducerID:           info.ProducerID,
		ProducerEpoch:        info.ProducerEpoch,
		FirstSequence:        info.BaseSequence,
		NumRecords:           info.Count,
	}
	raw.AppendTo(b[:0])
	binary.BigEndian.PutUint32(b[posCRC:], crc32.Checksum(b[posAttributes:], castagnoli))
	return b
}
