package tier

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/task"
)

// piece names a part of an object: where it begins tells its length, for one object.
type piece struct {
	key string
	at  int64
}

// load gets a piece and checks of it what can be checked.
type load func(ctx context.Context) ([]byte, error)

// cache keeps pieces of objects, the least recently used go first, those that were read ahead last, and asks for each once however many want it. What is
// under way counts as kept, and is bounded for itself, so that a thousand readers of a thousand objects wait for memory
// instead of taking it.
type cache struct {
	limit   int64
	group   *task.Group
	flying  *task.Budget // bytes under way
	ahead   int          // pieces that may be here or under way with nobody having asked for them
	metrics *Metrics

	mu      sync.Mutex
	kept    map[piece]*list.Element // guarded by mu; of *keptPiece
	order   list.List               // guarded by mu; what was asked for, the most recently used first
	unread  list.List               // guarded by mu; the others, the oldest first
	used    int64                   // guarded by mu
	flights map[piece]*flight       // guarded by mu
	alone   int                     // guarded by mu; pieces, kept or under way, that were read ahead and that nobody has asked for
}

type keptPiece struct {
	piece
	data   []byte
	landed time.Time // set while nobody has asked for it: it was read ahead then; guarded by the cache's mu
}

// patience is how long what was read ahead is kept for whoever wanted it, who may be gone.
const patience = 10 * time.Second

// flight is one request for a piece. Its fields but done are guarded by the cache's mu until done is closed.
type flight struct {
	done    chan struct{}
	cancel  context.CancelFunc // nil where it goes on with nobody waiting
	waiters int
	ahead   bool // it goes on with nobody waiting
	unread  bool // it was read ahead, and nobody has asked for it
	data    []byte
	err     error
}

func newCache(ctx context.Context, limit, flying int64, ahead int, m *Metrics) *cache {
	return &cache{
		limit: limit, group: task.NewGroup(ctx), flying: task.NewBudget(flying), ahead: ahead, metrics: m,
		kept: map[piece]*list.Element{}, flights: map[piece]*flight{},
	}
}

// get returns a piece of size bytes. It must not be changed. Where several want it at once it is loaded once; it goes on
// being loaded as long as one of them waits.
func (c *cache) get(ctx context.Context, p piece, size int64, fetch load) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if e := c.kept[p]; e != nil {
		data := c.useLocked(e)
		c.mu.Unlock()
		c.metrics.CacheHits.Inc()
		return data, nil
	}
	f := c.flights[p]
	if f == nil {
		if f = c.startLocked(p, size, fetch); f == nil {
			c.mu.Unlock()
			return nil, context.Canceled
		}
	} else {
		c.metrics.CacheShared.Inc()
	}
	f.waiters++
	if f.unread {
		f.unread = false
		c.alone--
	}
	c.mu.Unlock()
	select {
	case <-f.done:
		return f.data, f.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	if f.waiters--; f.waiters == 0 && !f.ahead {
		f.cancel()
		if c.flights[p] == f { // who comes next must not wait for a load that was given up
			delete(c.flights, p)
		}
	}
	c.mu.Unlock()
	return nil, ctx.Err()
}

// useLocked returns what is kept, which somebody asked for.
func (c *cache) useLocked(e *list.Element) []byte {
	k := e.Value.(*keptPiece)
	if k.landed.IsZero() {
		c.order.MoveToFront(e)
		return k.data
	}
	c.unread.Remove(e)
	c.alone--
	k.landed = time.Time{}
	c.kept[k.piece] = c.order.PushFront(k)
	return k.data
}

// expireLocked makes room for read-ahead: what nobody has asked for in a while goes first from now on.
func (c *cache) expireLocked() {
	for c.alone >= c.ahead {
		e := c.unread.Front()
		if e == nil || time.Since(e.Value.(*keptPiece).landed) < patience {
			return
		}
		c.useLocked(e)
		c.order.MoveToBack(c.order.Front())
	}
}

// loadAll gets the n bytes of an object that begin at at, and gives them to got, piece by piece.
type loadAll func(ctx context.Context, at, n int64, got func(data []byte)) error

