package record

import (
	"encoding/binary"
	"hash/crc32"
)

// HeaderSize is the length in bytes of the fixed part of a batch.
const HeaderSize = 61

// MaxBatchBytes is the length of the largest batch this package makes: 64 MiB.
const MaxBatchBytes = 64 << 20

const (
	magic = 2

	posLength     = 8
	posGeneration = 12
	posMagic      = 16
	posCRC        = 17
	posAttributes = 21 // the checksum covers from here on

	// Bytes of a batch up to and including its length field, which the length does not count.
	lengthOverhead = 12

	attrCodec         = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// BatchInfo is the fixed part of a batch.
type BatchInfo struct {
	BaseOffset      int64
	Length          int   // bytes of the whole batch, its header included
	Generation      int32 // Kafka: partition leader epoch; -1 until a broker has set it
	CRC             uint32
	Attributes      int16
	LastOffsetDelta int32
	FirstTimestamp  int64 // milliseconds
	MaxTimestamp    int64 // milliseconds
	ProducerID      int64 // -1: not from an idempotent producer
	ProducerEpoch   int16
	BaseSequence    int32
	Count           int32 // records; fewer than LastOffsetDelta+1 after compaction, 0 in a log's own control frames
}

// Codec returns how the records are compressed.
func (i BatchInfo) Codec() Codec { return Codec(i.Attributes & attrCodec) }

// Transactional reports whether the batch belongs to a transaction.
func (i BatchInfo) Transactional() bool { return i.Attributes&attrTransactional != 0 }

// Control reports whether the batch holds a transaction's marker instead of records for applications.
func (i BatchInfo) Control() bool { return i.Attributes&attrControl != 0 }

// LogAppendTime reports whether MaxTimestamp stands for the timestamp of every record.
func (i BatchInfo) LogAppendTime() bool { return i.Attributes&attrLogAppendTime != 0 }

// LastOffset returns the offset of the last record.
func (i BatchInfo) LastOffset() int64 { return i.BaseOffset + int64(i.LastOffsetDelta) }

// LastSequence returns the sequence of the last record of an idempotent producer's batch.
func (i BatchInfo) LastSequence() int32 { return NextSequence(i.BaseSequence, i.LastOffsetDelta) }

// NextSequence returns the sequence n records (0 or more) behind seq. Sequences wrap to 0 after 2^31-1.
func NextSequence(seq, n int32) int32 {
	return int32((uint32(seq) + uint32(n)) & 0x7fffffff) //nolint:gosec // wrapping is the point
}

// ParseHeader reads the fixed part of the batch that b begins with. b may hold more than the batch, or only its first
// HeaderSize bytes: BatchInfo.Length says how much belongs to it. It checks that the fields can be those of a batch and
// nothing else; in particular no checksum. It does not allocate unless it fails.
func ParseHeader(b []byte) (BatchInfo, error) {
	if len(b) < HeaderSize {
		return BatchInfo{}, invalid("%d bytes are fewer than the %d of its header", len(b), HeaderSize)
	}
	b = b[:HeaderSize]
	if b[posMagic] != magic {
		return BatchInfo{}, invalid("format %d instead of %d", int8(b[posMagic]), magic)
	}
	info := BatchInfo{
		BaseOffset:      i64(b[0:]),
		Length:          lengthOverhead + int(i32(b[posLength:])),
		Generation:      i32(b[posGeneration:]),
		CRC:             binary.BigEndian.Uint32(b[posCRC:]),
		Attributes:      i16(b[posAttributes:]),
		LastOffsetDelta: i32(b[23:]),
		FirstTimestamp:  i64(b[27:]),
		MaxTimestamp:    i64(b[35:]),
		ProducerID:      i64(b[43:]),
		ProducerEpoch:   i16(b[51:]),
		BaseSequence:    i32(b[53:]),
		Count:           i32(b[57:]),
	}
	switch {
	case info.Length < HeaderSize:
		return BatchInfo{}, invalid("length %d is below that of its header", info.Length)
	case info.Count < 0 || info.LastOffsetDelta < 0:
		return BatchInfo{}, invalid("record count %d or last offset delta %d is negative", info.Count, info.LastOffsetDelta)
	case int64(info.Count) > int64(info.LastOffsetDelta)+1:
		return BatchInfo{}, invalid("%d records do not fit %d offsets", info.Count, int64(info.LastOffsetDelta)+1)
	}
	return info, nil
}

// Check is ParseHeader for a b that is exactly one batch, and verifies its checksum. It does not look into the records
// and does not allocate unless it fails.
func Check(b []byte) (BatchInfo, error) {
	info, err := ParseHeader(b)
	if err != nil {
		return info, err
	}
	if info.Length != len(b) {
		return info, invalid("length %d, but %d bytes are here", info.Length, len(b))
	}
	if got := crc32.Checksum(b[posAttributes:], castagnoli); got != info.CRC {
		return info, &Error{Kind: KindCorrupt, Msg: "checksum does not match: the bytes changed after it was made"}
	}
	return info, nil
}

// SetPlacement writes where the batch that b begins with stands in a log. It changes b in place; the checksum does not
// cover these fields. It panics when b is shorter than HeaderSize.
func SetPlacement(b []byte, baseOffset int64, generation int32) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint64(b[0:], uint64(baseOffset))             //nolint:gosec // two's complement
	binary.BigEndian.PutUint32(b[posGeneration:], uint32(generation)) //nolint:gosec // two's complement
}

// Next cuts the first batch off b, which holds whole batches back to back. Both results alias b. It is an error when b
// is empty or does not begin with a whole batch; the checksum is not looked at.
func Next(b []byte) (batch, rest []byte, err error) {
	info, err := ParseHeader(b)
	if err != nil {
		return nil, nil, err
	}
	if info.Length > len(b) {
		return nil, nil, invalid("length %d, but only %d bytes are left", info.Length, len(b))
	}
	return b[:info.Length:info.Length], b[info.Length:], nil
}

func i16(b []byte) int16 { return int16(binary.BigEndian.Uint16(b)) } //nolint:gosec // two's complement
func i32(b []byte) int32 { return int32(binary.BigEndian.Uint32(b)) } //nolint:gosec // two's complement
func i64(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) } //nolint:gosec // two's complement
