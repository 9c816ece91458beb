package upgrade

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/leveemq/levee/record"
)

// Expected is what a directory holds, as expected.json beside it says.
type Expected struct {
	Version  string   `json:"version"`
	Topics   []Topic  `json:"topics"`
	Deleted  Deleted  `json:"deleted"`
	Producer Producer `json:"producer"`
}

// Topic is one topic of a directory.
type Topic struct {
	Name        string      `json:"name"`
	ID          []byte      `json:"id"`
	Incarnation uint64      `json:"incarnation"`
	Dispatch    string      `json:"dispatch"`
	Fsync       string      `json:"fsync"` // as set; empty: the broker's default
	Partitions  []Partition `json:"partitions"`
}

// Partition is a list of records, by their sums.
type Partition struct {
	First   int64    `json:"first"`
	End     int64    `json:"end"`
	Records []string `json:"records"`
}

// Deleted is the incarnation of a topic that was deleted, and whose name another has now.
type Deleted struct {
	Name string `json:"name"`
	ID   []byte `json:"id"`
}

// Producer is an idempotent producer whose last batch is sent again.
type Producer struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	ID        int64  `json:"id"`
	Epoch     int16  `json:"epoch"`
	Batch     []byte `json:"batch"`
	Offset    int64  `json:"offset"`
	Last      int64  `json:"last_offset"`
	Next      int32  `json:"next_sequence"`
}

// Sum returns a short hash of all that a record is, its offset included.
func Sum(r record.Record) string {
	h := sha256.New()
	number := func(n int64) { _ = binary.Write(h, binary.BigEndian, n) }
	bytes := func(b []byte) {
		if b == nil {
			number(-1)
			return
		}
		number(int64(len(b)))
		h.Write(b)
	}
	number(r.Offset)
	number(r.Timestamp)
	bytes(r.Key)
	bytes(r.Value)
	for _, header := range r.Headers {
		bytes([]byte(header.Key))
		bytes(header.Value)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
