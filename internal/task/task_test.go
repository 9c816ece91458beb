package task

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFirstErrorCancelsTheRest(t *testing.T) {
	g := NewGroup(context.Background())
	boom := errors.New("boom")
	g.Go("waits", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	g.Go("fails", func(context.Context) error { return boom })
	if err := g.Wait(); !errors.Is(err, boom) || err.Error() != "fails: boom" {
		t.Fatalf("got %v", err)
	}
	if g.Go("late", func(context.Context) error { return nil }) {
		t.Fatal("a finished group started a goroutine")
	}
}

func TestStopIsNoError(t *testing.T) {
	g := NewGroup(context.Background())
	g.Go("a", func(ctx context.Context) error {
		g.Go("child", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		<-ctx.Done()
		return ctx.Err()
	})
	g.Stop()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}
