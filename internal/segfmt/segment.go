package segfmt

import (
	"fmt"
	"math"
)

// SegmentHeaderSize is the length of a segment file's header; the first frame starts there.
const SegmentHeaderSize = 64

// SegmentVersion is the version this package writes.
const SegmentVersion = 1

// FlagCompacted says that frames of the segment may be missing: its offsets rise but are not contiguous.
const FlagCompacted = 1

const segmentMagic = "LVSG"

// SegmentHeader opens every segment file.
//
//	 0  magic "LVSG"        24  prev_generation u32
//	 4  version u16          28  created_ms i64
//	 6  flags u16            36  topic id 16 bytes
//	 8  base_offset i64      52  partition u32
//	16  base_seq u64         56  reserved u32 (zero)
//	                         60  CRC-32C of bytes 0 to 59
type SegmentHeader struct {
	Flags          uint16
	BaseOffset     int64  // offset of the first record; the file's name repeats it
	BaseSeq        uint64 // ordinal of the first frame; at least 1
	PrevGeneration uint32 // generation of the frame before BaseSeq, at most 2^31-1; 0 where there never was one
	CreatedMs      int64  // broker's clock, milliseconds since the epoch
	TopicID        [16]byte
	Partition      uint32
}

// Append appends the header's 64 bytes to dst.
func (h SegmentHeader) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, segmentMagic...)
	dst = le.AppendUint16(dst, SegmentVersion)
	dst = le.AppendUint16(dst, h.Flags)
	dst = le.AppendUint64(dst, uint64(h.BaseOffset))
	dst = le.AppendUint64(dst, h.BaseSeq)
	dst = le.AppendUint32(dst, h.PrevGeneration)
	dst = le.AppendUint64(dst, uint64(h.CreatedMs))
	dst = append(dst, h.TopicID[:]...)
	dst = le.AppendUint32(dst, h.Partition)
	dst = le.AppendUint32(dst, 0)
	return le.AppendUint32(dst, checksum(dst[at:]))
}

// ParseSegmentHeader decodes the first 64 bytes of b. A version or flag that is not known is refused before anything
// else is looked at, since it may change what everything else means.
func ParseSegmentHeader(b []byte) (SegmentHeader, error) {
	var h SegmentHeader
	if len(b) < SegmentHeaderSize {
		return h, ErrShort
	}
	b = b[:SegmentHeaderSize]
	if string(b[:4]) != segmentMagic {
		return h, ErrMagic
	}
	if v := le.Uint16(b[4:]); v != SegmentVersion {
		return h, fmt.Errorf("%w (version %d, not %d)", ErrVersion, v, SegmentVersion)
	}
	if f := le.Uint16(b[6:]); f&^FlagCompacted != 0 {
		return h, fmt.Errorf("%w (%#x)", ErrFlags, f)
	}
	if checksum(b[:60]) != le.Uint32(b[60:]) {
		return h, ErrChecksum
	}
	h.Flags = le.Uint16(b[6:])
	h.BaseOffset = int64(le.Uint64(b[8:]))
	h.BaseSeq = le.Uint64(b[16:])
	h.PrevGeneration = le.Uint32(b[24:])
	h.CreatedMs = int64(le.Uint64(b[28:]))
	copy(h.TopicID[:], b[36:])
	h.Partition = le.Uint32(b[52:])
	if h.BaseOffset < 0 || h.BaseSeq == 0 || h.PrevGeneration > math.MaxInt32 || le.Uint32(b[56:]) != 0 {
		return SegmentHeader{}, ErrField
	}
	return h, nil
}

// HeaderIntact reports whether b is a whole segment header, of this or of another version, as it was written.
func HeaderIntact(b []byte) bool {
	return len(b) >= SegmentHeaderSize && string(b[:4]) == segmentMagic && checksum(b[:60]) == le.Uint32(b[60:])
}
