package seglog

import (
	"path"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// laterMark has the durable mark written within a second: often enough to tell damage from an unfinished write, seldom
// enough to cost nothing.
func (l *Log) laterMark() { l.later("mark", markInterval, l.writeMark) }

// writeMark writes and flushes what is known to be on the device.
func (l *Log) writeMark() error {
	l.marking.Take(nil)
	defer l.marking.Give()
	d := l.durable.Load() // inside the turn: a truncation that lowers the mark holds it meanwhile
	if d.seq == 0 || d.seq <= l.mark.Seq {
		return nil
	}
	return l.putMark(segfmt.Mark{Seq: d.seq, Offset: d.offset, File: d.file, Position: d.pos})
}

// putMark writes m into the slot whose turn it is. The caller holds the marking turn. A failure here is no failure of
// the log: the mark claims less than it could, and says nothing wrong. But a write that failed may be in the file all
// the same, so l.mark stays the most that the file may claim.
func (l *Log) putMark(m segfmt.Mark) error {
	m.Counter = l.mark.Counter + 1
	err := putMark(l.cfg.FS, l.cfg.Dir, m)
	if err == nil {
		l.mark = m
	} else if above(m, l.mark) {
		m.Counter-- // the slot is still this one's: the other holds the last mark that is known to be whole
		l.mark = m
	}
	return err
}

// above reports whether a claims more than b: a later frame, or the same one in a later file.
func above(a, b segfmt.Mark) bool { return a.Seq > b.Seq || a.Seq == b.Seq && a.File > b.File }

func putMark(fs vfs.FS, dir string, m segfmt.Mark) error {
	name := path.Join(dir, segfmt.MarkName)
	there, err := vfs.Exists(fs, name)
	if err != nil {
		return err
	}
	f, err := fs.Open(name, true)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(m.Append(nil), int64(m.Counter%2)*segfmt.MarkStride); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if !there {
		return fs.SyncDir(dir)
	}
	return nil
}

// lowerMark makes the mark claim no more than m, on the device, before frames behind m are removed.
func (l *Log) lowerMark(m segfmt.Mark) error {
	l.marking.Take(nil)
	defer l.marking.Give()
	d := *l.durable.Load()
	if d.seq > m.Seq { // so that a mark written by the timer cannot rise above it meanwhile
		l.durable.Store(&position{m.Seq, m.Offset, m.File, m.Position, d.records})
	}
	if !above(l.mark, m) {
		return nil
	}
	if err := l.putMark(m); err != nil {
		return l.refuse("lower the mark in", l.cfg.Dir, err)
	}
	return nil
}
