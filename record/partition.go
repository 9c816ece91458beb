package record

import "encoding/binary"

// PartitionOf returns the partition, from 0 to partitions-1, that records with this key go to: the one that Kafka's
// clients choose. partitions must be at least 1. It is a pure function and keeps nothing of key.
func PartitionOf(key []byte, partitions int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % partitions //nolint:gosec // 31 bits
}

// murmur2 is the 32-bit MurmurHash2 with the seed that Kafka's default partitioner uses.
func murmur2(b []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
	)
	h := uint32(seed) ^ uint32(len(b)) //nolint:gosec // as Kafka does
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b) * m
		k = (k ^ k>>24) * m
		h = h*m ^ k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(b[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
