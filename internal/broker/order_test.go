package broker

import (
	"context"
	"testing"

	"github.com/leveemq/levee/internal/meta"
)

// lateAnswers is a store that keeps answers back while hold is set, and tells nobody of changes.
type lateAnswers struct {
	meta.Store
	applied chan struct{} // one value for each answer kept back
	release chan struct{}
}

func (s *lateAnswers) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	r, err := s.Store.Propose(ctx, c)
	if late, _ := ctx.Value(lateKey{}).(bool); late {
		s.applied <- struct{}{}
		<-s.release
	}
	return r, err
}

func (s *lateAnswers) Changed() <-chan struct{} { return nil }

type lateKey struct{}

// TestChangesFitOneOrder deletes a topic and makes it again, with both answers still out: whoever changes it now changes
// the new one, and is not told that there is none; and whoever made it has made it, though somebody deletes it first.
func TestChangesFitOneOrder(t *testing.T) {
	s := &lateAnswers{applied: make(chan struct{}), release: make(chan struct{})}
	r := newRig(t, func(c *Config) { s.Store, c.Meta = c.Meta, s })
	late := context.WithValue(t.Context(), lateKey{}, true)
	r.create("a")
	answers := make(chan error, 2)
	for _, change := range []func() error{
		func() error { return r.DeleteTopic(late, "a") },
		func() error { _, err := r.CreateTopic(late, TopicSpec{Name: "a"}); return err },
	} {
		go func() { answers <- change() }()
		select {
		case <-s.applied:
		case err := <-answers:
			t.Fatalf("ended with %v before it was carried out", err)
		}
	}
	if info, err := r.SetTopic(t.Context(), "a", Settings{RetentionBytes: ptr(int64(5))}, nil); err != nil || info.Incarnation != 2 {
		t.Errorf("set: incarnation %d, %v", info.Incarnation, err)
	}
	if err := r.DeleteTopic(t.Context(), "a"); err != nil {
		t.Errorf("delete: %v", err)
	}
	close(s.release)
	for range 2 {
		if err := <-answers; err != nil {
			t.Errorf("a change that was carried out: %v", err)
		}
	}
}
