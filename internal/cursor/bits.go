package cursor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// BlockSize is how many offsets a block covers.
const BlockSize = 4096

const words = BlockSize / 64

// Bits are the offsets of one block: bit i, lowest first, is set where offset i of the block is settled.
type Bits [words]uint64

// A block is encoded in one of three kinds, the smallest of them:
//
//	0 bitmap   512 bytes, bit i%8 of byte i/8
//	1 runs     pairs of uvarints: how many offsets are not settled, how many settled ones follow; to the end of the bytes
//	2 full     nothing: every offset is settled
const (
	kindBitmap = 0
	kindRuns   = 1
	kindFull   = 2
)

// ErrBits is wrapped by errors about bytes that are no encoded block.
var ErrBits = errors.New("not the bits of a block")

// next returns the first index at or above i whose bit is as settled says, BlockSize where there is none.
func (b *Bits) next(i int, settled bool) int {
	for w := i / 64; w < words; w++ {
		word := b[w]
		if !settled {
			word = ^word
		}
		if w == i/64 {
			word &= ^uint64(0) << (i % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return BlockSize
}

// set settles from to to, both included, and returns how many were not settled before.
func (b *Bits) set(from, to int) (added int) {
	for w := from / 64; w <= to/64; w++ {
		mask := ^uint64(0)
		if w == from/64 {
			mask &= ^uint64(0) << (from % 64)
		}
		if w == to/64 {
			mask &= ^uint64(0) >> (63 - to%64)
		}
		added += bits.OnesCount64(mask &^ b[w])
		b[w] |= mask
	}
	return added
}

func (b *Bits) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }

// count returns how many are settled.
func (b *Bits) count() int {
	n := 0
	for _, word := range b {
		n += bits.OnesCount64(word)
	}
	return n
}

// highest returns the highest settled index, -1 where there is none.
func (b *Bits) highest() int {
	for w := words - 1; w >= 0; w-- {
		if b[w] != 0 {
			return w*64 + 63 - bits.LeadingZeros64(b[w])
		}
	}
	return -1
}

// Encode returns the bits in their smallest form.
func (b *Bits) Encode() []byte {
	if b.next(0, false) == BlockSize {
		return []byte{kindFull}
	}
	const bitmapLen = 1 + BlockSize/8
	runs := []byte{kindRuns}
	for i := 0; len(runs) < bitmapLen; {
		from := b.next(i, true)
		if from == BlockSize {
			return runs
		}
		to := b.next(from, false)
		runs = binary.AppendUvarint(runs, uint64(from-i))
		runs = binary.AppendUvarint(runs, uint64(to-from))
		i = to
	}
	bitmap := make([]byte, 1, bitmapLen) // kindBitmap
	for _, word := range b {
		bitmap = binary.LittleEndian.AppendUint64(bitmap, word)
	}
	return bitmap
}

// DecodeBits reads what Encode wrote. Anything else is an error.
func DecodeBits(data []byte) (Bits, error) {
	var b Bits
	if len(data) == 0 {
		return b, fmt.Errorf("%w: no bytes", ErrBits)
	}
	rest := data[1:]
	switch data[0] {
	case kindBitmap:
		if len(rest) != BlockSize/8 {
			return b, fmt.Errorf("%w: a bitmap of %d bytes", ErrBits, len(rest))
		}
		for w := range b {
			b[w] = binary.LittleEndian.Uint64(rest[w*8:])
		}
	case kindRuns:
		if err := b.decodeRuns(rest); err != nil {
			return Bits{}, err
		}
	case kindFull:
		if len(rest) != 0 {
			return b, fmt.Errorf("%w: %d bytes behind a full block", ErrBits, len(rest))
		}
		b.set(0, BlockSize-1)
	default:
		return b, fmt.Errorf("%w: kind %d", ErrBits, data[0])
	}
	return b, nil
}

func (b *Bits) decodeRuns(rest []byte) error {
	at := uint64(0)
	for first := true; len(rest) > 0; first = false {
		gap, n := binary.Uvarint(rest)
		if n <= 0 || gap > BlockSize || gap == 0 && !first {
			return fmt.Errorf("%w: a gap that none can be", ErrBits)
		}
		run, m := binary.Uvarint(rest[n:])
		if m <= 0 || run == 0 || run > BlockSize-min(at+gap, BlockSize) {
			return fmt.Errorf("%w: a run that none can be", ErrBits)
		}
		b.set(int(at+gap), int(at+gap+run-1))
		at += gap + run
		rest = rest[n+m:]
	}
	return nil
}
