package partition

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
	"github.com/leveemq/levee/internal/tier"
	"github.com/leveemq/levee/internal/writebuf"
)

// unknownLoss is how many offsets are declared lost where nobody can tell how many were given out: more than any log can
// have had that was not exported, so that none of them is ever given out again.
const unknownLoss = 1 << 40

// opening is an attempt to open a partition, where it finds out what is beyond its log.
type opening struct{ *Partition }

// beyond is what the tiers hold of a partition besides its log, as they are found when it is opened.
type beyond struct {
	buffer  writebuf.Buffer // nil: there is none
	away    bool            // it could not be asked, and the operator chose to go on without it
	before  writebuf.State  // what it held
	stored  uint64          // frames below it are in objects
	custody *meta.Custody   // what the metadata knows; nil: nothing
}

// pending returns the take-over that is to be carried out; nil: none.
func (b *beyond) pending() *meta.Takeover {
	if b.custody == nil {
		return nil
	}
	return b.custody.Pending
}

// uncovered reports whether the buffer may lack what was acknowledged.
func (b *beyond) uncovered() bool { return b.custody != nil && b.custody.Uncovered != nil }

// sound reports whether the buffer has what it says that it was given. One that ends before the objects do is a server that
// came back from an earlier time: what has an object had been confirmed before.
func (b *beyond) sound() bool {
	return b.buffer != nil && !b.away && b.before.Known && b.before.Whole() && (b.before.Last == 0 || b.before.Last+1 >= b.stored)
}

// whole reports whether the buffer had everything that was ever acknowledged or delivered and is not in objects.
func (b *beyond) whole() bool { return b.sound() && !b.uncovered() }

// look asks the write buffer what it has, and shuts out whoever had the partition before: from here on it changes for this
// generation alone. fresh says that there is no log yet.
//
// The order matters: that it has forgotten everything shows only until it is told a generation, so the metadata hears first.
func (p opening) look(ctx context.Context, generation uint32, fresh bool) (*beyond, error) {
	b := &beyond{custody: p.custody(), stored: max(p.exported().NextSeq(), 1)}
	if p.cfg.Buffer == nil {
		return b, nil
	}
	b.buffer = p.cfg.Buffer.Store.Buffer(p.ledger.bufferID())
	first := p.exported().Frontier()
	wait, stop := context.WithTimeout(ctx, p.cfg.Buffer.patience())
	defer stop()
	p.waits("the write buffer has not answered yet what it has of it")
	defer p.waits("")
	there, err := b.buffer.Bounds(wait)
	if err == nil {
		if !(there.Known && there.Whole()) && (!fresh || b.pending() != nil) {
			if err := p.ledger.setUncovered(ctx, generation, first); err != nil {
				return nil, err
			}
			b.custody = p.custody()
		}
		b.before, err = b.buffer.Fence(wait, generation)
	}
	switch {
	case err == nil:
		return b, nil
	case errors.Is(err, writebuf.ErrFenced):
		return nil, fault.New(fault.Fenced, "%s: another broker has taken it over, and owns its write buffer: %w", p.ledger.where(), err)
	case b.pending() != nil:
		return nil, fault.New(fault.Unavailable, "%s: its log was lost with %s, and the write buffer that has its newest records does not answer; it is tried again: %w", p.ledger.where(), b.pending().From, err)
	case !p.cfg.Buffer.Degrade:
		return nil, fault.New(fault.Unavailable, "%s: not served until the write buffer answers: which of its newest records were acknowledged is not known without it, and valkey.on_failure is reject; it is tried again: %w", p.ledger.where(), err)
	}
	b.away = true
	if err := p.ledger.setUncovered(ctx, generation, first); err != nil {
		return nil, err
	}
	p.cfg.logger().Warn("the write buffer does not answer: going on without it, as on_failure says", "partition", p.ledger.where(), "uncovered_from", first, "err", err)
	return b, nil
}

// waits has Status say what the attempt waits for; "": for nothing.
func (p opening) waits(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.status.Waits = what
}

