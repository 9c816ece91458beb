package broker

import (
	"bytes"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
)

// route chooses a partition for records that are published together. Those with a key go where Kafka's clients send that
// key, so that both kinds of publisher agree; those without one take turns.
func (t *topic) route(records []record.Record) (int32, error) {
	n := int32(t.partitions()) //nolint:gosec // bounded by meta
	if n == 1 || len(records) == 0 {
		return 0, nil
	}
	key := records[0].Key
	for _, r := range records[1:] {
		if (r.Key == nil) != (key == nil) || !bytes.Equal(r.Key, key) {
			return -1, fault.New(fault.InvalidArgument,
				"publish to %s: the records have different keys, and so may belong to different partitions: publish each key by itself, or name the partition", t.Full)
		}
	}
	if key == nil {
		return int32(t.turn.Add(1) % uint32(n)), nil //nolint:gosec // below n
	}
	return record.PartitionOf(key, n), nil
}
