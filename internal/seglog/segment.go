package seglog

import (
	"sort"

	"github.com/leveemq/levee/internal/segfmt"
)

// segmentFile is the identity of one file, from its creation to its removal.
type segmentFile struct {
	gone bool // guarded by Files.mu; nobody may open it any more
}

// segment is what is known of one file of a log. It never changes: sealing makes another one of the same file.
type segment struct {
	segfmt.SegmentHeader
	file *segmentFile
	path string // of file

	// What a sealed segment ends with; zero while it is the active one.
	sealed  bool
	end     int64  // its length in bytes
	next    int64  // the offset after its last record
	nextSeq uint64 // the ordinal after its last frame
	lastGen uint32
	headCRC uint32 // of its last frame
	maxTime int64  // newest timestamp; math.MinInt64 where it holds no records
}

func newSegment(h segfmt.SegmentHeader, name string) *segment {
	return &segment{SegmentHeader: h, file: &segmentFile{}, path: name}
}

func (s *segment) sibling(suffix string) string {
	return s.path[:len(s.path)-len(segfmt.LogSuffix)] + suffix
}

// view is what readers see: an immutable picture of the log, swapped whole by the one goroutine that commits.
type view struct {
	segs    []*segment // in order; all but the last sealed; empty while nothing was ever appended
	first   int64      // oldest offset
	end     int64      // readers stop here
	nextSeq uint64
	gen     uint32
	epoch   uint64 // rises when frames that were visible are removed from the tail
	records int64  // written since the log was opened

	// Of the active segment. The slices only ever grow behind what a view holds.
	endPos int64 // readers stop here in it
	index  []segfmt.IndexEntry
	times  []segfmt.TimeEntry
	maxTim int64
}

// segmentOf returns the index in v.segs of the segment that holds offset, which must be within [first, end].
func (v *view) segmentOf(offset int64) int {
	return sort.Search(len(v.segs), func(i int) bool { return v.segs[i].BaseOffset > offset }) - 1
}

// segmentOfSeq returns the index in v.segs of the segment that holds frame seq.
func (v *view) segmentOfSeq(seq uint64) int {
	return sort.Search(len(v.segs), func(i int) bool { return v.segs[i].BaseSeq > seq }) - 1
}

// limits returns where the frames of segment i end: position, offset and ordinal.
func (v *view) limits(i int) (endPos, next int64, nextSeq uint64) {
	if s := v.segs[i]; s.sealed {
		return s.end, s.next, s.nextSeq
	}
	return v.endPos, v.end, v.nextSeq
}

func (v *view) firstSeq() uint64 {
	if len(v.segs) == 0 {
		return v.nextSeq
	}
	return v.segs[0].BaseSeq
}

func (v *view) bytes() int64 {
	total := int64(0)
	for i := range v.segs {
		end, _, _ := v.limits(i)
		total += end
	}
	return total
}
