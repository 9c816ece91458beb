package segfmt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/leveemq/levee/record"
)

// Sizes of a frame, in bytes.
const (
	FrameHeaderSize = 16                                  // before the record batch
	MinFrame        = FrameHeaderSize + record.HeaderSize // no frame is shorter
	MaxFrame        = 64 << 20                            // none is longer
	MaxUndurable    = 1<<24 - 1                           // the counter stops here: "this many or more"
	frameHeadSpan   = FrameHeaderSize - 4 + record.HeaderSize
)

// Kinds of frame. Only data frames take offsets; every frame takes a seq.
const (
	KindData            uint8 = 0
	KindGenerationStart uint8 = 1
	KindMembership      uint8 = 2
	KindNoop            uint8 = 3
	KindLost            uint8 = 4 // payload: from, to
	kinds                     = 5
)

// KindName returns the name of a frame kind for people.
func KindName(k uint8) string {
	names := [kinds]string{"data", "generation-start", "membership", "no-op", "lost"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("unknown-%d", k)
}

// Frame is what a frame's checked head says.
//
//	 0  head_crc u32      CRC-32C of bytes 4 to 76
//	 4  kind u8
//	 5  undurable u24
//	 8  seq u64
//	16  record batch      61-byte header, then records (or the payload of a control frame)
type Frame struct {
	Kind      uint8
	Undurable uint32 // frames right before this one that were not known to be on the device; see MaxUndurable
	Seq       uint64
	Batch     record.BatchInfo
	HeadCRC   uint32
}

// Size is the whole frame's length in bytes.
func (f *Frame) Size() int { return FrameHeaderSize + f.Batch.Length }

// NextOffset is the offset of the first record after the frame.
func (f *Frame) NextOffset() int64 {
	if f.Kind != KindData {
		return f.Batch.BaseOffset
	}
	return f.Batch.BaseOffset + int64(f.Batch.LastOffsetDelta) + 1
}

// DurableThrough is the highest seq that the frame proves to have been on the device before it was written; 0 when it
// proves nothing.
func (f *Frame) DurableThrough() uint64 {
	if f.Undurable >= MaxUndurable || uint64(f.Undurable)+1 > f.Seq {
		return 0
	}
	return f.Seq - 1 - uint64(f.Undurable)
}

// AppendFrame appends a data frame: batch is copied and its base offset and generation are set in the copy.
func AppendFrame(dst []byte, kind uint8, undurable, seq uint64, baseOffset int64, generation uint32, batch []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, FrameHeaderSize)...)
	dst = append(dst, batch...)
	f := dst[at:]
	record.SetPlacement(f[FrameHeaderSize:], baseOffset, int32(generation))
	le.PutUint32(f[4:], uint32(min(undurable, MaxUndurable))<<8|uint32(kind))
	le.PutUint64(f[8:], seq)
	le.PutUint32(f, checksum(f[4:4+frameHeadSpan]))
	return dst
}

// ControlBatch returns the batch part of a frame that is not data: a header with no records, then payload.
func ControlBatch(payload []byte) []byte {
	be := binary.BigEndian
	b := make([]byte, record.HeaderSize, record.HeaderSize+len(payload))
	b = append(b, payload...)
	be.PutUint32(b[8:], uint32(len(b)-12))
	b[16] = 2
	for i := 43; i < 57; i++ {
		b[i] = 0xff // producer id, epoch and sequence: none
	}
	be.PutUint32(b[17:], checksum(b[21:]))
	return b
}

// LostBatch returns the batch part of a frame that declares offsets lost.
func LostBatch(from, to int64) []byte {
	p := le.AppendUint64(nil, uint64(from))
	return ControlBatch(le.AppendUint64(p, uint64(to)))
}

// ParseLost returns the range that a lost frame's batch declares.
func ParseLost(batch []byte) (from, to int64, err error) {
	if len(batch) != record.HeaderSize+16 {
		return 0, 0, ErrField
	}
	from, to = int64(le.Uint64(batch[record.HeaderSize:])), int64(le.Uint64(batch[record.HeaderSize+8:]))
	if from < 0 || to < from || to == math.MaxInt64 {
		return 0, 0, ErrField
	}
	return from, to, nil
}

// ParseFrame checks and decodes a frame's head, the first MinFrame bytes of b. ErrShort says that b is shorter than
// that; ErrChecksum that the head is not what was written, in which case none of its fields means anything. The
// batch's records are not looked at: see CheckFrame. It allocates nothing on success.
func ParseFrame(b []byte) (Frame, error) {
	var f Frame
	if len(b) < MinFrame {
		return f, ErrShort
	}
	if checksum(b[4:4+frameHeadSpan]) != le.Uint32(b) {
		return f, ErrChecksum
	}
	word := le.Uint32(b[4:])
	f.Kind, f.Undurable, f.Seq, f.HeadCRC = uint8(word), word>>8, le.Uint64(b[8:]), le.Uint32(b)
	info, err := record.ParseHeader(b[FrameHeaderSize:])
	if err != nil {
		return Frame{}, fmt.Errorf("%w: %w", ErrField, err)
	}
	f.Batch = info
	if f.Kind >= kinds || f.Seq == 0 || f.Seq == math.MaxUint64 || f.Size() > MaxFrame || info.Generation < 0 ||
		info.BaseOffset < 0 || info.BaseOffset >= math.MaxInt64-int64(info.LastOffsetDelta) ||
		(f.Kind == KindData) != (info.Count > 0) || info.Count > 0 && info.LastOffsetDelta != info.Count-1 {
		return Frame{}, ErrField
	}
	return f, nil
}

// SameFrame reports whether two frames say the same: they may differ in Undurable, which is about the log that they stand in.
// Both must have been checked.
func SameFrame(a, b []byte) bool {
	const kind, seq = 4, 8 // where they are; Undurable is between them, the head's checksum before
	return len(a) == len(b) && len(a) >= MinFrame && a[kind] == b[kind] && bytes.Equal(a[seq:], b[seq:])
}

// CheckFrame checks the whole frame that f was parsed from: b must hold exactly its bytes.
func CheckFrame(f *Frame, b []byte) error {
	if len(b) != f.Size() {
		return ErrShort
	}
	if f.Batch.CRC != checksum(b[FrameHeaderSize+21:]) {
		return ErrChecksum
	}
	if f.Kind == KindLost {
		_, to, err := ParseLost(b[FrameHeaderSize:])
		if err == nil && to+1 != f.Batch.BaseOffset {
			err = ErrField
		}
		return err
	}
	return nil
}

// FindFrame returns the position in b, at or after from, of the first frame that is whole, checks, and has a seq above
// after; -1 where there is none. Recovery uses it to look behind damage.
func FindFrame(b []byte, from int, after uint64) (int, Frame) {
	for p := from; p+MinFrame <= len(b); p++ {
		if b[p+FrameHeaderSize+16] != 2 || b[p+4] >= kinds { // the batch's magic and the kind: cheap filters
			continue
		}
		f, err := ParseFrame(b[p:])
		if err != nil || f.Seq <= after || f.Size() > len(b)-p || CheckFrame(&f, b[p:p+f.Size()]) != nil {
			continue
		}
		return p, f
	}
	return -1, Frame{}
}
