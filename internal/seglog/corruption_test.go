package seglog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/record"
)

var allCrashes = []Crash{CleanStop, ProcessCrash, MachineCrash}

func (c Crash) name() string { return [...]string{"clean stop", "process crash", "machine crash"}[c] }

// frameAt is one frame of a picture.
type frameAt struct {
	segfmt.Frame
	file string
	pos  int64
	b    []byte // all of it
}

func (f *frameAt) end() int64 { return f.pos + int64(len(f.b)) }

// readable reports whether readers are told of the frame.
func (f *frameAt) readable() bool { return f.Kind == segfmt.KindData || f.Kind == segfmt.KindLost }

// picture is a log that tests damage, and all that is true of it.
type picture struct {
	fs        *vfs.Mem
	cfg       Config
	content   map[string][]byte // of every file in its directory, by base name
	names     []string          // of those, sorted
	frames    []frameAt
	first     int64
	end       int64
	mark      segfmt.Mark
	producers map[int64]segfmt.Producer
	times     map[int64]int64 // answers of OffsetForTime
}

// take makes a picture of the log on fs, which must be sound.
func take(t testing.TB, fs *vfs.Mem, cfg Config) *picture {
	t.Helper()
	p := &picture{fs: fs, cfg: cfg, content: map[string][]byte{}, times: map[int64]int64{}}
	p.cfg.FS = nil
	infos, err := fs.List(cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	stamps := []int64{math.MinInt64, math.MaxInt64}
	for _, info := range infos {
		b, err := vfs.ReadFile(fs, path.Join(cfg.Dir, info.Name), math.MaxInt32)
		if err != nil {
			t.Fatal(err)
		}
		p.content[info.Name] = b
		p.names = append(p.names, info.Name)
		if _, kind, ok := segfmt.ParseName(info.Name); !ok || kind != segfmt.LogSuffix {
			continue
		}
		for at := segfmt.SegmentHeaderSize; at < len(b); {
			f, err := segfmt.ParseFrame(b[at:])
			if err != nil {
				t.Fatal(err)
			}
			p.frames = append(p.frames, frameAt{f, info.Name, int64(at), b[at : at+f.Size()]})
			at += f.Size()
			if f.Kind == segfmt.KindData {
				stamps = append(stamps, f.Batch.MaxTimestamp, f.Batch.MaxTimestamp+1)
			}
		}
	}
	p.mark, _, err = segfmt.ParseMark(p.content[segfmt.MarkName])
	if err != nil {
		t.Fatal(err)
	}
	l := p.mustOpen(t, fs.Clone(), CleanStop)
	defer mustClose(t, l)
	p.first, p.end = l.Bounds().First, l.Bounds().End
	p.producers = stateOf(l.tail.producers)
	for _, ms := range stamps {
		p.times[ms] = p.firstAt(t, ms)
	}
	return p
}

// firstAt finds the answer of OffsetForTime in the records themselves.
func (p *picture) firstAt(t testing.TB, ms int64) int64 {
	for i := range p.frames {
		f := &p.frames[i]
		if f.Kind != segfmt.KindData {
			continue
		}
		recs, err := record.Records(f.b[segfmt.FrameHeaderSize:])
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range recs {
			if r.Timestamp >= ms {
				return r.Offset
			}
		}
	}
	return p.frames[len(p.frames)-1].NextOffset()
}

// stateOf copies what is known of producers, without when they were last seen: a rebuilt state cannot know.
func stateOf(p *producers) map[int64]segfmt.Producer {
	out := map[int64]segfmt.Producer{}
	for id, s := range p.byID {
		c := *s
		c.LastMs = 0
		out[id] = c
	}
	return out
}

func (p *picture) with(fs vfs.FS, crash Crash) Config {
	cfg := p.cfg
	cfg.FS, cfg.Crash = fs, crash
	return cfg
}

func (p *picture) mustOpen(t testing.TB, fs vfs.FS, crash Crash) *Log {
	t.Helper()
	return mustOpen(t, p.with(fs, crash))
}

// path returns where the file of that base name is.
func (p *picture) path(name string) string { return path.Join(p.cfg.Dir, name) }

// damaged returns a copy of the file system with one file's content replaced; nil removes it.
func (p *picture) damaged(t testing.TB, name string, b []byte) *vfs.Mem {
	t.Helper()
	fs := p.fs.Clone()
	put(t, fs, p.path(name), b)
	return fs
}

// put replaces a file's content, durably; nil removes it.
func put(t testing.TB, fs *vfs.Mem, name string, b []byte) {
	t.Helper()
	if b == nil {
		if err := fs.Remove(name); err != nil && !errors.Is(err, vfs.ErrNotExist) {
			t.Fatal(err)
		}
		return
	}
	f, err := fs.Open(name, true)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil && len(b) > 0 {
		_, err = f.WriteAt(b, 0)
	}
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// contentOf returns a file's bytes; nil where there is none.
func contentOf(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	b, err := vfs.ReadFile(fs, name, math.MaxInt32)
	if err != nil && !errors.Is(err, vfs.ErrNotExist) {
		t.Fatal(err)
	}
	return b
}

// follow reads l from an offset on and compares every byte with the picture. It returns the offset where reading ended
// and the error that ended it; nil at the end of l. A wrong byte or a gap is returned as wrong.
func (p *picture) follow(l *Log, from int64) (next int64, wrong string, err error) {
	i := 0
	for i < len(p.frames) && (!p.frames[i].readable() || p.frames[i].NextOffset() <= from) {
		i++
	}
	r := l.NewReader(from)
	for {
		c, err := r.Next(1<<20, math.MaxInt32)
		if err != nil {
			return r.Offset(), "", err
		}
		if c.Data == nil && c.Lost == nil {
			return r.Offset(), "", nil
		}
		if c.Lost != nil {
			if i >= len(p.frames) || p.frames[i].Kind != segfmt.KindLost || c.Lost.To+1 != p.frames[i].NextOffset() || c.Next != c.Lost.To+1 {
				return c.Next, fmt.Sprintf("offsets %d to %d are told to be lost", c.Lost.From, c.Lost.To), nil
			}
			for i++; i < len(p.frames) && !p.frames[i].readable(); i++ {
			}
			continue
		}
		for data := c.Data; len(data) > 0; {
			for i < len(p.frames) && !p.frames[i].readable() {
				i++
			}
			if i >= len(p.frames) || p.frames[i].Kind != segfmt.KindData {
				return c.Next, fmt.Sprintf("data at offset %d where there is none", c.First), nil
			}
			want := p.frames[i].b[segfmt.FrameHeaderSize:]
			if len(data) < len(want) || !bytes.Equal(data[:len(want)], want) {
				return c.Next, fmt.Sprintf("wrong bytes at offset %d", p.frames[i].Batch.BaseOffset), nil
			}
			data = data[len(want):]
			i++
		}
		for i < len(p.frames) && !p.frames[i].readable() {
			i++
		}
	}
}

// frameOf returns the start of the frame, or header (0), that byte pos of a segment file belongs to.
func (p *picture) frameOf(name string, pos int64) int64 {
	start := int64(0)
	for i := range p.frames {
		if f := &p.frames[i]; f.file == name && f.pos <= pos {
			start = f.pos
		}
	}
	return start
}

func (p *picture) bits() int {
	n := 0
	for _, b := range p.content {
		n += 8 * len(b)
	}
	return n
}

// threeSegments returns a log of three segments with frames of every kind, about 16 KiB in all: closed cleanly, and as
// a crash leaves it, with a part of the active segment above the durable mark.
func threeSegments(t *testing.T) (clean, crashed *picture) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { // the durable mark is written where the script says, not by a timer
		clean, crashed = scriptThreeSegments(t)
	})
	return clean, crashed
}

