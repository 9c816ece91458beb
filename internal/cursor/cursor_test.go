package cursor

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// model is a set as a map.
type model struct {
	position int64
	above    map[int64]bool
}

func (m *model) has(off int64) bool { return off < m.position || m.above[off] }

func (m *model) add(from, to int64) (added int64) {
	for off := from; off <= to; off++ {
		if !m.has(off) {
			m.above[off] = true
			added++
		}
	}
	m.pop()
	return added
}

func (m *model) pop() {
	for m.above[m.position] {
		delete(m.above, m.position)
		m.position++
	}
}

func (m *model) moveTo(position int64) {
	if position <= m.position {
		return
	}
	m.position = position
	for off := range m.above {
		if off < position {
			delete(m.above, off)
		}
	}
	m.pop()
}

func (m *model) span() (span int64) {
	for off := range m.above {
		span = max(span, off-m.position)
	}
	return span
}

func (m *model) unsettled(from, to int64) (out []Range) {
	for off := max(from, m.position); off <= to; off++ {
		switch {
		case m.has(off):
		case len(out) > 0 && out[len(out)-1].To == off-1:
			out[len(out)-1].To = off
		default:
			out = append(out, Range{off, off})
		}
	}
	return out
}

func unsettled(s *Set, from, to int64) (out []Range) {
	s.Unsettled(from, to, func(r Range) bool {
		out = append(out, r)
		return true
	})
	return out
}

// agree compares a set with the model, around some offsets.
func agree(t *rapid.T, s *Set, m *model, at int64) {
	t.Helper()
	if s.Position() != m.position || s.Span() != m.span() {
		t.Fatalf("position %d, span %d; expected %d, %d", s.Position(), s.Span(), m.position, m.span())
	}
	for off := max(at-70, 0); off < at+70; off++ {
		if s.Has(off) != m.has(off) {
			t.Fatalf("offset %d: settled %v, expected %v", off, s.Has(off), m.has(off))
		}
	}
	from, to := at-3000, at+9000
	if got, want := unsettled(s, from, to), m.unsettled(from, to); !slices.Equal(got, want) {
		t.Fatalf("unsettled from %d to %d: %v, expected %v", from, to, got, want)
	}
	next := max(at, m.position)
	for m.has(next) {
		next++
	}
	if got := s.Next(at); got != next {
		t.Fatalf("next from %d: %d, expected %d", at, got, next)
	}
	for _, b := range s.blocks {
		if b.bits != nil && b.number*BlockSize > m.position && (b.count == BlockSize || int(b.count) != b.bits.count()) {
			t.Fatalf("block %d counts %d", b.number, b.count)
		}
	}
}

// TestSetIsAMap drives a set and a map alike. Long ranges, so that blocks fill up.
func TestSetIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Int64Range(0, 3*BlockSize).Draw(t, "start")
		s, err := NewSet(State{Position: start})
		if err != nil {
			t.Fatal(err)
		}
		m := &model{position: start, above: map[int64]bool{}}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			at := m.position + rapid.Int64Range(-20, 5*BlockSize).Draw(t, "at")
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				s.MoveTo(at)
				m.moveTo(at)
			case 1:
				at = max(at, 0)
				s.Reset(at)
				*m = model{position: at, above: map[int64]bool{}}
			case 2: // stored and opened
				again, err := NewSet(s.State())
				if err != nil {
					t.Fatal(err)
				}
				s = again
			default:
				to := at + rapid.SampledFrom([]int64{0, 0, 1, 63, 64, 300, BlockSize, 2*BlockSize + 7}).Draw(t, "more")
				if rapid.Bool().Draw(t, "from the position") {
					at, to = m.position, m.position+to-at
				}
				if got, want := s.Add(at, to), m.add(at, to); got != want {
					t.Fatalf("added %d of %d to %d, expected %d", got, at, to, want)
				}
			}
			agree(t, s, m, at)
		}
	})
}

// store is where saves go: as a metadata store would keep them.
type store struct {
	position int64
	blocks   map[int64][]byte
}

func (st *store) save(c Change) {
	st.position = max(st.position, c.Position)
	for _, b := range c.Blocks {
		st.blocks[b.Number] = b.Bits
	}
	for number := range st.blocks {
		if (number+1)*BlockSize <= st.position {
			delete(st.blocks, number)
		}
	}
}

func (st *store) state() State {
	s := State{Position: st.position}
	for number, bits := range st.blocks {
		s.Blocks = append(s.Blocks, Block{number, bits})
	}
	slices.SortFunc(s.Blocks, func(a, b Block) int { return int(a.Number - b.Number) })
	return s
}

