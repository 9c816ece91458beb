package task

import (
	"context"
	"sync"
)

// Budget bounds how many bytes are in use at a time. Who finds no room waits in line, so that a large piece is not passed by
// small ones for ever. It is safe for concurrent use.
type Budget struct {
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

// NewBudget returns a budget of size bytes.
func NewBudget(size int64) *Budget {
	b := &Budget{size: size}
	b.mu.free = size
	return b
}

// Acquire takes n bytes, at most the whole budget, and waits for them until ctx is done.
func (b *Budget) Acquire(ctx context.Context, n int64) error {
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

// Release gives n bytes back. It never blocks.
func (b *Budget) Release(n int64) {
	b.mu.Lock()
	b.mu.free += n
	if len(b.mu.waiting) > 0 {
		b.serveLocked()
	}
	b.mu.Unlock()
}

func (b *Budget) serveLocked() {
	for len(b.mu.waiting) > 0 && b.mu.waiting[0].n <= b.mu.free {
		t := b.mu.waiting[0]
		b.mu.waiting = b.mu.waiting[1:]
		b.mu.free -= t.n
		close(t.ready)
	}
}

// Used returns the bytes taken.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size - b.mu.free
}

// Size returns the whole budget.
func (b *Budget) Size() int64 { return b.size }

// Crowded reports whether anybody waits for room.
func (b *Budget) Crowded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.mu.waiting) > 0
}