func scriptThreeSegments(t testing.TB) (clean, crashed *picture) {
	fs := vfs.NewMem()
	cfg := testConfig(fs)
	cfg.SegmentBytes, cfg.IndexInterval = 5<<10+100, 512
	l := mustOpen(t, cfg)
	seq, clock := int32(0), int64(1_000_000)
	add := func(n, size int) {
		clock += 10
		at := clock
		if seq%4 == 3 {
			at -= 300
		}
		values := make([]string, n)
		for i := range values {
			values[i] = fmt.Sprintf("%0*d", size, clock)
		}
		info := noProducer
		if n == 2 {
			info = record.ProducerInfo{ID: 7, Epoch: 1, Sequence: seq}
			seq += 2
		}
		mustAppend(t, l, batchAt(t, info, at, values...))
	}
	enter := func(entries ...Entry) {
		b := l.Bounds()
		for i := range entries {
			entries[i].Seq, entries[i].Generation = b.NextSeq+uint64(i), b.Generation
		}
		if err := l.AppendEntries(context.Background(), entries); err != nil {
			t.Fatal(err)
		}
	}
	mark := func() {
		if err := l.writeMark(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 14 {
		add(1+i%3, 90+30*(i%4))
	}
	enter(Entry{Kind: segfmt.KindNoop, Batch: segfmt.ControlBatch(nil)}, Entry{Kind: segfmt.KindMembership, Batch: segfmt.ControlBatch([]byte("somebody"))})
	end := l.Bounds().End
	if err := l.StartGeneration(context.Background(), 3, &Range{end, end + 9}); err != nil {
		t.Fatal(err)
	}
	for i := 0; l.Bounds().Segments < 3; i++ {
		add(1+i%3, 90+30*(i%4))
	}
	for i := range 4 {
		add(1+i%3, 150)
	}
	mark()
	for i := range 3 {
		add(1+i%2, 120)
	}
	mark()
	for i := range 5 {
		add(1+i%3, 117)
	}
	var group []Entry // one write: none of them proves that the one before it was on the device
	for i := range int64(3) {
		group = append(group, Entry{Kind: segfmt.KindData, Batch: batchAt(t, noProducer, clock+i, "of a group")})
	}
	enter(group...)
	if b := l.Bounds(); b.Segments != 3 {
		t.Fatalf("%+v", b)
	}
	crashed = take(t, fs.Clone(), cfg)
	mustClose(t, l)
	return take(t, fs.Clone(), cfg), crashed
}

// rot is one bit that is not what was written.
type rot struct {
	p     *picture
	name  string
	bit   int64
	crash Crash
}

func (r rot) String() string {
	return fmt.Sprintf("%s, byte %d bit %d, %s", r.name, r.bit/8, r.bit%8, r.crash.name())
}

// flip returns the file system with the bit turned.
func (r rot) flip(t testing.TB) *vfs.Mem {
	fs := r.p.fs.Clone()
	f, err := fs.Open(r.p.path(r.name), false)
	if err != nil {
		t.Fatal(err)
	}
	b := r.p.content[r.name][r.bit/8] ^ 1<<(r.bit%8)
	if _, err := f.WriteAt([]byte{b}, r.bit/8); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	return fs
}

// verdicts counts how cases ended.
type verdicts struct{ refused, onRead, cut, harmless atomic.Int64 }

// try opens and reads the damaged log and returns what is wrong with how that went.
func (r rot) try(t testing.TB, v *verdicts) string {
	fs := r.flip(t)
	_, kind, _ := segfmt.ParseName(r.name)
	if kind != segfmt.LogSuffix {
		return r.trySide(t, fs, v)
	}
	l, rep, err := Open(r.p.with(fs, r.crash))
	if err != nil {
		v.refused.Add(1)
		return r.judge(err)
	}
	defer l.Close()
	next, wrong, err := r.p.follow(l, r.p.first)
	switch {
	case wrong != "":
		return wrong
	case err != nil:
		v.onRead.Add(1)
		if bad := r.judge(err); bad != "" {
			return bad
		}
		if r.crash == CleanStop { // with verify_all_on_open it shows at once, by the same name
			plan := MakePlan(fs, l.cfg.Dir, PlanOptions{Topic: l.cfg.Topic, TopicID: l.cfg.TopicID, VerifyAll: true, IndexInterval: l.cfg.IndexInterval})
			if bad := r.judge(plan.Err); bad != "" {
				return "verify all: " + bad
			}
		}
		for i := range r.p.frames { // what stands behind the damage may be read, but only as it was written
			if f := &r.p.frames[i]; f.file == r.name && f.pos > r.bit/8 {
				if _, wrong, _ := r.p.follow(l, f.Batch.BaseOffset); wrong != "" {
					return "behind the damage: " + wrong
				}
				break
			}
		}
		return ""
	case next == r.p.end:
		return "nothing noticed"
	}
	v.cut.Add(1)
	return r.judgeCut(t, fs, &rep, next)
}

// judge checks that an error names the damage.
func (r rot) judge(err error) string {
	var c *CorruptionError
	if !errors.As(err, &c) {
		return fmt.Sprintf("not a corruption error, but %v", err)
	}
	at := r.p.frameOf(r.name, r.bit/8)
	if c.Path != r.p.path(r.name) || c.Position != at || c.Topic != r.p.cfg.Topic || c.Partition != r.p.cfg.Partition {
		return fmt.Sprintf("the error names %s byte %d, the damaged frame is at byte %d: %v", c.Path, c.Position, at, err)
	}
	text := err.Error()
	for _, say := range []string{fmt.Sprintf("%s/%d", c.Topic, c.Partition), fmt.Sprintf("%s: byte %d", c.Path, at)} {
		if !strings.Contains(text, say) {
			return fmt.Sprintf("the error does not say %q: %s", say, text)
		}
	}
	return ""
}

// judgeCut checks that a cut was one that a crash of the machine allows: above the durable mark, from the damaged frame
// on, with its bytes kept aside.
func (r rot) judgeCut(t testing.TB, fs *vfs.Mem, rep *Report, next int64) string {
	last := r.p.frames[len(r.p.frames)-1].file
	at := r.p.frameOf(r.name, r.bit/8)
	content := bytes.Clone(r.p.content[r.name])
	content[r.bit/8] ^= 1 << (r.bit % 8)
	want := int64(-1)
	for i := range r.p.frames {
		if f := &r.p.frames[i]; f.file == r.name && f.pos == at {
			want = f.Batch.BaseOffset
			if f.Seq <= r.p.mark.Seq {
				return "cut below the durable mark"
			}
			if f.Kind == segfmt.KindLost {
				return "this picture has no lost range at its end"
			}
		}
	}
	switch {
	case r.crash != MachineCrash || r.name != last:
		return fmt.Sprintf("cut at offset %d, which no crash explains", next)
	case next != want:
		return fmt.Sprintf("cut at offset %d, the damaged frame starts at %d", next, want)
	case rep.Truncated != int64(len(content))-at:
		return fmt.Sprintf("reported %d bytes cut, not %d", rep.Truncated, int64(len(content))-at)
	case len(rep.Salvaged) != 1 || !bytes.Equal(contentOf(t, fs, rep.Salvaged[0]), content[at:]):
		return fmt.Sprintf("the cut bytes are not in %v", rep.Salvaged)
	}
	return ""
}

// trySide is try for a file beside the segments: nothing may be lost or change, and lookups find what they must.
//
// Lookups do not depend on how the last run ended, so one kind of crash makes all of them for each bit.
func (r rot) trySide(t testing.TB, fs *vfs.Mem, v *verdicts) string {
	v.harmless.Add(1)
	_, kind, _ := segfmt.ParseName(r.name)
	index := kind == segfmt.IndexSuffix || kind == segfmt.TimeIndexSuffix
	return r.p.unharmed(t, fs, r.crash, index && r.crash == CleanStop, index)
}

// unharmed checks that the log on fs, some of whose side files are damaged, is complete, in every respect if lookups is
// set, and that, if indexes is set, its indexes are what they were once recovery has looked at all of them.
func (p *picture) unharmed(t testing.TB, fs *vfs.Mem, crash Crash, lookups, indexes bool) string {
	l, _, err := Open(p.with(fs, crash))
	if err != nil {
		return fmt.Sprintf("open: %v", err)
	}
	wrong := p.whole(l)
	if wrong == "" && lookups {
		wrong = p.found(l)
	}
	if err := l.Close(); err != nil && wrong == "" {
		wrong = fmt.Sprintf("close: %v", err)
	}
	if wrong != "" || !indexes {
		return wrong
	}
	cfg := p.with(fs, CleanStop)
	cfg.VerifyAllOnOpen = true
	if l, _, err = Open(cfg); err != nil {
		return fmt.Sprintf("second open: %v", err)
	}
	_ = l.Close()
	return p.indexed(t, fs)
}

// indexed checks that the indexes are what they were when the segments were sealed.
func (p *picture) indexed(t testing.TB, fs *vfs.Mem) string {
	for _, name := range p.names {
		_, kind, ok := segfmt.ParseName(name)
		if ok && kind != segfmt.ProducersPrefix && !bytes.Equal(contentOf(t, fs, p.path(name)), p.content[name]) {
			return name + " is not what it was"
		}
	}
	return ""
}

// whole checks that an open log holds every byte of the picture.
func (p *picture) whole(l *Log) string {
	if next, wrong, err := p.follow(l, p.first); err != nil || wrong != "" || next != p.end {
		return fmt.Sprintf("read from %d: ended at %d of %d: %v %s", p.first, next, p.end, err, wrong)
	}
	if got := stateOf(l.tail.producers); !reflect.DeepEqual(got, p.producers) {
		return fmt.Sprintf("producers are %v, not %v", got, p.producers)
	}
	return ""
}

// found checks every lookup by offset and by time that an open log can be asked.
func (p *picture) found(l *Log) string {
	for i := range p.frames {
		f := &p.frames[i]
		if !f.readable() {
			continue
		}
		from := f.NextOffset() - 1
		c, err := l.NewReader(from).Next(1, 1)
		if err != nil || f.Kind == segfmt.KindData && !bytes.Equal(c.Data, f.b[segfmt.FrameHeaderSize:]) ||
			f.Kind == segfmt.KindLost && (c.Lost == nil || c.Lost.To != from) {
			return fmt.Sprintf("read at %d: %v, first %d", from, err, c.First)
		}
	}
	for ms, want := range p.times {
		if got, err := l.OffsetForTime(context.Background(), ms); err != nil || got != want {
			return fmt.Sprintf("at time %d: offset %d, %v, not %d", ms, got, err, want)
		}
	}
	return ""
}

// inParallel calls fn for 0 to n-1 from as many goroutines as there are processors, until one returns a complaint.
func inParallel(t testing.TB, n int, fn func(i int) string) {
	t.Helper()
	var wg sync.WaitGroup
	var next, failed atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := int(next.Add(1)) - 1; i < n && failed.Load() < 20; i = int(next.Add(1)) - 1 {
				if wrong := fn(i); wrong != "" {
					failed.Add(1)
					t.Error(wrong)
				}
			}
		}()
	}
	wg.Wait()
}

