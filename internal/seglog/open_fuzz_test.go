package seglog

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"math"
	"path"
	"reflect"
	"runtime/metrics"
	"testing"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// Bits of FuzzOpen's last argument, above the kind of crash.
const (
	fuzzReseal = 4 << iota // make the checksums fit, else hardly any input gets past them
	fuzzRepair
	fuzzVerifyAll
	fuzzAlone // no sealed segment before the active one
)

func crcOf(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// resealSegment makes the checksums of a segment file fit its bytes, frame by frame as far as the lengths lead.
func resealSegment(b []byte) {
	le := binary.LittleEndian
	if len(b) < segfmt.SegmentHeaderSize {
		return
	}
	le.PutUint32(b[60:], crcOf(b[:60]))
	for at := segfmt.SegmentHeaderSize; len(b)-at >= segfmt.MinFrame; {
		f := b[at:]
		size := segfmt.FrameHeaderSize + 12 + int(int32(binary.BigEndian.Uint32(f[segfmt.FrameHeaderSize+8:])))
		if size >= segfmt.MinFrame && size <= len(f) {
			binary.BigEndian.PutUint32(f[segfmt.FrameHeaderSize+17:], crcOf(f[segfmt.FrameHeaderSize+21:size]))
		}
		le.PutUint32(f, crcOf(f[4:segfmt.MinFrame]))
		if size < segfmt.MinFrame || size > len(f) {
			return
		}
		at += size
	}
}

// resealTail makes the checksum fit that a file, or slot, ends with.
func resealTail(b []byte) {
	if len(b) >= 4 {
		binary.LittleEndian.PutUint32(b[len(b)-4:], crcOf(b[:len(b)-4]))
	}
}

func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// smallLog returns a log of two segments, as small as one with everything in it is: fuzzing goes faster.
func smallLog(t testing.TB) *picture {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	cfg.SegmentBytes, cfg.IndexInterval = 600, 150
	l := mustOpen(t, cfg)
	for i := int32(0); l.Bounds().Segments < 2; i++ {
		mustAppend(t, l, batchAt(t, producer(3, 2*i), 1_000_000+int64(i), "some", "thing"))
	}
	b := l.Bounds()
	if err := l.AppendEntries(context.Background(), []Entry{{b.NextSeq, 1, segfmt.KindMembership, segfmt.ControlBatch([]byte("me"))}}); err != nil {
		t.Fatal(err)
	}
	if err := l.StartGeneration(context.Background(), 2, &Range{b.End, b.End + 1}); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, batchAt(t, noProducer, 1_000_100, "last"))
	mustClose(t, l)
	return take(t, fs.Clone(), cfg)
}

// FuzzOpen opens a log whose active segment and side files are anything. It may be refused. Otherwise every batch it
// gives checks, it goes on, and opening it again finds nothing more to repair. Memory stays in proportion.
func FuzzOpen(f *testing.F) {
	p := smallLog(f)
	sealed, active := p.frames[0].file, ""
	for i := range p.frames {
		if p.frames[i].file != sealed {
			active = p.frames[i].file
			break
		}
	}
	base, _, _ := segfmt.ParseName(active)
	snapshot := segfmt.ProducersName(base)
	index, times := segfmt.FileName(0, segfmt.IndexSuffix), segfmt.FileName(0, segfmt.TimeIndexSuffix)
	fileOf := func(name string) []byte { return bytes.Clone(p.content[name]) }
	seg := fileOf(active)
	for how := range uint8(64) {
		f.Add(seg, fileOf(index), fileOf(times), []byte{}, fileOf(snapshot), how)
	}
	middle := &p.frames[len(p.frames)-2]
	mark := segfmt.Mark{Counter: 3, Seq: middle.Seq, Offset: middle.NextOffset(), File: base, Position: middle.end()}
	for _, cut := range []int{0, 30, 64, 65, 140, 141, 200, len(seg) - 1, len(seg) - 100} {
		f.Add(seg[:cut], []byte{}, fileOf(times)[:20], mark.Append(nil), fileOf(snapshot)[:cut%40], uint8(cut%64))
		torn := append(bytes.Clone(seg[:cut]), make([]byte, 200)...)
		f.Add(torn, fileOf(index)[:24], []byte{}, []byte("garbage"), []byte("garbage"), uint8(2))
		f.Add(append(bytes.Clone(seg[:cut]), seg[len(seg)-200:]...), []byte("x"), []byte("y"), []byte{}, []byte{}, uint8(2+fuzzRepair))
	}
	f.Fuzz(func(t *testing.T, segment, indexFile, timesFile, markFile, producersFile []byte, how uint8) {
		segment, markFile, producersFile = bytes.Clone(segment), bytes.Clone(markFile), bytes.Clone(producersFile)
		if how&fuzzReseal != 0 {
			resealSegment(segment)
			resealTail(markFile[:min(len(markFile), segfmt.MarkSlotSize)])
			resealTail(producersFile)
		}
		fs := vfs.NewMem()
		cfg := p.with(fs, Crash(how%4%3))
		cfg.RepairChecksumTail, cfg.VerifyAllOnOpen = how&fuzzRepair != 0, how&fuzzVerifyAll != 0
		if err := fs.MkdirAll(cfg.Dir); err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{active: segment, segfmt.MarkName: markFile, snapshot: producersFile}
		if how&fuzzAlone == 0 {
			files[sealed], files[index], files[times] = p.content[sealed], indexFile, timesFile
		}
		size := 0
		for name, b := range files {
			if b == nil {
				b = []byte{}
			}
			put(t, fs, path.Join(cfg.Dir, name), b)
			size += len(b)
		}
		before := allocated()
		l, _, err := Open(cfg)
		if err != nil {
			checkMemory(t, before, size)
			return
		}
		defer l.Close()
		batches := readRaw(t, l)
		checkMemory(t, before, size)
		checkReopened(t, l, cfg, batches)
	})
}

