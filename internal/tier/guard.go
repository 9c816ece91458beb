package tier

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
)

// stalled is after how long without a byte an upload is given up. A connection that died without a word must not hold one
// of few workers for ever.
const stalled = time.Minute

// guard is a context that ends when the store makes no progress with what goes on under it.
type guard struct {
	ctx    context.Context // of the one piece of work that it guards
	cancel context.CancelCauseFunc
	soft   *pace // of what comes from the store; nil: as fast as it comes

	mu    sync.Mutex
	held  int         // guarded by mu; how many are at something else than the store
	timer *time.Timer // guarded by mu
}

func newGuard(ctx context.Context) *guard {
	g := &guard{}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	g.timer = time.AfterFunc(stalled, func() {
		g.cancel(fault.New(fault.Timeout, "the object store made no progress for %s", stalled))
	})
	return g
}

// progress says that something goes on.
func (g *guard) progress() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == 0 {
		g.timer.Reset(stalled)
	}
}

// hold says that what comes next is not the store's to do; release, that it is over.
func (g *guard) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held++
	g.timer.Stop()
}

func (g *guard) release() {
	g.mu.Lock()
	g.held--
	g.mu.Unlock()
	g.progress()
}

// Write implements io.Writer for what comes from the store.
func (g *guard) Write(p []byte) (int, error) {
	if g.soft == nil {
		g.progress()
		return len(p), nil
	}
	g.hold()
	defer g.release()
	return len(p), g.soft.wait(g.ctx, int64(len(p)))
}

// end gives the guard back, and returns err with the reason where the guard was it.
func (g *guard) end(parent context.Context, err error) error {
	g.mu.Lock()
	g.timer.Stop()
	g.mu.Unlock()
	if err != nil && parent.Err() == nil && g.ctx.Err() != nil {
		err = fault.New(fault.Timeout, "%w (%w)", context.Cause(g.ctx), err)
	}
	g.cancel(nil)
	return err
}

// guarded reads what the store is to send on; what that takes is not the store's time.
type guarded struct {
	r io.ReaderAt
	g *guard
}

// ReadAt implements io.ReaderAt.
func (r guarded) ReadAt(p []byte, off int64) (int, error) {
	r.g.hold()
	defer r.g.release()
	return r.r.ReadAt(p, off)
}