// takeOver makes a log again that was lost with its broker's directory: from the newest object on, whose segment tells what
// producers had sent, with what the write buffer has above it. What was done by an attempt that did not get to its end is
// gone on with. Where the tiers may lack what was acknowledged, it waits for an operator's word.
//
// The order matters: see look. The new generation begins before anything else is appended, and the metadata hears last.
func (p opening) takeOver(ctx context.Context, l *seglog.Log, entry meta.Partition, b *beyond) error {
	pending := b.pending()
	report := meta.TakeoverReport{AtMs: p.cfg.now().UnixMilli(), From: pending.From, Objects: p.exported().Frontier()}
	if err := p.restoreNewest(ctx, l); err != nil {
		if err = p.beginBehind(ctx, l, pending, err); err != nil {
			return err
		}
	}
	whole := b.whole() && !p.silent()
	if b.buffer != nil && l.Bounds().Generation < entry.Generation {
		err := p.replay(ctx, l, b)
		var hole *writebuf.MissingError
		var trimmed *writebuf.TrimmedError
		switch {
		case errors.As(err, &hole), errors.As(err, &trimmed):
			whole = false
			p.cfg.logger().Error("the write buffer lacks frames of a log that is made again", "partition", p.ledger.where(), "err", err)
		case err != nil:
			return err
		}
	}
	unknown := !whole
	var gone *seglog.Range // what is known to be lost
	var err error
	if l.Bounds().Generation < entry.Generation {
		if f := p.former(); f != nil {
			if gone, err = p.comeBack(ctx, l, b, f, &report); err == nil {
				unknown = false
			} else {
				p.cfg.logger().Error("a lost broker's directory was brought, and cannot be used", "partition", p.ledger.where(), "directory", f.Directory, "err", err)
			}
			f.end(err)
		}
	}
	end := l.Bounds().End
	report.Replayed = max(end, report.Objects)
	if l.Bounds().Generation < entry.Generation {
		if unknown {
			if !pending.Accepted {
				return p.waitsForFormer(pending, end)
			}
			gone = &seglog.Range{From: end, To: max(entry.Reserved, end) + unknownLoss - 1}
		}
		if gone != nil {
			if err := p.ledger.reserve(ctx, entry.Generation, max(gone.To+1, entry.Reserved)); err != nil {
				return err
			}
		}
		if err := l.StartGeneration(ctx, entry.Generation, gone); err != nil {
			return fmt.Errorf("start generation %d of %s: %w", entry.Generation, p.ledger.where(), err)
		}
	}
	lost, err := lostAtEnd(l)
	if err != nil {
		return err
	}
	if lost != nil {
		report.Lost, report.Replayed = &meta.OffsetRange{From: lost.From, To: lost.To}, lost.From
	}
	if _, err := p.cfg.Meta.Propose(ctx, meta.SettleTakeover{
		Name: p.ledger.topic.Name, ID: p.ledger.topic.ID, Partition: p.ledger.partition, Generation: entry.Generation, Report: report,
	}); err != nil {
		return fmt.Errorf("note that %s was taken over: %w", p.ledger.where(), err)
	}
	p.cfg.logger().Warn("taken over: the log was made again", "partition", p.ledger.where(), "from", pending.From, "generation", entry.Generation,
		"objects_below", report.Objects, "replayed_below", report.Replayed, "directory", report.Directory, "returned", report.Returned, "lost", report.Lost, "took", p.cfg.now().Sub(time.UnixMilli(report.AtMs)))
	return nil
}

// silent reports whether a lost broker may have gone on without the write buffer with nobody knowing: that it did so is noted
// in the metadata, of which only the write buffer has a copy.
func (p opening) silent() bool {
	return p.cfg.Tier == nil && p.cfg.Buffer != nil && p.cfg.Buffer.Degrade
}

// lostAtEnd returns the range that the log's last frame declares lost; nil where it declares none.
func lostAtEnd(l *seglog.Log) (*seglog.Range, error) {
	b := l.Bounds()
	if b.NextSeq <= b.FirstSeq {
		return nil, nil
	}
	entries, err := l.ReadEntries(b.NextSeq-1, 1)
	if err != nil || len(entries) == 0 || entries[0].Kind != segfmt.KindLost {
		return nil, err
	}
	from, to, err := segfmt.ParseLost(entries[0].Batch)
	return &seglog.Range{From: from, To: to}, err
}

// What a log that is made again begins with: as many of the newest objects as do not hold more, but at least the newest one.
// They tell what producers sent last, and who sends a batch again sent it not long ago.
const (
	restoredBytes   = 8 << 20
	restoredObjects = 64
)

