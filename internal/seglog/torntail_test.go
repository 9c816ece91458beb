package seglog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// headSpan is how much of a frame its head's checksum vouches for.
const headSpan = segfmt.MinFrame

// tornLog is a log whose last three frames tests damage.
type tornLog struct {
	*picture
	name    string
	grouped bool
	last3   int // index of the first of the three in frames
	file    string
	old     []byte // the whole segment as it was written

	near, far []frameAt // frames of another log: the next ordinals, and much higher ones
}

// newTornLog returns a log of one segment with records of about size bytes. grouped says that one write and one flush
// served its last three frames. The durable mark vouches for the frame before the last marked ones: 3 is none of the
// last three, 0 is all; negative: there is no mark.
func newTornLog(t *testing.T, size int, grouped bool, marked int) *tornLog {
	t.Helper()
	tl := &tornLog{grouped: grouped, name: fmt.Sprintf("records of %d bytes, grouped %v, mark %d", size, grouped, marked)}
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		cfg := testConfig(fs)
		cfg.SegmentBytes = 256 << 20
		l := mustOpen(t, cfg)
		value := func(i int) string {
			return strings.Repeat(string(rune('a'+i)), size) // not zeros, so that zeros are damage
		}
		before := 3
		if size >= 1<<20 {
			before = 1
		}
		for i := range before { // frames just as long as the last three: blocks of them fit exactly
			mustAppend(t, l, batch(t, noProducer, value(i)))
		}
		mark := func(left int) {
			if left != marked {
				return
			}
			if err := l.writeMark(); err != nil {
				t.Fatal(err)
			}
		}
		mark(3)
		b := l.Bounds()
		var group []Entry
		for i := range 3 {
			group = append(group, Entry{b.NextSeq + uint64(i), b.Generation, segfmt.KindData, batch(t, noProducer, value(10+i))})
		}
		if grouped {
			if err := l.AppendEntries(context.Background(), group); err != nil {
				t.Fatal(err)
			}
			mark(0)
		} else {
			for i := range group {
				mustAppend(t, l, group[i].Batch)
				mark(2 - i)
			}
		}
		crashed := fs.Clone()
		mustClose(t, l)
		tl.picture = take(t, crashed, cfg)
	})
	tl.last3 = len(tl.frames) - 3
	tl.file = tl.frames[tl.last3].file
	tl.old = tl.content[tl.file]
	next := tl.frames[len(tl.frames)-1].Seq + 1
	tl.near, tl.far = otherLog(t, next), otherLog(t, next+1_000_000)
	return tl
}

// otherLog returns frames as a log would have them that shares nothing with this one but the rules.
func otherLog(t *testing.T, seq uint64) []frameAt {
	var out []frameAt
	for i := range 40 {
		b := segfmt.AppendFrame(nil, segfmt.KindData, 0, seq+uint64(i), int64(7000+i), 1, batch(t, noProducer, fmt.Sprintf("foreign %05d", i)))
		f, err := segfmt.ParseFrame(b)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, frameAt{Frame: f, b: b})
	}
	return out
}

// The fills: what is found behind the cut, up to the length that the file had; with the last, up to the end of the frame.
var fills = []string{"cut off", "zeros", "an older frame", "garbage", "another log's next frames", "another log's far frames", "a hole"}

// tear is one case.
type tear struct {
	tl    *tornLog
	at    int64 // everything from here on is not what was written
	fill  int
	crash Crash
}

func (c tear) String() string {
	return fmt.Sprintf("%s: from byte %d of %d on %s, %s", c.tl.name, c.at, len(c.tl.old), fills[c.fill], c.crash.name())
}

