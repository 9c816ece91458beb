package simulation

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
)

// journal is a checksummed log in files of its own, as cores in these tests keep one: what is written is durable once
// idle says so. A file is named by the index of its first entry.
type journal struct {
	file    string
	size    int64
	ids     uint64
	waiting map[uint64]bool
}

const journalPrefix = "log-"

func journalFile(first uint64) string { return fmt.Sprintf("%s%08d", journalPrefix, first) }

// entry is one entry of a journal.
type entry struct {
	index uint64
	body  []byte
}

func (e entry) append(b []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(e.body)))
	b = binary.LittleEndian.AppendUint64(b, e.index)
	b = append(b, e.body...)
	binary.LittleEndian.PutUint32(b[start:], crc32.ChecksumIEEE(b[start+4:]))
	return b
}

func parseEntry(b []byte) (e entry, size int, ok bool) {
	if len(b) < 16 {
		return entry{}, 0, false
	}
	n := int(binary.LittleEndian.Uint32(b[4:]))
	if n > len(b)-16 || crc32.ChecksumIEEE(b[4:16+n]) != binary.LittleEndian.Uint32(b) {
		return entry{}, 0, false
	}
	return entry{binary.LittleEndian.Uint64(b[8:]), b[16 : 16+n]}, 16 + n, true
}

// open returns the entries above after that the files hold, and what makes them, and nothing behind them, durable.
func (j *journal) open(files []File, after uint64) (entries []entry, effects []Effect) {
	j.waiting = map[uint64]bool{}
	j.file, j.size = journalFile(after+1), 0
	next := after + 1
	for _, f := range files {
		if !strings.HasPrefix(f.Name, journalPrefix) {
			continue
		}
		j.file, j.size = f.Name, 0
		for rest := f.Data; ; {
			e, n, ok := parseEntry(rest)
			if !ok || e.index > next {
				break
			}
			if e.index == next {
				entries = append(entries, e)
				next++
			}
			rest, j.size = rest[n:], j.size+int64(n)
		}
	}
	for _, op := range []Disk{{Op: DiskWrite, File: j.file}, {Op: DiskTruncate, File: j.file, Off: j.size}, {Op: DiskSync, File: j.file}} {
		effects = append(effects, j.issue(op))
	}
	return entries, effects
}

// roll goes on in a new file.
func (j *journal) roll(first uint64) { j.file, j.size = journalFile(first), 0 }

// write appends entries.
func (j *journal) write(entries []entry) []Effect {
	var b []byte
	for _, e := range entries {
		b = e.append(b)
	}
	at := j.size
	j.size += int64(len(b))
	return []Effect{j.issue(Disk{Op: DiskWrite, File: j.file, Off: at, Data: b}), j.issue(Disk{Op: DiskSync, File: j.file})}
}

func (j *journal) issue(op Disk) Disk {
	j.ids++
	op.ID = j.ids
	j.waiting[op.ID] = true
	return op
}

// done notes that an operation is done. A file that may be new has its name made durable once it is there.
func (j *journal) done(e DiskDone, dir bool) []Effect {
	if !j.waiting[e.ID] {
		return nil
	}
	delete(j.waiting, e.ID)
	if dir && len(j.waiting) == 0 {
		return []Effect{j.issue(Disk{Op: DiskSyncDir})}
	}
	return nil
}

func (j *journal) idle() bool { return len(j.waiting) == 0 }