// restoreNewest makes the newest objects' segments the beginning of a log that has nothing behind them.
func (p opening) restoreNewest(ctx context.Context, l *seglog.Log) error {
	at := l.Bounds()
	list := p.newest()
	if n := len(list); n == 0 || at.Segments > 0 && at.NextSeq > list[n-1].NextSeq {
		return nil
	}
	for _, o := range list {
		if at := l.Bounds(); at.Segments > 0 && at.NextSeq > o.NextSeq {
			continue // an attempt that did not get to its end restored it
		}
		if err := p.restore(ctx, l, o); err != nil {
			return fmt.Errorf("%s: make the log again from its newest objects: %w", p.ledger.where(), err)
		}
	}
	return nil
}

// beginBehind begins a log behind objects that cannot be read, once an operator has accepted that: what producers sent last
// is not known then. Otherwise it returns why, and what to do.
func (p opening) beginBehind(ctx context.Context, l *seglog.Log, pending *meta.Takeover, why error) error {
	var missing *tier.MissingError
	var damaged *tier.CorruptError
	if !errors.As(why, &missing) && !errors.As(why, &damaged) {
		return why
	}
	if !pending.Accepted {
		return fault.New(fault.Unavailable,
			"%s: its log was lost with %s, and cannot be made again from objects: put the object back, and it is tried again; or go on behind it with `levee partition recover %s/%d --accept-loss`, without what it held: %w",
			p.ledger.where(), pending.From, p.ledger.topic.Full, p.ledger.partition, why)
	}
	e := p.exported()
	last := e.Objects[len(e.Objects)-1]
	p.cfg.logger().Error("a log is begun behind objects that cannot be read, as the operator accepted", "partition", p.ledger.where(), "offset", last.Next, "err", why)
	return l.Reset(ctx, last.NextSeq, last.Next, last.Generation)
}

// newest returns the objects that a log is begun with, each going on where the one before it ends.
func (p opening) newest() (list []meta.ExportedObject) {
	e := p.exported()
	size := int64(0)
	for at := e.Frontier() - 1; at >= 0 && len(list) < restoredObjects; {
		o, ok := e.At(at)
		if !ok || o.Base > at {
			break
		}
		size += o.SegmentBytes
		if n := len(list); n > 0 && (size > restoredBytes || o.NextSeq != list[n-1].BaseSeq) {
			break
		}
		list = append(list, o)
		at = o.Base - 1
	}
	slices.Reverse(list)
	return list
}

// restore appends an object's segment to the log, or begins the log with it.
func (p opening) restore(ctx context.Context, l *seglog.Log, o meta.ExportedObject) error {
	at := l.Bounds()
	g := gathering{log: l, put: l.AppendEntries}
	err := tier.ReadSegment(ctx, p.cfg.Tier.Store, (*exporting)(p.Partition).Place(), tier.Object(o), func(h segfmt.SegmentHeader) error {
		if at.Segments > 0 && at.NextSeq >= h.BaseSeq {
			return nil // it goes on there
		}
		return l.Reset(ctx, h.BaseSeq, h.BaseOffset, h.PrevGeneration) // what there is otherwise is older, and in objects
	}, func(f *segfmt.Frame, b []byte) error { return g.add(ctx, f, b) })
	if err == nil {
		err = g.flush(ctx)
	}
	if err != nil {
		return err
	}
	// What comes next begins a segment: objects follow each other frame by frame, and this one is there as it is.
	_, err = l.SealOlder(ctx, math.MinInt64)
	return err
}

// gathering appends frames that a log had before, many at a time. Those that it has already are left out.
type gathering struct {
	log     *seglog.Log
	owned   bool // what add gets stays as it is
	put     func(context.Context, []seglog.Entry) error
	entries []seglog.Entry
	bytes   int
}

// gatheredBytes is what a log takes with one write.
const gatheredBytes = 1 << 20

