package bytes

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What docs/formats/segment.md says of files, as far as these tests need it.
const (
	segmentHeader = 64
	frameHead     = 77 // what a frame's own checksum covers, and the shortest frame
	markSlot      = 64
	markSecond    = 512
	indexEntry    = 24
	indexInterval = 4096
)

// unwritten is what a busy log's file holds behind its frames, the first character at multiples of its length.
const unwritten = "levee: unwritten"

// written returns how much of b, which stands at pos and ends the file, is not unwritten space. A few bytes are alike by
// chance.
func written(b []byte, pos int64) int {
	n := len(b)
	for n > 0 && b[n-1] == unwritten[(pos+int64(n)-1)%int64(len(unwritten))] {
		n--
	}
	if n > 0 && len(b)-n < len(unwritten) {
		return len(b)
	}
	return n
}

// frame is one frame of a segment file.
type frame struct {
	pos, end   int64
	seq        uint64
	base, next int64 // offsets
}

// frames walks a sound segment file.
func frames(log []byte) (list []frame) {
	for pos := int64(segmentHeader); pos+frameHead <= int64(len(log)); {
		b := log[pos:]
		size := int64(binary.BigEndian.Uint32(b[24:])) + 28
		if size < frameHead || pos+size > int64(len(log)) {
			break
		}
		f := frame{pos: pos, end: pos + size, seq: binary.LittleEndian.Uint64(b[8:]), base: int64(binary.BigEndian.Uint64(b[16:]))}
		f.next = f.base
		if b[4] == 0 { // it holds records
			f.next += int64(binary.BigEndian.Uint32(b[39:])) + 1
		}
		list = append(list, f)
		pos += size
	}
	return list
}

// baseSeq returns the ordinal of a segment's first frame.
func baseSeq(log []byte) uint64 { return binary.LittleEndian.Uint64(log[16:]) }

// mark is what a file of the durable mark claims.
type mark struct {
	counter, seq uint64
	file         int64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func parseMark(b []byte) (m mark) {
	for _, at := range []int{0, markSecond} {
		if len(b) < at+markSlot {
			continue
		}
		s := b[at : at+markSlot]
		if string(s[:4]) != "LVDM" || crc32.Checksum(s[:60], castagnoli) != binary.LittleEndian.Uint32(s[60:]) {
			continue
		}
		if n := binary.LittleEndian.Uint64(s[8:]); n >= m.counter {
			m = mark{n, binary.LittleEndian.Uint64(s[16:]), int64(binary.LittleEndian.Uint64(s[32:]))}
		}
	}
	return m
}

// positions returns where the frames stand that an index names.
func positions(index []byte) (list []int64) {
	for ; len(index) >= indexEntry; index = index[indexEntry:] {
		list = append(list, int64(binary.LittleEndian.Uint64(index[16:])))
	}
	return list
}

// files are the regular files of a directory, by their paths below it.
type files map[string][]byte

// logDir is one log's files.
type logDir struct {
	dir      string
	segments []string // base names, oldest first
	files    files    // by base name
}

func (f files) log(dir string) logDir {
	l := logDir{dir: dir, files: files{}}
	for name, b := range f {
		if path.Dir(name) == dir {
			l.files[path.Base(name)] = b
			if strings.HasSuffix(name, ".log") {
				l.segments = append(l.segments, path.Base(name))
			}
		}
	}
	slices.Sort(l.segments)
	return l
}

// with returns the log with one file replaced; nil removes it.
func (l logDir) with(name string, b []byte) logDir {
	f := files{}
	for n, content := range l.files {
		f[path.Join(l.dir, n)] = content
	}
	if f[path.Join(l.dir, name)] = b; b == nil {
		delete(f, path.Join(l.dir, name))
	}
	return f.log(l.dir)
}

func (l logDir) active() string { return l.segments[len(l.segments)-1] }

func baseOf(segment string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(segment, ".log"), 10, 64)
	return n
}

// settled reports whether the log's mark claims every frame it has.
func (l logDir) settled() bool {
	if len(l.segments) == 0 {
		return true
	}
	list := frames(l.files[l.active()])
	return len(list) > 0 && parseMark(l.files["durable"]).seq >= list[len(list)-1].seq
}

// kind is a kind of file that a data directory holds.
type kind string

