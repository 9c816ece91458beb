package task

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Life is a context that ends with its parent, or with a cause of its own. Where a hundred thousand of them exist and
// nobody waits for any, each is a few words: what a wait needs is made by the first call of Done. Contexts derived from
// it are those of package context and cost what those cost. The zero Life has no parent and is ready. It must not be
// copied, and is safe for concurrent use.
type Life struct {
	// Parent must be set before first use; nil: none.
	Parent context.Context

	mu     sync.Mutex // orders the making of waited
	waited atomic.Pointer[waited]
}

// waited is the context that a Life is once somebody waits for it.
type waited struct {
	context.Context
	end context.CancelCauseFunc
}

func (l *Life) parent() context.Context {
	if l.Parent == nil {
		return context.Background()
	}
	return l.Parent
}

func (l *Life) wait() *waited {
	if w := l.waited.Load(); w != nil {
		return w
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waited.Load()
	if w == nil {
		w = &waited{}
		w.Context, w.end = context.WithCancelCause(l.parent())
		l.waited.Store(w)
	}
	return w
}

// now returns what the Life's state is read from.
func (l *Life) now() context.Context {
	if w := l.waited.Load(); w != nil {
		return w.Context
	}
	return l.parent() // nobody has waited, so nobody has ended it either
}

// End ends the Life; cause is what context.Cause returns from then on, unless it had ended before.
func (l *Life) End(cause error) { l.wait().end(cause) }

// Done implements context.Context.
func (l *Life) Done() <-chan struct{} { return l.wait().Done() }

// Err implements context.Context.
func (l *Life) Err() error { return l.now().Err() }

// Deadline implements context.Context.
func (l *Life) Deadline() (time.Time, bool) { return l.now().Deadline() }

// Value implements context.Context.
func (l *Life) Value(key any) any { return l.now().Value(key) }
