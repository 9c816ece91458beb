package subscription

import (
	"sort"
	"sync"

	"github.com/leveemq/levee/internal/seglog"
)

// stretch is what one read of the source found. It belongs to the cache and to every delivery that is being made of it;
// whoever lets go of it last gives its memory back.
type stretch struct {
	first, next int64 // offsets it holds: first to next-1
	data        []byte
	places      places
	users       int // guarded by the Run's mutex
}

// places says where in a stretch its records begin, by their distance from its first offset; 0 where that is not known.
// Whoever is handed some of the records of a batch here and there needs not look through all of it.
type places []uint32

// note notes that a record begins at a place.
func (p *places) note(distance int64, at int) {
	if distance < 0 || distance >= mostPlaces {
		return
	}
	for int64(len(*p)) <= distance {
		*p = append(*p, 0)
	}
	(*p)[distance] = uint32(at) //nolint:gosec // reads are of a few MiB
}

// of returns where the records of some ranges begin in a batch, which begins at a place itself, and false where that is
// not known of each. It appends to list.
func (p places) of(list []int, ranges []seglog.Range, first int64, batch int) ([]int, bool) {
	for _, r := range ranges {
		if r.From < first || r.To-first >= int64(len(p)) {
			return list, false
		}
		for _, at := range p[r.From-first : r.To-first+1] {
			if at == 0 {
				return list, false
			}
			list = append(list, int(at)-batch)
		}
	}
	return list, true
}

// mostPlaces bounds how far apart the records of a stretch are whose places are kept: a batch may say that it has billions
// of offsets.
const mostPlaces = 1 << 16

// cache keeps what was read last, most of which waits to be handed out. What is not in it any more is read again. It is
// guarded by the Run's mutex, but for memory and put.
type cache struct {
	most      int        // bytes it keeps: somewhat more than what a dispatcher lets be read ahead
	least     int        // bytes it keeps whatever other Runs keep
	cfg       *Config    // counts what all keep
	shared    bool       // what is read belongs to others, too: its memory is never used again
	stretches []*stretch // ascending
	bytes     int
}

// full reports whether the oldest stretch is to go. What cannot be read again does not go for the sake of others.
func (c *cache) full() bool {
	return c.bytes > c.most || len(c.stretches) > cacheStretches || !c.shared && c.bytes > c.least && c.cfg.cached.Load() > c.cfg.cacheBytes()
}

// cacheStretches bounds how many reads a cache keeps, however small they were.
const cacheStretches = 4096

// reads is memory for reads. Small ones are left to the collector.
var reads sync.Pool

const (
	pooledLeast = 64 << 10
	pooledMost  = 4 << 20
)

// allocate gives memory that nobody uses again.
func allocate(size int) []byte { return make([]byte, size) }

// memory gives the memory for one read.
func (c *cache) memory(size int) []byte {
	if size >= pooledLeast && size <= pooledMost && !c.shared {
		if b, ok := reads.Get().(*[]byte); ok && cap(*b) >= size {
			return (*b)[:size]
		}
	}
	return allocate(size)
}

// put gives memory back that nobody looks at any more.
func (c *cache) put(b []byte) {
	if cap(b) >= pooledLeast && cap(b) <= pooledMost && !c.shared {
		reads.Put(&b)
	}
}

// add keeps what was read, and takes over p, which are its places.
func (c *cache) add(chunk seglog.Chunk, p places) {
	c.stretches = append(c.stretches, &stretch{first: chunk.First, next: chunk.Next, data: chunk.Data, places: p, users: 1})
	c.bytes += len(chunk.Data)
	c.cfg.cached.Add(int64(len(chunk.Data)))
	if n := len(c.stretches); n > 1 && c.stretches[n-2].first > chunk.First { // reading began anew further back
		old := c.stretches[:n-1]
		c.stretches = c.stretches[n-1:]
		for _, s := range old {
			c.drop(s)
		}
	}
	for len(c.stretches) > 1 && c.full() {
		s := c.stretches[0]
		c.stretches[0] = nil
		c.stretches = c.stretches[1:]
		c.drop(s)
	}
}

func (c *cache) drop(s *stretch) {
	c.bytes -= len(s.data)
	c.cfg.cached.Add(-int64(len(s.data)))
	c.release(s)
}

// release lets go of a stretch.
func (c *cache) release(s *stretch) {
	if s.users--; s.users == 0 {
		c.put(s.data)
		s.data = nil
	}
}

// find returns the stretch that holds an offset, for the caller to release; nil where it is not here any more.
func (c *cache) find(offset int64) *stretch {
	s := c.from(offset)
	if s == nil || s.first > offset {
		return nil
	}
	s.users++
	return s
}

// from returns the first stretch that holds an offset or later ones, or nil.
func (c *cache) from(offset int64) *stretch {
	i := sort.Search(len(c.stretches), func(i int) bool { return c.stretches[i].next > offset })
	if i == len(c.stretches) {
		return nil
	}
	return c.stretches[i]
}

func (c *cache) clear() {
	for _, s := range c.stretches {
		c.drop(s)
	}
	c.stretches = nil
}
