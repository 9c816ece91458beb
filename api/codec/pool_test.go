package codec

import (
	"bytes"
	"testing"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
)

func TestPoolClasses(t *testing.T) {
	last, lastSize := 0, 1<<leastShift
	for n := 0; n <= 1<<20; n++ {
		class, size := classOf(n)
		switch {
		case size < n:
			t.Fatalf("%d bytes get a buffer of %d", n, size)
		case n > 1<<leastShift && size > n+n/4+1:
			t.Fatalf("%d bytes get a buffer of %d: more than a quarter is wasted", n, size)
		case class != last && (class != last+1 || n != lastSize+1):
			t.Fatalf("%d bytes are of class %d, %d bytes of class %d", n, class, n-1, last)
		}
		last, lastSize = class, size
		if again, same := classOf(size); again != class || same != size {
			t.Fatalf("a buffer of %d bytes would come back to class %d, not %d", size, again, class)
		}
	}
}

func TestPool(t *testing.T) {
	for _, n := range []int{0, 1, 1 << 10, 1<<10 + 1, 40_000, 1 << 20, 1<<mostShift - 1, 1 << mostShift, 1<<mostShift + 1} {
		b := Pool.Get(n)
		if len(*b) != n {
			t.Errorf("got %d bytes, want %d", len(*b), n)
		}
		*b = (*b)[:n/2] // as gRPC does
		Pool.Put(b)
		again := Pool.Get(n)
		if len(*again) != n {
			t.Errorf("got %d bytes the second time, want %d", len(*again), n)
		}
	}
	odd := make([]byte, 1500)
	Pool.Put(&odd) // not one of ours: nobody may get it as larger than it is
	for range 100 {
		if b := Pool.Get(1536); cap(*b) < 1536 {
			t.Fatal("got a buffer that is too small")
		}
	}
}

// TestMarshalPooled has deliveries give their memory back when they are sent, and not before.
func TestMarshalPooled(t *testing.T) {
	for _, n := range []int{0, 1, 200, 1 << 10, aliasBytes - 1, aliasBytes, 1 << 20} {
		b := *Pool.Get(n)
		for i := range b {
			b[i] = byte(i)
		}
		want := bytes.Clone(b)
		out, err := Codec{}.MarshalPooled(&leveev1.SubscribeResponse{Delivery: &leveev1.Delivery{Batches: b, Next: 7}})
		if err != nil {
			t.Fatal(err)
		}
		clear(*Pool.Get(n)) // whatever was given back too early
		var got leveev1.SubscribeResponse
		if err := got.UnmarshalVTUnsafe(out.Materialize()); err != nil || got.Delivery.Next != 7 || !bytes.Equal(got.Delivery.Batches, want) {
			t.Errorf("%d bytes: %v, %d bytes came, and they are not what was sent", n, err, len(got.GetDelivery().GetBatches()))
		}
		out.Free()
	}
}