// The kinds. What lies in a data directory and is none of them fails the tests: it has to get a row here, and with it
// what must come of its damage.
const (
	sealedLog     kind = "sealed segment"
	activeLog     kind = "active segment"
	offsetIndex   kind = "offset index"
	timeIndex     kind = "time index"
	durableMark   kind = "durable mark"
	producers     kind = "producers' snapshot"
	metaSealed    kind = "metadata log, sealed segment"
	metaActive    kind = "metadata log, active segment"
	metaIndex     kind = "metadata log, offset index"
	metaTime      kind = "metadata log, time index"
	metaMark      kind = "metadata log, durable mark"
	metaProducers kind = "metadata log, producers' snapshot"
	newSnapshot   kind = "metadata snapshot, newest"
	oldSnapshot   kind = "metadata snapshot, older"
	identity      kind = "identity"
	run           kind = "run"
	registration  kind = "registration"
	lock          kind = "LOCK"
	reserve       kind = "reserve"
	deleted       kind = "data of a deleted topic"
	salvage       kind = "salvaged bytes"
)

var (
	topicKinds = []kind{sealedLog, activeLog, offsetIndex, timeIndex, durableMark, producers}
	metaKinds  = []kind{metaSealed, metaActive, metaIndex, metaTime, metaMark, metaProducers, newSnapshot, oldSnapshot}
	stampKinds = []kind{identity, run, registration}
	idleKinds  = []kind{lock, reserve, deleted, salvage} // nothing depends on what they hold
)

const metadataLog = "raft/log"

var (
	inTopic    = regexp.MustCompile(`^topics/[^/]+/[^/@]+@\d+/\d+/([^/]+)$`)
	inMetadata = regexp.MustCompile(`^raft/log/([^/]+)$`)
	snapshots  = regexp.MustCompile(`^raft/snapshot/\d{20}-\d+\.snap$`)
	logFile    = regexp.MustCompile(`^(\d{20})\.(log|index|timeindex)$|^(durable)$|^(producers)-\d{20}$`)
)

// kinds sorts the files; unknown are those that are of none.
func (f files) kinds() (sorted map[kind][]string, unknown []string) {
	sorted = map[kind][]string{}
	names := make([]string, 0, len(f))
	for name := range f {
		names = append(names, name)
	}
	slices.Sort(names)
	newest := ""
	for _, name := range names {
		if snapshots.MatchString(name) {
			newest = max(newest, name)
		}
	}
	for _, name := range names {
		k := f.kindOf(name, newest)
		if k == "" {
			unknown = append(unknown, name)
			continue
		}
		sorted[k] = append(sorted[k], name)
	}
	return sorted, unknown
}

func (f files) kindOf(name, newestSnapshot string) kind {
	ofTopics := [...]kind{sealedLog, activeLog, offsetIndex, timeIndex, durableMark, producers}
	ofMetadata := [...]kind{metaSealed, metaActive, metaIndex, metaTime, metaMark, metaProducers}
	switch {
	case inTopic.MatchString(name):
		return f.logKind(name, ofTopics)
	case inMetadata.MatchString(name):
		return f.logKind(name, ofMetadata)
	case name == newestSnapshot:
		return newSnapshot
	case snapshots.MatchString(name):
		return oldSnapshot
	case strings.HasPrefix(name, ".deleted/"):
		return deleted
	case strings.HasPrefix(name, "salvage/"):
		return salvage
	}
	return map[string]kind{"identity": identity, "run": run, "registration": registration, "LOCK": lock, "reserve": reserve}[name]
}

// logKind tells a log's files apart; of holds sealed, active, index, time index, mark and producers.
func (f files) logKind(name string, of [6]kind) kind {
	m := logFile.FindStringSubmatch(path.Base(name))
	switch {
	case m == nil:
		return ""
	case m[2] == "log" && f.log(path.Dir(name)).active() == path.Base(name):
		return of[1]
	case m[2] == "log":
		return of[0]
	case m[2] == "index":
		return of[2]
	case m[2] == "timeindex":
		return of[3]
	}
	return map[string]kind{"durable": of[4], "producers": of[5]}[cmp.Or(m[3], m[4])]
}

// place is a byte of a file; -1 is any, -2 any of a segment's header.
type place struct {
	file string
	pos  int64
}

const inHeader = -2

// verdict is what must come of opening a log.
type verdict struct {
	refused *place // it is not opened, and this is named
	cut     int64  // bytes cut off the active segment's end
	end     int64  // offset behind the last record that is served
	first   int64  // offset of the first record that is there

	bad     map[place]bool     // frames that are not what was written, which reading meets
	hidden  map[int64]struct{} // base offsets of frames that reading need not find, because of those
	look    int64              // lookups go to the records of the segment with this base offset; -1: anywhere
	removed string             // a file that never held a frame, as far as anybody can tell
}

