package seglog

import (
	"bytes"
	"fmt"
	"path"

	"github.com/leveemq/levee/internal/segfmt"
	"github.com/leveemq/levee/internal/vfs"
)

// maxTail bounds what judgeTail reads into memory: a segment of 2 GiB, the largest there is, and one frame. A size that
// rotted in the file system must not cost more than its own log.
const maxTail = 2<<30 + segfmt.MaxFrame

// judgeTail decides about bytes that are no frame at the end of the log: an append that never finished is cut, and kept
// aside unless it is zeros; anything that was on the device, or may have been, is refused.
func (p *Plan) judgeTail(s *segment, f vfs.File, size int64, bad *badFrame, c *chain, claimed bool) error {
	if size-bad.position > maxTail {
		return p.corrupt(s.path, bad.position, c.offset, fmt.Sprintf("%v; and %d bytes follow, more than a segment can hold", bad.cause, size-bad.position))
	}
	tail, err := vfs.ReadPartOf(f, bad.position, size-bad.position)
	if err != nil {
		return p.ioError("read", s.path, err)
	}
	written := segfmt.Written(tail, bad.position)
	if written == 0 && !claimed {
		p.giveBack(s.path, bad.position, int64(len(tail)))
		return nil
	}
	refuse := ""
	switch {
	case claimed:
		refuse = fmt.Sprintf("the durable mark says that frame %d was on the device", p.mark.Seq)
	case p.o.Crash != MachineCrash && !bad.short && !segfmt.StopsShort(tail, bad.position, written, c.seq):
		refuse = "only the process died, or it stopped cleanly, so this cannot be a write that was cut off"
	default:
		if at := segfmt.ProvedDurable(tail, segfmt.BodyEnd(tail, c.seq), c.seq); at >= 0 {
			refuse = fmt.Sprintf("a later frame, at byte %d, proves that it was on the device", bad.position+int64(at))
		}
	}
	if refuse != "" && !p.o.RepairChecksumTail {
		return p.corrupt(s.path, bad.position, c.offset, fmt.Sprintf("%v; %s (storage.repair_checksum_tail cuts it, at the cost of what it held)", bad.cause, refuse))
	}
	reason := "an append that was cut off by the crash"
	if refuse != "" {
		reason = "repair_checksum_tail: " + refuse
	}
	tail = tail[:written]
	if len(bytes.Trim(tail, "\x00")) > 0 {
		p.repair(Repair{Op: "salvage", Path: s.path, Position: bad.position, Bytes: int64(len(tail)), Reason: reason})
	}
	if refuse != "" {
		p.ClaimedEnd = segfmt.GivenOut(tail, c.seq, c.offset)
	}
	if claimed {
		p.ClaimedEnd = max(p.ClaimedEnd, p.mark.Offset)
		p.mark = segfmt.Mark{Counter: p.mark.Counter + 1, Seq: c.seq - 1, Offset: c.offset, File: s.BaseOffset, Position: bad.position}
		p.repair(Repair{Op: "lower-mark", Path: path.Join(p.Dir, segfmt.MarkName), Reason: reason, data: p.mark.Append(nil)})
	}
	p.repair(Repair{Op: "truncate", Path: s.path, Position: bad.position, Bytes: int64(len(tail)), Reason: reason})
	p.Truncated = int64(len(tail))
	return nil
}
