package partition

import (
	"context"
	"math"
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/writebuf"
)

// Buffer is the write buffer, and what happens while it does not confirm.
type Buffer struct {
	Store        writebuf.Store
	Timeout      time.Duration  // how long a publish waits for it
	Degrade      bool           // acknowledge what it does not have, once the metadata says so; false: do not
	KeepSegments int            // without a Tier: how many sealed segments stay in it; 0: what the retention keeps
	Metrics      *BufferMetrics // nil: none
}

// patience is how long a start waits for a buffer that does not answer.
func (b *Buffer) patience() time.Duration {
	if b.Timeout <= 0 {
		return 5 * time.Second
	}
	return b.Timeout
}

// DeleteTopic removes what the buffer has of a topic that is gone for good. It may be repeated. Where b is nil that is
// nothing.
func (b *Buffer) DeleteTopic(ctx context.Context, id meta.TopicID, partitions int32) error {
	if b == nil {
		return nil
	}
	for n := range partitions {
		wait, stop := context.WithTimeout(ctx, b.patience())
		err := b.Store.Buffer(writebuf.ID{Topic: id, Partition: uint32(n)}).Delete(wait, math.MaxInt32) //nolint:gosec // not negative
		stop()
		if err != nil {
			return fault.New(fault.KindOf(err), "remove partition %d from the write buffer: %w", n, err)
		}
	}
	return nil
}
