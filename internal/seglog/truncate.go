package seglog

import (
	"context"
	"path"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/segfmt"
)

// TruncateAfter removes every frame above seq, which must be at least FirstSeq-1. When it returns they are gone from
// the device. A crash meanwhile leaves a log that is longer than asked for, never one with a gap.
func (l *Log) TruncateAfter(ctx context.Context, seq uint64) error {
	return l.exclusive(ctx, func() error {
		v := l.view.Load()
		if seq+1 >= v.nextSeq {
			return nil
		}
		if seq+1 < v.firstSeq() {
			return fault.New(fault.OutOfRange, "%s/%d: cannot truncate after frame %d: the oldest is %d", l.cfg.Topic, l.cfg.Partition, seq, v.firstSeq())
		}
		i := max(v.segmentOfSeq(seq), 0)
		p, err := l.locate(v, i, indexTarget{seq: max(seq, 1)}, func(f *segfmt.Frame) bool { return f.Seq > seq })
		if err != nil {
			return err
		}
		if err := l.flush(); err != nil { // nothing unflushed may be left to fail later
			return err
		}
		l.syncing <- struct{}{} // no flush that saw the longer log may end meanwhile: it would claim what is gone
		defer func() { <-l.syncing }()
		if err := l.lowerMark(segfmt.Mark{Seq: seq, Offset: p.offset, File: p.seg.BaseOffset, Position: p.pos}); err != nil {
			return err
		}
		return l.orStop(func() error {
			if err := l.removeBehind(v, i, p.offset); err != nil {
				return err
			}
			l.cfg.Files.forget(p.seg)
			if err := truncateFile(l.cfg.FS, p.seg.path, p.pos); err != nil {
				return l.refuse("truncate", p.seg.path, err)
			}
			return l.reload()
		})
	})
}

// orStop carries out what may not be left half done: part of the log is gone from the device while readers still see
// it, so an error stops the log. The next open finds a longer log than was asked for, and no gap.
func (l *Log) orStop(cut func() error) error {
	err := cut()
	if err != nil {
		l.stop(fault.New(fault.Stopped, "%s/%d: removing the end of the log was cut short: %w: restart the broker, which re-reads the device", l.cfg.Topic, l.cfg.Partition, err))
	}
	return err
}

// Reset empties the log: its next frame has the ordinal seq and its next record the offset given. prevGeneration is
// what the frame before it would have carried.
func (l *Log) Reset(ctx context.Context, seq uint64, offset int64, prevGeneration uint32) error {
	if seq == 0 || offset < 0 {
		return fault.New(fault.InvalidArgument, "%s/%d: reset to frame %d, offset %d: frames count from 1, offsets from 0", l.cfg.Topic, l.cfg.Partition, seq, offset)
	}
	return l.exclusive(ctx, func() error {
		v := l.view.Load()
		if err := l.flush(); err != nil {
			return err
		}
		l.syncing <- struct{}{} // as in TruncateAfter
		defer func() { <-l.syncing }()
		if err := l.lowerMark(segfmt.Mark{}); err != nil {
			return err
		}
		return l.orStop(func() error {
			if err := l.removeBehind(v, -1, -1); err != nil {
				return err
			}
			l.view.Store(&view{epoch: v.epoch + 1})
			l.tail.active, l.tail.lastGen, l.tail.snapshot = nil, prevGeneration, offset
			l.tail.producers = newProducers(nil)
			l.tail.chain = chain{seq, offset, max(prevGeneration, l.cfg.Generation)}
			if err := l.create(l.tail.chain, nil); err != nil {
				return err
			}
			l.publish()
			return nil
		})
	})
}

// removeBehind removes the segments behind index i, newest first, and every producers' snapshot above offset, before
// them: a snapshot must never know of records that the log does not have.
func (l *Log) removeBehind(v *view, i int, offset int64) error {
	infos, err := l.cfg.FS.List(l.cfg.Dir)
	if err != nil {
		if len(v.segs) == 0 {
			return nil // nothing was ever written
		}
		return l.refuse("list", l.cfg.Dir, err)
	}
	for k := len(infos) - 1; k >= 0; k-- {
		if n, kind, ok := segfmt.ParseName(infos[k].Name); ok && kind == segfmt.ProducersPrefix && n > offset {
			if err := l.cfg.FS.Remove(path.Join(l.cfg.Dir, infos[k].Name)); err != nil {
				return l.refuse("remove", infos[k].Name, err)
			}
			if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
				return l.refuse("remove", infos[k].Name, err)
			}
		}
	}
	for k := len(v.segs) - 1; k > i; k-- {
		end, _, _ := v.limits(k)
		if err := l.unlink(v.segs[k]); err != nil {
			return err
		}
		l.share.add(-1, -end, 0)
	}
	return nil
}

// reload makes what is on disk the log's state, as opening it would.
func (l *Log) reload() error {
	p := MakePlan(l.cfg.FS, l.cfg.Dir, PlanOptions{Topic: l.cfg.Topic, TopicID: l.cfg.TopicID, Partition: l.cfg.Partition,
		Crash: CleanStop, IndexInterval: l.cfg.IndexInterval, NowMs: l.cfg.Now().UnixMilli()})
	err := p.Err
	if err == nil {
		_, err = p.apply(l.cfg.SalvageDir, l.cfg.log(), l.cfg.Metrics)
	}
	if err != nil {
		return err
	}
	generation := l.tail.chain.generation
	l.adopt(p)
	v := l.view.Load()
	l.share.set(int64(len(v.segs)), v.bytes(), 0)
	l.tail.chain.generation = max(generation, l.tail.chain.generation)
	return nil
}
