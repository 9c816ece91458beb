package client

import (
	"context"
	"sync"
)

// Run handles deliveries until ctx ends, which is no error, or Next fails for good, and returns once every call of
// handler has. Up to concurrency calls run at a time (less than 1: 1). A nil result acknowledges the record; an error
// gives it back, see Delivery.Nack, Retry and Reject. A handler may settle the delivery itself; then its result does not
// matter. Handlers get ctx; a panic of one is not caught.
//
// Of a key_shared subscription, records of one key are handled one after another, in order. Otherwise only concurrency 1
// keeps the order of a partition.
//
// Run calls Next: nobody else may meanwhile.
func (s *Subscription) Run(ctx context.Context, concurrency int, handler func(ctx context.Context, d *Delivery) error) error {
	w := &workers{sub: s, handler: handler, turn: make(chan struct{}, 1)}
	if s.Type() == KeyShared && concurrency > 1 {
		w.keys = map[string][]*Delivery{}
		w.most = concurrency * queuedPerWorker
		w.room = sync.NewCond(&w.mu)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, w.wakeAll)()
	var others sync.WaitGroup
	for range concurrency - 1 {
		others.Go(func() { w.work(ctx, cancel) })
	}
	w.work(ctx, cancel)
	others.Wait()
	return w.failed
}

// queuedPerWorker bounds the deliveries that wait because a record of the same key is being handled.
const queuedPerWorker = 16

// workers are the goroutines of one Run. They take turns at Next.
type workers struct {
	sub     *Subscription
	handler func(ctx context.Context, d *Delivery) error
	turn    chan struct{} // holds one: somebody calls Next

	mu     sync.Mutex
	failed error // guarded by mu
	// keys has the keys that are being handled, each with what waits for that; nil: order does not matter. Guarded by mu.
	keys   map[string][]*Delivery
	queued int // guarded by mu
	most   int
	room   *sync.Cond // of mu: queued has become less
}

func (w *workers) wakeAll() {
	if w.room != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.room.Broadcast()
	}
}

// work handles deliveries until ctx ends or there are no more.
func (w *workers) work(ctx context.Context, cancel func()) {
	for {
		d, err := w.next(ctx)
		if err != nil {
			w.mu.Lock()
			if w.failed == nil && ctx.Err() == nil {
				w.failed = err
			}
			w.mu.Unlock()
			cancel() // the others wait for turns, or for room
			return
		}
		for d != nil {
			w.handle(ctx, d)
			d = w.following(ctx, d)
		}
	}
}

func (w *workers) handle(ctx context.Context, d *Delivery) {
	if err := w.handler(ctx, d); err != nil {
		d.Nack(err)
	} else {
		d.Ack()
	}
}

// next returns a delivery that can be handled now.
func (w *workers) next(ctx context.Context) (*Delivery, error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		if ctx.Err() != nil { // Next gives what it has all the same
			return nil, ctx.Err()
		}
		d, err := w.sub.Next(ctx)
		if err != nil || w.keys == nil || d.Key == nil {
			return d, err
		}
		if w.claim(ctx, d) {
			return d, nil
		}
	}
}

// claim reports whether no record of d's key is being handled, and marks it as being so; otherwise d waits for its turn.
func (w *workers) claim(ctx context.Context, d *Delivery) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting, busy := w.keys[string(d.Key)]
	if !busy {
		w.keys[string(d.Key)] = nil
		return true
	}
	w.keys[string(d.Key)] = append(waiting, d)
	w.queued++
	for w.queued >= w.most && ctx.Err() == nil {
		w.room.Wait()
	}
	return false
}

// following returns what waited for d to be handled, or nil. What still waits when ctx ends stays held, and is handed out
// again when the Subscription is closed.
func (w *workers) following(ctx context.Context, d *Delivery) *Delivery {
	if w.keys == nil || d.Key == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := string(d.Key)
	waiting := w.keys[key]
	if len(waiting) == 0 || ctx.Err() != nil {
		delete(w.keys, key)
		return nil
	}
	w.keys[key] = waiting[1:]
	w.queued--
	w.room.Broadcast()
	return waiting[0]
}
