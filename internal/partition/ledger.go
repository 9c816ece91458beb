package partition

import (
	"context"
	"fmt"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/writebuf"
)

// ledger is what the metadata holds about one partition: its generation and its reservation of offsets. Every change
// names the topic's incarnation and the generation it was decided on, so a stale partition changes nothing.
type ledger struct {
	store     meta.Store
	topic     *Topic
	partition int32
}

// where names the partition as errors and logs do.
func (l *ledger) where() string { return fmt.Sprintf("%s/%d", l.topic.Full, l.partition) }

// read returns the partition's entry. It fails with kind deleted where this incarnation is gone.
func (l *ledger) read() (meta.Partition, error) {
	t, ok := l.store.View().TopicByID(l.topic.ID)
	if !ok || int(l.partition) >= len(t.Partitions) {
		return meta.Partition{}, fault.New(fault.Deleted, "topic %s was deleted: create it again, or open the one that has its name now", l.topic.Full).
			With("topic", l.topic.Full)
	}
	return t.Partitions[l.partition], nil
}

// reserve makes offsets below through assignable.
func (l *ledger) reserve(ctx context.Context, generation uint32, through int64) error {
	_, err := l.store.Propose(ctx, meta.ReserveOffsets{
		Name: l.topic.Name, ID: l.topic.ID, Partition: l.partition, Generation: generation, Through: through,
	})
	if err != nil {
		return fmt.Errorf("reserve offsets of %s: %w", l.where(), err)
	}
	return nil
}

// raise moves the partition from the generation in entry to the next and returns the entry that holds then.
func (l *ledger) raise(ctx context.Context, entry meta.Partition, reserved int64) (meta.Partition, error) {
	r, err := l.store.Propose(ctx, meta.NewGeneration{
		Name: l.topic.Name, ID: l.topic.ID, Partition: l.partition, From: entry.Generation, To: entry.Generation + 1, Reserved: reserved,
	})
	if err != nil {
		return entry, fmt.Errorf("start a generation of %s: %w", l.where(), err)
	}
	return r.Topic.Partitions[l.partition], nil
}

// bufferID names the partition to the write buffer.
func (l *ledger) bufferID() writebuf.ID {
	return writebuf.ID{Topic: l.topic.ID, Partition: uint32(l.partition)} //nolint:gosec // not negative
}

// setUncovered notes the first offset that the write buffer may lack; -1: none.
func (l *ledger) setUncovered(ctx context.Context, generation uint32, from int64) error {
	_, err := l.store.Propose(ctx, meta.SetUncovered{Name: l.topic.Name, ID: l.topic.ID, Partition: l.partition, Generation: generation, From: from})
	if err != nil {
		return fmt.Errorf("note what the write buffer has of %s: %w", l.where(), err)
	}
	return nil
}
