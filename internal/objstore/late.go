package objstore

import (
	"context"
	"fmt"
	"iter"
	"sync"
)

// Late is a store that is opened by its first use, and again by the next one where that failed: whoever has to start
// without it can. It is safe for concurrent use; uses wait for one that opens it.
type Late struct {
	open func() (Store, error)

	mu     sync.Mutex
	store  Store // guarded by mu; nil: not open
	closed bool  // guarded by mu
}

var _ Store = (*Late)(nil)

// NewLate returns a store that open opens.
func NewLate(open func() (Store, error)) *Late { return &Late{open: open} }

func (l *Late) use() (Store, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, fmt.Errorf("%w: it is closed", ErrInvalid)
	case l.store == nil:
		s, err := l.open()
		if err != nil {
			return nil, err
		}
		l.store = s
	}
	return l.store, nil
}

// PutIfAbsent implements Store.
func (l *Late) PutIfAbsent(ctx context.Context, key string, src Source) (Info, error) {
	s, err := l.use()
	if err != nil {
		return Info{}, err
	}
	return s.PutIfAbsent(ctx, key, src)
}

// PutIfMatch implements Store.
func (l *Late) PutIfMatch(ctx context.Context, key string, version Version, src Source) (Info, error) {
	s, err := l.use()
	if err != nil {
		return Info{}, err
	}
	return s.PutIfMatch(ctx, key, version, src)
}

// Get implements Store.
func (l *Late) Get(ctx context.Context, key string, off, n int64) (*Body, error) {
	s, err := l.use()
	if err != nil {
		return nil, err
	}
	return s.Get(ctx, key, off, n)
}

// Head implements Store.
func (l *Late) Head(ctx context.Context, key string) (Info, error) {
	s, err := l.use()
	if err != nil {
		return Info{}, err
	}
	return s.Head(ctx, key)
}

// List implements Store.
func (l *Late) List(ctx context.Context, prefix, after string) iter.Seq2[Info, error] {
	s, err := l.use()
	if err != nil {
		return func(yield func(Info, error) bool) { yield(Info{}, err) }
	}
	return s.List(ctx, prefix, after)
}

// Delete implements Store.
func (l *Late) Delete(ctx context.Context, key string) error {
	s, err := l.use()
	if err != nil {
		return err
	}
	return s.Delete(ctx, key)
}

// Close implements Store.
func (l *Late) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.store == nil {
		return nil
	}
	return l.store.Close()
}
