package task

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
)

func TestBudgetServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(10)
		var mu sync.Mutex
		var served []int64
		ask := func(ctx context.Context, n int64) {
			go func() {
				if err := b.Acquire(ctx, n); err == nil {
					mu.Lock()
					served = append(served, n)
					mu.Unlock()
				}
			}()
			synctest.Wait()
		}
		want := func(used int64, ns ...int64) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if b.Used() != used || len(served) != len(ns) {
				t.Fatalf("served %v with %d used, want %v and %d", served, b.Used(), ns, used)
			}
			for i := range ns {
				if served[i] != ns[i] {
					t.Fatalf("served %v, want %v", served, ns)
				}
			}
			served = nil
		}
		ctx := context.Background()
		ask(ctx, 6)
		want(6, 6)
		ask(ctx, 8) // waits
		ask(ctx, 1) // would fit, but must not pass the one before
		want(6)
		b.Release(6)
		synctest.Wait()
		mu.Lock()
		if b.Used() != 9 || len(served) != 2 { // in either order: they run at once
			t.Fatalf("served %v with %d used", served, b.Used())
		}
		served = nil
		mu.Unlock()
		gone, cancel := context.WithCancel(ctx)
		ask(gone, 5)
		ask(ctx, 1)
		want(9)
		cancel() // lets the one behind through
		want(10, 1)
		b.Release(10)
		if b.Used() != 0 {
			t.Fatalf("%d used", b.Used())
		}
	})
}
