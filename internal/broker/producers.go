package broker

import (
	"context"

	"github.com/leveemq/levee/internal/meta"
)

// producerBlock is how many producer ids are taken from the metadata at a time. Those left of a block when the broker
// stops are never used: there are 2^63 of them.
const producerBlock = 1000

// producerIDs gives out ids that were never given out before.
type producerIDs struct {
	store     meta.Store
	turn      chan struct{} // one slot: whoever holds it owns next and end
	next, end int64
}

func (p *producerIDs) init(store meta.Store) { p.store, p.turn = store, make(chan struct{}, 1) }

func (p *producerIDs) take(ctx context.Context) (int64, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if p.next == p.end {
		r, err := p.store.Propose(ctx, meta.ReserveProducerIDs{Count: producerBlock})
		if err != nil {
			return 0, err
		}
		p.next, p.end = r.FirstProducerID, r.FirstProducerID+producerBlock
	}
	p.next++
	return p.next - 1, nil
}

// InitProducer gives out a producer id that was never given out before, for idempotent publishing, with its first epoch.
func (b *Broker) InitProducer(ctx context.Context) (id int64, epoch int16, err error) {
	if b.draining.Err() != nil {
		return 0, 0, errDraining()
	}
	id, err = b.producers.take(ctx)
	return id, 0, onTopic("give out", "a producer id", err)
}
