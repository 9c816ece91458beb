package client

import "github.com/leveemq/levee/record"

// Partitioner returns the partition a record goes to, from 0 to partitions-1, or -1: wherever a batch is being filled.
// It must not keep or change r, must be safe for concurrent use, and should be a pure function of the record.
type Partitioner func(r record.Record, partitions int32) int32

// ByKey sends records with equal keys to the same partition, the one that Kafka's clients choose too, and leaves those
// without a key to the Producer, which fills one partition's batch after another. It is the default.
func ByKey(r record.Record, partitions int32) int32 {
	if r.Key == nil {
		return -1
	}
	return record.PartitionOf(r.Key, partitions)
}

// ToPartition sends every record to one partition.
func ToPartition(partition int32) Partitioner {
	return func(record.Record, int32) int32 { return partition }
}