func checkMemory(t *testing.T, before uint64, size int) {
	t.Helper()
	if used := allocated() - before; used > uint64(16<<20+100*size) {
		t.Fatalf("%d bytes were allocated for %d bytes of files", used, size)
	}
}

// readRaw reads everything that can be read and checks each batch.
func readRaw(t *testing.T, l *Log) (batches [][]byte) {
	t.Helper()
	r := l.NewReader(l.Bounds().First)
	for {
		c, err := r.Next(4<<10, math.MaxInt32)
		if err != nil {
			if corruption(err) == nil {
				t.Fatalf("read: %v", err)
			}
			return batches
		}
		if c.Data == nil && c.Lost == nil {
			return batches
		}
		for data := c.Data; len(data) > 0; {
			b, rest, err := record.Next(data)
			if err == nil {
				_, err = record.Check(b)
			}
			if err != nil {
				t.Fatalf("at offset %d: %v", c.First, err)
			}
			batches, data = append(batches, b), rest
		}
	}
}

// checkReopened closes l and opens it again, twice: as it is, and after one more append.
func checkReopened(t *testing.T, l *Log, cfg Config, batches [][]byte) {
	t.Helper()
	b := l.Bounds()
	_, _ = l.OffsetForTime(context.Background(), 1_000_100)
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	ops := cfg.FS.(*vfs.Mem).Ops()
	l, rep, err := Open(cfg)
	if err != nil {
		t.Fatalf("open again: %v", err)
	}
	defer l.Close()
	if changed := cfg.FS.(*vfs.Mem).Ops() - ops; changed > 3 || len(rep.Repairs) > 0 { // flushes of the newest file, the names and the mark
		t.Fatalf("opening again made %d changes: %v", changed, rep.Repairs)
	}
	if again := l.Bounds(); again.First != b.First || again.End != b.End || again.NextSeq != b.NextSeq {
		t.Fatalf("opened again: %+v, was %+v", again, b)
	}
	if again := readRaw(t, l); !reflect.DeepEqual(again, batches) {
		t.Fatalf("opened again it has %d batches, not %d", len(again), len(batches))
	}
	if b.End > math.MaxInt64-10 || b.NextSeq > math.MaxUint64-10 {
		return // nothing follows
	}
	r := mustAppend(t, l, batch(t, noProducer, "goes on"))
	if r.Offset != b.End {
		t.Fatalf("appended at %d, not %d", r.Offset, b.End)
	}
	mustClose(t, l)
	cfg.Crash = CleanStop
	l, rep, err = Open(cfg)
	if err != nil || len(rep.Repairs) > 0 || l.Bounds().End != b.End+1 {
		t.Fatalf("after an append: %v, %v", err, rep.Repairs)
	}
	mustClose(t, l)
}
