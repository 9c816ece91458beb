package fan

import (
	"testing"
)

func TestRing(t *testing.T) {
	r := NewRing(10, 3)
	push := func(n int) int { return r.push(queued{batch: make([]byte, n), records: n}) }
	for i, c := range []struct{ size, dropped int }{{4, 0}, {4, 0}, {4, 4}, {1, 0}, {1, 4}, {20, 6}, {1, 20}} {
		if got := push(c.size); got != c.dropped {
			t.Fatalf("push %d of %d: %d dropped, want %d", i, c.size, got, c.dropped)
		}
	}
	if got, ok := r.Take(100); !ok || got.Records != 1 || got.Dropped != 34 {
		t.Fatalf("%+v", got)
	}
	if got, ok := r.Take(100); ok {
		t.Fatalf("%+v", got)
	}
	push(3)
	push(3)
	push(3)
	if got, _ := r.Take(6); got.Records != 6 {
		t.Fatalf("%d bytes for 6", got.Records)
	}
	if got, _ := r.Take(1); got.Records != 3 {
		t.Fatalf("%d bytes for 1", got.Records)
	}
}

// A large batch goes out as it lies, shared by all subscribers; small ones are joined.
func TestRingJoinsSmallBatches(t *testing.T) {
	r := NewRing(1<<20, 100)
	sizes := []int{10, 20, aloneBytes, aloneBytes, aloneBytes - 1, 30, 40}
	for i, n := range sizes {
		r.push(queued{batch: make([]byte, n), records: 1, next: int64(i + 1)})
	}
	for _, want := range []int{2, 1, 1, 3, 0} {
		var alone *byte
		if want == 1 {
			alone = &r.mu.queue[r.mu.head].batch[0]
		}
		got, _ := r.Take(1 << 20)
		if got.Records != want {
			t.Fatalf("got %d batches, want %d", got.Records, want)
		}
		if alone != nil && &got.Batches[0] != alone {
			t.Error("a batch that is alone was copied")
		}
	}
}
