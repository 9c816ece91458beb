package dir

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
)

// A file is an object's bytes and then a trailer, little-endian:
//
//	 0        4        6        8               16                              32         36          40
//	+--------+--------+--------+---------------+-------------------------------+----------+-----------+
//	| "LVOB" | version| flags  | size          | id                            | CRC-32C  | trailer's |
//	|        | u16 = 1| u16 = 0| u64           | 16 random bytes               | of bytes | CRC-32C   |
//	+--------+--------+--------+---------------+-------------------------------+----------+-----------+
//
// The bytes come first so that whoever knows what they are can read the file as it is. The id tells contents apart that
// are equal: it is the object's version. docs/formats/directory.md describes it for others.
const (
	trailerSize = 40
	magic       = "LVOB"
)

type trailer struct {
	size int64
	id   [16]byte
	crc  uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (t trailer) encode() []byte {
	b := make([]byte, 0, trailerSize)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, 1)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.size))
	b = append(b, t.id[:]...)
	b = binary.LittleEndian.AppendUint32(b, t.crc)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// errForeignFormat says that a newer version of this package, or something else, wrote a file.
var errForeignFormat = fault.New(fault.Unsupported, "unknown version of an object's file")

// decode reads the last bytes of a file with that many in all.
func decode(b []byte, fileSize int64) (trailer, error) {
	if len(b) != trailerSize || string(b[:4]) != magic {
		return trailer{}, errors.New("the file does not end as an object's does: it is not one, or was cut off")
	}
	if version, flags := binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:]); version != 1 || flags != 0 {
		return trailer{}, fmt.Errorf("%w: version %d, flags %d", errForeignFormat, version, flags)
	}
	if got, want := crc32.Checksum(b[:36], castagnoli), binary.LittleEndian.Uint32(b[36:]); got != want {
		return trailer{}, fmt.Errorf("trailer has CRC-32C %08x, says %08x", got, want)
	}
	t := trailer{size: int64(binary.LittleEndian.Uint64(b[8:])), id: [16]byte(b[16:32]), crc: binary.LittleEndian.Uint32(b[32:])}
	if t.size < 0 || t.size != fileSize-trailerSize {
		return trailer{}, fmt.Errorf("the file has %d bytes before its trailer, which says %d", fileSize-trailerSize, t.size)
	}
	return t, nil
}

func (t trailer) version() objstore.Version { return objstore.Version(hex.EncodeToString(t.id[:])) }
