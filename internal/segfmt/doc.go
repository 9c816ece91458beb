// Package segfmt owns the bytes of a log on disk: segment headers, frames, indexes, the durable mark and producers'
// snapshots. It is pure: it never opens a file, starts a goroutine or reads a clock. Invariant: no field is used
// before the checksum over it was checked, and no length read from disk sizes an allocation before it was compared
// with the bytes at hand. docs/formats/segment.md describes every byte.
package segfmt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian
)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// Errors of the decoders. Each says what is wrong, not where: the caller knows the file and the position.
var (
	ErrShort    = errors.New("the bytes end in the middle of it")
	ErrMagic    = errors.New("magic number is wrong")
	ErrVersion  = errors.New("written by a version of Levee that this one does not know")
	ErrFlags    = errors.New("has flags that this version of Levee does not know")
	ErrChecksum = errors.New("checksum does not match")
	ErrField    = errors.New("a field has an impossible value")
)

// Suffixes and names of the files in a partition's directory.
const (
	LogSuffix       = ".log"
	IndexSuffix     = ".index"
	TimeIndexSuffix = ".timeindex"
	ProducersPrefix = "producers-"
	MarkName        = "durable"
	TempSuffix      = ".tmp"
)

// FileName returns the name of the segment file (or its index, by suffix) whose first offset is base.
func FileName(base int64, suffix string) string { return fmt.Sprintf("%020d%s", base, suffix) }

// ProducersName returns the name of the producers' snapshot that covers every offset below offset.
func ProducersName(offset int64) string { return fmt.Sprintf("%s%020d", ProducersPrefix, offset) }

// ParseName splits a file name into its number and kind (one of the suffixes, or ProducersPrefix); ok is false for
// any name this package does not make.
func ParseName(name string) (n int64, kind string, ok bool) {
	digits := ""
	if rest, is := strings.CutPrefix(name, ProducersPrefix); is {
		digits, kind = rest, ProducersPrefix
	} else {
		for _, s := range []string{LogSuffix, IndexSuffix, TimeIndexSuffix} {
			if rest, is := strings.CutSuffix(name, s); is {
				digits, kind = rest, s
			}
		}
	}
	if len(digits) != 20 {
		return 0, "", false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || fmt.Sprintf("%020d", n) != digits {
		return 0, "", false
	}
	return n, kind, true
}
