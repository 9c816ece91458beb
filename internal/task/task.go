// Package task owns every goroutine the broker starts. A Group names its goroutines (also as a pprof label), cancels
// all of them at the first error, and waits for all of them. Invariant: after Wait returns, none is running.
package task

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"sync"
)

// Group runs named goroutines together. It is safe for concurrent use.
type Group struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	idle    sync.Cond // signalled when running falls to zero
	running int       // guarded by mu
	err     error     // guarded by mu; the first failure
	closed  bool      // guarded by mu; Wait saw zero: nothing may start any more
}

// NewGroup returns a group whose context is cancelled with parent, by Stop, or by the first failing goroutine.
func NewGroup(parent context.Context) *Group {
	g := &Group{}
	g.ctx, g.cancel = context.WithCancelCause(parent)
	g.idle.L = &g.mu
	return g
}

// Context is done once the group is to stop.
func (g *Group) Context() context.Context { return g.ctx }

// Go starts fn in a goroutine with a name. fn must return soon after its context is done; an error that is not the
// context's own ends the group. Go reports false, and starts nothing, after Wait has returned.
func (g *Group) Go(name string, fn func(ctx context.Context) error) bool {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return false
	}
	g.running++
	g.mu.Unlock()
	go func() {
		defer g.ended()
		pprof.Do(g.ctx, pprof.Labels("task", name), func(ctx context.Context) {
			if err := fn(ctx); err != nil && !errors.Is(err, context.Canceled) {
				g.fail(fmt.Errorf("%s: %w", name, err))
			}
		})
	}()
	return true
}

func (g *Group) fail(err error) {
	g.mu.Lock()
	if g.err == nil {
		g.err = err
	}
	g.mu.Unlock()
	g.cancel(err)
}

func (g *Group) ended() {
	g.mu.Lock()
	if g.running--; g.running == 0 {
		g.idle.Broadcast()
	}
	g.mu.Unlock()
}

// Stop cancels the group's context. It does not wait.
func (g *Group) Stop() { g.cancel(context.Canceled) }

// Wait waits for every goroutine, also those started meanwhile, and returns the first failure. Afterwards the
// group's context is done and Go starts nothing.
func (g *Group) Wait() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.running > 0 {
		g.idle.Wait()
	}
	g.closed = true
	g.cancel(context.Canceled)
	return g.err
}
