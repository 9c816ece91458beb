package cli

// ackedPrefix follows which of the records 0, 1, 2 … are acknowledged without a hole before them, whatever order the
// answers come in. It holds one offset for each record between the first unanswered one and the last answered one.
// It is not safe for concurrent use.
type ackedPrefix struct {
	n     int64   // records 0 … n-1 are acknowledged
	first int64   // offset of record 0; meaningful when n > 0
	last  int64   // offset of record n-1; meaningful when n > 0
	ring  []int64 // ring[(head+i) % len]: offset of record n+i
	head  int
	used  int // how many of ring are in use
}

// pendingOffset marks a record without an answer. -1 is an offset's way to say that nobody knows it any more.
const pendingOffset = -2

// acknowledge records that record i is at offset. Each record may be acknowledged once.
func (p *ackedPrefix) acknowledge(i, offset int64) {
	if i == p.n && p.used == 0 { // the common case: in order
		p.advance(offset)
		return
	}
	at := int(i - p.n)
	p.grow(at + 1)
	p.ring[(p.head+at)%len(p.ring)] = offset
	for p.used > 0 && p.ring[p.head] != pendingOffset {
		p.advance(p.ring[p.head])
		p.head = (p.head + 1) % len(p.ring)
		p.used--
	}
}

func (p *ackedPrefix) advance(offset int64) {
	if p.n == 0 {
		p.first = offset
	}
	p.last = offset
	p.n++
}

// grow makes at least n entries usable, new ones pending.
func (p *ackedPrefix) grow(n int) {
	if n > len(p.ring) {
		bigger := make([]int64, max(64, 2*n))
		for i := range p.used {
			bigger[i] = p.ring[(p.head+i)%len(p.ring)]
		}
		p.ring, p.head = bigger, 0
	}
	for ; p.used < n; p.used++ {
		p.ring[(p.head+p.used)%len(p.ring)] = pendingOffset
	}
}

// offsets returns the offsets of the first and the last record of the prefix; -1 where it is empty.
func (p *ackedPrefix) offsets() (first, last int64) {
	if p.n == 0 {
		return -1, -1
	}
	return p.first, p.last
}
