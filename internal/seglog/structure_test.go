package seglog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// corruption returns the corruption error in err; nil where there is none.
func corruption(err error) *CorruptionError {
	var c *CorruptionError
	if errors.As(err, &c) {
		return c
	}
	return nil
}

// reheaded returns a segment file with its header changed and checksummed again.
func reheaded(t testing.TB, b []byte, change func(h *segfmt.SegmentHeader)) []byte {
	t.Helper()
	h, err := segfmt.ParseSegmentHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	change(&h)
	return append(h.Append(nil), b[segfmt.SegmentHeaderSize:]...)
}

// resealed returns a segment file with bytes of its header changed and the checksum made to fit.
func resealed(b []byte, at int, value ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], value)
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// reframed returns a segment file with one frame, the one at pos, changed and checksummed again, or left out (nil).
func reframed(b []byte, f *frameAt, frames ...[]byte) []byte {
	out := bytes.Clone(b[:f.pos])
	for _, fr := range frames {
		out = append(out, fr...)
	}
	return append(out, b[f.end():]...)
}

func (f *frameAt) as(seq uint64, offset int64, generation uint32) []byte {
	return segfmt.AppendFrame(nil, f.Kind, uint64(f.Undurable), seq, offset, generation, f.b[segfmt.FrameHeaderSize:])
}

// broken is one way in which sound frames do not make a log.
type broken struct {
	name string
	file string // that the error must name, and where
	pos  int64
	says string
	fs   *vfs.Mem
}

// brokenLogs returns logs of which every byte checks, and which are not whole. The changes lie below the durable mark.
func brokenLogs(t *testing.T, p *picture) []broken {
	var logs []string
	for _, name := range p.names {
		if strings.HasSuffix(name, segfmt.LogSuffix) {
			logs = append(logs, name)
		}
	}
	one, two, three := logs[0], logs[1], logs[2]
	first := func(file string, n int) *frameAt { // the n-th frame of a file, from 1
		for i := range p.frames {
			if p.frames[i].file == file {
				if n--; n == 0 {
					return &p.frames[i]
				}
			}
		}
		panic("no such frame")
	}
	with := func(name string, b []byte) *vfs.Mem { return p.damaged(t, name, b) }
	f := first(three, 2)
	g := uint32(f.Batch.Generation)
	swapped := with(one, p.content[two])
	put(t, swapped, p.path(two), p.content[one])
	renamed := with(two, nil)
	put(t, renamed, p.path(segfmt.FileName(first(two, 1).Batch.BaseOffset+1, segfmt.LogSuffix)), p.content[two])
	header := func(name string, change func(h *segfmt.SegmentHeader)) *vfs.Mem {
		return with(name, reheaded(t, p.content[name], change))
	}
	lost := func() *frameAt {
		for i := range p.frames {
			if p.frames[i].Kind == segfmt.KindLost {
				return &p.frames[i]
			}
		}
		panic("no lost range")
	}()
	from, to, err := segfmt.ParseLost(lost.b[segfmt.FrameHeaderSize:])
	if err != nil {
		t.Fatal(err)
	}
	return []broken{
		{"middle segment missing", three, 0, "a file is missing", with(two, nil)},
		{"two segments swapped", one, 8, "its header says", swapped},
		{"segment under another name", segfmt.FileName(first(two, 1).Batch.BaseOffset+1, segfmt.LogSuffix), 8, "its header says", renamed},
		{"last segment missing", two, int64(len(p.content[two])), "durable mark", with(three, nil)},
		{"all segments missing", "", 0, "there is no segment file", func() *vfs.Mem {
			fs := with(one, nil)
			put(t, fs, p.path(two), nil)
			put(t, fs, p.path(three), nil)
			return fs
		}()},
		{"segment of another topic", two, 36, "belongs to partition 0 of topic id 09", header(two, func(h *segfmt.SegmentHeader) { h.TopicID[0] = 9 })},
		{"segment of another partition", one, 36, "belongs to partition 4", header(one, func(h *segfmt.SegmentHeader) { h.Partition = 4 })},
		{"segment that starts at another frame", three, 0, "a file is missing", header(three, func(h *segfmt.SegmentHeader) { h.BaseSeq++ })},
		{"segment after another generation", three, 0, "a file is missing", header(three, func(h *segfmt.SegmentHeader) { h.PrevGeneration-- })},
		{"sealed segment cut at a frame", three, 0, "a file is missing", with(two, p.content[two][:lastOf(p, two).pos])},
		{"sealed segment cut within a frame", two, lastOf(p, two).pos, segfmt.ErrShort.Error(), with(two, p.content[two][:len(p.content[two])-1])},
		{"sealed segment with zeros behind", two, int64(len(p.content[two])), segfmt.ErrChecksum.Error(), with(two, append(bytes.Clone(p.content[two]), make([]byte, 100)...))},
		{"sealed segment without its header", two, 0, segfmt.ErrShort.Error(), with(two, p.content[two][:20])},
		{"empty sealed segment", two, 0, segfmt.ErrShort.Error(), with(two, []byte{})},
		{"active segment cut at a frame", three, f.pos, "durable mark", with(three, p.content[three][:f.pos])},
		{"frame missing", three, f.pos, "stands where frame", with(three, reframed(p.content[three], f))},
		{"frame twice", three, f.end(), "stands where frame", with(three, reframed(p.content[three], f, f.b, f.b))},
		{"frame with a higher ordinal", three, f.pos, "stands where frame", with(three, reframed(p.content[three], f, f.as(f.Seq+1, f.Batch.BaseOffset, g)))},
		{"frame with a higher offset", three, f.pos, "stands where offset", with(three, reframed(p.content[three], f, f.as(f.Seq, f.Batch.BaseOffset+1, g)))},
		{"frame with a lower offset", three, f.pos, "stands where offset", with(three, reframed(p.content[three], f, f.as(f.Seq, f.Batch.BaseOffset-1, g)))},
		{"generation falls", three, f.pos, "follows generation", with(three, reframed(p.content[three], f, f.as(f.Seq, f.Batch.BaseOffset, g-1)))},
		{"lost range that leaves a gap", lost.file, lost.pos, "declares offsets lost", with(lost.file, reframed(p.content[lost.file], lost,
			segfmt.AppendFrame(nil, segfmt.KindLost, 0, lost.Seq, to+1, uint32(lost.Batch.Generation), segfmt.LostBatch(from+1, to))))},
	}
}

