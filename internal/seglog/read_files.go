package seglog

import (
	"errors"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// readFrameHead reads and checks the head of the frame at position.
func readFrameHead(f vfs.File, position, end int64) (segfmt.Frame, error) {
	if position < segfmt.SegmentHeaderSize || end-position < segfmt.MinFrame {
		return segfmt.Frame{}, segfmt.ErrShort
	}
	var b [segfmt.MinFrame]byte
	if n, err := f.ReadAt(b[:], position); n < len(b) {
		return segfmt.Frame{}, err
	}
	return segfmt.ParseFrame(b[:])
}

// readLastIndexEntry returns the last entry of a sealed segment's index; ok is false when the file cannot be its index.
func readLastIndexEntry(fs vfs.FS, s *segment) (segfmt.IndexEntry, bool, error) {
	f, n, err := openEntries(fs, s.sibling(segfmt.IndexSuffix), segfmt.IndexEntrySize)
	if f == nil || err != nil {
		return segfmt.IndexEntry{}, false, err
	}
	defer f.Close()
	var e [2]segfmt.IndexEntry
	for i, at := range []int64{0, n - 1} {
		b, err := vfs.ReadPartOf(f, at*segfmt.IndexEntrySize, segfmt.IndexEntrySize)
		if err != nil {
			return segfmt.IndexEntry{}, false, err
		}
		e[i] = segfmt.ParseIndexEntry(b)
	}
	first := segfmt.IndexEntry{Offset: e[0].Offset, Seq: s.BaseSeq, Position: segfmt.SegmentHeaderSize}
	ok := e[0] == first && e[1].Position >= segfmt.SegmentHeaderSize && e[1].Position < s.end && e[1].Offset >= s.BaseOffset && e[1].Seq >= s.BaseSeq
	return e[1], ok, nil
}

// readTimeEnd returns what closes a sealed segment's time index; ok is false when the file is not its time index. of is
// segfmt.TimeIndexOf.
func readTimeEnd(fs vfs.FS, s *segment, of uint32) (segfmt.TimeEntry, bool, error) {
	f, n, err := openEntries(fs, s.sibling(segfmt.TimeIndexSuffix), segfmt.TimeEntrySize)
	if f == nil || err != nil {
		return segfmt.TimeEntry{}, false, err
	}
	defer f.Close()
	size := n * segfmt.TimeEntrySize
	if size < segfmt.TimeEndSize {
		return segfmt.TimeEntry{}, false, nil
	}
	b, err := vfs.ReadPartOf(f, size-segfmt.TimeEndSize, segfmt.TimeEndSize)
	if err != nil {
		return segfmt.TimeEntry{}, false, err
	}
	last, err := segfmt.ParseTimeEnd(b, of)
	return last, err == nil, nil
}

// openEntries opens a file of n > 0 entries of one size; nil without an error when it is no such file.
func openEntries(fs vfs.FS, name string, entry int64) (vfs.File, int64, error) {
	f, err := fs.Open(name, false)
	if errors.Is(err, vfs.ErrNotExist) {
		return nil, 0, nil
	} else if err != nil {
		return nil, 0, err
	}
	size, err := f.Size()
	if err != nil || size == 0 || size%entry != 0 {
		_ = f.Close()
		return nil, 0, err
	}
	return f, size / entry, nil
}
