package segfmt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
)

// reseal makes the CRC-32C that the last four bytes are fit the others.
func reseal(b []byte) []byte {
	le.PutUint32(b[len(b)-4:], checksum(b[:len(b)-4]))
	return b
}

// resealFrame makes both checksums of a frame fit its bytes, however few or odd they are.
func resealFrame(b []byte) []byte {
	if len(b) < MinFrame {
		return b
	}
	binary.BigEndian.PutUint32(b[FrameHeaderSize+17:], checksum(b[FrameHeaderSize+21:]))
	le.PutUint32(b, checksum(b[4:MinFrame]))
	return b
}

// edit returns a copy of b with bytes changed from at on.
func edit(b []byte, at int, value ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], value)
	return b
}

func TestRefusedHeaders(t *testing.T) {
	good := goldenHeader.Append(nil)
	sealed := func(at int, value ...byte) []byte { return reseal(edit(good, at, value...)) }
	for name, c := range map[string]struct {
		b      []byte
		want   error
		intact bool // as somebody wrote it: a program that knows more
	}{
		"nothing":            {nil, ErrShort, false},
		"a byte short":       {good[:63], ErrShort, false},
		"zeros":              {make([]byte, 64), ErrMagic, false},
		"magic":              {sealed(0, 'l'), ErrMagic, false},
		"version 0":          {sealed(4, 0), ErrVersion, true},
		"version 2":          {sealed(4, 2), ErrVersion, true},
		"version 256":        {sealed(5, 1), ErrVersion, true},
		"version, unsealed":  {edit(good, 4, 2), ErrVersion, false},
		"flag 1":             {sealed(6, 2), ErrFlags, true},
		"flag 15":            {sealed(7, 0x80), ErrFlags, true},
		"version and flag":   {sealed(4, 2, 0, 2), ErrVersion, true},
		"checksum":           {edit(good, 60, good[60]^1), ErrChecksum, false},
		"flag, unsealed":     {edit(good, 6, 1), ErrChecksum, false},
		"negative offset":    {sealed(15, 0x80), ErrField, true},
		"frame 0":            {sealed(16, 0, 0, 0, 0, 0, 0, 0, 0), ErrField, true},
		"generation too big": {sealed(27, 0x80), ErrField, true},
		"reserved":           {sealed(56, 1), ErrField, true},
	} {
		h, err := ParseSegmentHeader(c.b)
		if !errors.Is(err, c.want) || h != (SegmentHeader{}) {
			t.Errorf("%s: %v, want %v; %+v", name, err, c.want, h)
		}
		if HeaderIntact(c.b) != c.intact {
			t.Errorf("%s: intact is %v", name, !c.intact)
		}
	}
	for bit := range 8 * len(good) {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := ParseSegmentHeader(b); err == nil || HeaderIntact(b) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
}

func TestRefusedFrames(t *testing.T) {
	vectors := goldenFrames(t)
	data, noop := vectors["frame-data"], vectors["frame-noop"]
	good, none := data.append(), noop.append()
	// Both are sealed again after an edit of batch bytes (b) or of the frame's own (f).
	f := func(at int, value ...byte) []byte { return resealFrame(edit(good, at, value...)) }
	b := func(at int, value ...byte) []byte { return f(FrameHeaderSize+at, value...) }
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"nothing":                     {nil, ErrShort},
		"a byte short of a head":      {good[:MinFrame-1], ErrShort},
		"zeros":                       {make([]byte, 200), ErrChecksum},
		"kind 5":                      {f(4, 5), ErrField},
		"kind 255":                    {f(4, 255), ErrField},
		"ordinal 0":                   {f(8, 0, 0, 0, 0, 0, 0, 0, 0), ErrField},
		"highest ordinal":             {f(8, 255, 255, 255, 255, 255, 255, 255, 255), ErrField},
		"negative offset":             {b(0, 0x80), ErrField},
		"offsets run over":            {b(0, 0x7f, 255, 255, 255, 255, 255, 255, 254), ErrField},
		"negative generation":         {b(12, 0x80), ErrField},
		"length below the header's":   {b(8, 0, 0, 0, 48), ErrField},
		"negative length":             {b(8, 0x80), ErrField},
		"length above the limit":      {b(8, 4, 0, 0, 0), ErrField},
		"greatest length":             {b(8, 0x7f, 255, 255, 255), ErrField},
		"batch format 1":              {b(16, 1), ErrField},
		"no records in data":          {b(57, 0, 0, 0, 0), ErrField},
		"negative records":            {b(57, 0x80), ErrField},
		"fewer records than offsets":  {b(57, 0, 0, 0, 1), ErrField},
		"more records than offsets":   {b(57, 0, 0, 0, 3), ErrField},
		"negative last offset delta":  {b(23, 0x80), ErrField},
		"records in a control frame":  {resealFrame(edit(none, FrameHeaderSize+57, 0, 0, 0, 1)), ErrField},
		"data without records's kind": {f(4, KindNoop), ErrField},
	} {
		fr, err := ParseFrame(c.b)
		if !errors.Is(err, c.want) || fr != (Frame{}) {
			t.Errorf("%s: %v, want %v; %+v", name, err, c.want, fr)
		}
	}
	for bit := range 8 * len(good) {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		fr, err := ParseFrame(b)
		inHead := bit/8 < MinFrame
		if inHead != (err != nil) || inHead && !errors.Is(err, ErrChecksum) {
			t.Errorf("bit %d: %v", bit, err)
		}
		if err == nil && !errors.Is(CheckFrame(&fr, b), ErrChecksum) {
			t.Errorf("bit %d is not noticed", bit)
		}
	}
	fr, err := ParseFrame(good)
	if err != nil || CheckFrame(&fr, good[:len(good)-1]) != ErrShort || CheckFrame(&fr, append(good, 0)) != ErrShort {
		t.Error("a frame of another length checks")
	}
}

