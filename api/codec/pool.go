package codec

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Pool is where the bytes of messages come from on both ends, also what gRPC itself reads into when it is told to use it
// (experimental.BufferPool and WithBufferPool).
//
// It differs from gRPC's own in two things that large messages feel. That one has no size between 32 KiB and 1 MiB, and
// clears what it hands out as a whole: a message of 40 KiB cost the clearing of a mebibyte. Here buffers come in four
// sizes for each power of two, and hold what was in them before: who gets one writes all of it.
var Pool mem.BufferPool = &pool{}

const (
	leastShift = 10 // the smallest buffers have 1 KiB; gRPC pools nothing below
	mostShift  = 25 // the largest ones 32 MiB; larger ones are left to the collector
)

type pool struct {
	classes [4*(mostShift-leastShift) + 1]sync.Pool // of *[]byte, each with the capacity of its class
}

// classOf returns the class of buffers that hold n bytes, and their size.
func classOf(n int) (class, size int) {
	if n <= 1<<leastShift {
		return 0, 1 << leastShift
	}
	shift := bits.Len(uint(n-1)) - 1      //nolint:gosec // n is above 1
	quarter := (n - 1) >> (shift - 2) & 3 // of the way from 2^shift to the next power
	return 4*(shift-leastShift) + quarter + 1, (4 + quarter + 1) << (shift - 2)
}

// Get returns a buffer of n bytes. What is in it is not defined.
func (p *pool) Get(n int) *[]byte {
	class, size := classOf(n)
	if class >= len(p.classes) {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.classes[class].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, size)
	return &b
}

// Put takes a buffer back that came from Get.
func (p *pool) Put(b *[]byte) {
	if class, size := classOf(cap(*b)); class < len(p.classes) && size == cap(*b) {
		p.classes[class].Put(b)
	}
}
