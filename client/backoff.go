package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// How long to wait before a retry: from the first to the longest, doubling, each between half and all of it so that
// clients a restart has cut off do not return all at once.
const (
	firstBackoff   = 20 * time.Millisecond
	longestBackoff = 2 * time.Second
)

// backoff returns how long to wait before retry number attempt, counted from 0.
func backoff(attempt int) time.Duration {
	d := longestBackoff
	if attempt < 7 {
		d = min(d, firstBackoff<<attempt)
	}
	return d/2 + rand.N(d/2+1)
}

// sleep waits for d and reports whether ctx is still alive then.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}