// TestSavesLoseNothing: with saves that overlap changes, and each other, and fail, where a failed one may be stored all
// the same, the store has everything once the last change is saved.
func TestSavesLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, _ := NewSet(State{})
		st := &store{blocks: map[int64][]byte{}}
		var under []Change // taken, in this order, and not stored yet
		finish := func(fail, stored bool) {
			c := under[0]
			under = under[1:]
			if !fail || stored {
				st.save(c)
			}
			if fail {
				s.Failed(c)
			} else {
				s.Saved(c)
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				under = append(under, s.Changes())
			case 1:
				if len(under) > 0 {
					finish(rapid.Bool().Draw(t, "fail"), rapid.Bool().Draw(t, "stored"))
				}
			case 2:
				s.MoveTo(s.Position() + rapid.Int64Range(0, 5000).Draw(t, "move"))
			default:
				at := s.Position() + rapid.Int64Range(0, 3*BlockSize).Draw(t, "at")
				s.Add(at, at+rapid.Int64Range(0, BlockSize).Draw(t, "more"))
			}
		}
		for len(under) > 0 {
			finish(rapid.Bool().Draw(t, "fail"), false)
		}
		if s.Dirty() {
			st.save(s.Changes())
		}
		if s.Dirty() {
			t.Fatal("dirty after everything was saved")
		}
		again, err := NewSet(st.state())
		if err != nil {
			t.Fatal(err)
		}
		from, to := int64(0), s.Position()+6*BlockSize
		if got, want := unsettled(again, from, to), unsettled(s, from, to); again.Position() != s.Position() || !slices.Equal(got, want) {
			t.Fatalf("stored: position %d, unsettled %v; expected %d, %v", again.Position(), got, s.Position(), want)
		}
	})
}

// TestChangesHoldOnlyWhatChanged: a save after one acknowledgement writes one block.
func TestChangesHoldOnlyWhatChanged(t *testing.T) {
	s, _ := NewSet(State{Position: 10})
	if s.Dirty() {
		t.Error("dirty when opened")
	}
	for number := range int64(20) {
		s.Add(number*BlockSize+100, number*BlockSize+200)
	}
	if c := s.Changes(); len(c.Blocks) != 20 || c.Position != 10 {
		t.Errorf("first: %d blocks, position %d", len(c.Blocks), c.Position)
	}
	s.Add(7*BlockSize+300, 7*BlockSize+300)
	s.Add(7*BlockSize+100, 7*BlockSize+110) // settled already
	if c := s.Changes(); len(c.Blocks) != 1 || c.Blocks[0].Number != 7 {
		t.Errorf("second: %v", c)
	}
	s.Add(10, 10)
	if c := s.Changes(); len(c.Blocks) != 0 || c.Position != 11 {
		t.Errorf("third: %v", c)
	}
	s.Reset(5)
	if !s.Dirty() {
		t.Error("a reset is no change")
	}
}

var rewrite = flag.Bool("rewrite", false, "write the golden file; released encodings must open for ever")

// goldenBits are blocks of each kind.
func goldenBits() []Bits {
	blocks := make([]Bits, 6)
	blocks[1].set(0, BlockSize-1)
	blocks[2].set(0, 0)
	blocks[3].set(BlockSize-1, BlockSize-1)
	blocks[4].set(3, 200)
	blocks[4].set(1000, 1001)
	for i := 0; i < BlockSize; i += 2 {
		blocks[5].set(i, i)
	}
	return blocks
}

func TestGoldenBits(t *testing.T) {
	const file = "testdata/bits-v1.hex"
	var b strings.Builder
	for _, bits := range goldenBits() {
		b.WriteString(hex.EncodeToString(bits.Encode()) + "\n")
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the encoding changed:\n%s", b.String())
	}
	for i, line := range strings.Fields(string(want)) {
		data, _ := hex.DecodeString(line)
		if got, err := DecodeBits(data); err != nil || got != goldenBits()[i] {
			t.Errorf("line %d: %v, other bits %v", i+1, err, got != goldenBits()[i])
		}
	}
}

// TestSmallestKindWins around where runs and bitmap are of one size.
func TestSmallestKindWins(t *testing.T) {
	for runs := range 400 {
		var b Bits
		for i := range runs {
			b.set(i*10, i*10+4)
		}
		data := b.Encode()
		kind, size := byte(kindRuns), 1+2*runs
		if size >= 513 {
			kind, size = kindBitmap, 513
		}
		if data[0] != kind || len(data) != size {
			t.Fatalf("%d runs: kind %d in %d bytes", runs, data[0], len(data))
		}
	}
}

