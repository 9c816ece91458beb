package dir

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/leveemq/levee/internal/vfs"
)

// Bounds of the waits for another process's lock.
const (
	firstPoll = time.Millisecond
	longPoll  = 50 * time.Millisecond
)

// acquire waits for the right to replace or delete a key: first within this process, then among all.
func (s *Store) acquire(ctx context.Context, key string) (release func(), err error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	stripe := h.Sum32() % stripes
	select {
	case s.turns[stripe] <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	name := s.path(fmt.Sprintf("%s/%02d", lockDir, stripe))
	for wait := firstPoll; ; wait = min(2*wait, longPoll) {
		held, err := s.lock(name)
		if err == nil {
			return func() {
				_ = held.Close() // nothing is written through it, and closing gives the lock back in any case
				<-s.turns[stripe]
			}, nil
		}
		var locked *vfs.LockedError
		if !errors.As(err, &locked) {
			<-s.turns[stripe]
			return nil, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			<-s.turns[stripe]
			return nil, ctx.Err()
		}
	}
}
