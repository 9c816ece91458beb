package segfmt

import (
	"bytes"
	"math"
	"runtime/metrics"
	"testing"

	"github.com/leveemq/levee/record"
)

// memory runs fn and fails when it took more than most bytes.
func memory(t *testing.T, most int, fn func()) {
	t.Helper()
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := s[0].Value.Uint64()
	fn()
	metrics.Read(s)
	if used := s[0].Value.Uint64() - before; used > uint64(most)+1<<20 { // others may allocate meanwhile
		t.Fatalf("%d bytes were allocated", used)
	}
}

func FuzzSegmentHeader(f *testing.F) {
	good := golden(f, "header")
	f.Add(good, false)
	f.Add(good[:40], true)
	f.Add(append(bytes.Clone(good), good...), true)
	f.Add(make([]byte, 64), true)
	f.Fuzz(func(t *testing.T, b []byte, fit bool) {
		if b = bytes.Clone(b); fit && len(b) >= SegmentHeaderSize {
			reseal(b[:SegmentHeaderSize])
		}
		h, err := ParseSegmentHeader(b)
		if err != nil {
			if h != (SegmentHeader{}) {
				t.Fatalf("fields of what is refused: %+v", h)
			}
			return
		}
		if !HeaderIntact(b) || !bytes.Equal(h.Append(nil), b[:SegmentHeaderSize]) {
			t.Fatalf("%+v is not what %x says", h, b[:SegmentHeaderSize])
		}
	})
}

func addFrames(f *testing.F) {
	for name := range goldenFrames(f) {
		b := golden(f, name)
		f.Add(b, false)
		f.Add(b, true)
		f.Add(b[:MinFrame], true)
		f.Add(append(bytes.Clone(b), b...), true)
	}
	f.Add([]byte{}, true)
	f.Add(make([]byte, 300), true)
}

// FuzzFrame feeds the decoders of frames. What they take is encoded to the same bytes again.
func FuzzFrame(f *testing.F) {
	addFrames(f)
	f.Fuzz(func(t *testing.T, b []byte, fit bool) {
		if b = bytes.Clone(b); fit {
			resealFrame(b)
		}
		var fr Frame
		var err error
		memory(t, 0, func() { fr, err = ParseFrame(b) })
		if err != nil {
			if fr != (Frame{}) {
				t.Fatalf("fields of what is refused: %+v", fr)
			}
			return
		}
		if fr.Size() < MinFrame || fr.Size() > MaxFrame || fr.NextOffset() < fr.Batch.BaseOffset || fr.DurableThrough() >= fr.Seq || KindName(fr.Kind) == "" {
			t.Fatalf("%+v", fr)
		}
		if fr.Size() > len(b) {
			return
		}
		b = b[:fr.Size()]
		if CheckFrame(&fr, b) != nil {
			return
		}
		if _, err := record.Check(b[FrameHeaderSize:]); err != nil {
			t.Fatalf("the frame checks and its batch does not: %v", err)
		}
		again := AppendFrame(nil, fr.Kind, uint64(fr.Undurable), fr.Seq, fr.Batch.BaseOffset, uint32(fr.Batch.Generation), b[FrameHeaderSize:])
		if !bytes.Equal(again, b) {
			t.Fatalf("encoded again:\n%x, was\n%x", again, b)
		}
	})
}

// FuzzFindFrame compares the search with one that tries every position with the decoders alone.
func FuzzFindFrame(f *testing.F) {
	vectors := goldenFrames(f)
	for _, g := range vectors {
		b := g.append()
		f.Add(b, 0, uint64(0))
		f.Add(append(make([]byte, 90), b...), 3, uint64(41))
		f.Add(append(bytes.Clone(b), b...), 1, uint64(0))
	}
	f.Fuzz(func(t *testing.T, b []byte, from int, after uint64) {
		if from < 0 || from > 1<<20 || len(b) > 1<<14 {
			return
		}
		at, fr := FindFrame(b, from, after)
		want := -1
		for p := from; p < len(b) && want < 0; p++ {
			if g, err := ParseFrame(b[p:]); err == nil && g.Seq > after && g.Size() <= len(b)-p && CheckFrame(&g, b[p:p+g.Size()]) == nil {
				want = p
			}
		}
		if at != want || at >= 0 && fr.Seq <= after || at < 0 && fr != (Frame{}) {
			t.Fatalf("found at %d, not %d: %+v", at, want, fr)
		}
	})
}

func FuzzLost(f *testing.F) {
	f.Add(golden(f, "frame-lost")[FrameHeaderSize:])
	f.Add(LostBatch(0, math.MaxInt64))
	f.Add(LostBatch(-1, -1))
	f.Add(ControlBatch(make([]byte, 15)))
	f.Fuzz(func(t *testing.T, b []byte) {
		from, to, err := ParseLost(b)
		if err != nil {
			if from != 0 || to != 0 {
				t.Fatal("a range of what is refused")
			}
			return
		}
		if from < 0 || to < from || to+1 < to || !bytes.Equal(LostBatch(from, to)[record.HeaderSize:], b[record.HeaderSize:]) {
			t.Fatalf("%d to %d", from, to)
		}
	})
}

