package seglog

import (
	"context"
	"errors"
	"path"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// roll seals the active segment and starts the next one. On an error the active segment stays as it is. Order matters:
// the old file is on the device before the new one exists, so that damage in a segment with a successor is never an
// unfinished write.
func (l *Log) roll() error {
	old, end := l.tail.active, l.tail.end
	h, err := l.cfg.Files.acquire(l.cfg.FS, old, false)
	if err != nil {
		return l.refuse("open", old.path, err)
	}
	defer l.cfg.Files.release(h)
	to := position{l.tail.chain.seq - 1, l.tail.chain.offset, old.BaseOffset, end, l.tail.records}
	if err := l.syncTo(h, to); err != nil {
		return err
	}
	l.settleDirty()
	sealed := l.seal(old)
	if err := l.create(l.tail.chain, sealed); err != nil {
		return err
	}
	l.snapshotProducers()
	return nil
}

// create makes the segment file that starts at c and makes it the active one; sealed, when not nil, takes the place of
// the one that was. The file exists on the device, header and name, before anything is written behind the header.
func (l *Log) create(c chain, sealed *segment) error {
	if err := l.mkdir(); err != nil {
		return l.refuse("make", l.cfg.Dir, err)
	}
	header := segfmt.SegmentHeader{BaseOffset: c.offset, BaseSeq: c.seq, PrevGeneration: l.tail.lastGen, CreatedMs: l.cfg.Now().UnixMilli(),
		TopicID: l.cfg.TopicID, Partition: uint32(l.cfg.Partition)}
	seg := newSegment(header, path.Join(l.cfg.Dir, segfmt.FileName(c.offset, segfmt.LogSuffix)))
	h, err := l.cfg.Files.acquire(l.cfg.FS, seg, true)
	if err != nil {
		return l.refuse("create", seg.path, err)
	}
	defer l.cfg.Files.release(h)
	_, err = h.WriteAt(header.Append(nil), 0)
	if err == nil {
		err = h.Sync()
	}
	if err == nil {
		err = l.cfg.FS.SyncDir(l.cfg.Dir)
	}
	if err != nil {
		return l.takeBack(seg, err)
	}
	l.tail.active, l.tail.end, l.tail.reserved, l.tail.ahead = seg, segfmt.SegmentHeaderSize, 0, 0
	l.tail.index = segfmt.NewIndexBuilder(l.cfg.IndexInterval)
	l.durable.Store(&position{c.seq - 1, c.offset, c.offset, segfmt.SegmentHeaderSize, l.tail.records})
	v := *l.view.Load()
	v.segs = append([]*segment(nil), v.segs...)
	if sealed != nil {
		v.segs[len(v.segs)-1] = sealed
	}
	v.segs = append(v.segs, seg)
	v.endPos, v.index, v.times, v.maxTim = l.tail.end, nil, nil, segfmt.NoTime
	if len(v.segs) == 1 {
		v.first = c.offset
	}
	l.view.Store(&v)
	l.share.add(1, segfmt.SegmentHeaderSize, 0)
	return nil
}

// mkdir makes the log's directory, durably.
func (l *Log) mkdir() error {
	if l.cfg.MakeDir != nil && l.tail.active == nil {
		return l.cfg.MakeDir(l.cfg.Dir)
	}
	return vfs.MkdirSync(l.cfg.FS, l.cfg.Dir)
}

// takeBack removes a segment that could not be made. Nothing was promised about it; but if its name came back after the
// segment before it had gone on, it would stand in the middle of the log. So where it may not be gone, the log stops.
func (l *Log) takeBack(seg *segment, cause error) error {
	l.cfg.Files.forget(seg)
	err := l.cfg.FS.Remove(seg.path)
	if err == nil || errors.Is(err, vfs.ErrNotExist) {
		err = l.cfg.FS.SyncDir(l.cfg.Dir)
	}
	if err == nil || l.tail.active == nil { // the first segment's name is the next attempt's, too
		return l.refuse("create", seg.path, cause)
	}
	return l.stopAt(seg.path, "%s: creating it failed (%v) and so did removing it: %w: restart the broker, which re-reads the device", seg.path, cause, err)
}

// seal returns what the active segment will be once it has a successor: the reserved space behind its end goes back,
// and its indexes are written. Neither can lose anything, so neither can fail the append that caused it.
func (l *Log) seal(old *segment) *segment {
	l.cutAhead()
	index, times := l.tail.index.Files(old.SegmentHeader, l.tail.chain.offset)
	writeIndex := func(suffix string, b []byte) {
		if err := writeWhole(l.cfg.FS, old.sibling(suffix), b); err != nil {
			l.cfg.log().Warn("could not write an index; it is made again when the log is opened", "file", old.sibling(suffix), "error", err)
		}
	}
	writeIndex(segfmt.IndexSuffix, index)
	writeIndex(segfmt.TimeIndexSuffix, times)
	sealed := *old
	sealed.sealed, sealed.end, sealed.next, sealed.nextSeq = true, l.tail.end, l.tail.chain.offset, l.tail.chain.seq
	sealed.lastGen, sealed.maxTime, sealed.headCRC = l.tail.lastGen, l.tail.index.MaxTime, l.tail.index.HeadCRC
	return &sealed
}

// writeWhole writes a file that nobody trusts, so it need not reach the device in order.
func writeWhole(fs vfs.FS, name string, b []byte) error {
	f, err := fs.Open(name, true)
	if err != nil {
		return err
	}
	err = f.Truncate(0)
	if err == nil && len(b) > 0 {
		_, err = f.WriteAt(b, 0)
	}
	return errors.Join(err, f.Close())
}

// snapshotProducers writes the producers' state as of the end of the sealed segments and removes all but the newest
// two snapshots. A failure costs a longer recovery, never the append.
func (l *Log) snapshotProducers() {
	offset := l.tail.active.BaseOffset
	l.tail.producers.expire(l.cfg.Now().Add(-l.cfg.ProducerExpiry).UnixMilli())
	name := path.Join(l.cfg.Dir, segfmt.ProducersName(offset))
	first := l.view.Load().first
	if l.cfg.Copied != nil { // what retention removed is kept elsewhere
		first = 0
	}
	if err := vfs.WriteFileAtomic(l.cfg.FS, name, l.tail.producers.snapshot(offset, first).Append(nil)); err != nil {
		l.cfg.log().Warn("could not write the producers' snapshot; retention waits for the next one", "file", name, "error", err)
		return
	}
	l.tail.snapshot = offset
	infos, err := l.cfg.FS.List(l.cfg.Dir)
	if err != nil {
		return
	}
	var old []string
	for _, info := range infos {
		if n, kind, ok := segfmt.ParseName(info.Name); ok && kind == segfmt.ProducersPrefix && n != offset {
			old = append(old, info.Name)
		}
	}
	for len(old) > 1 {
		if err := l.cfg.FS.Remove(path.Join(l.cfg.Dir, old[0])); err != nil {
			l.cfg.log().Warn("could not remove an old producers' snapshot", "file", old[0], "error", err)
		}
		old = old[1:]
	}
}

// unreserved is how long a segment file gets before space is reserved for it. One block of the file system holds as much
// anyhow, and most logs of a broker with very many have no more in them.
const unreserved = 4 << 10

// reserve asks for disk space ahead of the writes, off the append path: little at first, then doubling up to a segment.
// It is a hint: failing to reserve is logged and harmless.
func (l *Log) reserve(h *handle) {
	if l.tail.end <= max(l.tail.reserved, unreserved) {
		return
	}
	target := int64(64 << 10)
	switch {
	case l.tail.end > 1<<20:
		target = 2 * l.tail.end
	case l.tail.end > target:
		target = 1 << 20
	}
	target = min(target, l.segmentBytes())
	if target <= l.tail.end {
		l.tail.reserved = l.tail.end
		return
	}
	l.tail.reserved = target
	from := l.tail.end
	l.cfg.Files.retain(h)
	started := l.tasks.Go("reserve", func(context.Context) error {
		defer l.cfg.Files.release(h)
		if err := h.Reserve(from, target-from); err != nil {
			l.cfg.log().Debug("could not reserve disk space; writes go on without", "file", h.seg.path, "error", err)
		}
		return nil
	})
	if !started {
		l.cfg.Files.release(h)
	}
}
