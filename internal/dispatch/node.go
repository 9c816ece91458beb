package dispatch

import "time"

// place is where a node is, and with that what may become of it.
type place uint8

const (
	placeNone    place = iota
	placeLeased        // with a consumer
	placeWaiting       // to be handed out again, later
	placeDelayed       // never handed out, and not due
	placeReady         // to be handed out
	placePoison        // the shell sends it to the dead letters
	placeStuck         // the subscription is blocked at it
)

// node is a run of records that are known one way or another: handed out and not settled, or read and not in the
// look-ahead's ring because they have a key or had to wait. The nodes of the index do not overlap.
type node struct {
	from, to int64
	bytes    int64
	count    int32 // how often it was handed out; 0: never, so that no acknowledgement means it
	place    place
	late     bool   // it was delayed
	list     *index // where a ready one without key is
	reason   string // why it was not settled

	consumer   *consumer // that holds it
	leasedAt   time.Duration
	prev, next *node // of the same consumer, in the order of leasedAt

	due    int64 // waiting: monotonic; delayed: wall clock
	heapAt int
	key    *key // nil: none, or it plays no role
}

func (n *node) messages() int64 { return n.to - n.from + 1 }

// share returns the bytes of k out of n records.
func share(bytes, k, n int64) int64 {
	if k >= n {
		return bytes
	}
	return int64(float64(bytes) * float64(k) / float64(n))
}

// record is how large each record of a run is.
func record(bytes, messages int64) int64 { return (bytes + messages - 1) / messages }

// nodes makes nodes, and uses them again.
type nodes struct{ free *node }

func (p *nodes) get() *node {
	n := p.free
	if n == nil {
		return &node{heapAt: -1}
	}
	p.free, n.next = n.next, nil
	return n
}

func (p *nodes) put(n *node) {
	*n = node{heapAt: -1, next: p.free}
	p.free = n
}

// leases are the nodes with one consumer, oldest first.
type leases struct{ first, last *node }

func (l *leases) add(n *node) { l.after(l.last, n) }

// after puts n behind at, or in front where that is nil.
func (l *leases) after(at, n *node) {
	n.prev = at
	if at == nil {
		n.next, l.first = l.first, n
	} else {
		n.next, at.next = at.next, n
	}
	if n.next == nil {
		l.last = n
	} else {
		n.next.prev = n
	}
}

func (l *leases) remove(n *node) {
	if n.prev == nil {
		l.first = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.last = n.prev
	} else {
		n.next.prev = n.prev
	}
	n.prev, n.next = nil, nil
}