func lastOf(p *picture, file string) *frameAt {
	var last *frameAt
	for i := range p.frames {
		if p.frames[i].file == file {
			last = &p.frames[i]
		}
	}
	return last
}

// TestBrokenStructureIsRefused is the proof behind REC-02 and REC-05 where every byte checks: frames and segments that
// do not continue each other are refused, by name, and nothing is changed.
func TestBrokenStructureIsRefused(t *testing.T) {
	clean, crashed := threeSegments(t)
	cases := 0
	for _, crash := range allCrashes {
		p := crashed
		if crash == CleanStop {
			p = clean
		}
		for _, c := range brokenLogs(t, p) {
			cases++
			c.fs.SetHook(func(op vfs.Op) error {
				if op.Kind.Changes() && op.Kind != vfs.OpSync && op.Kind != vfs.OpSyncDir {
					t.Errorf("%s, %s: %v", c.name, crash.name(), op)
				}
				return nil
			})
			cfg := p.with(c.fs, crash)
			cfg.VerifyAllOnOpen = true // a change far from the end of a sealed segment shows when it is read, otherwise
			_, _, err := Open(cfg)
			bad := corruption(err)
			if bad == nil || bad.Path != p.path(c.file) || bad.Position != c.pos || !strings.Contains(bad.Cause, c.says) {
				t.Errorf("%s, %s: must name %s, byte %d, %q: %v", c.name, crash.name(), c.file, c.pos, c.says, err)
			}
			if fault.KindOf(err) != fault.Corrupt {
				t.Errorf("%s: kind %v", c.name, fault.KindOf(err))
			}
		}
	}
	t.Logf("%d cases", cases)
}

