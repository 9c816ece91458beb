package seglog

import (
	"sync"

	"github.com/leveemq/levee/internal/segfmt"
)

// A flush into blocks that were never written has to commit the file system's journal, too; one into blocks that hold
// something waits for the device alone, and neighbours are hardly felt. So a busy log that flushes every group writes
// its file ahead of the tail, once for many groups. Large groups gain nothing by it: their bytes would be written twice.
type aheadRule struct {
	from        int64 // a file that ends before is not busy
	group       int   // bytes; larger groups are not worth it
	least, most int64 // bytes at once; between them, what aheadGroups groups take
	align       int64 // the end of what is written ahead is a multiple
}

// aheadGroups is how many groups pay for writing ahead together: so many that the one that waits for it is rare.
const aheadGroups = 128

var busyLog = aheadRule{from: 16 << 10, group: 32 << 10, least: 64 << 10, most: 4 << 20, align: 4 << 10}

// unwritten is as long as writing ahead may need it, from any position.
var unwritten = sync.OnceValue(func() []byte {
	b := make([]byte, busyLog.most+segfmt.UnwrittenPeriod)
	segfmt.FillUnwritten(b, 0)
	return b
})

// writeAhead writes unwritten space behind the tail, which a group of size bytes has just moved, if it is due. The flush
// that follows takes it along. It is a hint, like reserving: where it fails nothing is lost, and this file does without.
func (l *Log) writeAhead(h *handle, size int) {
	end, rule := l.tail.end, &l.cfg.ahead
	if end <= l.tail.ahead || end < rule.from || size > rule.group {
		return
	}
	to := min(end+min(max(aheadGroups*int64(size), rule.least), rule.most), l.segmentBytes()) / rule.align * rule.align
	if to <= end {
		return
	}
	l.tail.ahead = to
	if _, err := h.WriteAt(unwritten()[end%segfmt.UnwrittenPeriod:][:to-end], end); err != nil {
		l.cfg.log().Debug("could not write ahead; writes go on without", "file", h.seg.path, "error", err)
		l.tail.ahead = l.segmentBytes()
		return
	}
	l.tail.reserved = max(l.tail.reserved, to)
}

// cutAhead gives back what was reserved and written ahead. Where it fails, or a crash undoes it, the next open does so.
func (l *Log) cutAhead() {
	h, err := l.cfg.Files.acquire(l.cfg.FS, l.tail.active, false)
	if err == nil {
		err = h.Truncate(l.tail.end)
		l.cfg.Files.release(h)
	}
	if err != nil {
		l.cfg.log().Warn("could not give back reserved space", "file", l.tail.active.path, "error", err)
		return
	}
	l.tail.reserved, l.tail.ahead = l.tail.end, 0
}
