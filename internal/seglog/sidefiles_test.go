package seglog

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

// sideDamage is one thing that happens to a file beside the segments. It returns the content that is found; nil: none.
type sideDamage struct {
	name string
	do   func(p *picture, name string, rng *rand.Rand) []byte
}

func noise(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

var sideDamages = []sideDamage{
	{"missing", func(*picture, string, *rand.Rand) []byte { return nil }},
	{"empty", func(*picture, string, *rand.Rand) []byte { return []byte{} }},
	{"from yesterday", (*picture).yesterday},
	{"garbage", func(p *picture, name string, rng *rand.Rand) []byte { return noise(rng, len(p.content[name])) }},
	{"garbage of another length", func(p *picture, name string, rng *rand.Rand) []byte { return noise(rng, len(p.content[name])+7) }},
	{"much garbage", func(_ *picture, _ string, rng *rand.Rand) []byte { return noise(rng, 100_000) }},
	{"zeros", func(p *picture, name string, _ *rand.Rand) []byte { return make([]byte, len(p.content[name])) }},
	{"half of it", func(p *picture, name string, _ *rand.Rand) []byte { return p.content[name][:len(p.content[name])/2] }},
	{"a byte short", func(p *picture, name string, _ *rand.Rand) []byte { return p.content[name][:len(p.content[name])-1] }},
	{"an entry short", func(p *picture, name string, _ *rand.Rand) []byte {
		entry := segfmt.TimeEntrySize
		if strings.HasSuffix(name, segfmt.IndexSuffix) {
			entry = segfmt.IndexEntrySize
		}
		return p.content[name][:len(p.content[name])-entry]
	}},
	{"of the future", (*picture).future},
	{"of another partition", (*picture).foreign},
	{twice, func(p *picture, name string, _ *rand.Rand) []byte {
		return append(bytes.Clone(p.content[name]), p.content[name]...)
	}},
}

// yesterday returns what the file was earlier, or the nearest thing to it: a sealed segment's indexes never change, so
// they are another segment's.
func (p *picture) yesterday(name string, _ *rand.Rand) []byte {
	if name == segfmt.MarkName {
		f := &p.frames[2]
		return segfmt.Mark{Counter: 1, Seq: f.Seq, Offset: f.NextOffset(), Position: f.end()}.Append(nil)
	}
	_, kind, _ := segfmt.ParseName(name)
	for _, other := range p.names {
		if _, k, ok := segfmt.ParseName(other); ok && k == kind && other != name {
			return p.content[other]
		}
	}
	return nil
}

// twice is the one damage of a whole file that an open does not look at, unless told to look at everything: the first
// and the last entry are as they must be.
const twice = "twice"

// future returns what the file may be one day: a snapshot of producers then, of an index one with more entries.
func (p *picture) future(name string, _ *rand.Rand) []byte {
	_, kind, _ := segfmt.ParseName(name)
	switch kind {
	case segfmt.ProducersPrefix:
		s := segfmt.Producers{Offset: p.end + 100, Producers: []segfmt.Producer{{ID: 7, Epoch: 4, LastSequence: 99, Ranges: []segfmt.SequenceRange{{Count: 100}}}}}
		return s.Append(nil)
	case segfmt.IndexSuffix:
		return segfmt.IndexEntry{Offset: p.end + 100, Seq: 10_000, Position: 4000}.Append(bytes.Clone(p.content[name]))
	case segfmt.TimeIndexSuffix:
		return segfmt.AppendTimeEnd(bytes.Clone(p.content[name]), segfmt.TimeEntry{MaxTimestamp: 1 << 50, Offset: p.end + 100}, nil, 0)
	}
	return p.content[name] // a mark of the future claims what is not there, and is refused: TestBrokenStructureIsRefused
}

// foreign returns a file of the same kind, sound in itself, of a partition whose segments are as long as these.
func (p *picture) foreign(name string, _ *rand.Rand) []byte {
	base, kind, _ := segfmt.ParseName(name)
	switch kind {
	case segfmt.ProducersPrefix:
		s := segfmt.Producers{Offset: base + 1, Producers: []segfmt.Producer{{ID: 8, Epoch: 1, LastSequence: 5, Ranges: []segfmt.SequenceRange{{Count: 6}}}}}
		return s.Append(nil)
	case segfmt.IndexSuffix:
		var b []byte
		for rest := p.content[name]; len(rest) > 0; rest = rest[segfmt.IndexEntrySize:] {
			e := segfmt.ParseIndexEntry(rest)
			e.Offset, e.Seq = e.Offset+3, e.Seq+1
			b = e.Append(b)
		}
		return b
	case segfmt.TimeIndexSuffix:
		h := segfmt.SegmentHeader{BaseOffset: base, BaseSeq: 1, TopicID: [16]byte{9}, Partition: 1}
		entries := segfmt.TimeEntry{MaxTimestamp: 5, Offset: base + 2}.Append(nil)
		return segfmt.AppendTimeEnd(entries, segfmt.TimeEntry{MaxTimestamp: 6, Offset: base + 4}, entries, segfmt.TimeIndexOf(h, 1))
	}
	// One that claims more than this log has is refused: TestBrokenStructureIsRefused.
	return segfmt.Mark{Counter: 1 << 40, Seq: 2, Offset: 7, File: 1000, Position: 300}.Append(nil)
}

func (p *picture) sideFiles() []string {
	var out []string
	for _, name := range p.names {
		if _, kind, _ := segfmt.ParseName(name); kind != segfmt.LogSuffix {
			out = append(out, name)
		}
	}
	return out
}

// TestSideFilesAreNotTrusted is the proof behind LOG-16 for whole files: each file beside the segments is damaged in
// every way, alone and all together, also with a step of replacing it cut short. The log opens and has all it had,
// lookups and producers included.
func TestSideFilesAreNotTrusted(t *testing.T) {
	clean, crashed := threeSegments(t)
	cases := 0
	check := func(p *picture, crash Crash, fs *vfs.Mem, what string) {
		t.Helper()
		cases++
		if !strings.HasSuffix(what, twice) {
			opened := fs.Clone()
			mustClose(t, p.mustOpen(t, opened, crash))
			if wrong := p.indexed(t, opened); wrong != "" {
				t.Errorf("%s, %s: %s", what, crash.name(), wrong)
			}
		}
		if wrong := p.unharmed(t, fs, crash, true, true); wrong != "" {
			t.Errorf("%s, %s: %s", what, crash.name(), wrong)
		}
		infos, err := fs.List(p.cfg.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range infos {
			if _, _, ok := segfmt.ParseName(info.Name); !ok && info.Name != segfmt.MarkName {
				t.Errorf("%s, %s: %s is left", what, crash.name(), info.Name)
			}
		}
	}
	for _, crash := range allCrashes {
		p := crashed
		if crash == CleanStop {
			p = clean
		}
		rng := rand.New(rand.NewPCG(1, uint64(crash)))
		for _, d := range sideDamages {
			all := p.fs.Clone()
			for _, name := range p.sideFiles() {
				b := d.do(p, name, rng)
				check(p, crash, p.damaged(t, name, b), name+" "+d.name)
				put(t, all, p.path(name), b)
			}
			check(p, crash, all, "everything "+d.name)
		}
		for _, name := range p.sideFiles() {
			fs := p.damaged(t, name, nil)
			put(t, fs, p.path(name)+segfmt.TempSuffix, p.content[name][:len(p.content[name])/2])
			check(p, crash, fs, name+" only as .tmp")
			fs = p.fs.Clone()
			put(t, fs, p.path(name)+segfmt.TempSuffix, p.content[name])
			check(p, crash, fs, name+" with a .tmp left")
		}
	}
	t.Logf("%d cases", cases)
}

// TestAbsurdSizes: a length that rotted in the file system costs its own log, never the memory of the process.
func TestAbsurdSizes(t *testing.T) {
	p, _ := threeSegments(t)
	grow := func(name string) *vfs.Mem {
		fs := p.fs.Clone()
		f, err := fs.Open(p.path(name), false)
		if err == nil {
			err = f.Truncate(1 << 50)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		return fs
	}
	for _, name := range p.names {
		_, kind, _ := segfmt.ParseName(name)
		for _, crash := range allCrashes {
			fs := grow(name)
			if kind != segfmt.LogSuffix {
				if wrong := p.unharmed(t, fs, crash, true, true); wrong != "" {
					t.Errorf("%s, %s: %s", name, crash.name(), wrong)
				}
				continue
			}
			_, _, err := Open(p.with(fs, crash))
			if c := corruption(err); c == nil || c.Path != p.path(name) || c.Position != int64(len(p.content[name])) {
				t.Errorf("%s, %s: %v", name, crash.name(), err)
			}
		}
	}
}

// TestIndexesOfAFormerLife: a segment that was cut and written to again may be found with the indexes of what it was,
// since those are not flushed. Where frames are of one length everything in them fits but the timestamps.
func TestIndexesOfAFormerLife(t *testing.T) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	life := func(l *Log, ms int64) {
		for i := 0; l.Bounds().Segments < 3; i++ {
			mustAppend(t, l, batchAt(t, noProducer, ms+int64(i), fmt.Sprintf("%0100d", i)))
		}
	}
	l := mustOpen(t, cfg)
	life(l, 1000)
	mustClose(t, l)
	former := take(t, fs.Clone(), cfg)
	l = mustOpen(t, cfg)
	if err := l.TruncateAfter(context.Background(), 3); err != nil {
		t.Fatal(err)
	}
	life(l, 500_000)
	mustClose(t, l)
	now := take(t, fs.Clone(), cfg)
	if !reflect.DeepEqual(former.names, now.names) {
		t.Fatalf("the lives are not alike: %v, %v", former.names, now.names)
	}
	found := now.fs.Clone()
	for _, name := range now.names {
		if _, kind, _ := segfmt.ParseName(name); kind == segfmt.IndexSuffix || kind == segfmt.TimeIndexSuffix {
			if len(former.content[name]) != len(now.content[name]) {
				t.Fatalf("the lives are not alike in %s", name)
			}
			put(t, found, now.path(name), former.content[name])
		}
	}
	for _, crash := range allCrashes {
		if wrong := now.unharmed(t, found.Clone(), crash, true, true); wrong != "" {
			t.Errorf("%s: %s", crash.name(), wrong)
		}
	}
	// The same while the log is open: what it found at the start may rot later.
	fs = now.fs.Clone()
	l = mustOpen(t, now.with(fs, CleanStop))
	defer mustClose(t, l)
	v := l.view.Load()
	if l.timeStart(v, 0, v.segs[0].maxTime) == v.segs[0].BaseOffset {
		t.Error("a sound time index is not used")
	}
	for _, name := range now.sideFiles() {
		put(t, fs, now.path(name), former.content[name])
	}
	if wrong := now.found(l); wrong != "" {
		t.Error(wrong)
	}
	if l.timeStart(v, 0, v.segs[0].maxTime) != v.segs[0].BaseOffset {
		t.Error("a former life's time index is used")
	}
}

// randomLog returns a log of random frames of all kinds over several segments, as it is before it is closed.
func randomLog(t *testing.T, seed uint64) (fs *vfs.Mem, cfg Config, active segfmt.IndexBuilder) {
	rng := rand.New(rand.NewPCG(seed, 3))
	fs = vfs.NewMem()
	cfg = testConfig(fs)
	cfg.SegmentBytes = 1000 + rng.Int64N(8000)
	cfg.IndexInterval = 50 + rng.Int64N(1500)
	l := mustOpen(t, cfg)
	seq := map[int64]int32{}
	for range 60 + rng.IntN(150) {
		b := l.Bounds()
		switch rng.IntN(12) {
		case 0:
			if err := l.AppendEntries(context.Background(), []Entry{
				{b.NextSeq, b.Generation, segfmt.KindNoop, segfmt.ControlBatch(nil)},
				{b.NextSeq + 1, b.Generation, segfmt.KindMembership, segfmt.ControlBatch(noise(rng, rng.IntN(50)))},
			}); err != nil {
				t.Fatal(err)
			}
		case 1:
			var lost *Range
			if rng.IntN(2) == 0 {
				lost = &Range{b.End, b.End + rng.Int64N(20)}
			}
			if err := l.StartGeneration(context.Background(), max(b.Generation, 1)+1, lost); err != nil {
				t.Fatal(err)
			}
		default:
			p := noProducer
			n := 1 + rng.IntN(5)
			if id := rng.Int64N(6); id < 3 {
				p = record.ProducerInfo{ID: id, Sequence: seq[id]}
				seq[id] += int32(n)
			}
			values := make([]string, n)
			for i := range values {
				values[i] = string(noise(rng, rng.IntN(150)))
			}
			mustAppend(t, l, batchAt(t, p, rng.Int64N(1<<20), values...))
		}
	}
	active = l.tail.index
	mustClose(t, l)
	return fs, cfg, active
}

// TestRebuiltIndexIsTheWrittenOne is the proof behind LOG-16: from the frames alone come the same bytes that were
// written beside the appends, and the index of the active segment is the same in memory.
func TestRebuiltIndexIsTheWrittenOne(t *testing.T) {
	logs := 300/reduced(t, 30) + 2
	files := 0
	for seed := range uint64(logs) {
		synctest.Test(t, func(t *testing.T) {
			fs, cfg, active := randomLog(t, seed)
			p := take(t, fs, cfg)
			plan := MakePlan(fs, cfg.Dir, PlanOptions{TopicID: cfg.TopicID, IndexInterval: cfg.IndexInterval, VerifyAll: true})
			if plan.Err != nil || len(plan.Repairs) > 0 {
				t.Fatalf("seed %d: a sound log: %v, %v", seed, plan.Err, plan.Repairs)
			}
			if !reflect.DeepEqual(plan.active, active) {
				t.Fatalf("seed %d: index of the active segment:\n%+v, was\n%+v", seed, plan.active, active)
			}
			bare := fs.Clone()
			for _, name := range p.sideFiles() {
				put(t, bare, path.Join(cfg.Dir, name), nil)
				files++
			}
			if wrong := p.unharmed(t, bare, CleanStop, seed%5 == 0, true); wrong != "" {
				t.Fatalf("seed %d: %s", seed, wrong)
			}
		})
	}
	t.Logf("%d logs, %d files made again", logs, files)
}
