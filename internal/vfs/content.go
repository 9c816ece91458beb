package vfs

import "slices"

// chunkSize is the unit in which copies of a content part ways.
const chunkSize = 4096

// content is the bytes of a file, in chunks that its copies share until one of them writes. A nil chunk is zeros.
// Invariant: a chunk, and the slice of chunks, is written only by the content whose owner it carries, and no two
// contents ever have the same owner. Copying is therefore O(1), and the copies are free of races with each other.
type content struct {
	size   int64
	chunks []*chunk
	owner  *owner // nil until the first write after a copy
	listOf *owner // who may write the slice itself
}

// owner is an identity; it has a size because pointers to nothing may be equal.
type owner struct{ _ byte }

type chunk struct {
	of   *owner
	data [chunkSize]byte
}

// clone returns a copy. It counts as a write of c, which owns nothing afterwards.
func (c *content) clone() content {
	c.owner = nil
	return content{size: c.size, chunks: c.chunks}
}

// own makes the slice of chunks writable and at least n long.
func (c *content) own(n int) {
	if c.owner == nil {
		c.owner = new(owner)
	}
	if c.listOf != c.owner {
		c.chunks = slices.Clone(c.chunks)
		c.listOf = c.owner
	}
	if missing := n - len(c.chunks); missing > 0 {
		c.chunks = append(c.chunks, make([]*chunk, missing)...)
	}
}

// writable returns chunk i, made c's own. The slice must be owned.
func (c *content) writable(i int) *chunk {
	k := c.chunks[i]
	switch {
	case k == nil:
		k = &chunk{of: c.owner}
	case k.of != c.owner:
		k = &chunk{of: c.owner, data: k.data}
	default:
		return k
	}
	c.chunks[i] = k
	return k
}

// readAt fills p from off and returns how many bytes there were.
func (c *content) readAt(p []byte, off int64) int {
	if off >= c.size {
		return 0
	}
	p = p[:min(int64(len(p)), c.size-off)]
	total := len(p)
	for len(p) > 0 {
		i, at := int(off/chunkSize), int(off%chunkSize)
		n := min(len(p), chunkSize-at)
		if i < len(c.chunks) && c.chunks[i] != nil {
			copy(p[:n], c.chunks[i].data[at:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+int64(n)
	}
	return total
}

// write puts p at off, growing the content as needed. Zeros over nothing stay nothing.
func (c *content) write(p []byte, off int64) {
	if len(p) == 0 {
		return
	}
	end := off + int64(len(p))
	c.own(int((end + chunkSize - 1) / chunkSize))
	for len(p) > 0 {
		i, at := int(off/chunkSize), int(off%chunkSize)
		n := min(len(p), chunkSize-at)
		if c.chunks[i] != nil || !allZero(p[:n]) {
			copy(c.writable(i).data[at:], p[:n])
		}
		p, off = p[n:], off+int64(n)
	}
	c.size = max(c.size, end)
}

// truncate sets the size. Invariant: bytes of a chunk beyond the size are zeros, so that growing shows zeros.
func (c *content) truncate(size int64) {
	if size < c.size {
		n := int((size + chunkSize - 1) / chunkSize)
		if n < len(c.chunks) {
			c.own(0)
			clear(c.chunks[n:])
			c.chunks = c.chunks[:n]
		}
		if at := size % chunkSize; at != 0 && n <= len(c.chunks) && c.chunks[n-1] != nil {
			c.own(0)
			clear(c.writable(n - 1).data[at:])
		}
	}
	c.size = size
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
