package record

import "math/bits"

// Header is one name and value attached to a record. Names may repeat and may be empty; a nil Value differs from an
// empty one.
type Header struct {
	Key   string
	Value []byte
}

// Record is one message. A nil Key means no key and a nil Value a tombstone; both differ from empty ones.
type Record struct {
	Key       []byte
	Value     []byte
	Headers   []Header
	Timestamp int64 // milliseconds since 1970 UTC; -1: none
	Offset    int64 // set when decoded, ignored when encoded
}

// Overhead of a record beyond its key, value and headers: length, attributes, timestamp and offset deltas, lengths of
// key and value, header count, each at its longest.
const maxRecordOverhead = 5 + 1 + 10 + 5 + 5 + 5 + 5

// Size returns how many bytes r takes in a batch before compression, at most: its deltas, which only its place in a
// batch decides, are counted at their longest. It is what Limits.RecordBytes should be compared with before sending.
func (r *Record) Size() int {
	n := maxRecordOverhead + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 5 + 5 + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// bodySize returns the exact encoded size of r, without the length in front of it.
func (r *Record) bodySize(timestampDelta int64, offsetDelta int32) int {
	n := 1 + varintSize(timestampDelta) + varintSize(int64(offsetDelta))
	n += bytesSize(r.Key) + bytesSize(r.Value) + varintSize(int64(len(r.Headers)))
	for i := range r.Headers {
		k := len(r.Headers[i].Key)
		n += varintSize(int64(k)) + k + bytesSize(r.Headers[i].Value)
	}
	return n
}

func bytesSize(b []byte) int {
	if b == nil {
		return 1 // the length -1
	}
	return varintSize(int64(len(b))) + len(b)
}

// varintSize returns how many bytes v takes as a zigzag varint.
func varintSize(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63) //nolint:gosec // zigzag
	return (bits.Len64(u|1) + 6) / 7
}
