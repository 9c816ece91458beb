package grpc

import (
	"sync"
	"sync/atomic"

	"github.com/leveemq/levee/api/codec"
	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"google.golang.org/grpc/mem"
)

// message receives one PublishRequest after another. The bytes of a large one's batches lie in memory of the codec's pool.
type message struct {
	leveev1.PublishRequest
	memory *memory // nil: they lie in memory of their own
}

// memory is what the batches of one message lie in. It goes back to the pool when the last of them is answered, since the
// broker lets go of a batch by answering it; a message that was not submitted as a whole is left to the collector.
type memory struct {
	bytes *[]byte
	left  atomic.Int32 // batches that are not answered
}

func (m *memory) release() {
	if m != nil && m.left.Add(-1) == 0 {
		codec.Pool.Put(m.bytes)
	}
}

// keptBatches bounds what a stream keeps of the list of its largest message: batches of no bytes are cheap to send.
const keptBatches = 1 << 10

// decode fills m with data.
func (m *message) decode(data mem.BufferSlice) error {
	if cap(m.Batches) > keptBatches {
		m.Batches = nil
	}
	m.Open, m.Batches, m.memory = nil, m.Batches[:0], nil
	n := data.Len()
	if mem.IsBelowBufferPoolingThreshold(n) {
		return m.UnmarshalVTUnsafe(data.Materialize())
	}
	buf := codec.Pool.Get(n)
	data.CopyTo(*buf)
	if err := m.UnmarshalVTUnsafe(*buf); err != nil {
		return err
	}
	m.memory = &memory{bytes: buf}
	m.memory.left.Store(int32(len(m.Batches))) //nolint:gosec // each takes two bytes of a message
	return nil
}

// submitted is a batch that the broker has: what its answer has to find again. It is pooled with the method value that
// the broker calls.
type submitted struct {
	box    *outbox
	id     uint64
	size   int
	memory *memory
	done   func(broker.PublishResult)
}

var submissions sync.Pool

func newSubmitted(box *outbox, id uint64, size int, memory *memory) *submitted {
	s, ok := submissions.Get().(*submitted)
	if !ok {
		s = &submitted{}
		s.done = s.answer
	}
	s.box, s.id, s.size, s.memory = box, id, size, memory
	return s
}

// answer passes the broker's answer on. It is called once.
func (s *submitted) answer(r broker.PublishResult) {
	box, id, size := s.box, s.id, s.size
	s.memory.release()
	*s = submitted{done: s.done}
	submissions.Put(s)
	box.answer(id, size, r)
}
