package history

import (
	"math"
	"math/bits"
	"slices"
	"sort"
)

const (
	chunkBits = 10
	chunkSize = 1 << chunkBits
)

// chunk holds the values of chunkSize offsets.
type chunk struct {
	base   int64
	has    [chunkSize / 64]uint64
	values [chunkSize]Value
	oldest int64 // scratch of a check: the earliest end of a publish acknowledged in here
}

// table maps offsets to values. Offsets may lie anywhere, but mostly follow each other.
type table struct {
	chunks []*chunk // by base
	last   int      // index of the chunk used last
	count  int
}

// find returns the index of the chunk for an offset, or where it would stand.
func (t *table) find(offset int64) (int, bool) {
	base := offset &^ (chunkSize - 1)
	for i := t.last; i < len(t.chunks) && i < t.last+2; i++ { // the same as before, or the next
		if t.chunks[i].base == base {
			t.last = i
			return i, true
		}
	}
	i := sort.Search(len(t.chunks), func(i int) bool { return t.chunks[i].base >= base })
	if i < len(t.chunks) && t.chunks[i].base == base {
		t.last = i
		return i, true
	}
	return i, false
}

func (t *table) get(offset int64) (Value, bool) {
	i, ok := t.find(offset)
	if !ok {
		return Value{}, false
	}
	at := offset & (chunkSize - 1)
	c := t.chunks[i]
	return c.values[at], c.has[at/64]>>(at%64)&1 == 1
}

// put sets what an offset has unless it has something already, and returns what it has.
func (t *table) put(offset int64, v Value) (Value, bool) {
	i, ok := t.find(offset)
	if !ok {
		t.chunks = slices.Insert(t.chunks, i, &chunk{base: offset &^ (chunkSize - 1)})
		t.last = i
	}
	c, at := t.chunks[i], offset&(chunkSize-1)
	if c.has[at/64]>>(at%64)&1 == 1 {
		return c.values[at], false
	}
	c.has[at/64] |= 1 << (at % 64)
	c.values[at] = v
	t.count++
	return v, true
}

// each calls fn for each value from one offset to another, both included, in order.
func (t *table) each(from, to int64, fn func(offset int64, v Value)) {
	t.eachChunk(from, to, nil, fn)
}

// eachChunk is each for those chunks that want accepts.
func (t *table) eachChunk(from, to int64, want func(*chunk) bool, fn func(offset int64, v Value)) {
	first := sort.Search(len(t.chunks), func(i int) bool { return t.chunks[i].base >= from&^(chunkSize-1) })
	for _, c := range t.chunks[first:] {
		if c.base > to {
			return
		}
		if want != nil && !want(c) {
			continue
		}
		for w, word := range c.has {
			for ; word != 0; word &= word - 1 {
				at := w*64 + bits.TrailingZeros64(word)
				if o := c.base + int64(at); o >= from && o <= to {
					fn(o, c.values[at])
				}
			}
		}
	}
}

// span is a range of offsets, both ends included.
type span struct{ from, to int64 }

// spans is a set of offsets: ranges in order that neither overlap nor touch.
type spans []span

func (s spans) contains(offset int64) bool {
	i := sort.Search(len(s), func(i int) bool { return s[i].to >= offset })
	return i < len(s) && s[i].from <= offset
}

// add returns the set with a range added.
func (s spans) add(n span) spans {
	if n.to < n.from {
		return s
	}
	i := sort.Search(len(s), func(i int) bool { return s[i].to >= n.from-1 })
	j := i
	for ; j < len(s) && s[j].from-1 <= n.to; j++ {
		n.from, n.to = min(n.from, s[j].from), max(n.to, s[j].to)
	}
	return slices.Replace(s, i, j, n)
}

// missing calls fn for each range between from and to, both included, that is not in the set.
func (s spans) missing(from, to int64, fn func(span)) {
	i := sort.Search(len(s), func(i int) bool { return s[i].to >= from })
	for ; i < len(s) && s[i].from <= to; i++ {
		if s[i].from > from {
			fn(span{from, s[i].from - 1})
		}
		if s[i].to == math.MaxInt64 {
			return
		}
		from = max(from, s[i].to+1)
	}
	if from <= to {
		fn(span{from, to})
	}
}
