package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Outcome is what a client knows about what it asked for.
type Outcome uint8

// The outcomes. A publish that is pending or unknown may have happened, and may yet.
const (
	Pending Outcome = iota
	OK
	Failed // certainly not stored
	Unknown
)

// MarshalText writes an outcome's name.
func (o Outcome) MarshalText() ([]byte, error) {
	return []byte([]string{"pending", "ok", "fail", "unknown"}[o]), nil
}

// Producer is one client.Producer from its opening to its end.
type Producer struct {
	ID         int32
	Idempotent bool
	Ordered    bool // one batch in flight at a time: order holds without idempotence, too
}

// Value names one record: whose it is, and its place among that producer's. No two publishes have the same.
type Value struct {
	Producer int32
	Seq      int32
}

// String returns producer/seq.
func (v Value) String() string { return fmt.Sprintf("%d/%d", v.Producer, v.Seq) }

// Publish is one record as its client saw it. Times count from the history's beginning; End is 0 while it is pending.
type Publish struct {
	Value     Value
	Partition int32
	Start     time.Duration
	End       time.Duration
	Outcome   Outcome
	Offset    int64 // OK only; -1: the broker did not know it any more
	Duplicate bool  // OK only: the broker said that it had it already
	Error     string
}

// Fault is one thing that was done to the broker, from before it began until after it had its effect.
type Fault struct {
	Kind  string
	Start time.Duration
	End   time.Duration
}

// Entry is one record as it was read.
type Entry struct {
	Offset int64
	Value  Value
}

// Reading is one topic as it was read from its beginning to what was its end.
type Reading struct {
	Start      time.Duration // before the first read
	Partitions [][]Entry     // by partition, as delivered
	Lost       []string      // ranges that the broker declared lost
}

// History is what happened to one topic, as seen from outside. It is safe for concurrent use.
type History struct {
	began time.Time

	mu sync.Mutex
	// Guarded by mu.
	producers []Producer
	publishes [][]Publish // by producer, in order of Seq
	faults    []Fault
	seen      [][]Value // by partition and offset: what has ever been read there
}

// NewHistory returns an empty history that begins now.
func NewHistory() *History { return &History{began: time.Now()} }

// Now returns the time since the history began.
func (h *History) Now() time.Duration { return time.Since(h.began) }

// AddProducer gives a producer its id.
func (h *History) AddProducer(idempotent, ordered bool) int32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := int32(len(h.producers))
	h.producers = append(h.producers, Producer{ID: id, Idempotent: idempotent, Ordered: ordered})
	h.publishes = append(h.publishes, nil)
	return id
}

// Begin notes that a producer is about to publish its next record, and names it. partition says where it goes.
func (h *History) Begin(producer int32, partition func(Value) int32) Value {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := Value{producer, int32(len(h.publishes[producer]))}
	h.publishes[producer] = append(h.publishes[producer], Publish{Value: v, Partition: partition(v), Start: h.Now()})
	return v
}

// End notes what became of a publish.
func (h *History) End(v Value, o Outcome, offset int64, duplicate bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &h.publishes[v.Producer][v.Seq]
	p.Outcome, p.Offset, p.Duplicate, p.End = o, offset, duplicate, h.Now()
	if err != nil {
		p.Error = err.Error()
	}
}

// AddFault notes a fault that began at start and has had its effect by now.
func (h *History) AddFault(kind string, start time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, Fault{kind, start, h.Now()})
}

// Pending returns how many publishes have no answer.
func (h *History) Pending() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, list := range h.publishes {
		for i := range list {
			if list[i].Outcome == Pending {
				n++
			}
		}
	}
	return n
}

// Write writes the history as JSON, one event a line: producers, faults, publishes.
func (h *History) Write(w io.Writer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	enc := json.NewEncoder(w)
	for _, p := range h.producers {
		if err := enc.Encode(map[string]any{"op": "producer", "producer": p}); err != nil {
			return err
		}
	}
	for _, f := range h.faults {
		if err := enc.Encode(map[string]any{"op": "fault", "fault": f}); err != nil {
			return err
		}
	}
	for _, list := range h.publishes {
		for _, p := range list {
			if err := enc.Encode(map[string]any{"op": "publish", "publish": p}); err != nil {
				return err
			}
		}
	}
	return nil
}
