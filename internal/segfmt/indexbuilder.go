package segfmt

import "math"

// NoTime is the newest timestamp of a segment without records.
const NoTime = math.MinInt64

// IndexBuilder makes the two indexes of one segment, the same way while appending and while recovering.
type IndexBuilder struct {
	interval int64
	Entries  []IndexEntry
	Times    []TimeEntry
	MaxTime  int64  // newest timestamp so far, or NoTime
	HeadCRC  uint32 // of the newest frame
}

// NewIndexBuilder returns a builder that makes an entry for the first frame, and then for each that starts interval bytes
// or more behind the one with the last entry.
func NewIndexBuilder(interval int64) IndexBuilder {
	return IndexBuilder{interval: interval, MaxTime: NoTime}
}

// Note takes in the frame at position; frames come in order.
func (x *IndexBuilder) Note(position int64, f *Frame) {
	if n := len(x.Entries); n == 0 || position-x.Entries[n-1].Position >= x.interval {
		x.noteTime(f.Batch.BaseOffset)
		x.Entries = append(x.Entries, IndexEntry{Offset: f.Batch.BaseOffset, Seq: f.Seq, Position: position})
	}
	if f.Kind == KindData {
		x.MaxTime = max(x.MaxTime, f.Batch.MaxTimestamp)
	}
	x.HeadCRC = f.HeadCRC
}

// noteTime adds an entry at offset if the newest timestamp rose.
func (x *IndexBuilder) noteTime(offset int64) {
	if n := len(x.Times); x.MaxTime > NoTime && (n == 0 || x.MaxTime > x.Times[n-1].MaxTimestamp) {
		x.Times = append(x.Times, TimeEntry{MaxTimestamp: x.MaxTime, Offset: offset})
	}
}

// Files returns the bytes of both index files of the segment with header h that ends before the offset next.
func (x *IndexBuilder) Files(h SegmentHeader, next int64) (index, times []byte) {
	index = make([]byte, 0, len(x.Entries)*IndexEntrySize)
	for _, e := range x.Entries {
		index = e.Append(index)
	}
	times = make([]byte, 0, len(x.Times)*TimeEntrySize+TimeEndSize)
	for _, e := range x.Times {
		times = e.Append(times)
	}
	last := TimeEntry{MaxTimestamp: x.MaxTime, Offset: next}
	return index, AppendTimeEnd(times, last, times, TimeIndexOf(h, x.HeadCRC))
}
