package record

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/snappy/xerial"
)

// Java's clients frame snappy blocks as the xerial library does; others write one plain block. Both are read.
//
//	82 'S' 'N' 'A' 'P' 'P' 'Y' 00 | version i32 | compatible i32 | (length i32 | block)*
var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const (
	xerialHeader = 16
	xerialLength = 4
)

var errSnappy = errors.New("malformed snappy block")

// unpackSnappy sizes its memory by what the blocks state, after checking that they can hold that much.
func unpackSnappy(dst, src []byte, limit int) ([]byte, error) {
	size, err := snappySize(src)
	if err != nil {
		return nil, badBlock(Snappy, err)
	}
	if size > int64(limit) {
		return nil, overLimit(Snappy, limit)
	}
	if dst == nil || int64(cap(dst)) < size {
		dst = make([]byte, 0, size)
	}
	out, err := xerial.DecodeCapped(dst[:0], src)
	if err != nil {
		return nil, badBlock(Snappy, err)
	}
	return out, nil
}

func snappySize(src []byte) (int64, error) {
	if !bytes.HasPrefix(src, xerialMagic) {
		return snappyBlockSize(src)
	}
	if len(src) < xerialHeader {
		return 0, errSnappy
	}
	var sum int64
	for rest := src[xerialHeader:]; len(rest) > 0; {
		if len(rest) < xerialLength {
			return 0, errSnappy
		}
		n := int64(binary.BigEndian.Uint32(rest))
		rest = rest[xerialLength:]
		if n > int64(len(rest)) {
			return 0, errSnappy
		}
		size, err := snappyBlockSize(rest[:n])
		if err != nil {
			return 0, err
		}
		sum += size
		rest = rest[n:]
	}
	return sum, nil
}

// snappyBlockSize returns what a block states it unpacks to. The longest copy takes 3 bytes for 64.
func snappyBlockSize(block []byte) (int64, error) {
	n, err := snappy.DecodedLen(block)
	if err != nil {
		return 0, err
	}
	if int64(n) > int64(len(block))*22 {
		return 0, errSnappy
	}
	return int64(n), nil
}
