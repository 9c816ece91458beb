package record

import "sync"

// MaxDecompressedBytes is how much a batch's records may unpack to at most, whatever the limits say: 128 MiB.
const MaxDecompressedBytes = 128 << 20

// Limits bound what a publisher may send. A zero field means its default.
type Limits struct {
	RecordBytes       int // one record, encoded; default 10 MiB
	BatchBytes        int // one batch as it is sent; default 16 MiB
	DecompressedBytes int // a batch's records unpacked; default 64 MiB, at most MaxDecompressedBytes
}

// The default limits.
const (
	DefaultRecordBytes       = 10 << 20
	DefaultBatchBytes        = 16 << 20
	DefaultDecompressedBytes = 64 << 20
)

func (l Limits) withDefaults() Limits {
	if l.RecordBytes <= 0 {
		l.RecordBytes = DefaultRecordBytes
	}
	if l.BatchBytes <= 0 {
		l.BatchBytes = DefaultBatchBytes
	}
	if l.DecompressedBytes <= 0 {
		l.DecompressedBytes = DefaultDecompressedBytes
	}
	l.DecompressedBytes = min(l.DecompressedBytes, MaxDecompressedBytes)
	return l
}

// Verify is Check for a batch from a publisher: besides, every record can be decoded, their number and offset deltas are
// those of a batch nobody has compacted, and all is within limits. It refuses what only a broker may write: control
// batches, empty ones, and timestamps that are the log's. Compressed records are unpacked into pooled memory to look at
// them; for others it does not allocate unless it fails.
func Verify(b []byte, limits Limits) (BatchInfo, error) {
	limits = limits.withDefaults()
	if len(b) > limits.BatchBytes {
		return BatchInfo{}, tooLarge("%d bytes are above the limit of %d", len(b), limits.BatchBytes)
	}
	info, err := Check(b)
	if err != nil {
		return info, err
	}
	switch {
	case info.Count == 0:
		return info, invalid("it holds no record")
	case info.Count-1 != info.LastOffsetDelta:
		return info, invalid("%d records with last offset delta %d", info.Count, info.LastOffsetDelta)
	case info.Control():
		return info, invalid("publishers may not send control batches")
	case info.LogAppendTime():
		return info, invalid("publishers may not mark timestamps as the log's")
	case info.Codec() >= codecs:
		return info, invalid("unknown compression %d", info.Codec())
	case info.ProducerID < -1, info.ProducerID >= 0 && (info.ProducerEpoch < 0 || info.BaseSequence < 0):
		return info, invalid("producer %d with epoch %d and sequence %d", info.ProducerID, info.ProducerEpoch, info.BaseSequence)
	}
	if info.Codec() == None {
		return info, verifyRecords(b[HeaderSize:], info.Count, limits.RecordBytes)
	}
	buf := getBuffer()
	defer putBuffer(buf)
	plain, err := decompress(*buf, info.Codec(), b[HeaderSize:], limits.DecompressedBytes)
	if err != nil {
		return info, err
	}
	*buf = plain
	return info, verifyRecords(plain, info.Count, limits.RecordBytes)
}

func verifyRecords(b []byte, count int32, recordBytes int) error {
	for i := range count {
		s, ok := scanRecord(b)
		if !ok {
			return malformed(i)
		}
		if s.size > recordBytes {
			return tooLarge("record %d has %d bytes, above the limit of %d", i, s.size, recordBytes)
		}
		if s.offsetDelta != i {
			return invalid("record %d has offset delta %d", i, s.offsetDelta)
		}
		b = b[s.size:]
	}
	if len(b) > 0 {
		return invalid("%d bytes follow its last record", len(b))
	}
	return nil
}

func malformed(i int32) error { return invalid("record %d is malformed", i) }

// Buffers for looking into compressed batches. Very large ones are left to the collector, so that one huge batch does
// not keep its memory for good.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

const maxPooledBuffer = 4 << 20

func getBuffer() *[]byte {
	b, _ := buffers.Get().(*[]byte)
	return b
}

func putBuffer(b *[]byte) {
	if cap(*b) <= maxPooledBuffer {
		buffers.Put(b)
	}
}