// TestEveryFlippedBit is the proof behind LOG-13, REC-02 and REC-03: one bit of one file is turned, for every bit of a
// log of three segments. Never is a wrong byte served, nothing panics, nothing is missing without an error or, at an
// unacknowledged end, without the bytes being kept aside, and the error names the place.
func TestEveryFlippedBit(t *testing.T) {
	clean, crashed := threeSegments(t)
	step := reduced(t, 211)
	var cases []rot
	for _, crash := range allCrashes {
		p := crashed
		if crash == CleanStop {
			p = clean
		}
		for _, name := range p.names {
			step := int64(step)
			if strings.HasSuffix(name, "index") { // a wrong entry matters to few lookups
				step = int64(reduced(t, 37))
			}
			for bit := int64(0); bit < int64(8*len(p.content[name])); bit += step {
				cases = append(cases, rot{p, name, bit, crash})
			}
		}
	}
	var v verdicts
	start := time.Now()
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // each case leaves a little; together they leave a lot
	inParallel(t, len(cases), func(i int) string {
		if wrong := cases[i].try(t, &v); wrong != "" {
			return cases[i].String() + ": " + wrong
		}
		return ""
	})
	t.Logf("%d cases over %d files of %d and %d bits in %v: %d refused when opened, %d when read, %d cut and kept aside, %d without effect",
		len(cases), len(clean.names), clean.bits(), crashed.bits(), time.Since(start).Round(time.Millisecond), v.refused.Load(), v.onRead.Load(), v.cut.Load(), v.harmless.Load())
}

// reduced returns 1, or short when the test must be quick: with -short, and under the race detector.
func reduced(t testing.TB, short int) int {
	if testing.Short() || raceEnabled {
		return short
	}
	return 1
}
