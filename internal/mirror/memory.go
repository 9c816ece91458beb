package mirror

import (
	"math/bits"
	"sync"
)

// Pages are read into memory that was used before, in powers of two from smallPage to pageBytes: new memory is cleared, and
// collected after one use. What is smaller is not worth it, and what is larger is a single frame.
const smallPage = 64 << 10

var spare [5]sync.Pool // of *[]byte: smallPage << i bytes

// memory is what the frames of one page are in.
type memory struct{ taken []*[]byte }

// classOf returns which of spare has memory for a number of bytes; false: none has.
func classOf(size int) (int, bool) {
	if size < smallPage || size > pageBytes {
		return 0, false
	}
	return bits.Len(uint((size - 1) / smallPage)), true
}

// take returns memory that is the page's until give.
func (m *memory) take(size int) []byte {
	class, ok := classOf(size)
	if !ok {
		return make([]byte, size)
	}
	b, _ := spare[class].Get().(*[]byte)
	if b == nil {
		fresh := make([]byte, smallPage<<class)
		b = &fresh
	}
	m.taken = append(m.taken, b)
	return (*b)[:size:size]
}

// give has it used again. Nobody may hold a part of it any more.
func (m *memory) give() {
	for _, b := range m.taken {
		class, _ := classOf(len(*b))
		spare[class].Put(b)
	}
	m.taken = nil
}