func FuzzMark(f *testing.F) {
	good := golden(f, "mark")
	f.Add(good, false)
	f.Add(good[:MarkSlotSize], true)
	f.Add(good[:100], true)
	f.Add(make([]byte, MarkFileSize), true)
	f.Fuzz(func(t *testing.T, b []byte, fit bool) {
		b = bytes.Clone(b)
		for at := 0; fit && at+MarkSlotSize <= min(len(b), MarkFileSize); at += MarkStride {
			reseal(b[at : at+MarkSlotSize])
		}
		m, ok, err := ParseMark(b)
		if !ok {
			if m != (Mark{}) {
				t.Fatalf("a claim of what claims nothing: %+v", m)
			}
			return
		}
		if err != nil {
			t.Fatal("both a claim and an error")
		}
		found := false
		for at := 0; at+MarkSlotSize <= len(b); at += MarkStride {
			slot, there, err := ParseMark(b[at : at+MarkSlotSize])
			found = found || there && err == nil && slot == m
			if there && slot.Counter > m.Counter {
				t.Fatalf("an older slot counts: %+v, not %+v", m, slot)
			}
		}
		if !found {
			t.Fatalf("%+v is in no slot", m)
		}
	})
}

func FuzzProducers(f *testing.F) {
	good := golden(f, "producers")
	f.Add(good, false)
	f.Add(good, true)
	f.Add(good[:36], true)
	f.Add(append(bytes.Clone(good), good...), true)
	none := Producers{}
	f.Add(none.Append(nil), true)
	f.Fuzz(func(t *testing.T, b []byte, fit bool) {
		if b = bytes.Clone(b); fit && len(b) >= producersHead+4 {
			le.PutUint64(b[24:], uint64(len(b)))
			reseal(b)
		}
		var s *Producers
		var err error
		memory(t, 4*len(b), func() { s, err = ParseProducers(b) })
		if (err == nil) == (s == nil) {
			t.Fatalf("%v, %v", s, err)
		}
		if err != nil {
			return
		}
		again := s.Append(nil)
		want := bytes.Clone(b) // but for bytes that are reserved
		at := producersHead
		for _, p := range s.Producers {
			clear(want[at+10 : at+12])
			at += producerHead + sequenceRange*len(p.Ranges)
		}
		if !bytes.Equal(again, reseal(want)) {
			t.Fatalf("encoded again:\n%x, was\n%x", again, want)
		}
	})
}

func FuzzTimeIndex(f *testing.F) {
	good := golden(f, "timeindex")
	of := TimeIndexOf(goldenHeader, 0xcafe1234)
	f.Add(good, of, false)
	f.Add(good, of, true)
	f.Add(good[len(good)-TimeEndSize:], of, true)
	f.Add(good[:TimeEndSize], uint32(0), true)
	f.Fuzz(func(t *testing.T, b []byte, of uint32, fit bool) {
		if b = bytes.Clone(b); fit && len(b) >= TimeEndSize {
			end := len(b) - TimeEndSize
			copy(b[end:], AppendTimeEnd(nil, ParseTimeEntry(b[end:]), b[:end], of))
		}
		var entries []TimeEntry
		var err error
		memory(t, 2*len(b), func() { entries, err = ParseTimeIndex(b, of) })
		if err != nil {
			if entries != nil || fit && len(b) >= TimeEndSize && len(b)%TimeEntrySize == 0 {
				t.Fatalf("%v, %v", entries, err)
			}
			return
		}
		var body []byte
		last := len(entries) - 1
		for _, e := range entries[:last] {
			body = e.Append(body)
		}
		if !bytes.Equal(body, b[:len(b)-TimeEndSize]) || ParseTimeEntry(b[len(b)-TimeEndSize:]) != entries[last] {
			t.Fatalf("%v is not what %x says", entries, b)
		}
	})
}

func FuzzName(f *testing.F) {
	for _, kind := range []string{LogSuffix, IndexSuffix, TimeIndexSuffix} {
		f.Add(FileName(1<<40, kind))
	}
	f.Add(ProducersName(7))
	f.Add("producers-00000000000000000001.log")
	f.Add("99999999999999999999.log")
	f.Fuzz(func(t *testing.T, name string) {
		n, kind, ok := ParseName(name)
		switch {
		case !ok:
			if n != 0 || kind != "" {
				t.Fatalf("%q: %d, %q", name, n, kind)
			}
		case kind == ProducersPrefix:
			if ProducersName(n) != name {
				t.Fatalf("%q is taken for %s", name, ProducersName(n))
			}
		case n < 0 || FileName(n, kind) != name:
			t.Fatalf("%q is taken for %s", name, FileName(n, kind))
		}
	})
}