// prefetch loads what is missing of the pieces of step bytes between two positions of an object, for they are likely to be
// wanted: as many with one request as stand side by side, unless enough is there that nobody has asked for yet.
func (c *cache) prefetch(key string, at, end, step int64, fetch loadAll) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expireLocked()
	for at < end {
		missing := func(at int64) bool {
			p := piece{key, at}
			return at < end && c.kept[p] == nil && c.flights[p] == nil
		}
		to := at
		for room := c.ahead - c.alone; room > 0 && missing(to); room-- {
			to = min(to+step, end)
		}
		if to == at {
			at += step
			continue
		}
		c.startAllLocked(key, at, to, step, fetch)
		at = to
	}
}

// startAllLocked does nothing when the cache is closed.
func (c *cache) startAllLocked(key string, at, end, step int64, fetch loadAll) {
	ctx, cancel := context.WithCancel(c.group.Context())
	var all []*flight
	for range (end - at + step - 1) / step {
		all = append(all, &flight{done: make(chan struct{}), ahead: true, unread: true})
	}
	started := c.group.Go("cold fetch", func(context.Context) error {
		defer cancel()
		c.flyAll(ctx, key, at, end, step, all, fetch)
		return nil
	})
	if !started {
		cancel()
		return
	}
	for i, f := range all {
		c.flights[piece{key, at + int64(i)*step}] = f
	}
	c.alone += len(all)
	c.metrics.CacheMisses.Add(float64(len(all)))
}

func (c *cache) flyAll(ctx context.Context, key string, at, end, step int64, all []*flight, fetch loadAll) {
	held := min(end-at, c.flying.Size())
	err := c.flying.Acquire(ctx, held)
	if err == nil {
		err = fetch(ctx, at, end-at, func(data []byte) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.landLocked(piece{key, at}, all[0], data, nil)
			at, all = at+step, all[1:]
			n := min(held, int64(len(data)))
			c.flying.Release(n)
			held -= n
		})
		c.flying.Release(held)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range all {
		c.landLocked(piece{key, at + int64(i)*step}, f, nil, err)
	}
}

// startLocked returns nil when the cache is closed.
func (c *cache) startLocked(p piece, size int64, fetch load) *flight {
	ctx, cancel := context.WithCancel(c.group.Context())
	f := &flight{done: make(chan struct{}), cancel: cancel}
	started := c.group.Go("cold fetch", func(context.Context) error {
		c.fly(ctx, p, size, f, fetch)
		return nil
	})
	if !started {
		cancel()
		return nil
	}
	c.flights[p] = f
	c.metrics.CacheMisses.Inc()
	return f
}

func (c *cache) fly(ctx context.Context, p piece, size int64, f *flight, fetch load) {
	defer f.cancel()
	size = min(size, c.flying.Size())
	err := c.flying.Acquire(ctx, size)
	var data []byte
	if err == nil {
		data, err = fetch(ctx)
		c.flying.Release(size)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.landLocked(p, f, data, err)
}

// landLocked ends a flight.
func (c *cache) landLocked(p piece, f *flight, data []byte, err error) {
	f.data, f.err = data, err
	kept := false
	if c.flights[p] == f {
		delete(c.flights, p)
		if err == nil {
			kept = c.keepLocked(p, data, f.unread)
		}
	}
	if f.unread && !kept {
		c.alone--
	}
	close(f.done)
}

func (c *cache) keepLocked(p piece, data []byte, unread bool) bool {
	if int64(len(data)) > c.limit || c.kept[p] != nil {
		return false
	}
	if unread {
		c.kept[p] = c.unread.PushBack(&keptPiece{p, data, time.Now()})
	} else {
		c.kept[p] = c.order.PushFront(&keptPiece{p, data, time.Time{}})
	}
	c.used += int64(len(data))
	for c.used > c.limit {
		oldest := c.order.Back()
		if oldest == nil { // what was read ahead goes last: it is bounded for itself
			oldest = c.unread.Front()
		}
		c.removeLocked(oldest)
	}
	c.metrics.CacheBytes.Set(float64(c.used))
	return true
}

func (c *cache) removeLocked(e *list.Element) {
	k := e.Value.(*keptPiece)
	if k.landed.IsZero() {
		c.order.Remove(e)
	} else {
		c.unread.Remove(e)
		c.alone--
	}
	delete(c.kept, k.piece)
	c.used -= int64(len(k.data))
}

// forget drops what is kept of an object, for something in it turned out to be damaged.
func (c *cache) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, e := range c.kept {
		if p.key == key {
			c.removeLocked(e)
		}
	}
	c.metrics.CacheBytes.Set(float64(c.used))
}

func (c *cache) close() error {
	c.group.Stop()
	return c.group.Wait()
}
