package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// PlanOptions is what a plan needs to know beside the directory.
type PlanOptions struct {
	Topic              string // for errors
	TopicID            [16]byte
	AnyTopic           bool // do not compare TopicID and Partition with the files
	Partition          int32
	Crash              Crash
	VerifyAll          bool
	RepairChecksumTail bool
	IndexInterval      int64 // default 4 KiB
	NowMs              int64 // broker's clock
}

// Plan is what opening a directory would do. Making it changes nothing.
//
// size: half of it is the report, half is what Open goes on with
type Plan struct {
	Dir      string
	Err      error // why opening is refused; then there are no repairs
	Repairs  []Repair
	Segments []SegmentInfo

	First, Next       int64 // offsets: oldest, and the one to be assigned next
	FirstSeq, NextSeq uint64
	Generation        uint32
	Truncated         int64    // bytes that would be cut off the tail
	ProducersRebuilt  bool     // the producers' state had to be made from the records
	ClaimedEnd        int64    // offsets below it may have been given out, but RepairChecksumTail cuts their records; else 0
	Unknown           []string // names in the directory that are not a log's; left alone

	fs        vfs.FS
	o         PlanOptions
	segs      []*segment
	active    segfmt.IndexBuilder // of the last segment
	activeEnd int64
	producers *producers
	last      []Repair    // after the others: its file may be among what they remove
	readFrom  int64       // producers' state before this offset was read from a snapshot
	snapshot  int64       // a snapshot has the producers' state before this offset, once the repairs are made
	mark      segfmt.Mark // as it is once the repairs are made
	hasMark   bool
}

// Repair is one step that opening would take, in order.
type Repair struct {
	Op       string // salvage, lower-mark, truncate, give-back, remove, write, snapshot
	Path     string
	Position int64
	Bytes    int64
	Reason   string

	data []byte // what write writes
}

// SegmentInfo describes one segment file.
type SegmentInfo struct {
	Path             string
	Base, Next       int64 // offsets: its first, and the one after its last
	BaseSeq, NextSeq uint64
	Bytes            int64
	Sealed           bool
}

// MakePlan reads a partition's directory and says what opening it would do. A directory that does not exist is an
// empty log.
func MakePlan(fs vfs.FS, dir string, o PlanOptions) *Plan {
	if o.IndexInterval <= 0 {
		o.IndexInterval = defaultIndexInterval
	}
	p := &Plan{Dir: dir, fs: fs, o: o, NextSeq: 1, FirstSeq: 1, active: segfmt.NewIndexBuilder(o.IndexInterval)}
	if err := p.make(); err != nil {
		p.Err, p.Repairs = err, nil
	}
	return p
}

type dirListing struct {
	logs      []vfs.Info
	sizes     map[string]int64
	snapshots []int64
	orphans   []string
	temps     []string
}

func (p *Plan) make() error {
	d, err := p.list()
	if err != nil {
		return err
	}
	if err := p.readMark(d); err != nil {
		return err
	}
	if err := p.readHeaders(d); err != nil {
		return err
	}
	if len(p.segs) == 0 {
		p.producers = newProducers(nil)
		if p.hasMark && p.mark.Seq > 0 {
			return p.corrupt(p.Dir, 0, p.mark.Offset, fmt.Sprintf("the durable mark says that frame %d was on the device, but there is no segment file", p.mark.Seq))
		}
	} else if err := p.checkSegments(d); err != nil {
		return err
	}
	for _, name := range append(d.orphans, d.temps...) {
		p.repair(Repair{Op: "remove", Path: path.Join(p.Dir, name), Bytes: d.sizes[name], Reason: "left over from a step that was cut short"})
	}
	p.Repairs = append(p.Repairs, p.last...)
	return nil
}

func (p *Plan) repair(r Repair) { p.Repairs = append(p.Repairs, r) }

func (p *Plan) corrupt(file string, position, offset int64, cause string) error {
	return &CorruptionError{Topic: p.o.Topic, Partition: p.o.Partition, Path: file, Position: position, Offset: offset, Cause: cause}
}

// unsupported is the refusal of a file that is as it was written, by a program that knows more than this one.
func (p *Plan) unsupported(file string, cause error) error {
	return fault.New(fault.Unsupported, "%s/%d: %s: %w: open it with the version of Levee that wrote it", p.o.Topic, p.o.Partition, file, cause).With("file", file)
}

func (p *Plan) ioError(op, name string, err error) error {
	return ioError(p.o.Topic, p.o.Partition, op, name, err)
}

