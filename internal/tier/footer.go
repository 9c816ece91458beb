package tier

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/leveemq/levee/internal/segfmt"
)

// FooterSize is the length of what ends every object.
const FooterSize = 128

const (
	footerMagic   = "LVXS"
	footerVersion = 1
)

var le = binary.LittleEndian

// Footer ends an object, so that a bucket describes itself.
//
//	 0  magic "LVXS"          64  max_timestamp i64
//	 4  version u16           72  segment_bytes i64
//	 6  flags u16             80  index_bytes i64
//	 8  topic id 16 bytes     88  times_bytes i64
//	24  partition u32         96  aborted_bytes i64 (zero)
//	28  generation u32       104  segment_crc u32
//	32  base_offset i64      108  sides_crc u32       index, time index, aborted list
//	40  next_offset i64      112  body_crc u32        everything before the footer
//	48  base_seq u64         116  prev_generation u32
//	56  next_seq u64         120  reserved u32 (zero)
//	                         124  CRC-32C of bytes 0 to 123
type Footer struct {
	Object
	TopicID        [16]byte
	Partition      int32
	PrevGeneration uint32 // of the frame before the first; 0 where there never was one
	SegmentCRC     uint32 // of the segment's bytes
	SidesCRC       uint32 // of what stands between the segment and the footer
}

// Append appends the footer's 128 bytes to dst.
func (f *Footer) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, footerMagic...)
	dst = le.AppendUint16(dst, footerVersion)
	dst = le.AppendUint16(dst, 0)
	dst = append(dst, f.TopicID[:]...)
	dst = le.AppendUint32(dst, uint32(f.Partition))
	dst = le.AppendUint32(dst, f.Generation)
	for _, v := range []int64{
		f.Base, f.Next, int64(f.BaseSeq), int64(f.NextSeq), f.MaxTime, f.SegmentBytes, f.IndexBytes, f.TimesBytes, 0,
	} {
		dst = le.AppendUint64(dst, uint64(v))
	}
	for _, v := range []uint32{f.SegmentCRC, f.SidesCRC, f.CRC, f.PrevGeneration, 0} {
		dst = le.AppendUint32(dst, v)
	}
	return le.AppendUint32(dst, checksum(dst[at:]))
}

// ParseFooter decodes the last 128 bytes of an object of that size. The checksum comes first, so that what rotted is told
// from what a newer version wrote; in every version it covers the same bytes and stands where it stands.
func ParseFooter(b []byte, size int64) (Footer, error) {
	var f Footer
	if len(b) != FooterSize || size < FooterSize {
		return f, segfmt.ErrShort
	}
	if string(b[:4]) != footerMagic {
		return f, segfmt.ErrMagic
	}
	if checksum(b[:FooterSize-4]) != le.Uint32(b[FooterSize-4:]) {
		return f, segfmt.ErrChecksum
	}
	if v := le.Uint16(b[4:]); v != footerVersion {
		return f, fmt.Errorf("%w (version %d, not %d)", segfmt.ErrVersion, v, footerVersion)
	}
	if v := le.Uint16(b[6:]); v != 0 {
		return f, fmt.Errorf("%w (%#x)", segfmt.ErrFlags, v)
	}
	i64 := func(at int) int64 { return int64(le.Uint64(b[at:])) }
	f.Object = Object{
		Base: i64(32), Next: i64(40), BaseSeq: le.Uint64(b[48:]), NextSeq: le.Uint64(b[56:]), Generation: le.Uint32(b[28:]), MaxTime: i64(64),
		SegmentBytes: i64(72), IndexBytes: i64(80), TimesBytes: i64(88), Size: size, CRC: le.Uint32(b[112:]),
	}
	copy(f.TopicID[:], b[8:])
	partition := le.Uint32(b[24:])
	f.Partition = int32(partition)
	f.SegmentCRC, f.SidesCRC, f.PrevGeneration = le.Uint32(b[104:]), le.Uint32(b[108:]), le.Uint32(b[116:])
	if partition > math.MaxInt32 || f.PrevGeneration > f.Generation || le.Uint64(b[96:]) != 0 || le.Uint32(b[120:]) != 0 {
		return Footer{}, segfmt.ErrField
	}
	if err := f.Validate(); err != nil {
		return Footer{}, fmt.Errorf("%w: %w", segfmt.ErrField, err)
	}
	return f, nil
}

// is returns why the footer does not end the object o of a place.
func (f *Footer) is(p Place, o Object) error {
	switch {
	case f.TopicID != p.TopicID || f.Partition != p.Partition:
		return fmt.Errorf("it holds partition %d of topic %x", f.Partition, f.TopicID)
	case f.Object != o.bytes():
		return fmt.Errorf("its footer says %+v, expected %+v", f.Object, o)
	}
	return nil
}
