package objstore

import (
	"context"
	"math/rand/v2"
	"time"
)

// Bounds of the waits between attempts.
const (
	firstWait = 100 * time.Millisecond
	longWait  = 5 * time.Second
)

// Retry calls fn up to that many times while its error is Retryable, and returns the last one. It waits in between, longer
// each time and by a random part of that, so that many who were refused together do not come back together. Only what may
// be done twice may be given to it.
func Retry(ctx context.Context, attempts int, fn func() error) error {
	wait := firstWait
	for {
		err := fn()
		if attempts--; err == nil || attempts <= 0 || !Retryable(err) {
			return err
		}
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
		wait = min(2*wait, longWait)
	}
}