func (p *Plan) list() (*dirListing, error) {
	d := &dirListing{sizes: map[string]int64{}}
	infos, err := p.fs.List(p.Dir)
	if errors.Is(err, vfs.ErrNotExist) {
		return d, nil
	} else if err != nil {
		return nil, p.ioError("list", p.Dir, err)
	}
	indexes := map[string]int64{}
	bases := map[int64]bool{}
	for _, info := range infos {
		d.sizes[info.Name] = info.Size
		n, kind, ok := segfmt.ParseName(info.Name)
		switch {
		case info.Dir:
			p.Unknown = append(p.Unknown, info.Name)
		case ok && kind == segfmt.LogSuffix:
			d.logs = append(d.logs, info)
			bases[n] = true
		case ok && kind == segfmt.ProducersPrefix:
			d.snapshots = append(d.snapshots, n)
		case ok:
			indexes[info.Name] = n
		case strings.HasSuffix(info.Name, segfmt.TempSuffix):
			d.temps = append(d.temps, info.Name)
		case info.Name != segfmt.MarkName:
			p.Unknown = append(p.Unknown, info.Name)
		}
	}
	for _, info := range infos { // in the directory's order, so that two plans of one state are equal
		if n, is := indexes[info.Name]; is && !bases[n] {
			d.orphans = append(d.orphans, info.Name)
		}
	}
	return d, nil
}

func (p *Plan) readMark(d *dirListing) error {
	if _, there := d.sizes[segfmt.MarkName]; !there {
		return nil
	}
	name := path.Join(p.Dir, segfmt.MarkName)
	b, err := vfs.ReadPart(p.fs, name, 0, segfmt.MarkFileSize)
	if err != nil {
		return p.ioError("read", name, err)
	}
	if p.mark, p.hasMark, err = segfmt.ParseMark(b); err != nil {
		return p.unsupported(name, err)
	}
	return nil
}

// readHeaders reads every segment's header. The last file may have been cut short while it was created: then it never
// held a frame, and goes.
func (p *Plan) readHeaders(d *dirListing) error {
	for i, info := range d.logs {
		name := path.Join(p.Dir, info.Name)
		b, err := vfs.ReadPart(p.fs, name, 0, segfmt.SegmentHeaderSize)
		if err != nil {
			return p.ioError("read", name, err)
		}
		h, err := segfmt.ParseSegmentHeader(b)
		base, _, _ := segfmt.ParseName(info.Name)
		claimed := p.hasMark && p.mark.Seq > 0 && p.mark.File == base
		cutShort := info.Size < segfmt.SegmentHeaderSize || info.Size == segfmt.SegmentHeaderSize && p.o.Crash == MachineCrash
		intact := segfmt.HeaderIntact(b)
		if err != nil && i == len(d.logs)-1 && cutShort && !claimed && !intact {
			p.repair(Repair{Op: "remove", Path: name, Bytes: info.Size, Reason: "its creation was cut short before it held anything"})
			continue
		}
		switch {
		case err != nil && intact && (errors.Is(err, segfmt.ErrVersion) || errors.Is(err, segfmt.ErrFlags)):
			return p.unsupported(name, fmt.Errorf("segment header: %w", err))
		case err != nil:
			return p.corrupt(name, 0, base, "segment header: "+err.Error())
		case h.BaseOffset != base:
			return p.corrupt(name, 8, base, fmt.Sprintf("its header says that it starts at offset %d", h.BaseOffset))
		case h.Flags != 0:
			return p.unsupported(name, fmt.Errorf("segment header: %w (compacted)", segfmt.ErrFlags))
		case !p.o.AnyTopic && (h.TopicID != p.o.TopicID || h.Partition != uint32(p.o.Partition)):
			return p.corrupt(name, 36, base, fmt.Sprintf("it belongs to partition %d of topic id %x", h.Partition, h.TopicID))
		}
		p.segs = append(p.segs, newSegment(h, name))
	}
	return nil
}