// TestNewerFormatsAreRefused: a file that is as it was written, by a program that knows more, is not damage.
func TestNewerFormatsAreRefused(t *testing.T) {
	p, _ := threeSegments(t)
	last := p.frames[len(p.frames)-1].file
	newMark := segfmt.Mark{Counter: 99, Seq: 1}.Append(nil)
	newMark[4] = 2
	binary.LittleEndian.PutUint32(newMark[60:], crc32.Checksum(newMark[:60], crc32.MakeTable(crc32.Castagnoli)))
	for name, c := range map[string]struct {
		file string
		b    []byte
		want error
	}{
		"version":   {p.frames[0].file, resealed(p.content[p.frames[0].file], 4, 2, 0), segfmt.ErrVersion},
		"of active": {last, resealed(p.content[last], 4, 2, 0), segfmt.ErrVersion},
		"flag":      {p.frames[0].file, resealed(p.content[p.frames[0].file], 6, 0, 0x80), segfmt.ErrFlags},
		"compacted": {p.frames[0].file, resealed(p.content[p.frames[0].file], 6, 1), segfmt.ErrFlags},
		"mark":      {segfmt.MarkName, newMark, segfmt.ErrVersion},
	} {
		for _, crash := range allCrashes {
			_, _, err := Open(p.with(p.damaged(t, c.file, c.b), crash))
			if fault.KindOf(err) != fault.Unsupported || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.file) {
				t.Errorf("%s, %s: %v", name, crash.name(), err)
			}
		}
	}
}

// TestHeaderAlone covers REC-06 and what sets it apart from damage: a newest segment that never got its whole header is
// nothing, one whose header rotted is not nothing unless the machine may have been writing it.
func TestHeaderAlone(t *testing.T) {
	p, _ := threeSegments(t)
	end := p.end
	h, err := segfmt.ParseSegmentHeader(p.content[p.frames[len(p.frames)-1].file])
	if err != nil {
		t.Fatal(err)
	}
	h.BaseOffset, h.BaseSeq, h.PrevGeneration = end, p.frames[len(p.frames)-1].Seq+1, uint32(p.frames[len(p.frames)-1].Batch.Generation)
	whole := h.Append(nil)
	rotten := bytes.Clone(whole)
	rotten[20] ^= 4
	name := segfmt.FileName(end, segfmt.LogSuffix)
	for what, c := range map[string]struct {
		b       []byte
		refused []Crash
	}{
		"whole":        {whole, nil},
		"empty":        {[]byte{}, nil},
		"half":         {whole[:32], nil},
		"zeros":        {make([]byte, 64), []Crash{CleanStop, ProcessCrash}},
		"rotten":       {rotten, []Crash{CleanStop, ProcessCrash}},
		"zeros behind": {make([]byte, 65), allCrashes},
	} {
		for _, alone := range []bool{false, true} {
			for _, crash := range allCrashes {
				fs, want := p.damaged(t, name, c.b), end
				if alone {
					fs, want = vfs.NewMem(), 0
					if err := fs.MkdirAll(p.cfg.Dir); err != nil {
						t.Fatal(err)
					}
					put(t, fs, p.path(name), c.b)
					if what == "whole" {
						want = end
					}
				}
				refused := false
				for _, r := range c.refused {
					refused = refused || r == crash
				}
				l, rep, err := Open(p.with(fs, crash))
				if refused {
					if bad := corruption(err); bad == nil || bad.Path != p.path(name) {
						t.Errorf("%s, alone %v, %s: %v", what, alone, crash.name(), err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s, alone %v, %s: %v", what, alone, crash.name(), err)
					continue
				}
				if l.Bounds().End != want || what != "whole" && len(rep.Repairs) != 1 {
					t.Errorf("%s, alone %v, %s: %+v, %v", what, alone, crash.name(), l.Bounds(), rep.Repairs)
				}
				if r := mustAppend(t, l, batch(t, record.ProducerInfo{ID: -1, Epoch: -1, Sequence: -1}, "x")); r.Offset != want {
					t.Errorf("%s, alone %v, %s: appended at %d", what, alone, crash.name(), r.Offset)
				}
				mustClose(t, l)
			}
		}
	}
	for _, crash := range allCrashes { // the mark knows that it was there
		fs := p.damaged(t, name, rotten)
		last := p.frames[len(p.frames)-1].Seq
		put(t, fs, p.path(segfmt.MarkName), segfmt.Mark{Counter: 1, Seq: last, Offset: end, File: end, Position: segfmt.SegmentHeaderSize}.Append(nil))
		if _, _, err := Open(p.with(fs, crash)); corruption(err) == nil || corruption(err).Path != p.path(name) {
			t.Errorf("named by the mark, %s: %v", crash.name(), err)
		}
	}
}
