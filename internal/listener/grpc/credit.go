package grpc

import (
	"context"
	"math"
	"sync"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

// credit is what one subscriber or consumer may still be sent, in bytes. Below zero is fine: a delivery that was begun with some
// left may cost more.
type credit struct {
	wake chan struct{} // holds a token when left or closed changed

	mu     sync.Mutex
	left   int64 // guarded by mu
	closed bool  // the client will give no more; guarded by mu
}

func newCredit() *credit { return &credit{wake: make(chan struct{}, 1)} }

// give adds what the client sent; nil adds nothing.
func (c *credit) give(more *leveev1.Credit) error {
	if more == nil {
		return nil
	}
	if more.Bytes <= 0 {
		return invalid("credit of %d bytes: it must be above 0", more.Bytes)
	}
	c.mu.Lock()
	if c.left > math.MaxInt64-more.Bytes {
		c.left = math.MaxInt64
	} else {
		c.left += more.Bytes
	}
	c.mu.Unlock()
	signal(c.wake)
	return nil
}

func (c *credit) spend(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left -= int64(bytes)
}

// close says that the client gives no more.
func (c *credit) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	signal(c.wake)
}

// now returns how much there is.
func (c *credit) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// wait waits until there is credit, and returns how much; 0 when there is none and never will be.
func (c *credit) wait(ctx context.Context) (int64, error) {
	for {
		c.mu.Lock()
		left, closed := c.left, c.closed
		c.mu.Unlock()
		if left > 0 {
			return left, nil
		}
		if closed {
			return 0, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