// checkSegments checks every segment and what joins it to the next, and takes in the producers on the way.
func (p *Plan) checkSegments(d *dirListing) error {
	last := len(p.segs) - 1
	from, err := p.readProducers(d, p.segs[last].BaseOffset)
	if err != nil {
		return err
	}
	first := p.segs[0]
	p.First, p.FirstSeq = first.BaseOffset, first.BaseSeq
	c := chain{first.BaseSeq, first.BaseOffset, first.PrevGeneration}
	for i, s := range p.segs {
		if s.BaseSeq != c.seq || s.BaseOffset != c.offset || s.PrevGeneration != c.generation {
			return p.corrupt(s.path, 0, c.offset, fmt.Sprintf("it starts at offset %d, frame %d, generation %d, but the segment before it ends before offset %d, frame %d, in generation %d: a file is missing or from another time",
				s.BaseOffset, s.BaseSeq, s.PrevGeneration, c.offset, c.seq, c.generation))
		}
		if i < last {
			err = p.checkSealed(s, &c, s.BaseOffset >= from)
		} else {
			p.planSnapshot(s.BaseOffset, from)
			err = p.checkActive(s, &c)
		}
		if err != nil {
			return err
		}
	}
	p.Next, p.NextSeq, p.Generation = c.offset, c.seq, c.generation
	return nil
}

// readProducers loads the newest snapshot that checks and returns the offset from which the records must be read.
func (p *Plan) readProducers(d *dirListing, activeBase int64) (int64, error) {
	for i := len(d.snapshots) - 1; i >= 0; i-- {
		if d.snapshots[i] > activeBase {
			continue
		}
		name := path.Join(p.Dir, segfmt.ProducersName(d.snapshots[i]))
		b, err := vfs.ReadFile(p.fs, name, math.MaxInt32)
		if err != nil && !errors.Is(err, vfs.ErrTooLarge) {
			return 0, p.ioError("read", name, err)
		}
		s, err := segfmt.ParseProducers(b)
		if err == nil && s.Offset == d.snapshots[i] && s.Offset >= p.segs[0].BaseOffset {
			p.producers = newProducers(s)
			return s.Offset, nil
		}
		p.ProducersRebuilt = true
	}
	p.ProducersRebuilt = p.ProducersRebuilt || len(p.segs) > 1
	p.producers = newProducers(nil)
	return p.segs[0].BaseOffset, nil
}

// planSnapshot plans to write the snapshot of the producers' state at the end of the sealed segments, unless the one
// that was read is it: without it retention could remove the only records that tell what was sent.
func (p *Plan) planSnapshot(offset, read int64) {
	p.snapshot, p.readFrom = offset, read
	if read == offset {
		return // read, or there is nothing before it
	}
	s := p.producers.snapshot(offset, p.First)
	p.last = append(p.last, Repair{Op: "snapshot", Path: path.Join(p.Dir, segfmt.ProducersName(offset)), data: s.Append(nil), Reason: "a roll was cut off before it was written"})
}

func (p *Plan) noteProducer(f *segfmt.Frame) {
	if f.Kind == segfmt.KindData && f.Batch.ProducerID >= 0 && f.Batch.BaseSequence >= 0 {
		p.producers.add(&f.Batch, f.Batch.BaseOffset, p.o.NowMs)
	}
}

// checkSealed checks a segment that has a successor: from its last index entry on, or all of it.
func (p *Plan) checkSealed(s *segment, c *chain, all bool) error {
	f, err := p.fs.Open(s.path, false)
	if err != nil {
		return p.ioError("open", s.path, err)
	}
	defer f.Close()
	if s.end, err = f.Size(); err != nil {
		return p.ioError("stat", s.path, err)
	}
	s.sealed = true
	done := false
	if !all && !p.o.VerifyAll {
		if done, err = p.checkSealedTail(s, f, c); err != nil {
			return err
		}
	}
	if !done {
		x := segfmt.NewIndexBuilder(p.o.IndexInterval)
		_, bad, err := scanFrames(f, segfmt.SegmentHeaderSize, s.end, c, func(pos int64, fr *segfmt.Frame, _ []byte) {
			x.Note(pos, fr)
			if all {
				p.noteProducer(fr)
			}
		})
		if err != nil {
			return p.ioError("read", s.path, err)
		}
		if bad != nil {
			if err := p.checkUnwritten(s, f, bad, c); err != nil {
				return err
			}
		}
		s.maxTime, s.headCRC = x.MaxTime, x.HeadCRC
		index, times := x.Files(s.SegmentHeader, c.offset)
		p.planIndex(s.sibling(segfmt.IndexSuffix), index)
		p.planIndex(s.sibling(segfmt.TimeIndexSuffix), times)
	}
	s.next, s.nextSeq, s.lastGen = c.offset, c.seq, c.generation
	p.Segments = append(p.Segments, SegmentInfo{s.path, s.BaseOffset, s.next, s.BaseSeq, s.nextSeq, s.end, true})
	return nil
}

