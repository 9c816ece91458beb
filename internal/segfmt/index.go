package segfmt

import "hash/crc32"

// IndexEntrySize and TimeEntrySize are the lengths of one entry of the two index files. TimeEndSize is what closes a
// time index.
const (
	IndexEntrySize = 24
	TimeEntrySize  = 16
	TimeEndSize    = 32
	timeMagic      = "LVTI"
	timeVersion    = 1
)

// IndexEntry says where a frame stands: the first frame of a segment, and the first one at or after every index
// interval. Entries have no checksum: whoever follows one checks that the frame there is the one named.
type IndexEntry struct {
	Offset   int64 // of the frame's first record; of the next record for a control frame
	Seq      uint64
	Position int64 // in the segment file
}

// Append appends the entry's 24 little-endian bytes.
func (e IndexEntry) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, uint64(e.Offset))
	dst = le.AppendUint64(dst, e.Seq)
	return le.AppendUint64(dst, uint64(e.Position))
}

// ParseIndexEntry decodes the first 24 bytes of b, which must be there.
func ParseIndexEntry(b []byte) IndexEntry {
	return IndexEntry{int64(le.Uint64(b)), le.Uint64(b[8:]), int64(le.Uint64(b[16:]))}
}

// TimeEntry says: the newest timestamp among all records of the segment below Offset is MaxTimestamp. There is one at
// an index entry where that rose, and one in the block that closes the file. Nothing in the segment could show cheaply
// that one of them is wrong, and a wrong one would hide records from whoever looks for a time, so they are checksummed.
type TimeEntry struct {
	MaxTimestamp int64
	Offset       int64
}

// Append appends the entry's 16 little-endian bytes.
func (e TimeEntry) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, uint64(e.MaxTimestamp))
	return le.AppendUint64(dst, uint64(e.Offset))
}

// ParseTimeEntry decodes the first 16 bytes of b, which must be there.
func ParseTimeEntry(b []byte) TimeEntry {
	return TimeEntry{int64(le.Uint64(b)), int64(le.Uint64(b[8:]))}
}

// AppendTimeEnd appends the 32 bytes that close a time index, whose encoded entries are entries. of is TimeIndexOf.
//
//	 0  max_timestamp i64    of the whole segment; -2^63 where it holds no records
//	 8  offset i64           the one after its last record
//	16  magic "LVTI"
//	20  version u16
//	22  flags u16            none yet
//	24  entries_crc u32      CRC-32C of the entries
//	28  crc u32              CRC-32C of bytes 0 to 59 of the segment's header, the head_crc of its last frame, and
//	                         bytes 0 to 27 of this block
func AppendTimeEnd(dst []byte, last TimeEntry, entries []byte, of uint32) []byte {
	at := len(dst)
	dst = last.Append(dst)
	dst = append(dst, timeMagic...)
	dst = le.AppendUint16(dst, timeVersion)
	dst = le.AppendUint16(dst, 0)
	dst = le.AppendUint32(dst, checksum(entries))
	return le.AppendUint32(dst, crc32.Update(of, castagnoli, dst[at:]))
}

// TimeIndexOf returns what binds a time index to the segment with this header that ends with the frame with this
// checksum of its head: the index of another segment, or of what this one was before it was cut, does not check.
func TimeIndexOf(h SegmentHeader, lastHeadCRC uint32) uint32 {
	// Without the header's own checksum: a CRC over bytes and their CRC is the same for all bytes.
	return checksum(le.AppendUint32(h.Append(nil)[:SegmentHeaderSize-4], lastHeadCRC))
}

// ParseTimeEnd decodes the end of a time index from its last 32 bytes.
func ParseTimeEnd(b []byte, of uint32) (TimeEntry, error) {
	if len(b) != TimeEndSize {
		return TimeEntry{}, ErrShort
	}
	if string(b[16:20]) != timeMagic {
		return TimeEntry{}, ErrMagic
	}
	if le.Uint16(b[20:]) != timeVersion {
		return TimeEntry{}, ErrVersion
	}
	if le.Uint16(b[22:]) != 0 {
		return TimeEntry{}, ErrFlags
	}
	if crc32.Update(of, castagnoli, b[:28]) != le.Uint32(b[28:]) {
		return TimeEntry{}, ErrChecksum
	}
	return ParseTimeEntry(b), nil
}

// ParseTimeIndex decodes a whole time index. The last entry returned is the one that closes it.
func ParseTimeIndex(b []byte, of uint32) ([]TimeEntry, error) {
	if len(b) < TimeEndSize || len(b)%TimeEntrySize != 0 {
		return nil, ErrShort
	}
	body, end := b[:len(b)-TimeEndSize], b[len(b)-TimeEndSize:]
	last, err := ParseTimeEnd(end, of)
	if err != nil {
		return nil, err
	}
	if checksum(body) != le.Uint32(end[24:]) {
		return nil, ErrChecksum
	}
	entries := make([]TimeEntry, 0, len(body)/TimeEntrySize+1)
	for ; len(body) > 0; body = body[TimeEntrySize:] {
		entries = append(entries, ParseTimeEntry(body))
	}
	return append(entries, last), nil
}