func TestGarbageIsRefused(t *testing.T) {
	for _, data := range [][]byte{nil, {3}, {2, 0}, {0}, make([]byte, 512), make([]byte, 514), {1, 0}, {1, 0, 0}, {1, 0, 1, 0, 1},
		{1, 0xff, 0x1f, 2}, {1, 0x80, 0x20, 1}, {1, 0, 0x81, 0x20}, {1, 0x80}, {1, 0, 0x80}, bytes.Repeat([]byte{0xff}, 30),
		{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1}, {1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}} {
		if _, err := DecodeBits(data); !errors.Is(err, ErrBits) {
			t.Errorf("% x: %v", data, err)
		}
		if _, err := NewSet(State{Blocks: []Block{{Number: 1, Bits: data}}}); !errors.Is(err, ErrBits) {
			t.Errorf("% x: opened: %v", data, err)
		}
	}
	full := []byte{kindFull}
	for name, state := range map[string]State{
		"negative position": {Position: -1},
		"order":             {Blocks: []Block{{2, full}, {1, full}}},
		"twice":             {Blocks: []Block{{2, full}, {2, full}}},
		"negative block":    {Blocks: []Block{{-1, full}}},
		"far beyond":        {Blocks: []Block{{1 << 60, full}}},
	} {
		if _, err := NewSet(state); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func FuzzBits(f *testing.F) {
	for _, b := range goldenBits() {
		f.Add(b.Encode())
	}
	f.Add([]byte{1, 3, 0x80, 0x10})
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := DecodeBits(data)
		if err != nil {
			return
		}
		again := b.Encode()
		if len(again) > len(data) {
			t.Fatalf("%d bytes came from %d", len(again), len(data))
		}
		if c, err := DecodeBits(again); err != nil || c != b {
			t.Fatalf("encoded again it is another block: %v", err)
		}
	})
}

// TestIdleSetIsSmall: millions of subscriptions may be loaded.
func TestIdleSetIsSmall(t *testing.T) {
	s, _ := NewSet(State{Position: 77})
	s.Add(100, 9000)
	s.Add(77, 99)
	if size := unsafe.Sizeof(*s); size > 48 || s.blocks != nil {
		t.Errorf("%d bytes, blocks %v", size, s.blocks)
	}
	s.Add(20000, 20000+100*BlockSize) // 99 blocks wholly settled
	n := 0
	for _, b := range s.blocks {
		if b.bits != nil {
			n++
		}
	}
	if n > 2 {
		t.Errorf("%d bitmaps", n)
	}
	if n := testing.AllocsPerRun(100, func() { s.Add(s.Position(), s.Position()+99) }); n != 0 {
		t.Errorf("%v allocations to settle what comes next", n)
	}
}

// TestManyHoles: a hundred thousand offsets that nobody settles cost bits, and come back as they were.
func TestManyHoles(t *testing.T) {
	s, _ := NewSet(State{})
	const holes = 100_000
	for i := range int64(holes) {
		s.Add(2*i+1, 2*i+1)
	}
	state := s.State()
	size := 0
	for _, b := range state.Blocks {
		size += len(b.Bits)
	}
	again, err := NewSet(state)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	again.Unsettled(0, 2*holes-1, func(r Range) bool {
		if r.From != r.To || r.From%2 != 0 {
			t.Fatalf("%+v is not settled", r)
		}
		n++
		return true
	})
	if n != holes || again.Span() != 2*holes-1 || size > 2*holes/8+1024 {
		t.Errorf("%d holes, span %d, %d bytes", n, again.Span(), size)
	}
}

func TestStateRoundTrip(t *testing.T) {
	s, _ := NewSet(State{Position: 5})
	s.Add(7, 9)
	s.Add(3*BlockSize, 4*BlockSize-1)
	state := s.State()
	again, err := NewSet(state)
	if err != nil || !reflect.DeepEqual(again.State(), state) {
		t.Errorf("%v: %+v, expected %+v", err, again.State(), state)
	}
}

func BenchmarkAddInOrder(b *testing.B) {
	s, _ := NewSet(State{})
	b.ReportAllocs()
	for i := range int64(b.N) {
		s.Add(i, i)
	}
}

func BenchmarkAddRandom(b *testing.B) {
	const window = 50_000
	order := rand.New(rand.NewPCG(1, 2)).Perm(window)
	s, _ := NewSet(State{})
	b.ReportAllocs()
	for i := range b.N {
		off := int64(i/window*window + order[i%window])
		s.Add(off, off)
	}
}

func BenchmarkEncode(b *testing.B) {
	bits := goldenBits()
	for i := range b.N {
		bits[i%len(bits)].Encode()
	}
}

func BenchmarkDecode(b *testing.B) {
	var data [][]byte
	for _, bits := range goldenBits() {
		data = append(data, bits.Encode())
	}
	b.ReportAllocs()
	for i := range b.N {
		if _, err := DecodeBits(data[i%len(data)]); err != nil {
			b.Fatal(err)
		}
	}
}
