package seglog

import (
	"context"
	"time"
)

// holdDirty holds the active file open while it has writes that are not on the device.
func (l *Log) holdDirty(h *handle) {
	if l.tail.dirty == nil {
		l.cfg.Files.retain(h)
		l.tail.dirty = h
	}
}

// settleDirty lets the active file go once everything in it is on the device. Only the committer calls it.
func (l *Log) settleDirty() {
	if h := l.tail.dirty; h != nil && l.durable.Load().seq == l.tail.chain.seq-1 {
		l.tail.dirty = nil
		l.cfg.Files.release(h)
	}
}

// syncTo flushes h, after which everything before to is on the device. A failed flush stops the log: the kernel has
// already marked the pages clean, so a second flush would prove nothing.
func (l *Log) syncTo(h *handle, to position) error {
	l.syncing <- struct{}{}
	defer func() { <-l.syncing }()
	return l.syncHeld(h, to)
}

// syncHeld is syncTo for a caller that holds the syncing slot.
func (l *Log) syncHeld(h *handle, to position) error {
	if err := l.Err(); err != nil {
		return err
	}
	from := l.durable.Load()
	if from.seq >= to.seq {
		return nil
	}
	start := time.Now()
	if err := l.cfg.Files.flush(h); err != nil {
		l.cfg.Metrics.flushFailed()
		return l.stopAt(h.seg.path, "flush of %s failed: %w: what was not on the device before may be lost; restart the broker, which re-reads the device", h.seg.path, err)
	}
	l.cfg.Metrics.synced(time.Since(start), to.records-from.records)
	l.durable.Store(&to)
	l.share.add(0, 0, from.pos-to.pos) // both in one file: create starts the next one at its header
	l.laterMark()
	return nil
}

// flush makes everything written durable. Only the committer calls it.
func (l *Log) flush() error {
	if l.tail.dirty == nil {
		return nil
	}
	to := position{l.tail.chain.seq - 1, l.tail.chain.offset, l.tail.active.BaseOffset, l.tail.end, l.tail.records}
	if err := l.syncTo(l.tail.dirty, to); err != nil {
		return err
	}
	l.settleDirty()
	return nil
}

// Flush makes everything acknowledged so far durable, under any mode.
func (l *Log) Flush(ctx context.Context) error { return l.exclusive(ctx, l.flush) }

// laterFlush flushes after the interval of a periodic log. The flush itself runs beside appends, which need not wait
// for it; only its end goes through the queue.
func (l *Log) laterFlush() {
	if s := l.live.Load(); s.mode == Periodic {
		l.later("flush", s.fsyncInterval, l.flushBeside)
	}
}

func (l *Log) flushBeside() error {
	if err := l.syncView(); err != nil {
		return err
	}
	return l.exclusive(context.Background(), func() error { // the queue answers whatever it took, also when the log closes
		l.settleDirty()
		if l.tail.dirty != nil {
			l.laterFlush()
		} else {
			l.tail.buf = nil // nobody writes at present, and there may be very many such logs
		}
		return nil
	})
}

// syncView flushes what readers see at present. The view is taken inside the slot, which whoever removes frames holds.
func (l *Log) syncView() error {
	l.syncing <- struct{}{}
	defer func() { <-l.syncing }()
	v := l.view.Load()
	if len(v.segs) == 0 {
		return nil
	}
	seg := v.segs[len(v.segs)-1]
	h, err := l.cfg.Files.acquire(l.cfg.FS, seg, false)
	if err != nil {
		return err
	}
	defer l.cfg.Files.release(h)
	return l.syncHeld(h, position{v.nextSeq - 1, v.end, seg.BaseOffset, v.endPos, v.records})
}
