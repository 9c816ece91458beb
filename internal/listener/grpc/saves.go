package grpc

import (
	"context"
	"sync"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/task"
)

// mostSaves bounds the requests to save of one consumer that are not answered.
const mostSaves = 1024

// saves answers a consumer's requests to save. One save runs at a time; it answers every request that was there when it
// began, so that they may come much faster than the disk is.
type saves struct {
	group *task.Group // runs run, once there was a request

	mu      sync.Mutex
	waiting []uint64      // guarded by mu
	wake    chan struct{} // holds one; nil: run was not started; guarded by mu, the channel itself is not
	ended   bool          // no more requests come; guarded by mu
}

// ask requests a save of what was settled so far.
func (s *saves) ask(id uint64, c *consuming) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) >= mostSaves {
		return invalid("consume: more than %d requests to save are not answered: wait for some", mostSaves)
	}
	s.waiting = append(s.waiting, id)
	if s.wake == nil {
		s.wake = make(chan struct{}, 1)
		s.group.Go("consumer saves", func(ctx context.Context) error { return s.run(ctx, c, s.wake) })
	}
	signal(s.wake)
	return nil
}

// finish says that no more requests come: run ends once all are answered.
func (s *saves) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.wake != nil {
		signal(s.wake)
	}
}

func (s *saves) run(ctx context.Context, c *consuming, wake chan struct{}) error {
	var ids []uint64
	for {
		s.mu.Lock()
		ids, s.waiting = s.waiting, ids[:0]
		ended := s.ended
		s.mu.Unlock()
		if len(ids) == 0 {
			if ended {
				return nil
			}
			select {
			case <-wake:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		err := c.consumer.Save(ctx)
		if ctx.Err() != nil {
			return ctx.Err() // the call has ended, and says why
		}
		for _, id := range ids {
			answer := &leveev1.ConsumeResponse{Saved: id}
			if err != nil {
				answer.SaveFailed = errorOf(err)
			}
			if err := c.send(ctx, answer); err != nil {
				return err
			}
		}
	}
}
