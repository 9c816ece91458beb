package client

import "slices"

// budget bounds the bytes in flight and lets waiters in, first come first served. It is guarded by its owner's mutex.
type budget struct {
	used    int64
	waiters []*waiter
}

type waiter struct {
	size  int64
	woken chan struct{} // closed: the bytes are the waiter's, or wakeAll was called
	has   bool          // the bytes are the waiter's
}

// take takes size bytes and returns nil, or returns a waiter to wait on and then settle.
func (b *budget) take(size, limit int64) *waiter {
	if len(b.waiters) == 0 && b.fits(size, limit) {
		b.used += size
		return nil
	}
	w := &waiter{size: size, woken: make(chan struct{})}
	b.waiters = append(b.waiters, w)
	return w
}

// fits lets anything in when nothing is: else a record above the limit would wait for good.
func (b *budget) fits(size, limit int64) bool { return b.used == 0 || b.used+size <= limit }

// settle ends a wait and reports whether the bytes are the waiter's.
func (b *budget) settle(w *waiter, limit int64) bool {
	if !w.has {
		b.waiters = slices.DeleteFunc(b.waiters, func(o *waiter) bool { return o == w })
		b.admit(limit) // it may have stood in front of smaller ones
	}
	return w.has
}

// give gives size bytes back.
func (b *budget) give(size, limit int64) {
	b.used -= size
	b.admit(limit)
}

func (b *budget) admit(limit int64) {
	for len(b.waiters) > 0 && b.fits(b.waiters[0].size, limit) {
		w := b.waiters[0]
		b.waiters = slices.Delete(b.waiters, 0, 1)
		b.used += w.size
		w.has = true
		close(w.woken)
	}
}

// wakeAll ends every wait: nothing is let in any more.
func (b *budget) wakeAll() {
	for _, w := range b.waiters {
		close(w.woken)
	}
	b.waiters = nil
}
