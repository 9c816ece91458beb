package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/vfs"
	"github.com/leveemq/levee/internal/writebuf"
)

// Former is what a lost broker left of a partition: its log, and what its own metadata knew of it.
type Former struct {
	FS         vfs.FS       // nothing in it is changed
	Directory  string       // the data directory, as the operator named it
	Log        string       // the log's directory in it
	Crash      seglog.Crash // how that broker's run ended
	Generation uint32       // the partition's, there
	Reserved   int64        // offsets below it may have been given out
	Release    func() error // called once nothing is read any more; nil: nothing is to be done

	err  error         // why it could not be used; may be read once done is closed
	done chan struct{} // closed once the attempt to open that uses it has ended with it
}

// Return makes p's log again, which waits for a lost broker, from what the tiers hold and what that broker left above it. Where
// that is not what the partition waits for, it goes on waiting, and the error says why. ctx bounds the wait alone. What an
// attempt that did not get to its end has appended, the next one goes on with.
func (f Former) Return(ctx context.Context, p *Partition) error {
	f.done = make(chan struct{})
	p.mu.Lock()
	if p.mu.former != nil {
		p.mu.Unlock()
		return errors.Join(fault.New(fault.Conflict, "%s is being made again from %s already: wait for that", p.ledger.where(), p.mu.former.Directory), f.release())
	}
	p.mu.former = &f
	p.mu.Unlock()
	err := p.Unload(ctx) // the attempt that follows takes it
	if err == nil {
		err = p.Ready(ctx)
	}
	p.mu.Lock()
	unused := p.mu.former == &f
	if unused {
		p.mu.former = nil
	}
	p.mu.Unlock()
	if unused {
		return errors.Join(err, f.release())
	}
	select {
	case <-f.done:
		if f.err != nil {
			return f.err
		}
	default: // it goes on
	}
	return err
}

func (f *Former) release() error {
	if f.Release == nil {
		return nil
	}
	return f.Release()
}

// end says what came of it. Nothing is read from now on.
func (f *Former) end(err error) {
	f.err = errors.Join(err, f.release())
	close(f.done)
}

// former takes what a lost broker left, for the attempt to open that is under way; nil where nobody brought it.
func (p opening) former() *Former {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.mu.former
	p.mu.former = nil
	return f
}

// comeBack appends what f has behind the log's end, and what the write buffer has behind that, and notes that in the report. It
// returns the offsets that nobody may have any more, nil where that is nothing.
//
// The order matters: everything of f is checked before anything is appended.
func (p opening) comeBack(ctx context.Context, l *seglog.Log, b *beyond, f *Former, report *meta.TakeoverReport) (lost *seglog.Range, err error) {
	c := p.logConfig()
	plan := seglog.MakePlan(f.FS, f.Log, seglog.PlanOptions{
		Topic: c.Topic, TopicID: c.TopicID, Partition: c.Partition, Crash: f.Crash, VerifyAll: true, IndexInterval: c.IndexInterval, NowMs: p.cfg.now().UnixMilli(),
	})
	if plan.Err != nil {
		return nil, fault.New(fault.KindOf(plan.Err), "the log in %s cannot be used: %w", f.Log, plan.Err)
	}
	at := l.Bounds()
	there, err := p.belongs(f, plan, b.pending(), at)
	if err == nil && there {
		err = p.appendFormer(ctx, l, f, plan)
	}
	if err != nil {
		return nil, err
	}
	from := at.End
	if b.buffer == nil { // then an attempt that did not get to its end had what is there from f, too
		from = report.Objects
	}
	if from, end := max(from, report.Objects, plan.First), l.Bounds().End; from < end {
		report.Returned = &meta.OffsetRange{From: from, To: end - 1}
	}
	report.Directory = f.Directory
	if err := p.appendBeyond(ctx, l, b); err != nil {
		return nil, err
	}
	lost = p.lostBefore(l, f, plan)
	if last := b.before.Last; b.buffer != nil && !b.away && lost == nil && last >= l.Bounds().NextSeq {
		return nil, fault.New(fault.Conflict, "%s is not what %s waits for: its log ends before frame %d, and the write buffer has up to frame %d, but not all between: it is of an earlier time", f.Directory, p.ledger.where(), l.Bounds().NextSeq, last)
	}
	return lost, nil
}

// appendFormer appends what f has behind the log's end.
func (p opening) appendFormer(ctx context.Context, l *seglog.Log, f *Former, plan *seglog.Plan) error {
	if err := p.compare(l, f, plan); err != nil {
		return err
	}
	if l.Bounds().Segments == 0 && plan.FirstSeq > 1 { // what came before was removed by the topic's retention
		if err := l.Reset(ctx, plan.FirstSeq, plan.First, plan.PrevGeneration()); err != nil {
			return err
		}
	}
	g := gathering{log: l, put: l.AppendEntries}
	err := plan.Frames(l.Bounds().NextSeq, func(fr *segfmt.Frame, frame []byte) error {
		return errors.Join(ctx.Err(), g.add(ctx, fr, frame))
	})
	if err != nil {
		return err
	}
	return g.flush(ctx)
}