// checkUnwritten accepts a bad frame of a sealed segment that is space written ahead which a crash brought back: what
// was there before sealing is the device's until something else flushes the file's end.
func (p *Plan) checkUnwritten(s *segment, f vfs.File, bad *badFrame, c *chain) error {
	n := s.end - bad.position
	b, err := vfs.ReadPartOf(f, bad.position, min(n, 2*busyLog.most))
	switch {
	case err != nil:
		return p.ioError("read", s.path, err)
	case int64(len(b)) < n || segfmt.Written(b, bad.position) > 0:
		return p.corrupt(s.path, bad.position, c.offset, bad.cause.Error())
	}
	p.giveBack(s.path, bad.position, n)
	s.end = bad.position
	return nil
}

// giveBack plans to cut space that was written ahead and not used.
func (p *Plan) giveBack(name string, position, bytes int64) {
	p.repair(Repair{Op: "give-back", Path: name, Position: position, Bytes: bytes, Reason: "space that was written ahead and not used"})
}

// planIndex plans to write an index file unless it is there as it must be.
func (p *Plan) planIndex(name string, want []byte) {
	got, err := vfs.ReadFile(p.fs, name, int64(len(want)))
	if err == nil && bytes.Equal(got, want) {
		return
	}
	p.repair(Repair{Op: "write", Path: name, Bytes: int64(len(want)), Reason: "the index is missing or not what the records say", data: want})
}

// checkSealedTail trusts the index for where its last entry stands and checks the segment from there. It reports false
// when the index does not hold up: then it must be made again.
func (p *Plan) checkSealedTail(s *segment, f vfs.File, c *chain) (bool, error) {
	entry, ok, err := readLastIndexEntry(p.fs, s)
	if err != nil || !ok {
		return false, err
	}
	t := chain{entry.Seq, entry.Offset, 0}
	if first, err := readFrameHead(f, entry.Position, s.end); err == nil && first.Kind == segfmt.KindLost {
		return false, nil // its offset says where it ends, not where it starts: read the segment from its start
	}
	x := segfmt.NewIndexBuilder(p.o.IndexInterval)
	_, bad, err := scanFrames(f, entry.Position, s.end, &t, func(pos int64, fr *segfmt.Frame, _ []byte) { x.Note(pos, fr) })
	if err != nil {
		return false, p.ioError("read", s.path, err)
	}
	if bad != nil || len(x.Entries) != 1 || t.generation < s.PrevGeneration {
		return false, nil
	}
	last, ok, err := readTimeEnd(p.fs, s, segfmt.TimeIndexOf(s.SegmentHeader, x.HeadCRC))
	if err != nil || !ok || last.Offset != t.offset {
		return false, err
	}
	s.maxTime, s.headCRC = last.MaxTimestamp, x.HeadCRC
	*c = t
	return true, nil
}

// checkActive checks the last segment in full and judges what stands behind its last good frame.
func (p *Plan) checkActive(s *segment, c *chain) error {
	f, err := p.fs.Open(s.path, false)
	if err != nil {
		return p.ioError("open", s.path, err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return p.ioError("stat", s.path, err)
	}
	end, bad, err := scanFrames(f, segfmt.SegmentHeaderSize, size, c, func(pos int64, fr *segfmt.Frame, _ []byte) {
		p.active.Note(pos, fr)
		p.noteProducer(fr)
	})
	if err != nil {
		return p.ioError("read", s.path, err)
	}
	p.activeEnd = end
	claimed := p.hasMark && p.mark.Seq >= c.seq
	switch {
	case bad != nil:
		if err := p.judgeTail(s, f, size, bad, c, claimed); err != nil {
			return err
		}
	case claimed:
		return p.corrupt(s.path, end, c.offset, fmt.Sprintf("the durable mark says that frame %d was on the device, but the log ends before frame %d", p.mark.Seq, c.seq))
	}
	p.Segments = append(p.Segments, SegmentInfo{s.path, s.BaseOffset, c.offset, s.BaseSeq, c.seq, end, false})
	return nil
}

func ioError(topic string, partition int32, op, name string, err error) error {
	kind := fault.IO
	if errors.Is(err, vfs.ErrNoSpace) {
		kind = fault.NoSpace
	}
	return fault.New(kind, "%s/%d: %s %s: %w", topic, partition, op, name, err).With("file", name)
}
