package broker

import (
	"context"
	"sync"
)

// budget bounds the bytes of batches that are submitted and not answered. Who finds no room waits in line, so that a
// large batch is not passed by small ones for ever.
type budget struct {
	mu struct {
		sync.Mutex
		free    int64
		waiting []*ticket // in order of arrival
	}
	size int64
}

// ticket is a place in the line.
type ticket struct {
	n     int64
	ready chan struct{} // closed once the bytes are the ticket's
}

func newBudget(size int64) *budget {
	b := &budget{size: size}
	b.mu.free = size
	return b
}

// acquire takes n bytes, at most the whole budget, and waits for them until ctx is done.
func (b *budget) acquire(ctx context.Context, n int64) error {
	b.mu.Lock()
	if len(b.mu.waiting) == 0 && b.mu.free >= n {
		b.mu.free -= n
		b.mu.Unlock()
		return nil
	}
	t := &ticket{n: n, ready: make(chan struct{})}
	b.mu.waiting = append(b.mu.waiting, t)
	b.mu.Unlock()
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-t.ready: // served meanwhile: give it back to those behind
		b.mu.free += n
	default:
		for i, w := range b.mu.waiting {
			if w == t {
				b.mu.waiting = append(b.mu.waiting[:i], b.mu.waiting[i+1:]...)
				break
			}
		}
	}
	b.serveLocked() // the line may have been waiting for this ticket alone
	return context.Cause(ctx)
}

// release gives n bytes back. It never blocks.
func (b *budget) release(n int64) {
	b.mu.Lock()
	b.mu.free += n
	if len(b.mu.waiting) > 0 {
		b.serveLocked()
	}
	b.mu.Unlock()
}

func (b *budget) serveLocked() {
	for len(b.mu.waiting) > 0 && b.mu.waiting[0].n <= b.mu.free {
		t := b.mu.waiting[0]
		b.mu.waiting = b.mu.waiting[1:]
		b.mu.free -= t.n
		close(t.ready)
	}
}

// used returns the bytes taken.
func (b *budget) used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size - b.mu.free
}