// add takes a frame that was checked; b need not stay as it is, unless it is owned.
func (g *gathering) add(ctx context.Context, f *segfmt.Frame, b []byte) error {
	if len(g.entries) == 0 && f.Seq < g.log.Bounds().NextSeq {
		return nil
	}
	batch := b[segfmt.FrameHeaderSize:]
	if !g.owned {
		batch = slices.Clone(batch)
	}
	if g.bytes+len(b) > gatheredBytes {
		if err := g.flush(ctx); err != nil {
			return err
		}
	}
	g.entries = append(g.entries, seglog.Entry{Seq: f.Seq, Generation: uint32(f.Batch.Generation), Kind: f.Kind, Batch: batch}) //nolint:gosec // checked
	g.bytes += len(b)
	return nil
}

func (g *gathering) flush(ctx context.Context) error {
	if len(g.entries) == 0 {
		return nil
	}
	err := g.put(ctx, g.entries)
	clear(g.entries)
	g.entries, g.bytes = g.entries[:0], 0
	return err
}

// replay appends what the buffer has behind the log's end. It is on the device when it returns, whatever it returns.
func (p opening) replay(ctx context.Context, l *seglog.Log, b *beyond) error {
	from := l.Bounds().NextSeq
	if b.before.Last < from {
		return nil
	}
	if at := l.Bounds(); at.Segments == 0 && from < b.before.Floor && p.exported() == nil {
		from = b.before.Floor // what came before was removed by the topic's retention, or is not kept
	}
	return l.Lazily(ctx, func() error { return p.replayFrom(ctx, l, b, from) }) // the buffer has it still if this is cut short
}

func (p opening) replayFrom(ctx context.Context, l *seglog.Log, b *beyond, from uint64) error {
	g := gathering{log: l, put: l.PutEntries, owned: true}
	first := l.Bounds().Segments == 0
	defer func() {
		if next := l.Bounds().NextSeq; next > from {
			p.cfg.Buffer.Metrics.gave(next - from)
		}
	}()
	err := pages(ctx, b.buffer, from, func(entries []writebuf.Entry) error {
		for _, e := range entries {
			f, err := segfmt.ParseFrame(e.Frame)
			if err == nil && f.Size() != len(e.Frame) {
				err = segfmt.ErrShort
			}
			if err == nil {
				err = segfmt.CheckFrame(&f, e.Frame)
			}
			if err == nil && f.Seq != e.Seq {
				err = fmt.Errorf("it says that it is frame %d", f.Seq)
			}
			if err != nil {
				return fault.New(fault.Corrupt, "%s: frame %d in the write buffer is not what was written: %w", p.ledger.where(), e.Seq, err)
			}
			if first && from > 1 {
				base := f.Batch.BaseOffset
				if f.Kind == segfmt.KindLost {
					if base, _, err = segfmt.ParseLost(e.Frame[segfmt.FrameHeaderSize:]); err != nil {
						return err
					}
				}
				if err := l.Reset(ctx, f.Seq, base, uint32(f.Batch.Generation)); err != nil { //nolint:gosec // checked
					return err
				}
			}
			first = false
			if err := g.add(ctx, &f, e.Frame); err != nil {
				return err
			}
		}
		return nil
	})
	if err2 := g.flush(ctx); err2 != nil {
		return err2
	}
	return err
}

// A page of the write buffer is as large as the time for an answer allows over a slow network; once one came quickly, the next
// is larger: each costs a trip.
const (
	pageBytes, largePageBytes = 1 << 20, 4 << 20
	quickPage                 = 50 * time.Millisecond
)

