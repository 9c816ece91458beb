package cursor

import (
	"fmt"
	"math"
	"sort"
)

// maxOffset is above every offset of a log, and leaves room to count on.
const maxOffset = math.MaxInt64 - 2*BlockSize

// Range is a run of offsets, both ends included.
type Range struct{ From, To int64 }

// Block is the settled offsets of one block as they are stored: Bits is what Bits.Encode returns. In a Change a block
// without Bits is gone.
type Block struct {
	Number int64 // its first offset is Number*BlockSize
	Bits   []byte
}

// Count is how often a record was handed out.
type Count struct {
	Offset     int64
	Deliveries int32
}

// State is all that is stored of a cursor.
type State struct {
	Position int64
	Blocks   []Block // ascending
	Counts   []Count // ascending
}

// Set is the settled offsets of one partition: all below the position, and those in its blocks. One goroutine uses it.
type Set struct {
	position int64
	sent     int64   // position of the newest Change; -1: it must be saved again
	blocks   []block // ascending; none is empty, none lies wholly below the position
}

// block is the settled offsets of one block. Bits below the position say nothing.
type block struct {
	number int64
	bits   *Bits // nil: all are settled, which takes no 512 bytes
	count  int32 // bits that are set; exact where the position lies below the block
	dirty  bool  // changed since the newest Change that holds it
}

// NewSet returns the set that was stored. It fails where the state is none that State or Changes could have given.
func NewSet(state State) (*Set, error) {
	s := &Set{position: state.Position, sent: state.Position}
	if state.Position < 0 || state.Position > maxOffset {
		return nil, fmt.Errorf("open cursor: position %d", state.Position)
	}
	last := int64(-1)
	for _, b := range state.Blocks {
		if b.Number <= last || b.Number > maxOffset/BlockSize {
			return nil, fmt.Errorf("open cursor: block %d after %d", b.Number, last)
		}
		last = b.Number
		decoded, err := DecodeBits(b.Bits)
		if err != nil {
			return nil, fmt.Errorf("open cursor: block %d: %w", b.Number, err)
		}
		if n := decoded.count(); n > 0 && (b.Number+1)*BlockSize > state.Position {
			s.blocks = append(s.blocks, newBlock(b.Number, &decoded, n))
		}
	}
	s.pop()
	return s, nil
}

func newBlock(number int64, bits *Bits, n int) block {
	if n == BlockSize {
		bits = nil
	}
	return block{number: number, bits: bits, count: int32(n)}
}

// Position is the lowest offset that is not settled.
func (s *Set) Position() int64 { return s.position }

// Has reports whether an offset is settled.
func (s *Set) Has(off int64) bool {
	if off < s.position || len(s.blocks) == 0 {
		return off < s.position
	}
	i, ok := s.find(off / BlockSize)
	return ok && (s.blocks[i].bits == nil || s.blocks[i].bits.has(int(off%BlockSize)))
}

// Add settles offsets, both included, and returns how many were not settled before.
func (s *Set) Add(from, to int64) (added int64) {
	from, to = max(from, s.position), min(to, maxOffset)
	if from > to {
		return 0
	}
	if from == s.position { // in order, as is usual: no block is needed
		s.Unsettled(from, to, func(r Range) bool {
			added += r.To - r.From + 1
			return true
		})
		s.position = to + 1
		s.pop()
		return added
	}
	for at := from; at <= to; {
		end := min(at|(BlockSize-1), to)
		added += s.addInBlock(at/BlockSize, int(at%BlockSize), int(end%BlockSize))
		at = end + 1
	}
	s.pop()
	return added
}

func (s *Set) addInBlock(number int64, from, to int) int64 {
	i, ok := s.find(number)
	if !ok {
		s.blocks = append(s.blocks, block{})
		copy(s.blocks[i+1:], s.blocks[i:])
		s.blocks[i] = block{number: number}
		if to-from+1 < BlockSize {
			s.blocks[i].bits = new(Bits)
		}
		s.blocks[i].count = 0
	}
	b := &s.blocks[i]
	if b.bits == nil {
		if ok {
			return 0
		}
		b.count, b.dirty = BlockSize, true
		return BlockSize
	}
	added := b.bits.set(from, to)
	if added > 0 {
		b.dirty = true
		if b.count += int32(added); b.count == BlockSize {
			b.bits = nil
		}
	}
	return int64(added)
}

