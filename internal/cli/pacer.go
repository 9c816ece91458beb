package cli

import (
	"context"
	"time"
)

// pacer spreads records over time: record i is due at start + i/rate. A timer fires a millisecond late at best, so it
// hands out all that is due at once instead of waiting between two records. What a stall held up is caught up for a
// tenth of a second at most; the rest of the schedule moves. A zero rate means no limit. It is not safe for concurrent
// use.
type pacer struct {
	rate  float64 // records a second
	start time.Time
	taken int64
}

const (
	pacerCatchUp = 100 * time.Millisecond
	pacerTick    = time.Millisecond
)

// take returns how many of want records may go now; when none may, how long to wait before asking again.
func (p *pacer) take(now time.Time, want int64) (n int64, wait time.Duration) {
	if p.rate <= 0 {
		return want, 0
	}
	if p.start.IsZero() {
		p.start = now
	}
	due := int64(now.Sub(p.start).Seconds()*p.rate) + 1 - p.taken
	if most := int64(pacerCatchUp.Seconds()*p.rate) + 1; due > most {
		p.start = p.start.Add(time.Duration(float64(due-most) / p.rate * float64(time.Second)))
		due = most
	}
	if due <= 0 {
		next := p.start.Add(time.Duration(float64(p.taken) / p.rate * float64(time.Second)))
		return 0, max(next.Sub(now), pacerTick)
	}
	n = min(due, want)
	p.taken += n
	return n, 0
}

// next waits until at least one record may go and returns how many of want may, or ctx's error.
func (p *pacer) next(ctx context.Context, want int64) (int64, error) {
	for {
		n, wait := p.take(time.Now(), want)
		if n > 0 || want == 0 {
			return n, ctx.Err()
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, ctx.Err()
		}
	}
}