func TestRefusedLostRanges(t *testing.T) {
	frame := func(from, to, base int64) error {
		b := AppendFrame(nil, KindLost, 0, 9, base, 1, LostBatch(from, to))
		f, err := ParseFrame(b)
		if err != nil {
			return err
		}
		return CheckFrame(&f, b)
	}
	for _, c := range []struct {
		from, to, base int64
		ok             bool
	}{
		{0, 0, 1, true}, {5, 9, 10, true}, {5, 9, 9, false}, {5, 9, 11, false}, {9, 5, 6, false}, {-1, 5, 6, false},
		{math.MinInt64, 5, 6, false}, {5, math.MaxInt64, 0, false}, {5, math.MaxInt64 - 1, math.MaxInt64, false},
	} {
		if err := frame(c.from, c.to, c.base); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	long := AppendFrame(nil, KindLost, 0, 9, 10, 1, ControlBatch(make([]byte, 17)))
	f, err := ParseFrame(long)
	if err != nil || !errors.Is(CheckFrame(&f, long), ErrField) {
		t.Error("a payload of 17 bytes is taken")
	}
}

func TestRefusedTimeIndexes(t *testing.T) {
	good := goldenTimeIndex()
	of := TimeIndexOf(goldenHeader, 0xcafe1234)
	end := len(good) - TimeEndSize
	for name, c := range map[string]struct {
		b    []byte
		of   uint32
		want error
	}{
		"nothing":          {nil, of, ErrShort},
		"less than an end": {good[:16], of, ErrShort},
		"half an entry":    {good[8:], of, ErrShort},
		"entries alone":    {good[:32], of, ErrMagic},
		"magic":            {edit(good, end+16, 'l'), of, ErrMagic},
		"version":          {edit(good, end+20, 2), of, ErrVersion},
		"an entry less":    {good[16:], of, ErrChecksum},
		"an entry":         {edit(good, 3, good[3]^1), of, ErrChecksum},
		"newest time":      {edit(good, end+1, good[end+1]^1), of, ErrChecksum},
		"offset":           {edit(good, end+9, good[end+9]^1), of, ErrChecksum},
		"flag":             {edit(good, end+22, 1), of, ErrFlags},
		"another frame":    {good, TimeIndexOf(goldenHeader, 0xcafe1235), ErrChecksum},
		"another segment":  {good, TimeIndexOf(SegmentHeader{BaseSeq: 1}, 0xcafe1234), ErrChecksum},
	} {
		if got, err := ParseTimeIndex(c.b, c.of); !errors.Is(err, c.want) || got != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := ParseTimeEnd(good, of); !errors.Is(err, ErrShort) {
		t.Error("more than the end is taken for the end")
	}
	for bit := range 8 * len(good) {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := ParseTimeIndex(b, of); err == nil {
			t.Errorf("bit %d is not noticed", bit)
		}
	}
}

func TestRefusedMarks(t *testing.T) {
	good := goldenMarkFile()
	newer := bytes.Clone(good)
	newer[4] = 2
	reseal(newer[:MarkSlotSize])
	if _, ok, err := ParseMark(newer); !errors.Is(err, ErrVersion) || ok {
		t.Errorf("another version: %v, %v", ok, err)
	}
	flagged := bytes.Clone(good)
	flagged[MarkStride+6] = 1
	reseal(flagged[MarkStride:])
	if _, ok, err := ParseMark(flagged); !errors.Is(err, ErrFlags) || ok {
		t.Errorf("a flag: %v, %v", ok, err)
	}
	for name, c := range map[string]struct {
		b    []byte
		want uint64 // counter; 0: nothing is claimed
	}{
		"nothing":             {nil, 0},
		"a byte short":        {good[:63], 0},
		"zeros":               {make([]byte, MarkFileSize), 0},
		"one slot":            {good[:MarkSlotSize], 8},
		"the other cut short": {good[:len(good)-1], 8},
		"only the other":      {append(make([]byte, MarkStride), good[MarkStride:]...), 7},
		"version unsealed":    {edit(good, 4, 2), 7},
		"bytes behind":        {append(bytes.Clone(good), make([]byte, 5000)...), 8},
	} {
		m, ok, err := ParseMark(c.b)
		if err != nil || ok != (c.want > 0) || m.Counter != c.want {
			t.Errorf("%s: %+v, %v, %v", name, m, ok, err)
		}
	}
	for bit := range 8 * len(good) {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		m, ok, err := ParseMark(b)
		if err != nil || !ok || m != goldenMarks[0] && m != goldenMarks[1] {
			t.Errorf("bit %d: %+v, %v, %v", bit, m, ok, err)
		}
	}
}

func TestRefusedProducers(t *testing.T) {
	good := goldenProducers.Append(nil)
	sealed := func(at int, value ...byte) []byte { return reseal(edit(good, at, value...)) }
	const one, two = producersHead, producersHead + producerHead // where the two producers stand
	ranges := two + producerHead
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"nothing":                  {nil, ErrShort},
		"less than a head":         {good[:35], ErrShort},
		"magic":                    {sealed(0, 'l'), ErrMagic},
		"version":                  {sealed(4, 2), ErrVersion},
		"flag":                     {sealed(7, 1), ErrFlags},
		"cut":                      {good[:len(good)-1], ErrShort},
		"longer than it says":      {append(bytes.Clone(good), 0), ErrShort},
		"length":                   {sealed(24, good[24]+1), ErrShort},
		"checksum":                 {edit(good, len(good)-1, good[len(good)-1]^1), ErrChecksum},
		"negative offset":          {sealed(15, 0x80), ErrField},
		"too few producers":        {sealed(16, 1), ErrField},
		"too many producers":       {sealed(16, 3), ErrField},
		"far too many producers":   {sealed(22, 0xff, 0xff), ErrField},
		"negative id":              {sealed(one+7, 0x80), ErrField},
		"ids do not rise":          {sealed(two, 3), ErrField},
		"negative epoch":           {sealed(two+9, 0x80), ErrField},
		"negative sequence":        {sealed(two+15, 0x80), ErrField},
		"too many ranges":          {sealed(two+24, 3), ErrField},
		"far too many ranges":      {sealed(two+24, 255, 255, 255, 255), ErrField},
		"too few ranges":           {sealed(two+24, 1), ErrField},
		"negative range":           {sealed(ranges+3, 0x80), ErrField},
		"empty range":              {sealed(ranges+4, 0, 0, 0, 0), ErrField},
		"range of negative length": {sealed(ranges+7, 0x80), ErrField},
		"range at negative offset": {sealed(ranges+15, 0x80), ErrField},
		"offsets do not rise":      {sealed(ranges+16+8, 0xa0, 0x0f), ErrField},
	} {
		if got, err := ParseProducers(c.b); !errors.Is(err, c.want) || got != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for bit := range 8 * len(good) {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := ParseProducers(b); err == nil {
			t.Errorf("bit %d is not noticed", bit)
		}
	}
}

func TestNames(t *testing.T) {
	for _, n := range []int64{0, 1, 42, math.MaxInt64} {
		for _, kind := range []string{LogSuffix, IndexSuffix, TimeIndexSuffix} {
			if got, k, ok := ParseName(FileName(n, kind)); !ok || got != n || k != kind {
				t.Errorf("%s: %d, %q, %v", FileName(n, kind), got, k, ok)
			}
		}
		if got, k, ok := ParseName(ProducersName(n)); !ok || got != n || k != ProducersPrefix {
			t.Errorf("%s: %d, %q, %v", ProducersName(n), got, k, ok)
		}
	}
	if FileName(0, LogSuffix) != "00000000000000000000.log" || ProducersName(12) != "producers-00000000000000000012" {
		t.Error("the names changed")
	}
	for _, name := range []string{
		"", ".log", "0.log", "0000000000000000000.log", "000000000000000000000.log", "0000000000000000000a.log", "+0000000000000000001.log",
		"-0000000000000000001.log", " 0000000000000000001.log", "09223372036854775808.log", "99999999999999999999.log", "00000000000000000000",
		"00000000000000000000.LOG", "00000000000000000000.log.tmp", "00000000000000000000.log ", "0000_000000000000001.log", "producers-",
		"producers-00000000000000000001.log", "producers-00000000000000000001.tmp", "Producers-00000000000000000001", MarkName,
		"producers-producers-00000000000000000001", "00000000000000000000.index.log", "0x000000000000000001.log",
	} {
		if n, kind, ok := ParseName(name); ok || n != 0 || kind != "" {
			t.Errorf("%q is taken for %q %d", name, kind, n)
		}
	}
}

func TestFindFrame(t *testing.T) {
	vectors := goldenFrames(t)
	data := vectors["frame-data"]
	frame := data.append()
	rng := rand.New(rand.NewPCG(5, 5))
	for _, before := range []int{0, 1, 76, 77, 500} {
		for _, behind := range []int{0, 1, 300} {
			b := make([]byte, before, before+len(frame)+behind)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			b = append(append(b, frame...), make([]byte, behind)...)
			at, f := FindFrame(b, 0, data.seq-1)
			if at != before || f.Seq != data.seq {
				t.Errorf("behind %d bytes: %d, %+v", before, at, f)
			}
			if at, _ = FindFrame(b, before, 0); at != before {
				t.Errorf("from where it stands: %d", at)
			}
			for name, got := range map[string]func() (int, Frame){
				"seq not above":   func() (int, Frame) { return FindFrame(b, 0, data.seq) },
				"from behind it":  func() (int, Frame) { return FindFrame(b, before+1, 0) },
				"beyond the end":  func() (int, Frame) { return FindFrame(b, len(b)+5, 0) },
				"cut":             func() (int, Frame) { return FindFrame(b[:before+len(frame)-1], 0, 0) },
				"body is damaged": func() (int, Frame) { return FindFrame(edit(b, before+MinFrame, b[before+MinFrame]^1), 0, 0) },
				"head is damaged": func() (int, Frame) { return FindFrame(edit(b, before+9, b[before+9]^1), 0, 0) },
			} {
				if at, f := got(); at != -1 || f != (Frame{}) {
					t.Errorf("%s: found at %d: %+v", name, at, f)
				}
			}
		}
	}
}

// TestLengthsDoNotAllocate is the proof behind LOG-18's last part for the decoders: fields that say how much follows,
// checksummed and far too large, cost no memory.
func TestLengthsDoNotAllocate(t *testing.T) {
	vectors := goldenFrames(t)
	data := vectors["frame-data"]
	frame, snapshot := data.append(), goldenProducers.Append(nil)
	huge := resealFrame(edit(frame, FrameHeaderSize+8, 3, 255, 255, 200)) // just below the largest frame
	greatest := resealFrame(edit(frame, FrameHeaderSize+8, 0x7f, 255, 255, 255))
	cost := func(name string, most uint64, fn func()) {
		t.Helper()
		fn() // warm up
		used := uint64(math.MaxUint64)
		for try := 0; try < 5 && used > most; try++ { // the counter is the whole process's: the runtime allocates, too
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 100 {
				fn()
			}
			runtime.ReadMemStats(&after)
			used = min(used, (after.TotalAlloc-before.TotalAlloc)/100)
		}
		if used > most {
			t.Errorf("%s: %d bytes a call, at most %d", name, used, most)
		}
	}
	cost("a sound frame", 0, func() {
		f, err := ParseFrame(frame)
		if err != nil || CheckFrame(&f, frame) != nil {
			t.Error(err)
		}
	})
	cost("a frame that says 64 MiB", 0, func() {
		f, err := ParseFrame(huge)
		if err != nil || f.Size() < MaxFrame-1000 || CheckFrame(&f, huge) != ErrShort {
			t.Error(err, f.Size())
		}
	})
	cost("a frame that says 2 GiB", 1<<10, func() { _, _ = ParseFrame(greatest) })
	cost("looking for frames", 0, func() { FindFrame(huge, 0, 0) })
	const two = producersHead + producerHead
	for name, b := range map[string][]byte{
		"2^60 producers":   reseal(edit(snapshot, 23, 0x10)),
		"2^32-1 ranges":    reseal(edit(snapshot, two+24, 255, 255, 255, 255)),
		"2^31 ranges":      reseal(edit(snapshot, two+24, 0, 0, 0, 0x80)),
		"length of 2^63":   reseal(edit(snapshot, 31, 0x80)),
		"2^64-1 producers": reseal(edit(snapshot, 16, 255, 255, 255, 255, 255, 255, 255, 255)),
	} {
		cost(name, 1<<10, func() {
			if _, err := ParseProducers(b); err == nil {
				t.Errorf("%s is taken", name)
			}
		})
	}
}
