package seglog

import (
	"context"
	"errors"
	"math"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// Retain removes what the retention no longer keeps, oldest first, in whole sealed segments: the active one always
// stays. It also takes reserved disk space back from a log that nobody writes to. It returns how many bytes it removed.
func (l *Log) Retain(ctx context.Context) (int64, error) {
	var deleted int64
	err := l.exclusive(ctx, func() error {
		keep, copied := l.live.Load().retention, int64(math.MaxInt64)
		if l.cfg.Copied != nil {
			copied = l.cfg.Copied()
		}
		var err error
		deleted, err = l.trimWhile(func(v *view, total int64) bool {
			// A segment is as old as its successor's creation: nothing was written to it since.
			age := l.age(v.segs[1])
			return v.segs[0].next <= copied && (keep.Bytes > 0 && total > keep.Bytes || keep.Age > 0 && age > keep.Age)
		})
		l.cfg.Metrics.retained(deleted)
		l.giveBack()
		return err
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}

// TrimBefore removes whole sealed segments whose frames are all below seq.
func (l *Log) TrimBefore(ctx context.Context, seq uint64) error {
	return l.exclusive(ctx, func() error {
		_, err := l.trimWhile(func(v *view, _ int64) bool { return v.segs[0].nextSeq <= seq })
		return err
	})
}

// trimWhile removes the oldest segment while more says so and it is not the last. Each is gone, on the device too,
// before the next one goes, so a crash leaves a longer log and never a gap. What producers sent must be known without
// the segment: where no snapshot says so, the segment stays.
func (l *Log) trimWhile(more func(v *view, total int64) bool) (int64, error) {
	deleted := int64(0)
	for {
		if err := l.finishTrim(); err != nil {
			return deleted, err
		}
		v := *l.view.Load()
		if len(v.segs) < 2 || l.tail.snapshot < v.segs[1].BaseOffset || !more(&v, v.bytes()) {
			return deleted, nil
		}
		oldest := v.segs[0]
		v.segs = v.segs[1:]
		v.first = v.segs[0].BaseOffset
		l.view.Store(&v) // readers are told "trimmed" before the file is gone
		l.notify()
		l.tail.leaving = oldest
		deleted += oldest.end
	}
}

// finishTrim removes the segment that readers do not see any more. One that cannot be removed is tried again before
// the next one goes.
func (l *Log) finishTrim() error {
	s := l.tail.leaving
	if s == nil {
		return nil
	}
	if err := l.unlink(s); err != nil {
		return err
	}
	l.tail.leaving = nil
	l.share.add(-1, -s.end, 0)
	return nil
}

// unlink removes a segment's files: the log first, so that what a crash leaves are indexes without one, which the next
// open removes. If the device does not take the removal the log stops: nobody knows any more what a crash would leave.
func (l *Log) unlink(s *segment) error {
	l.cfg.Files.forget(s)
	if err := l.cfg.FS.Remove(s.path); err != nil && !errors.Is(err, vfs.ErrNotExist) {
		return ioError(l.cfg.Topic, l.cfg.Partition, "remove", s.path, err)
	}
	if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
		return l.stopAt(s.path, "removing %s: %w: restart the broker, which re-reads the device", s.path, err)
	}
	for _, suffix := range []string{segfmt.IndexSuffix, segfmt.TimeIndexSuffix} {
		if err := l.cfg.FS.Remove(s.sibling(suffix)); err != nil && !errors.Is(err, vfs.ErrNotExist) {
			l.cfg.log().Warn("could not remove an index; the next open does", "file", s.sibling(suffix), "error", err)
		}
	}
	return nil
}

// giveBack lets go of what a log holds for writes if nothing was appended since the last call: disk space reserved
// beyond 1 MiB or written ahead, and, under no fsync mode flushing by itself, the file that is held open until it is flushed.
func (l *Log) giveBack() {
	idle := l.tail.idleSince == l.tail.end
	l.tail.idleSince = l.tail.end
	if idle && l.flush() != nil { // a flush that fails has stopped the log
		return
	}
	if idle && l.tail.active != nil && (l.tail.ahead > l.tail.end || l.tail.reserved > max(l.tail.end, 1<<20)) {
		l.cutAhead()
	}
}
