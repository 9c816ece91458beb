package segfmt

import (
	"bytes"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/leveemq/levee/record"
)

// unhex decodes hex digits in lines, each up to a # if there is one.
func unhex(t testing.TB, text string) []byte {
	t.Helper()
	var digits strings.Builder
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func golden(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	return unhex(t, string(text))
}

// same compares an encoding with its vector.
func same(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	want := golden(t, name)
	if !bytes.Equal(got, want) {
		t.Errorf("%s.hex: the encoding changed:\n got %x\nwant %x", name, got, want)
	}
	return want
}

var goldenHeader = SegmentHeader{
	BaseOffset: 0x0102030405060708, BaseSeq: 0x1112131415161718, PrevGeneration: 0x21222324, CreatedMs: 1767225600123,
	TopicID: [16]byte{0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}, Partition: 0x31323334,
}

func TestGoldenHeader(t *testing.T) {
	b := same(t, "header", goldenHeader.Append(nil))
	if got, err := ParseSegmentHeader(b); err != nil || got != goldenHeader {
		t.Errorf("%+v, %v", got, err)
	}
	if !HeaderIntact(b) || len(b) != SegmentHeaderSize {
		t.Error("not intact")
	}
	compacted := goldenHeader
	compacted.Flags = FlagCompacted
	if got, err := ParseSegmentHeader(compacted.Append(nil)); err != nil || got != compacted {
		t.Errorf("%+v, %v", got, err)
	}
}

// goldenBatch is a batch of two records from an idempotent producer.
func goldenBatch(t testing.TB) []byte {
	t.Helper()
	b := record.NewBuilder(record.None)
	for _, r := range []record.Record{
		{Key: []byte("key"), Value: []byte("first"), Timestamp: 1767225600123, Headers: []record.Header{{Key: "h", Value: []byte("v")}}},
		{Value: []byte("second"), Timestamp: 1767225600100},
	} {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build(record.ProducerInfo{ID: 77, Epoch: 3, Sequence: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// goldenFrames are the vectors of frames: one of every kind.
func goldenFrames(t testing.TB) map[string]goldenFrame {
	return map[string]goldenFrame{
		"frame-data":             {KindData, 5, 1 << 40, 1 << 33, 7, goldenBatch(t), 1<<33 + 2, 1<<40 - 6},
		"frame-generation-start": {KindGenerationStart, 0, 42, 1000, 8, ControlBatch(nil), 1000, 41},
		"frame-membership":       {KindMembership, MaxUndurable, 43, 1000, 8, ControlBatch([]byte("members")), 1000, 0},
		"frame-noop":             {KindNoop, 2, 44, 1000, 8, ControlBatch(nil), 1000, 41},
		"frame-lost":             {KindLost, 45, 45, 2001, 9, LostBatch(1000, 2000), 2001, 0},
	}
}

type goldenFrame struct {
	kind       uint8
	undurable  uint64
	seq        uint64
	offset     int64
	generation uint32
	batch      []byte
	next       int64  // what NextOffset must be
	proves     uint64 // what DurableThrough must be
}

func (g *goldenFrame) append() []byte {
	return AppendFrame(nil, g.kind, g.undurable, g.seq, g.offset, g.generation, g.batch)
}

func TestGoldenFrames(t *testing.T) {
	for name, g := range goldenFrames(t) {
		b := same(t, name, g.append())
		f, err := ParseFrame(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := CheckFrame(&f, b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if f.Kind != g.kind || uint64(f.Undurable) != g.undurable || f.Seq != g.seq || f.Size() != len(b) || f.HeadCRC != le.Uint32(b) ||
			f.Batch.BaseOffset != g.offset || f.Batch.Generation != int32(g.generation) || f.NextOffset() != g.next || f.DurableThrough() != g.proves {
			t.Errorf("%s: %+v, next %d, proves %d", name, f, f.NextOffset(), f.DurableThrough())
		}
		if _, err := record.Check(b[FrameHeaderSize:]); err != nil {
			t.Errorf("%s: its batch does not check: %v", name, err)
		}
		switch g.kind {
		case KindData:
			recs, err := record.Records(b[FrameHeaderSize:])
			if err != nil || len(recs) != 2 || recs[1].Offset != g.offset+1 || string(recs[1].Value) != "second" {
				t.Errorf("%s: %v, %v", name, recs, err)
			}
		case KindLost:
			if from, to, err := ParseLost(b[FrameHeaderSize:]); err != nil || from != 1000 || to != 2000 {
				t.Errorf("%s: %d to %d, %v", name, from, to, err)
			}
		}
	}
	if kinds != len(goldenFrames(t)) {
		t.Error("a kind of frame has no vector")
	}
}

var (
	goldenIndex = []IndexEntry{{1000, 42, 64}, {1017, 45, 4200}}
	goldenTimes = []TimeEntry{{1767225600000, 1017}, {1767225601000, 1030}}
	goldenEnd   = TimeEntry{1767225601500, 1044}
)

func TestGoldenIndex(t *testing.T) {
	var b []byte
	for _, e := range goldenIndex {
		b = e.Append(b)
	}
	b = same(t, "index", b)
	for i, want := range goldenIndex {
		if got := ParseIndexEntry(b[i*IndexEntrySize:]); got != want {
			t.Errorf("entry %d: %+v", i, got)
		}
	}
}

func goldenTimeIndex() []byte {
	var entries []byte
	for _, e := range goldenTimes {
		entries = e.Append(entries)
	}
	return AppendTimeEnd(entries, goldenEnd, entries, TimeIndexOf(goldenHeader, 0xcafe1234))
}

func TestGoldenTimeIndex(t *testing.T) {
	b := same(t, "timeindex", goldenTimeIndex())
	of := TimeIndexOf(goldenHeader, 0xcafe1234)
	want := append(append([]TimeEntry{}, goldenTimes...), goldenEnd)
	if got, err := ParseTimeIndex(b, of); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ParseTimeEnd(b[len(b)-TimeEndSize:], of); err != nil || got != goldenEnd {
		t.Errorf("%+v, %v", got, err)
	}
	if b = AppendTimeEnd(nil, TimeEntry{math.MinInt64, 3}, nil, of); len(b) != TimeEndSize {
		t.Errorf("%d bytes without records", len(b))
	}
}

var goldenMarks = [2]Mark{
	{Counter: 8, Seq: 1<<40 + 1, Offset: 1 << 33, File: 1 << 32, Position: 123456},
	{Counter: 7, Seq: 1 << 40, Offset: 1<<33 - 9, File: 1 << 32, Position: 123000},
}

// goldenMarkFile is a file with both slots written.
func goldenMarkFile() []byte {
	b := make([]byte, MarkStride+MarkSlotSize)
	for _, m := range goldenMarks {
		copy(b[m.Counter%2*MarkStride:], m.Append(nil))
	}
	return b
}

func TestGoldenMark(t *testing.T) {
	b := same(t, "mark", goldenMarkFile())
	if got, ok, err := ParseMark(b); err != nil || !ok || got != goldenMarks[0] {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
	b[10] ^= 1 // the newer slot is torn
	if got, ok, err := ParseMark(b); err != nil || !ok || got != goldenMarks[1] {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
	b[MarkStride+10] ^= 1
	if got, ok, err := ParseMark(b); err != nil || ok {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
}

var goldenProducers = Producers{Offset: 5000, Producers: []Producer{
	{ID: 3, Epoch: 0, LastSequence: 9, LastMs: 1767225600000, Ranges: []SequenceRange{}},
	{ID: 77, Epoch: 3, LastSequence: 4, LastMs: 1767225600123, Ranges: []SequenceRange{{math.MaxInt32 - 9, 10, 4000}, {0, 5, 4100}}},
}}

func TestGoldenProducers(t *testing.T) {
	b := same(t, "producers", goldenProducers.Append(nil))
	if got, err := ParseProducers(b); err != nil || !reflect.DeepEqual(got, &goldenProducers) {
		t.Errorf("%+v, %v", got, err)
	}
	none := Producers{Offset: 1, Producers: []Producer{}}
	if got, err := ParseProducers(none.Append(nil)); err != nil || !reflect.DeepEqual(got, &none) {
		t.Errorf("%+v, %v", got, err)
	}
}
