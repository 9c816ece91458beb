package task

import "sync"

// Turn is held by one at a time, and those who wait for it may give up, as they may for a slot of a channel; but as long
// as nobody waits it is two words. Who comes next is not said. The zero Turn is free. It must not be copied, and is safe
// for concurrent use.
type Turn struct {
	mu    sync.Mutex
	freed chan struct{} // guarded by mu; nil: free; unwaited: held; else held, and closed when the turn is given back
}

// unwaited stands for the channel that nobody waits for. It is compared with, and never used.
var unwaited = make(chan struct{})

// Try takes the turn where it is free, and reports whether it did.
func (t *Turn) Try() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed != nil {
		return false
	}
	t.freed = unwaited
	return true
}

// Freed returns a channel that is closed once the turn was free after the call of Freed: then Try again.
func (t *Turn) Freed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.freed {
	case nil:
		free := make(chan struct{})
		close(free)
		return free
	case unwaited:
		t.freed = make(chan struct{})
	}
	return t.freed
}

// Take waits until the turn is free or done is closed, and reports whether it took it.
func (t *Turn) Take(done <-chan struct{}) bool {
	for !t.Try() {
		select {
		case <-t.Freed():
		case <-done:
			return false
		}
	}
	return true
}

// Give gives the turn back. Only who holds it may call it.
func (t *Turn) Give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed != unwaited {
		close(t.freed)
	}
	t.freed = nil
}