// found returns what is left of the segment file.
func (c tear) found() []byte {
	d := append(make([]byte, 0, len(c.tl.old)), c.tl.old[:c.at]...)
	room := len(c.tl.old) - int(c.at)
	var from [][]byte
	switch c.fill {
	case 0:
		return d
	case 1:
		return d[:len(c.tl.old)]
	case 6:
		d = append(d, c.tl.old[c.at:]...)
		for i := range c.tl.frames {
			if f := &c.tl.frames[i]; f.pos <= c.at && c.at < f.end() {
				clear(d[c.at:f.end()])
			}
		}
		return d
	case 2:
		from = [][]byte{c.tl.frames[c.tl.last3-1].b}
	case 3:
		d = d[:len(c.tl.old)]
		noise := rand.NewPCG(uint64(c.at), uint64(c.crash))
		var word [8]byte
		for rest := d[c.at:]; len(rest) > 0; {
			binary.LittleEndian.PutUint64(word[:], noise.Uint64())
			rest = rest[copy(rest, word[:]):]
		}
		return d
	case 4, 5:
		for _, f := range c.foreign() {
			from = append(from, f.b)
		}
	}
	for i := 0; room > 0; i = (i + 1) % len(from) {
		n := min(room, len(from[i]))
		d = append(d, from[i][:n]...)
		room -= n
	}
	return d
}

func (c tear) foreign() []frameAt {
	if c.fill == 4 {
		return c.tl.near
	}
	return c.tl.far
}

// expected is what must come of a case.
type expected struct {
	frames  int   // that stay
	bad     int64 // where the first byte stands that is not a frame's
	rest    []byte
	refused bool
	cut     bool // rest is cut; false with refused false: there is no rest
}

// oracle says what must come of what is left of the segment. It is the verdict table of docs/formats/segment.md, from
// the point of view of who knows what was written.
func (c tear) oracle(found []byte) expected {
	e := expected{bad: segfmt.SegmentHeaderSize}
	var torn *frameAt // the frame that is not there as it was
	next := c.tl.frames[0].Seq
	for i := range c.tl.frames {
		f := &c.tl.frames[i]
		if f.end() > int64(len(found)) || !bytes.Equal(found[f.pos:f.end()], f.b) {
			torn = f
			break
		}
		e.frames, e.bad, next = i+1, f.end(), f.Seq+1
	}
	e.rest = found[e.bad:]
	claimed := c.tl.mark.Seq >= next
	if len(e.rest) == 0 {
		e.refused = claimed
		return e
	}
	headGood := torn != nil && len(e.rest) >= headSpan && bytes.Equal(e.rest[:headSpan], torn.b[:headSpan])
	unfinished := len(e.rest) < headSpan || headGood && len(e.rest) < len(torn.b)
	switch {
	case claimed:
		e.refused = true
	case c.crash != MachineCrash:
		e.refused = !unfinished
	default:
		from := int64(1)
		if headGood {
			from = int64(len(torn.b))
		}
		e.refused = c.proven(from, e.bad, next) || c.fill == 6 && !c.tl.grouped && e.frames < len(c.tl.frames)-1
	}
	e.cut = !e.refused
	return e
}

// proven reports whether a whole foreign frame stands in the fill, at or after the position from behind bad, that one
// must take for a later frame of this log: it is whole, its ordinal is higher, and as many frames as are missing before
// it would have had room.
func (c tear) proven(from, bad int64, next uint64) bool {
	if c.fill != 4 && c.fill != 5 {
		return false
	}
	at := c.at
	for i, list := 0, c.foreign(); ; i = (i + 1) % len(list) {
		f := &list[i]
		if at+int64(len(f.b)) > int64(len(c.tl.old)) {
			return false
		}
		if behind := at - bad; behind >= from && (f.Seq-next)*headSpan <= uint64(behind) {
			return true
		}
		at += int64(len(f.b))
	}
}

// atFrame reports whether the cut is between two frames.
func (c tear) atFrame() bool {
	for i := range c.tl.frames {
		if c.tl.frames[i].end() == c.at {
			return true
		}
	}
	return false
}

func (c tear) options() PlanOptions {
	return PlanOptions{Topic: c.tl.cfg.Topic, TopicID: c.tl.cfg.TopicID, Crash: c.crash, IndexInterval: c.tl.cfg.IndexInterval}
}

