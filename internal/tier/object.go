package tier

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/segfmt"
)

// Suffix ends the key of every exported segment.
const Suffix = ".lvseg"

// maxPart bounds each length in an object, so that their sum cannot overflow. No store takes an object that large.
const maxPart = 1 << 40

// Place is where the objects of one partition are.
type Place struct {
	Prefix, Cluster string // Prefix may be empty, or have several components
	TopicID         [16]byte
	Partition       int32
}

// topicDir is what the keys of a topic's objects begin with.
func topicDir(prefix, cluster string, topic [16]byte) string {
	return ClusterDir(prefix, cluster) + hex.EncodeToString(topic[:]) + "/"
}

// ClusterDir is what the keys of a cluster's objects begin with.
func ClusterDir(prefix, cluster string) string {
	if prefix != "" {
		prefix += "/"
	}
	return prefix + cluster + "/"
}

// Object describes one exported segment. It is plain data, and what the metadata keeps of it.
type Object struct {
	Base, Next       int64  // it holds the offsets from Base up to Next, which is not in it
	BaseSeq, NextSeq uint64 // and the frames from BaseSeq up to NextSeq
	Generation       uint32 // of its last frame
	MaxTime          int64  // the newest timestamp; segfmt.NoTime where it holds no records

	SegmentBytes, IndexBytes, TimesBytes int64  // its parts, in order
	Size                                 int64  // of all of it
	CRC                                  uint32 // CRC-32C of everything before the footer

	// StoredMs is when it was recorded, in milliseconds since 1970; 0 where that is not known. It stands nowhere in the object.
	StoredMs int64
}

// Validate returns why there can be no such object.
func (o Object) Validate() error {
	invalid := func(format string, args ...any) error {
		return fault.New(fault.InvalidArgument, "object of offsets %d to %d: "+format, append([]any{o.Base, o.Next - 1}, args...)...)
	}
	switch frames := o.NextSeq - o.BaseSeq; {
	case o.Base < 0 || o.Next <= o.Base || o.Next == math.MaxInt64:
		return invalid("no range of offsets")
	case o.BaseSeq == 0 || o.NextSeq <= o.BaseSeq || o.NextSeq == math.MaxUint64:
		return invalid("frames %d to %d are no range", o.BaseSeq, o.NextSeq-1)
	case o.Generation > math.MaxInt32:
		return invalid("generation %d", o.Generation)
	case o.SegmentBytes > maxPart || frames > uint64(maxPart) || o.SegmentBytes < segfmt.SegmentHeaderSize+int64(frames)*segfmt.MinFrame:
		return invalid("a segment of %d bytes does not hold %d frames", o.SegmentBytes, frames)
	case o.IndexBytes < segfmt.IndexEntrySize || o.IndexBytes%segfmt.IndexEntrySize != 0 || uint64(o.IndexBytes/segfmt.IndexEntrySize) > frames:
		return invalid("an index of %d bytes for %d frames", o.IndexBytes, frames)
	case o.TimesBytes < segfmt.TimeEndSize || o.TimesBytes%segfmt.TimeEntrySize != 0 || o.TimesBytes/segfmt.TimeEntrySize > o.IndexBytes/segfmt.IndexEntrySize+2:
		return invalid("a time index of %d bytes beside an index of %d", o.TimesBytes, o.IndexBytes)
	case o.Size != o.SegmentBytes+o.IndexBytes+o.TimesBytes+FooterSize:
		return invalid("%d bytes are not what its parts have", o.Size)
	}
	return nil
}

// bytes returns what the object says of itself.
func (o Object) bytes() Object {
	o.StoredMs = 0
	return o
}

// Name returns what the object's key says of it.
func (o Object) Name() Name {
	return Name{Base: o.Base, Last: o.Next - 1, Generation: o.Generation, CRC: o.CRC}
}

// Key returns the key that the object has in its place.
func (o Object) Key(p Place) string { return KeyOf(p, o.Name()) }

// Name is what an object's key says of the object.
type Name struct {
	Base, Last int64
	Generation uint32
	CRC        uint32
}

// KeyOf returns <prefix>/<cluster>/<topic id>/<partition>/<base>-<last>-<generation>-<crc>.lvseg. In the order of keys the
// objects of a partition rise by offset.
func KeyOf(p Place, n Name) string {
	return fmt.Sprintf("%s%d/%020d-%020d-%d-%08x%s", topicDir(p.Prefix, p.Cluster, p.TopicID), p.Partition, n.Base, n.Last, n.Generation, n.CRC, Suffix)
}

// ParseKey is KeyOf backwards; ok is false for any key that KeyOf does not make.
func ParseKey(key string) (p Place, n Name, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) < 4 || objstore.CheckKey(key) != nil {
		return Place{}, Name{}, false
	}
	at := len(parts) - 4
	p.Prefix, p.Cluster = strings.Join(parts[:at], "/"), parts[at]
	id, err := hex.DecodeString(parts[at+1])
	if err != nil || len(id) != len(p.TopicID) {
		return Place{}, Name{}, false
	}
	copy(p.TopicID[:], id)
	partition, err := strconv.ParseInt(parts[at+2], 10, 32)
	if err != nil || partition < 0 {
		return Place{}, Name{}, false
	}
	p.Partition = int32(partition)
	fields := strings.Split(strings.TrimSuffix(parts[at+3], Suffix), "-")
	if len(fields) != 4 {
		return Place{}, Name{}, false
	}
	number := func(text string, base, bits int) uint64 {
		v, perr := strconv.ParseUint(text, base, bits)
		if perr != nil {
			err = perr
		}
		return v
	}
	n.Base, n.Last = int64(number(fields[0], 10, 63)), int64(number(fields[1], 10, 63))
	n.Generation, n.CRC = uint32(number(fields[2], 10, 31)), uint32(number(fields[3], 16, 32))
	// What is spelled in another way is another key.
	if err != nil || n.Last < n.Base || KeyOf(p, n) != key {
		return Place{}, Name{}, false
	}
	return p, n, true
}
