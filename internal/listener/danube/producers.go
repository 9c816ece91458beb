package danube

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
)

const (
	producerIdle = 30 * time.Minute // after which a producer that was not heard of is forgotten; it is found again if it sends
	sweepEvery   = 10 * time.Second
)

// producer is one producer of one topic, with the broker's publisher that it keeps open. Who has the id need not be who
// announced it: Danube has no connection that a producer would belong to.
type producer struct {
	id    uint64
	topic string // as on the wire
	name  string
	at    place
	pub   publisher
	turn  atomic.Uint32 // for messages without a key, where the topic has several partitions
	seen  atomic.Int64  // when it was last heard of, in ms
}

// partitionFor chooses where a message goes: where its name says, or, where that names a topic with several partitions as
// a whole, where the broker's other clients send that key.
func (p *producer) partitionFor(key []byte) int32 {
	switch {
	case p.at.partition >= 0:
		return p.at.partition
	case key != nil:
		return record.PartitionOf(key, p.at.partitions)
	}
	return int32(p.turn.Add(1) % uint32(p.at.partitions)) //nolint:gosec // the broker bounds partitions
}

// producers are those known in this process.
type producers struct {
	most    int
	metrics *metrics

	mu    sync.RWMutex
	byID  map[uint64]*producer // guarded by mu
	swept time.Time            // guarded by mu
}

func newProducers(most int, m *metrics) producers {
	return producers{most: most, metrics: m, byID: map[uint64]*producer{}}
}

// get returns the producer with an id, or nil.
func (ps *producers) get(id uint64, now time.Time) *producer {
	ps.mu.RLock()
	p := ps.byID[id]
	ps.mu.RUnlock()
	if p != nil {
		p.seen.Store(now.UnixMilli())
	}
	return p
}

// add takes p in, in place of another one with its id. It fails, with kind exhausted, where there are too many; p's
// publisher is closed then.
func (ps *producers) add(p *producer, now time.Time) error {
	p.seen.Store(now.UnixMilli())
	var gone []*producer
	ps.mu.Lock()
	if now.Sub(ps.swept) >= sweepEvery {
		ps.swept = now
		for id, old := range ps.byID {
			if now.UnixMilli()-old.seen.Load() > producerIdle.Milliseconds() {
				delete(ps.byID, id)
				gone = append(gone, old)
			}
		}
	}
	old := ps.byID[p.id]
	full := old == nil && len(ps.byID) >= ps.most
	if full {
		gone = append(gone, p)
	} else {
		if old != nil {
			gone = append(gone, old)
		}
		ps.byID[p.id] = p
	}
	ps.metrics.producers.Set(float64(len(ps.byID)))
	ps.mu.Unlock()
	for _, g := range gone {
		g.pub.Close()
	}
	if full {
		return fault.New(fault.Exhausted, "there are %d producers, as many as there may be: those that are not heard of for %s are forgotten", ps.most, producerIdle)
	}
	return nil
}

// drop forgets p, unless another one has its id by now.
func (ps *producers) drop(p *producer) {
	ps.mu.Lock()
	if ps.byID[p.id] == p {
		delete(ps.byID, p.id)
		ps.metrics.producers.Set(float64(len(ps.byID)))
	}
	ps.mu.Unlock()
	p.pub.Close()
}