// judge says what opening must make of a log that was was and is now is. The last run stopped cleanly, or its process died.
// all says that sealed segments are read in full.
func judge(was, is logDir, all bool) (v verdict) {
	v.bad, v.hidden, v.look = map[place]bool{}, map[int64]struct{}{}, -1
	m := parseMark(is.files["durable"])
	segments := slices.Clone(is.segments)
	for i, s := range is.segments {
		old, b := was.files[s], is.files[s]
		if len(b) >= segmentHeader && bytes.Equal(b[:segmentHeader], old[:segmentHeader]) {
			continue
		}
		if last := i == len(is.segments)-1; last && len(b) < segmentHeader && (m.seq == 0 || m.file != baseOf(s)) {
			v.removed = s
			segments = segments[:i]
			continue
		}
		v.refused = &place{s, inHeader}
		return v
	}
	if len(segments) == 0 {
		v.refused = &place{"", 0} // the directory
		return v
	}
	v.first = baseOf(segments[0])
	next := uint64(0)
	for i, s := range segments {
		if i > 0 && baseSeq(was.files[s]) != next {
			v.refused = &place{s, 0}
			return v
		}
		if i == len(segments)-1 {
			v.judgeActive(was, is, s, m)
			return v
		}
		if next = v.judgeSealed(was, is, s, all); v.refused != nil {
			return v
		}
	}
	return v
}

// intact returns how many frames at the start of the segment are what was written.
func intact(old []frame, was, is []byte) int {
	for n, f := range old {
		if f.end > int64(len(is)) || !bytes.Equal(is[f.pos:f.end], was[f.pos:f.end]) {
			return n
		}
	}
	return len(old)
}

// judgeSealed returns the seq that must follow.
func (v *verdict) judgeSealed(was, is logDir, s string, all bool) uint64 {
	list := frames(was.files[s])
	good := intact(list, was.files[s], is.files[s])
	size := int64(len(is.files[s]))
	last := list[len(list)-1]
	switch {
	case good == len(list) && size == last.end:
		return last.seq + 1
	case good == len(list):
		v.refused = &place{s, last.end}
		return 0
	case size == segmentHeader || good > 0 && list[good-1].end == size: // cut between two frames: the next segment shows it
		return list[good].seq
	}
	stem := strings.TrimSuffix(s, ".log")
	entries := positions(was.files[stem+".index"])
	tail := entries[len(entries)-1]
	sound := size == last.end && !all
	for _, name := range []string{stem + ".index", stem + ".timeindex"} {
		sound = sound && bytes.Equal(was.files[name], is.files[name])
	}
	var first frame
	for _, f := range list {
		if f.pos >= tail && sound {
			sound = bytes.Equal(was.files[s][f.pos:f.end], is.files[s][f.pos:f.end])
		}
	}
	if first = list[good]; !sound {
		v.refused = &place{s, first.pos}
		return 0
	}
	v.conceal(list, entries, was.files[s], is.files[s], s)
	return last.seq + 1
}

// conceal notes the damaged frames, and those behind them up to the next frame that the index names.
func (v *verdict) conceal(list []frame, entries []int64, was, is []byte, s string) {
	behind := false
	for _, f := range list {
		if slices.Contains(entries, f.pos) {
			behind = false
		}
		if !bytes.Equal(was[f.pos:f.end], is[f.pos:f.end]) {
			behind = true
			v.bad[place{s, f.pos}] = true
		}
		if behind {
			v.hidden[f.base] = struct{}{}
		}
	}
}

func (v *verdict) judgeActive(was, is logDir, s string, m mark) {
	list := frames(was.files[s])
	b := is.files[s]
	good := intact(list, was.files[s], b)
	bad, seq := int64(segmentHeader), baseSeq(was.files[s])
	v.end = baseOf(s)
	if good > 0 {
		bad, seq, v.end = list[good-1].end, list[good-1].seq+1, list[good-1].next
	}
	rest := b[min(bad, int64(len(b))):]
	length := int64(len(rest)) // of what a write that was cut off has left: to the end of the file, or of a page
	rest = rest[:written(rest, bad)]
	if end := (bad+int64(len(rest))+pageSize-1)/pageSize*pageSize - bad; end-int64(len(rest)) < int64(len(unwritten)) {
		length = min(length, end)
	}
	unfinished := length < frameHead
	if good < len(list) && length >= frameHead {
		f := list[good]
		unfinished = bytes.Equal(b[bad:bad+frameHead], was.files[s][f.pos:f.pos+frameHead]) && length < f.end-f.pos
	}
	switch claimed := m.seq >= seq; {
	case claimed, len(rest) > 0 && !unfinished:
		v.refused = &place{s, bad}
	default:
		v.cut = int64(len(rest))
	}
}