// pages reads the buffer from a seq to its end. The next page is on its way while take has one.
func pages(ctx context.Context, buffer writebuf.Buffer, from uint64, take func([]writebuf.Entry) error) error {
	ahead := make(chan []writebuf.Entry, 2)
	g := task.NewGroup(ctx)
	g.Go("read the write buffer", func(ctx context.Context) error {
		defer close(ahead)
		size := pageBytes
		for {
			start := time.Now()
			entries, err := buffer.Read(ctx, from, writebuf.Limit{Bytes: size})
			if err != nil || len(entries) == 0 {
				return err
			}
			size = pageBytes
			if time.Since(start) < quickPage {
				size = largePageBytes
			}
			from = entries[len(entries)-1].Seq + 1
			select {
			case ahead <- entries:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	var failed error
	for entries := range ahead {
		if failed == nil {
			if failed = take(entries); failed != nil {
				g.Stop()
			}
		}
	}
	err := g.Wait()
	if failed != nil {
		return failed
	}
	return err
}

// catchUp appends what the buffer has and a log that survived has not: the end of one that acknowledges before its flush may
// be lost in a crash of the machine. It reports whether everything acknowledged or delivered is in the log now.
func (p opening) catchUp(ctx context.Context, l *seglog.Log, b *beyond) (bool, error) {
	at := l.Bounds()
	if at.Segments == 0 && p.exported().Frontier() > 0 {
		if !b.whole() {
			return false, fault.New(fault.Corrupt, "%s: its log is gone, and objects hold offsets below %d of it: put the directory %s back, or have a broker with an empty data directory make all logs again",
				p.ledger.where(), p.exported().Frontier(), p.logConfig().Dir)
		}
		if err := p.restoreNewest(ctx, l); err != nil {
			return false, err
		}
		at = l.Bounds()
	}
	if !b.sound() {
		return false, nil
	}
	if b.before.Last < at.NextSeq {
		// One that lacks what the log has may lack what the log lost, too: power that fails may take the end of both.
		return b.whole() && max(b.before.Last+1, b.stored) >= at.NextSeq, nil
	}
	if at.NextSeq < b.before.Floor && at.Segments > 0 {
		return false, nil
	}
	if last := at.NextSeq - 1; at.Segments > 0 && last >= at.FirstSeq && last >= b.before.Floor {
		same, err := p.alike(ctx, l, b, last)
		if err != nil || !same {
			return false, err
		}
	} else if !b.whole() && at.NextSeq > 1 {
		return false, nil // nothing tells whether what is there goes on where the log ends
	}
	if err := p.replay(ctx, l, b); err != nil {
		var hole *writebuf.MissingError
		if errors.As(err, &hole) {
			return false, nil
		}
		return false, err
	}
	p.cfg.logger().Warn("the write buffer had what this log had lost", "partition", p.ledger.where(), "from", at.End, "below", l.Bounds().End)
	return b.whole(), nil
}

// alike reports whether the buffer and the log have the same batch under a seq.
func (p opening) alike(ctx context.Context, l *seglog.Log, b *beyond, seq uint64) (bool, error) {
	has, err := b.buffer.Read(ctx, seq, writebuf.Limit{Entries: 1})
	if err != nil || len(has) == 0 {
		return false, err
	}
	mine, err := l.ReadFrames(seq, 1)
	if err != nil || len(mine) == 0 {
		return false, err
	}
	f, err := segfmt.ParseFrame(has[0].Frame)
	if err != nil {
		return false, fault.New(fault.Corrupt, "%s: frame %d in the write buffer is not what was written: %w", p.ledger.where(), seq, err)
	}
	same := segfmt.SameFrame(has[0].Frame, mine[0].Bytes)
	if !same {
		p.cfg.logger().Error("the log and the write buffer have different records in one place: the log's count", "partition", p.ledger.where(), "seq", seq, "offset", f.Batch.BaseOffset)
	}
	return same, nil
}

// leaveBuffer notes that a write buffer of earlier runs lacks what comes now: it may come back, as whole as it was then.
func (p opening) leaveBuffer(ctx context.Context) error {
	if c := p.custody(); !p.cfg.Unbuffered || c != nil && c.Uncovered != nil {
		return nil
	}
	entry, err := p.ledger.read()
	if err != nil {
		return err
	}
	return p.ledger.setUncovered(ctx, entry.Generation, p.exported().Frontier())
}

// join starts the copying to the write buffer, where there is one.
func (p opening) join(ctx context.Context, l *seglog.Log, found *beyond) error {
	if found.buffer == nil {
		return p.leaveBuffer(ctx)
	}
	entry, err := p.ledger.read()
	if err != nil {
		return err
	}
	from := l.Bounds().End // where the buffer has not everything, what is there was delivered without it or before it lost that
	if b := l.Bounds(); found.whole() && found.pending() == nil && found.before.Last+1 < b.NextSeq {
		from = b.First
		if last := found.before.Last; last >= b.FirstSeq {
			frames, err := l.ReadFrames(last, 1)
			if err != nil {
				return err
			}
			from = frames[0].Next
		}
	}
	c, err := p.startCover(l, entry.Generation, from, found.uncovered() || found.away, found.away)
	if err == nil {
		p.cover.Store(c)
	}
	return err
}
