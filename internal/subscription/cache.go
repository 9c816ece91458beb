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
	users       int // guarded by the Run's mutex
}

// cache keeps what was read last, most of which waits to be handed out. What is not in it any more is read again. It is
// guarded by the Run's mutex, but for memory and put.
type cache struct {
	most      int        // bytes it keeps: somewhat more than what a dispatcher lets be read ahead
	shared    bool       // what is read belongs to others, too: its memory is never used again
	stretches []*stretch // ascending
	bytes     int
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

// add keeps what was read.
func (c *cache) add(chunk seglog.Chunk) {
	c.stretches = append(c.stretches, &stretch{first: chunk.First, next: chunk.Next, data: chunk.Data, users: 1})
	c.bytes += len(chunk.Data)
	if n := len(c.stretches); n > 1 && c.stretches[n-2].first > chunk.First { // reading began anew further back
		old := c.stretches[:n-1]
		c.stretches = c.stretches[n-1:]
		for _, s := range old {
			c.drop(s)
		}
	}
	for len(c.stretches) > 1 && (c.bytes > c.most || len(c.stretches) > cacheStretches) {
		s := c.stretches[0]
		c.stretches[0] = nil
		c.stretches = c.stretches[1:]
		c.drop(s)
	}
}

func (c *cache) drop(s *stretch) {
	c.bytes -= len(s.data)
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
