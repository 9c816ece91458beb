// Package fan owns what passes by on one partition of a non-reliable topic: it hands a batch to whoever listens at that
// moment and keeps nothing. It never touches a disk and never waits. Invariant: a publisher never waits for a listener; a
// ring that is full loses its oldest batch instead.
package fan

import (
	"sync"

	"github.com/leveemq/levee/record"
)

// Fan is one partition. A batch lives in the rings of those who listen until each has taken it. It is safe for concurrent
// use.
type Fan struct {
	dropped func(records int)

	mu struct {
		sync.Mutex
		next  int64 // offset of the next record; starts at 0 with the broker
		rings []*Ring
	}
}

// New returns a fan whose first record has offset 0. dropped is told of
// records that a listener has lost because it is slow; it must not block.
func New(dropped func(records int)) *Fan { return &Fan{dropped: dropped} }

// Publish gives count records their offsets and queues the batch for every subscriber. All of them share one copy of it.
func (f *Fan) Publish(batch []byte, count int) (first int64) {
	f.mu.Lock()
	if len(f.mu.rings) == 0 {
		first = f.mu.next
		f.mu.next += int64(count)
		f.mu.Unlock()
		return first
	}
	f.mu.Unlock()
	shared := make([]byte, len(batch)) // not under the mutex: it may be megabytes
	copy(shared, batch)

	f.mu.Lock()
	defer f.mu.Unlock()
	first = f.mu.next
	f.mu.next += int64(count)
	record.SetPlacement(shared, first, 0)
	for _, r := range f.mu.rings {
		if n := r.push(queued{batch: shared, records: count, next: f.mu.next}); n > 0 {
			f.dropped(n)
		}
	}
	return first
}

// Join adds a subscriber and returns the offset that comes first for it.
func (f *Fan) Join(r *Ring) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rings = append(f.mu.rings, r)
	return f.mu.next
}

// Leave takes a subscriber out.
func (f *Fan) Leave(r *Ring) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.mu.rings {
		if f.mu.rings[i] == r {
			last := len(f.mu.rings) - 1
			f.mu.rings[i] = f.mu.rings[last]
			f.mu.rings[last] = nil
			f.mu.rings = f.mu.rings[:last]
			return
		}
	}
}

// End returns the offset of the next record.
func (f *Fan) End() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.next
}

// queued is one batch that waits for a subscriber.
type queued struct {
	batch   []byte // shared: not to be written to
	records int
	next    int64 // offset behind it
}

// Ring is what waits for one subscriber: at most maxBytes and maxBatches, except that the newest batch is always kept,
// so the memory it holds is the larger of maxBytes and one batch.
type Ring struct {
	maxBytes, maxBatches int
	Wake                 chan struct{} // one slot: there is something to take

	mu struct {
		sync.Mutex
		queue   []queued // a circle: len(queue) slots, of which count from head on are in use
		head    int
		count   int
		bytes   int
		dropped int64
	}
}

// NewRing returns an empty ring.
func NewRing(maxBytes, maxBatches int) *Ring {
	return &Ring{maxBytes: maxBytes, maxBatches: maxBatches, Wake: make(chan struct{}, 1)}
}

// push queues q and returns how many records had to go for it. It never blocks.
func (r *Ring) push(q queued) (dropped int) {
	r.mu.Lock()
	for r.mu.count > 0 && (r.mu.bytes+len(q.batch) > r.maxBytes || r.mu.count == r.maxBatches) {
		dropped += r.shiftLocked().records
	}
	r.mu.dropped += int64(dropped)
	if r.mu.count == len(r.mu.queue) {
		r.growLocked()
	}
	r.mu.queue[(r.mu.head+r.mu.count)%len(r.mu.queue)] = q
	r.mu.count++
	r.mu.bytes += len(q.batch)
	r.mu.Unlock()
	select {
	case r.Wake <- struct{}{}:
	default:
	}
	return dropped
}

func (r *Ring) shiftLocked() queued {
	q := r.mu.queue[r.mu.head]
	r.mu.queue[r.mu.head] = queued{}
	r.mu.head = (r.mu.head + 1) % len(r.mu.queue)
	r.mu.count--
	r.mu.bytes -= len(q.batch)
	return q
}

func (r *Ring) growLocked() {
	bigger := make([]queued, min(max(8, 2*len(r.mu.queue)), r.maxBatches))
	for i := range r.mu.count {
		bigger[i] = r.mu.queue[(r.mu.head+i)%len(r.mu.queue)]
	}
	r.mu.queue, r.mu.head = bigger, 0
}

// aloneBytes is from where on a batch is an event of its own: joining it with others would copy it, for each subscriber
// again, and save no more than a small message does.
const aloneBytes = 16 << 10

// Taken is what was in a ring.
type Taken struct {
	Batches []byte // whole batches, back to back; a single one is shared with other listeners, so none may be written to
	Records int
	Next    int64 // the offset behind them
	Dropped int64 // records that this ring lost so far
}

// Take takes batches out, about maxBytes of them but at least one; ok is false where there is none.
func (r *Ring) Take(maxBytes int) (t Taken, ok bool) {
	batches, dropped := r.shift(maxBytes)
	if len(batches) == 0 {
		return Taken{Dropped: dropped}, false
	}
	last := batches[len(batches)-1]
	t = Taken{Batches: last.batch, Records: last.records, Next: last.next, Dropped: dropped}
	if len(batches) == 1 {
		return t, true
	}
	size := 0
	for _, q := range batches {
		size += len(q.batch)
	}
	t.Batches, t.Records = make([]byte, 0, size), 0
	for _, q := range batches {
		t.Batches = append(t.Batches, q.batch...)
		t.Records += q.records
	}
	return t, true
}

// Waiting returns what is in the ring.
func (r *Ring) Waiting() (bytes, batches int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.bytes, r.mu.count
}

func (r *Ring) shift(maxBytes int) (batches []queued, dropped int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for size := 0; r.mu.count > 0; {
		n := len(r.mu.queue[r.mu.head].batch)
		if len(batches) > 0 && (size+n > maxBytes || n >= aloneBytes) {
			break
		}
		size += n
		batches = append(batches, r.shiftLocked())
		if n >= aloneBytes {
			break
		}
	}
	return batches, r.mu.dropped
}
