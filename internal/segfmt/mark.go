package segfmt

// The durable mark is two slots in one file, written in turn, so that a torn write costs one of them at most.
const (
	MarkSlotSize = 64
	MarkStride   = 512 // slot n starts at n*MarkStride: never both in one sector
	MarkFileSize = 2 * MarkStride
	markMagic    = "LVDM"
	markVersion  = 1
)

// Mark claims that every frame up to Seq is on the device.
//
//	 0  magic "LVDM"     24  offset i64
//	 4  version u16      32  file i64
//	 6  flags u16 (0)    40  position i64
//	 8  counter u64      48  reserved 12 bytes
//	16  seq u64          60  CRC-32C of bytes 0 to 59
type Mark struct {
	Counter  uint64 // the higher one of two valid slots counts; rises with every write
	Seq      uint64 // newest frame on the device; 0: no claim
	Offset   int64  // the next record's offset after it
	File     int64  // base offset of the segment it is in
	Position int64  // where it ends in that file
}

// Append appends the slot's 64 bytes.
func (m Mark) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, markMagic...)
	dst = le.AppendUint16(dst, markVersion)
	dst = le.AppendUint16(dst, 0)
	dst = le.AppendUint64(dst, m.Counter)
	dst = le.AppendUint64(dst, m.Seq)
	dst = le.AppendUint64(dst, uint64(m.Offset))
	dst = le.AppendUint64(dst, uint64(m.File))
	dst = le.AppendUint64(dst, uint64(m.Position))
	dst = append(dst, make([]byte, 12)...)
	return le.AppendUint32(dst, checksum(dst[at:]))
}

// ParseMark returns the newest valid slot of a mark file. ok is false when neither is valid: then nothing is claimed.
// An unknown version or flag is an error.
func ParseMark(file []byte) (m Mark, ok bool, err error) {
	for at := 0; at+MarkSlotSize <= len(file); at += MarkStride {
		b := file[at : at+MarkSlotSize]
		if string(b[:4]) != markMagic || checksum(b[:60]) != le.Uint32(b[60:]) {
			continue
		}
		if le.Uint16(b[4:]) != markVersion {
			return Mark{}, false, ErrVersion
		}
		if le.Uint16(b[6:]) != 0 {
			return Mark{}, false, ErrFlags
		}
		s := Mark{le.Uint64(b[8:]), le.Uint64(b[16:]), int64(le.Uint64(b[24:])), int64(le.Uint64(b[32:])), int64(le.Uint64(b[40:]))}
		if !ok || s.Counter > m.Counter {
			m, ok = s, true
		}
	}
	return m, ok, nil
}
