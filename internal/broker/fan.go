package broker

import (
	"sync"

	"github.com/leveemq/levee/record"
	"github.com/prometheus/client_golang/prometheus"
)

// fan hands what is published to one partition of a non-reliable topic to whoever subscribes to it at that moment. It
// stores nothing: a batch lives in the rings of subscribers until each has taken it. Invariant: a publisher never waits
// for a subscriber; a ring that is full loses its oldest batch instead.
type fan struct {
	dropped prometheus.Counter

	mu struct {
		sync.Mutex
		next  int64 // offset of the next record; starts at 0 with the broker
		rings []*ring
	}
}

// publish gives count records their offsets and queues the batch for every subscriber. All of them share one copy of it.
func (f *fan) publish(batch []byte, count int) (first int64) {
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
			f.dropped.Add(float64(n))
		}
	}
	return first
}

// join adds a subscriber and returns the offset that comes first for it.
func (f *fan) join(r *ring) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rings = append(f.mu.rings, r)
	return f.mu.next
}

func (f *fan) leave(r *ring) {
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

func (f *fan) end() int64 {
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

// ring is what waits for one subscriber: at most maxBytes and maxBatches, except that the newest batch is always kept,
// so the memory it holds is the larger of maxBytes and one batch.
type ring struct {
	maxBytes, maxBatches int
	wake                 chan struct{} // one slot: there is something to take

	mu struct {
		sync.Mutex
		queue   []queued // a circle: len(queue) slots, of which count from head on are in use
		head    int
		count   int
		bytes   int
		dropped int64
	}
}

func newRing(maxBytes, maxBatches int) *ring {
	return &ring{maxBytes: maxBytes, maxBatches: maxBatches, wake: make(chan struct{}, 1)}
}

// push queues q and returns how many records had to go for it. It never blocks.
func (r *ring) push(q queued) (dropped int) {
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
	case r.wake <- struct{}{}:
	default:
	}
	return dropped
}

func (r *ring) shiftLocked() queued {
	q := r.mu.queue[r.mu.head]
	r.mu.queue[r.mu.head] = queued{}
	r.mu.head = (r.mu.head + 1) % len(r.mu.queue)
	r.mu.count--
	r.mu.bytes -= len(q.batch)
	return q
}

func (r *ring) growLocked() {
	bigger := make([]queued, min(max(8, 2*len(r.mu.queue)), r.maxBatches))
	for i := range r.mu.count {
		bigger[i] = r.mu.queue[(r.mu.head+i)%len(r.mu.queue)]
	}
	r.mu.queue, r.mu.head = bigger, 0
}

// aloneBytes is from where on a batch is an event of its own: joining it with others would copy it, for each subscriber
// again, and save no more than a small message does.
const aloneBytes = 16 << 10

// take removes batches, about maxBytes of them but at least one where there is one, and tells how many records were
// dropped so far.
func (r *ring) take(maxBytes int) (batches []queued, dropped int64) {
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
