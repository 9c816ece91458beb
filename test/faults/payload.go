package faults

import (
	"encoding/binary"

	"github.com/leveemq/levee/test/history"
)

// A payload is its value, and bytes that follow from it, so that a wrong one cannot pass for another.
const payloadHeader = 8

// PartitionOf spreads values over partitions, the same way for whoever publishes and whoever reads.
func PartitionOf(v history.Value, partitions int32) int32 { return int32(mix(v) % uint64(partitions)) }

func mix(v history.Value) uint64 {
	x := uint64(uint32(v.Producer))<<32 | uint64(uint32(v.Seq))
	x ^= x >> 31
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

// payloadSize is mostly some hundred bytes, sometimes some thousand, and once in a while more than a segment.
func payloadSize(v history.Value) int {
	x := mix(v) >> 8
	switch {
	case x%1000 == 0:
		return 70_000
	case x%50 == 0:
		return 1000 + int(x>>10%8000)
	}
	return payloadHeader + int(x>>10%400)
}

// AppendPayload appends the payload of a value.
func AppendPayload(to []byte, v history.Value) []byte {
	start, size := len(to), payloadSize(v)
	to = binary.BigEndian.AppendUint32(to, uint32(v.Producer))
	to = binary.BigEndian.AppendUint32(to, uint32(v.Seq))
	for x := mix(v); len(to) < start+size; x = x*6364136223846793005 + 1442695040888963407 {
		to = binary.BigEndian.AppendUint64(to, x)
	}
	return to[:start+size]
}

// ValueOf returns the value that a payload says it is; the rest of the payload remains to be compared.
func ValueOf(payload []byte) history.Value {
	if len(payload) < payloadHeader {
		return history.Value{Producer: -1, Seq: -1}
	}
	return history.Value{Producer: int32(binary.BigEndian.Uint32(payload)), Seq: int32(binary.BigEndian.Uint32(payload[4:]))}
}
