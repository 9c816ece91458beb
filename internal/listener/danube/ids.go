package danube

import (
	"crypto/sha256"
	"encoding/binary"
	"io"

	"github.com/leveemq/levee/internal/broker"
)

// bits63 is a number from 1 to 2^63-1 that stands for parts, in every process. Some clients keep ids in signed numbers.
func bits63(parts ...string) uint64 {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		_, _ = h.Write(n[:]) // a hash takes everything
		_, _ = io.WriteString(h, p)
	}
	return max(1, binary.BigEndian.Uint64(h.Sum(nil))>>1)
}

// producerID is the id of a producer, by the topic's name on the wire.
func producerID(topic, name string) uint64 { return bits63("producer", topic, name) }

// consumerID is a consumer's id, in parts, since a ReceiveRequest has nothing else, and may reach a process that never
// saw the consumer:
//
//	62 61  60       59…40   39…20         19…0
//	type   filters  topic   subscription  name
//
// The last three are hashes. Topic and subscription are found again by them; the name cannot be, but within its
// subscription the id is as good a name. Key filters are lost, so that an id says whether there were any.
type consumerID struct {
	kind               uint8 // broker.SubscriptionType: see typeNumbers
	filters            bool
	topic, group, name uint32
}

const partBits = 20

func hash20(parts ...string) uint32 { return uint32(bits63(parts...) & (1<<partBits - 1)) } //nolint:gosec // 20 bits

func topicHash(topic string) uint32        { return hash20("topic", topic) }
func groupHash(subscription string) uint32 { return hash20("subscription", subscription) }

// nameHash is the hash of a consumer's name at the n-th try: another consumer may have the first one.
func nameHash(name string, try int) uint32 {
	return hash20("consumer", name, string(binary.AppendUvarint(nil, uint64(try)))) //nolint:gosec // not negative
}

func (c consumerID) number() uint64 {
	n := uint64(c.kind&3)<<61 | uint64(c.topic)<<(2*partBits) | uint64(c.group)<<partBits | uint64(c.name)
	if c.filters {
		n |= 1 << 60
	}
	return n
}

func splitID(n uint64) consumerID {
	const part = 1<<partBits - 1
	return consumerID{
		kind: uint8(n >> 61 & 3), filters: n>>60&1 == 1,
		topic: uint32(n >> (2 * partBits) & part), group: uint32(n >> partBits & part), name: uint32(n & part), //nolint:gosec // 20 bits each
	}
}

// typeNumbers are the subscription types by their number on the wire.
var typeNumbers = [...]broker.SubscriptionType{broker.Exclusive, broker.Shared, broker.Failover, broker.KeyShared}

func typeNumber(t broker.SubscriptionType) int32 {
	for i, have := range typeNumbers {
		if have == t {
			return int32(i) //nolint:gosec // four of them
		}
	}
	return 0
}