// check compares the plan with the oracle and, with deep set, carries it out. It returns what is wrong.
func (c tear) check(t testing.TB, deep bool, count *[3]atomic.Int64) string {
	found := c.found()
	want := c.oracle(found)
	if want.cut && segfmt.Written(want.rest, want.bad) == 0 {
		return "" // a byte or two that are, by chance, what space written ahead holds: given back, and not kept aside
	}
	fs := c.tl.fs.Clone()
	name := c.tl.path(c.tl.file)
	f, err := fs.Open(name, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(c.at); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(found[c.at:], c.at); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	plan := MakePlan(fs, c.tl.cfg.Dir, c.options())
	switch {
	case want.refused:
		count[0].Add(1)
		var bad *CorruptionError
		if !errors.As(plan.Err, &bad) || bad.Path != name || bad.Position != want.bad || len(plan.Repairs) > 0 {
			return fmt.Sprintf("must be refused at byte %d, got %v, %v", want.bad, plan.Err, plan.Repairs)
		}
	case plan.Err != nil:
		return fmt.Sprintf("must open: %v", plan.Err)
	case want.cut:
		count[1].Add(1)
		if plan.Truncated != int64(len(want.rest)) || plan.NextSeq != c.tl.frames[want.frames-1].Seq+1 {
			return fmt.Sprintf("cuts %d bytes before frame %d, must cut %d", plan.Truncated, plan.NextSeq, len(want.rest))
		}
	default:
		count[2].Add(1)
		if plan.Truncated != 0 || len(plan.Repairs) > 0 || plan.NextSeq != c.tl.frames[want.frames-1].Seq+1 {
			return fmt.Sprintf("nothing is to be done, the plan is %v", plan.Repairs)
		}
	}
	switch {
	case !deep:
		return ""
	case want.refused:
		return c.checkRefused(t, fs, found, want)
	}
	return c.checkOpened(t, fs, want, false)
}

// checkOpened opens the log for good and looks at what is there then.
func (c tear) checkOpened(t testing.TB, fs *vfs.Mem, want expected, repair bool) string {
	cfg := c.tl.with(fs, c.crash)
	cfg.RepairChecksumTail = repair
	l, rep, err := Open(cfg)
	if err != nil {
		return fmt.Sprintf("open: %v", err)
	}
	defer l.Close()
	end := c.tl.frames[want.frames-1].NextOffset()
	next, wrong, err := c.tl.follow(l, c.tl.first)
	if err != nil || wrong != "" || next != end {
		return fmt.Sprintf("read up to %d, must be %d: %v %s", next, end, err, wrong)
	}
	switch zeros := len(bytes.Trim(want.rest, "\x00")) == 0; {
	case rep.Truncated != int64(len(want.rest)):
		return fmt.Sprintf("%d bytes reported cut of %d", rep.Truncated, len(want.rest))
	case zeros && len(rep.Salvaged) > 0:
		return "nothing was kept aside of zeros"
	case !zeros && (len(rep.Salvaged) != 1 || !bytes.Equal(contentOf(t, fs, rep.Salvaged[0]), want.rest)):
		return fmt.Sprintf("what was cut is not in %v", rep.Salvaged)
	case repair && (rep.ClaimedEnd <= end || rep.ClaimedEnd < c.tl.mark.Offset || !rep.Lossy):
		return fmt.Sprintf("offsets below %d may have been given out, reported are %d", c.tl.mark.Offset, rep.ClaimedEnd)
	case !repair && rep.ClaimedEnd != 0:
		return fmt.Sprintf("offsets below %d reported given out", rep.ClaimedEnd)
	}
	plan := MakePlan(fs, cfg.Dir, c.options())
	if plan.Err != nil || len(plan.Repairs) > 0 || plan.Next != end {
		return fmt.Sprintf("opened again: %v, %v", plan.Err, plan.Repairs)
	}
	return ""
}

// checkRefused checks that a refusal changes nothing, and that an operator's word cuts what was refused.
func (c tear) checkRefused(t testing.TB, fs *vfs.Mem, found []byte, want expected) string {
	ops := fs.Ops()
	if l, _, err := Open(c.tl.with(fs, c.crash)); err == nil {
		_ = l.Close()
		return "opened what its plan refuses"
	}
	if n := fs.Ops() - ops; n > 3 { // the flushes before anything is believed: the file, the names, the mark
		return fmt.Sprintf("a refusal made %d changes", n)
	}
	if !bytes.Equal(contentOf(t, fs, c.tl.path(c.tl.file)), found) {
		return "a refusal changed the file"
	}
	if len(want.rest) == 0 {
		return "" // there is no bad frame to cut
	}
	return c.checkOpened(t, fs, want, true)
}

// cuts returns where to cut: every byte of the last three frames, or, of large ones, those near where something begins
// and a spread of others.
func (tl *tornLog) cuts(every bool) []int64 {
	var out []int64
	first := tl.frames[tl.last3].pos
	end := int64(len(tl.old))
	near := func(pos, what, within int64) bool { return pos%what <= within || what-pos%what <= within }
	for pos := first; pos <= end; pos++ {
		keep := every || (pos-first)%2557 == 0 || near(pos, 4096, 1)
		for i := tl.last3; i < len(tl.frames) && !keep; i++ {
			f := &tl.frames[i]
			keep = pos >= f.pos-20 && pos <= f.pos+headSpan+20 || pos >= f.end()-20 && pos <= f.end()
		}
		if keep {
			out = append(out, pos)
		}
	}
	return out
}

// tears runs n cases and logs how they ended.
func tears(t *testing.T, what string, n int, pick func(i int) (c tear, deep bool)) {
	t.Helper()
	start := time.Now()
	var count [3]atomic.Int64
	inParallel(t, n, func(i int) string {
		c, deep := pick(i)
		if wrong := c.check(t, deep, &count); wrong != "" {
			return c.String() + ": " + wrong
		}
		return ""
	})
	t.Logf("%s: %d cases in %v: %d refused, %d cut, %d without anything to cut", what, n, time.Since(start).Round(time.Millisecond),
		count[0].Load(), count[1].Load(), count[2].Load())
}

// TestTornTail is the proof behind REC-01 and REC-03: the file is cut within its last three frames, and what stands
// behind the cut is one of the fills, for every kind of crash, frame size, flush grouping and durable mark. With
// LEVEE_FAULTS=full it is cut at every byte of frames of 64 KiB, too, with every fill; the rest takes turns.
func TestTornTail(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	every := reduced(t, 499)
	for _, size := range []int{1, 300, 64 << 10, 1 << 20} {
		if size == 1<<20 && every > 1 {
			continue // the same code as for 64 KiB
		}
		var logs []*tornLog
		var cases []tear
		seen := 0
		for _, grouped := range []bool{false, true} {
			for _, marked := range []int{-1, 3, 2, 0} {
				if grouped && (marked == 2 || size >= maxGroupBytes) {
					continue // a mark never stands within a group, nor do two such records stand in one
				}
				tl := newTornLog(t, size, grouped, marked)
				logs = append(logs, tl)
				cuts := tl.cuts(size < 4096)
				if size == 1<<20 {
					cuts = thinned(cuts, 12)
				}
				for i := range len(cuts) * len(fills) * len(allCrashes) {
					c := tear{tl, cuts[i/len(fills)/len(allCrashes)], i / len(allCrashes) % len(fills), allCrashes[i%len(allCrashes)]}
					if seen++; seen%every == 0 || c.atFrame() {
						cases = append(cases, c)
					}
				}
			}
		}
		deep := 1 // carry out every plan, or one of many
		if size > 1 {
			deep = 1 + size/50
		}
		tears(t, fmt.Sprintf("records of %d bytes", size), len(cases), func(i int) (tear, bool) { return cases[i], i%deep == 0 })
		if os.Getenv("LEVEE_FAULTS") == "full" && size == 64<<10 {
			first := logs[0].frames[logs[0].last3].pos
			n := (len(logs[0].old) - int(first)) * len(fills)
			tears(t, fmt.Sprintf("records of %d bytes, every byte", size), n, func(i int) (tear, bool) {
				turn := i / len(fills)
				return tear{logs[turn%len(logs)], first + int64(turn), i % len(fills), allCrashes[turn/len(logs)%len(allCrashes)]}, false
			})
		}
	}
}

// thinned keeps about n of the positions.
func thinned(cuts []int64, n int) []int64 {
	var out []int64
	for i := 0; i < len(cuts); i += max(1, len(cuts)/n) {
		out = append(out, cuts[i])
	}
	return out
}

// dense returns where to cut large frames: at every byte of the first and last 4 KiB of each of the last three, and at each
// step between.
func (tl *tornLog) dense(step int64) []int64 {
	const edge = 4 << 10
	var out []int64
	for i := tl.last3; i < len(tl.frames); i++ {
		f := &tl.frames[i]
		for pos := f.pos; pos < f.end(); pos++ {
			if at := pos - f.pos; at < edge || f.end()-pos <= edge || at%step == 0 {
				out = append(out, pos)
			}
		}
	}
	return append(out, int64(len(tl.old)))
}

// TestTornTailOfLargeRecords cuts frames of 1 MiB as TestTornTail cuts small ones. Fills, crashes and marks take
// turns, and so do the cuts: a run makes every fourth of them. With LEVEE_FAULTS=full every cut has every fill, and
// there are more between. (At every byte it would be 22 million cases, and take a day.)
func TestTornTailOfLargeRecords(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	var logs []*tornLog
	for _, marked := range []int{-1, 3, 2, 0} {
		logs = append(logs, newTornLog(t, maxGroupBytes, false, marked)) // each is a group of its own
	}
	step, turns, every := int64(509), 1, 4*reduced(t, 125)
	if os.Getenv("LEVEE_FAULTS") == "full" {
		step, turns, every = 127, len(fills), 1
	}
	cuts := logs[0].dense(step)
	tears(t, fmt.Sprintf("records of 1 MiB, each byte near their ends and each %dth between", step), len(cuts)*turns/every, func(i int) (tear, bool) {
		i *= every
		n, fill := i/turns, i%len(fills) // every is no multiple of the fills: with one turn they take turns, too
		return tear{logs[n/len(fills)%len(logs)], cuts[n], fill, allCrashes[n/len(fills)/len(logs)%len(allCrashes)]}, false
	})
}

// TestRepairCutsWhatIsRefused turns bits in the active segment of a log that is refused for it, and has it cut: the
// bytes are kept, the mark claims no more, every offset that may have been given out is reported, and the next open
// finds nothing to do.
func TestRepairCutsWhatIsRefused(t *testing.T) {
	_, p := threeSegments(t)
	last := p.frames[len(p.frames)-1].file
	step := int64(reduced(t, 37))
	cases := 0
	for _, crash := range allCrashes {
		for at := int64(segfmt.SegmentHeaderSize); at < int64(len(p.content[last])); at += step {
			bit := 8*at + at%8
			r := rot{p, last, bit, crash}
			fs := r.flip(t)
			bytesLeft := contentOf(t, fs, p.path(last))
			cfg := p.with(fs, crash)
			if _, _, err := Open(cfg); err == nil {
				continue // cut without a word needed: TestEveryFlippedBit
			}
			cases++
			cfg.RepairChecksumTail = true
			l, rep, err := Open(cfg)
			if err != nil {
				t.Fatalf("%v: %v", r, err)
			}
			pos := p.frameOf(last, at)
			if rep.Truncated != int64(len(bytesLeft))-pos || len(rep.Salvaged) != 1 || !bytes.Equal(contentOf(t, fs, rep.Salvaged[0]), bytesLeft[pos:]) {
				t.Fatalf("%v: cut %d, kept %v", r, rep.Truncated, rep.Salvaged)
			}
			if rep.ClaimedEnd < p.end {
				t.Fatalf("%v: offsets below %d were given out, reported are %d", r, p.end, rep.ClaimedEnd)
			}
			if _, wrong, err := p.follow(l, p.first); err != nil || wrong != "" {
				t.Fatalf("%v: %v %s", r, err, wrong)
			}
			end := l.Bounds().NextSeq
			mark, _, err := segfmt.ParseMark(contentOf(t, fs, path.Join(cfg.Dir, segfmt.MarkName)))
			if err != nil || mark.Seq >= end {
				t.Fatalf("%v: the mark claims frame %d, the log ends before %d: %v", r, mark.Seq, end, err)
			}
			mustAppend(t, l, batch(t, noProducer, "goes on"))
			mustClose(t, l)
			if mark, _, err = segfmt.ParseMark(contentOf(t, fs, path.Join(cfg.Dir, segfmt.MarkName))); err != nil || mark.Seq != end {
				t.Fatalf("%v: closed, the mark claims frame %d, not %d: %v", r, mark.Seq, end, err)
			}
			cfg.RepairChecksumTail, cfg.Crash = false, CleanStop
			l, rep, err = Open(cfg)
			if err != nil || len(rep.Repairs) > 0 || rep.ClaimedEnd != 0 {
				t.Fatalf("%v: the next open: %v, %v", r, err, rep.Repairs)
			}
			mustClose(t, l)
		}
	}
	t.Logf("%d refused logs repaired", cases)
}
