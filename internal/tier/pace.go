package tier

import (
	"context"
	"io"
	"sync"
	"time"
)

// paceUnit is how much is read at once where there is a limit, so that many share it evenly.
const paceUnit = 64 << 10

// slack is how much time that was not used is saved up: about what a timer is late.
const slack = 2 * time.Millisecond

// pace bounds how many bytes pass a second. Who comes later waits longer; what was not used is not saved up, but for slack.
type pace struct {
	perSec int64 // 0: no limit

	mu   sync.Mutex
	free time.Time // guarded by mu; when everything that was let through will have passed
}

func newPace(perSec int64) *pace { return &pace{perSec: perSec} }

// An export reads its segment, sends it and reads it back. Each of these goes at so many times the speed at which the segment
// followed the one before, and at least at gentlest: all at once it would take processors and device from what is published
// meanwhile. One that comes as soon as the one before is over has waited: it goes as fast as it can.
const (
	gentleTimes = 8
	gentlest    = 64 << 20
	waited      = 20 * time.Millisecond
)

// gentle returns the pace of an export of so many bytes, where the one before was begun and was over so long ago.
func gentle(bytes int64, began, ended time.Duration) *pace {
	if ended < waited {
		return newPace(0)
	}
	return newPace(max(int64(float64(bytes)/began.Seconds()*gentleTimes), gentlest))
}

// pass waits until n more bytes may pass.
func (p *pace) pass(ctx context.Context, n int64) error {
	now := time.Now()
	p.mu.Lock()
	at := p.free
	if early := now.Add(-slack); at.Before(early) {
		at = early
	}
	p.free = at.Add(time.Duration(float64(n) / float64(p.perSec) * float64(time.Second)))
	p.mu.Unlock()
	if !at.After(now) {
		return ctx.Err()
	}
	timer := time.NewTimer(at.Sub(now))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait is pass, where there is a limit.
func (p *pace) wait(ctx context.Context, n int64) error {
	if p.perSec == 0 {
		return ctx.Err()
	}
	return p.pass(ctx, n)
}

// reader returns r at this pace.
func (p *pace) reader(ctx context.Context, r io.ReaderAt) io.ReaderAt {
	if p.perSec == 0 {
		return r
	}
	return &paced{ctx: ctx, p: p, r: r}
}

// paced is a reader at a pace. Bytes count once, however often a store reads them: it may first read a part for its
// checksum and then to send it.
type paced struct {
	ctx context.Context // of the upload that it belongs to
	p   *pace
	r   io.ReaderAt

	mu   sync.Mutex
	seen int64 // guarded by mu; bytes before it have counted
}

// ReadAt implements io.ReaderAt.
func (r *paced) ReadAt(b []byte, off int64) (int, error) {
	done := 0
	for done < len(b) {
		n := min(len(b)-done, paceUnit)
		end := off + int64(done+n)
		r.mu.Lock()
		fresh := min(max(end-r.seen, 0), int64(n))
		r.seen = max(r.seen, end)
		r.mu.Unlock()
		if fresh > 0 {
			if err := r.p.pass(r.ctx, fresh); err != nil {
				return done, err
			}
		}
		got, err := r.r.ReadAt(b[done:done+n], off+int64(done))
		done += got
		if err != nil || got < n {
			return done, err
		}
	}
	return done, nil
}