// belongs refuses a log that is not the one that the partition waits for, or does not go on where this one ends, which is at
// at. there is false where that log never had anything.
func (p opening) belongs(f *Former, plan *seglog.Plan, pending *meta.Takeover, at seglog.Bounds) (there bool, err error) {
	refuse := func(format string, args ...any) (bool, error) {
		return false, fault.New(fault.Conflict, "%s is not what %s waits for: "+format, append([]any{f.Directory, p.ledger.where()}, args...)...)
	}
	frontier := p.exported().Frontier()
	switch {
	case f.Generation != pending.Generation:
		return refuse("there, the partition is at generation %d, and %s had it at %d", f.Generation, pending.From, pending.Generation)
	case plan.Generation > pending.Generation:
		return refuse("its log is at generation %d, above %d, which %s had", plan.Generation, pending.Generation, pending.From)
	case plan.NextSeq <= 1:
		if frontier > 0 || at.NextSeq > 1 || f.Reserved != 0 && f.Reserved != FirstReservation {
			return refuse("it has no log in %s, and there was one: the copy is not whole", f.Log)
		}
		return false, nil
	case plan.Next < frontier:
		return refuse("its log ends at offset %d, and objects have what is below %d: it is of an earlier time", plan.Next, frontier)
	case at.Segments == 0:
		if p.exported() != nil && plan.First > frontier {
			return refuse("its log begins at offset %d, and objects end at %d: what is between them is in neither", plan.First, frontier)
		}
	case plan.FirstSeq > at.NextSeq || plan.FirstSeq == at.NextSeq && (plan.First != at.End || plan.PrevGeneration() != at.Generation):
		return refuse("its log begins at offset %d, frame %d, and does not go on where what is here ends, before offset %d, frame %d", plan.First, plan.FirstSeq, at.End, at.NextSeq)
	case plan.NextSeq == at.NextSeq && plan.Next != at.End:
		return refuse("its log ends before offset %d, frame %d, and what is here at the same frame before offset %d", plan.Next, plan.NextSeq, at.End)
	}
	v := p.cfg.Meta.View()
	for s := range v.Subscriptions(p.ledger.topic.ID) {
		if c, ok := v.Cursor(p.ledger.topic.ID, s.Name, p.ledger.partition); ok && c.Position > max(plan.Next, f.Reserved, at.End) {
			return refuse("its log ends at offset %d, and subscription %s had read up to %d: it is of an earlier time", plan.Next, s.Name, c.Position)
		}
	}
	return true, nil
}

// compare refuses a log that has, where this one has something, anything else.
func (p opening) compare(l *seglog.Log, f *Former, plan *seglog.Plan) error {
	at := l.Bounds()
	var mine []seglog.Frame
	return plan.Frames(max(at.FirstSeq, plan.FirstSeq), func(fr *segfmt.Frame, frame []byte) (err error) {
		if fr.Seq >= at.NextSeq {
			return nil
		}
		if len(mine) == 0 {
			if mine, err = l.ReadFrames(fr.Seq, gatheredBytes); err != nil {
				return err
			}
		}
		if len(mine) == 0 || mine[0].Seq != fr.Seq || !segfmt.SameFrame(mine[0].Bytes, frame) {
			return fault.New(fault.Conflict, "%s is not what %s waits for: at offset %d, frame %d, it has other records than objects or the write buffer: one of them is from another time", f.Directory, p.ledger.where(), fr.Batch.BaseOffset, fr.Seq)
		}
		mine = mine[1:]
		return nil
	})
}

// appendBeyond appends what the write buffer has behind the end of what came back: a log that acknowledges before its flush
// may have lost that in a crash of its machine.
func (p opening) appendBeyond(ctx context.Context, l *seglog.Log, b *beyond) error {
	next := l.Bounds().NextSeq
	if b.buffer == nil || b.away || b.before.Last < next-1 {
		return nil
	}
	if last := next - 1; last >= max(l.Bounds().FirstSeq, b.before.Floor) && l.Bounds().Segments > 0 {
		switch same, err := p.alike(ctx, l, b, last); {
		case errors.Is(err, writebuf.ErrMissing):
			return nil // what is behind a hole does not follow, and lostBefore tells whether that counts
		case err != nil:
			return err
		case !same:
			return fault.New(fault.Conflict, "%s: frame %d in the write buffer is another one than that before offset %d in the directory that came back: one of them is from another time", p.ledger.where(), last, l.Bounds().End)
		}
	}
	var trimmed *writebuf.TrimmedError
	if err := p.replay(ctx, l, b); err != nil && !errors.Is(err, writebuf.ErrMissing) && !errors.As(err, &trimmed) {
		return err
	}
	return nil
}

// lostBefore returns the offsets that the lost broker would itself have declared lost, had it started again: those that it may
// have given out and its log has not, because it acknowledged before its flush and its machine crashed, or because an earlier
// crash of that kind was found and its generation not begun yet.
func (p opening) lostBefore(l *seglog.Log, f *Former, plan *seglog.Plan) *seglog.Range {
	p.mu.Lock()
	s := p.mu.settings
	p.mu.Unlock()
	end := l.Bounds().End
	volatile := s.Mode != seglog.OnCommit || !s.ModeChosen
	behind := plan.NextSeq > 1 && plan.Generation < f.Generation
	if !(f.Crash == seglog.MachineCrash && volatile || behind) || f.Reserved <= end || plan.NextSeq <= 1 && f.Reserved == FirstReservation {
		return nil
	}
	return &seglog.Range{From: end, To: f.Reserved - 1}
}

// waitsForFormer is why a partition is not served whose tiers may lack what was acknowledged below end.
func (p opening) waitsForFormer(pending *meta.Takeover, end int64) error {
	name := fmt.Sprintf("%s/%d", p.ledger.topic.Full, p.ledger.partition)
	return fault.New(fault.Unavailable,
		"%s: waiting for %s, which was lost with its directory: the tiers hold what is below offset %d, and may lack what it acknowledged above; if there still is that directory, go on with it: `levee partition recover %s --from DIR`; go on without with `levee partition recover %s --accept-loss`",
		p.ledger.where(), pending.From, end, name, name).With("offset", end)
}
