package tier

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/task"
)

// maxRemovals bounds how many objects a Remover knows at a time.
const maxRemovals = 10_000

// Remover deletes objects that do not count any more, one after the other. What fails is tried again for ever, after waits
// that grow from a second to a minute. What it had not deleted when it was stopped, or the process was, is found by a scrub.
// It is safe for concurrent use.
type Remover struct {
	store      objstore.Store
	metrics    *Metrics
	logger     *slog.Logger
	group      *task.Group
	complained obs.Throttle

	mu      sync.Mutex
	line    []removal // guarded by mu
	working bool      // guarded by mu
	later   int       // guarded by mu; how many RemoveLater holds back
}

type removal struct {
	key     string
	size    int64
	expired bool
}

// NewRemover returns one that deletes from store until ctx ends or Stop is called. metrics and logger may be nil.
func NewRemover(ctx context.Context, store objstore.Store, metrics *Metrics, logger *slog.Logger) *Remover {
	if metrics == nil {
		metrics = NewMetrics(nil)
	}
	r := &Remover{store: store, metrics: metrics, logger: obs.Logger(logger), group: task.NewGroup(ctx)}
	r.complained.Every = complaints
	return r
}

// Room returns how many objects Remove would take now. Who forgets objects first asks how many can be deleted, so that a
// store which is away does not leave ever more that nobody knows.
func (r *Remover) Room() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, maxRemovals-len(r.line))
}

// Remove has an object deleted, and returns at once.
func (r *Remover) Remove(place Place, o Object) { r.RemoveKey(o.Key(place), o.Size) }

// RemoveKey is Remove for any key; size is what the metrics count.
func (r *Remover) RemoveKey(key string, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(removal{key, size, true})
}

func (r *Remover) addLocked(o removal) {
	if len(r.line) >= 2*maxRemovals {
		return // several asked for the same room; a scrub finds it
	}
	r.line = append(r.line, o)
	if !r.working {
		r.working = r.group.Go("remove objects", r.work)
	}
}

// RemoveLater has objects deleted after a while that did not expire: others hold what they held. It reports whether there
// was room for that, and returns at once. They are as forgotten as others when the Remover is stopped.
func (r *Remover) RemoveLater(after time.Duration, keys []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.later+len(keys) > maxRemovals {
		return false
	}
	r.later += len(keys)
	time.AfterFunc(after, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.later -= len(keys)
		for _, key := range keys {
			r.addLocked(removal{key: key})
		}
	})
	return true
}

// Later returns how many objects RemoveLater holds back.
func (r *Remover) Later() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.later
}

func (r *Remover) next() (removal, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.line) == 0 {
		r.working, r.line = false, nil
		return removal{}, false
	}
	return r.line[0], true
}

// settle takes the first of the line out of it, or puts it to the end, so that one which cannot be deleted holds up no other.
func (r *Remover) settle(done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.line[0]
	r.line = r.line[1:]
	if !done {
		r.line = append(r.line, first)
	}
}

func (r *Remover) work(ctx context.Context) error {
	for failures := 0; ; {
		o, ok := r.next()
		if !ok {
			return nil
		}
		err := r.remove(ctx, o.key)
		if ctx.Err() != nil {
			return nil
		}
		r.settle(err == nil)
		if err == nil {
			failures = 0
			if o.expired {
				r.metrics.Expired.Inc()
				r.metrics.ExpiredBytes.Add(float64(o.size))
			}
			continue
		}
		wait := min(firstRetry<<min(failures, maxDoublings), longRetry)
		wait = wait/2 + rand.N(wait/2)
		failures++
		if held, ok := r.complained.Allow("remove", time.Now()); ok {
			r.logger.Warn("an object that does not count any more was not removed; it is tried again", "key", o.key, "kind", fault.KindOf(err), "error", err,
				"in_a_row", failures, "next_in", wait.Round(time.Millisecond), "waiting", maxRemovals-r.Room(), "not_logged", held)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// remove deletes one object. That it is gone already is as good.
func (r *Remover) remove(ctx context.Context, key string) error {
	once, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	return r.store.Delete(once, key)
}

// Stop ends what is under way and waits for it.
func (r *Remover) Stop() error {
	r.group.Stop()
	return r.group.Wait()
}