// pop moves the position over what is settled, and forgets the blocks below it.
func (s *Set) pop() {
	gone := 0
	for gone < len(s.blocks) {
		b := &s.blocks[gone]
		start := b.number * BlockSize
		if start+BlockSize <= s.position {
			gone++
			continue
		}
		if s.position < start {
			break
		}
		if b.bits == nil {
			s.position = start + BlockSize
			gone++
			continue
		}
		s.position = start + int64(b.bits.next(int(s.position-start), false))
		if s.position < start+BlockSize {
			if b.bits.next(int(s.position-start), true) == BlockSize {
				gone++ // nothing above the position is left in it
			}
			break
		}
		gone++
	}
	s.drop(gone)
}

// drop removes the first n blocks.
func (s *Set) drop(n int) {
	if n == 0 {
		return
	}
	kept := copy(s.blocks, s.blocks[n:])
	clear(s.blocks[kept:])
	s.blocks = s.blocks[:kept]
	if kept == 0 {
		s.blocks = nil // an idle set is small
	}
}

// Next returns the lowest offset at or above off that is not settled.
func (s *Set) Next(off int64) int64 {
	off = max(off, s.position)
	i, ok := s.find(off / BlockSize)
	for ; ok && i < len(s.blocks) && s.blocks[i].number == off/BlockSize; i++ {
		b := &s.blocks[i]
		at := BlockSize
		if b.bits != nil {
			at = b.bits.next(int(off%BlockSize), false)
		}
		off = b.number*BlockSize + int64(at)
		if at < BlockSize {
			break
		}
	}
	return off
}

// nextSettled returns the lowest settled offset at or above off, which is not below the position; limit where there is
// none below that.
func (s *Set) nextSettled(off, limit int64) int64 {
	i, _ := s.find(off / BlockSize)
	for ; i < len(s.blocks); i++ {
		b := &s.blocks[i]
		start := b.number * BlockSize
		if start >= limit {
			break
		}
		from := max(off-start, 0)
		if b.bits == nil {
			return min(start+from, limit)
		}
		if at := b.bits.next(int(from), true); at < BlockSize {
			return min(start+int64(at), limit)
		}
	}
	return limit
}

// Unsettled yields the runs of offsets between from and to, both included, that are not settled.
func (s *Set) Unsettled(from, to int64, yield func(Range) bool) {
	to = min(to, maxOffset)
	for from <= to {
		from = s.Next(from)
		if from > to {
			return
		}
		end := s.nextSettled(from, to+1)
		if !yield(Range{from, end - 1}) {
			return
		}
		from = end
	}
}

// Span is how far the highest settled offset lies above the position; 0 where nothing above it is settled.
func (s *Set) Span() int64 {
	if len(s.blocks) == 0 {
		return 0
	}
	b := &s.blocks[len(s.blocks)-1]
	high := int64(BlockSize - 1)
	if b.bits != nil {
		high = int64(b.bits.highest())
	}
	return b.number*BlockSize + high - s.position
}

// MoveTo settles everything below a position.
func (s *Set) MoveTo(position int64) {
	if position = min(position, maxOffset); position > s.position {
		s.position = position
		s.pop()
	}
}

// Reset forgets everything and goes on at a position, which may lie anywhere: a seek.
func (s *Set) Reset(position int64) { *s = Set{position: min(max(position, 0), maxOffset), sent: -1} }

// find returns where the block is, or where it belongs.
func (s *Set) find(number int64) (at int, ok bool) {
	n := len(s.blocks)
	if n == 0 || s.blocks[n-1].number < number {
		return n, false
	}
	if s.blocks[0].number >= number {
		return 0, s.blocks[0].number == number
	}
	at = sort.Search(n, func(i int) bool { return s.blocks[i].number >= number })
	return at, s.blocks[at].number == number
}

// Settled returns how many offsets above the position are settled.
func (s *Set) Settled() (n int64) {
	for i := range s.blocks {
		b := &s.blocks[i]
		from := s.position - b.number*BlockSize
		switch {
		case from <= 0:
			n += int64(b.count)
		case b.bits == nil:
			n += BlockSize - from
		default:
			for at := b.bits.next(int(from), true); at < BlockSize; at = b.bits.next(at+1, true) {
				n++
			}
		}
	}
	return n
}
