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

// Group runs named goroutines together. The zero Group has no parent and is ready. It must not be copied, and is safe for
// concurrent use.
type Group struct {
	life Life

	mu      sync.Mutex
	idle    chan struct{} // guarded by mu; closed when running falls to zero; nil while nobody waits for that
	err     error         // guarded by mu; the first failure
	running int32         // guarded by mu
	closed  bool          // guarded by mu; Wait saw zero: nothing may start any more
}

// NewGroup returns a group whose context is cancelled with parent, by Stop, or by the first failing goroutine.
func NewGroup(parent context.Context) *Group {
	return &Group{life: Life{Parent: parent}}
}

// Context is done once the group is to stop.
func (g *Group) Context() context.Context { return &g.life }

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
		pprof.Do(&g.life, pprof.Labels("task", name), func(ctx context.Context) {
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
	g.life.End(err)
}

func (g *Group) ended() {
	g.mu.Lock()
	if g.running--; g.running == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
	g.mu.Unlock()
}

// Stop cancels the group's context. It does not wait.
func (g *Group) Stop() { g.life.End(context.Canceled) }

// Wait waits for every goroutine, also those started meanwhile, and returns the first failure. Afterwards the
// group's context is done and Go starts nothing.
func (g *Group) Wait() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.running > 0 {
		if g.idle == nil {
			g.idle = make(chan struct{})
		}
		idle := g.idle
		g.mu.Unlock()
		<-idle
		g.mu.Lock()
	}
	g.closed = true
	g.life.End(context.Canceled)
	return g.err
}
