package meta

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sort"

	"github.com/leveemq/levee/internal/fault"
)

// AckBlockOffsets is how many offsets one block of a cursor stands for.
const AckBlockOffsets = 4096

// Bounds of cursors. As the bounds of settings they are part of what Apply does.
const (
	MaxCursorSaves    = 10_000 // in one command
	MaxCursorBlocks   = 16_384 // of one cursor
	MaxDeliveryCounts = 10_000 // of one cursor
	maxAckBlockBytes  = 1024   // the forms there are take up to 513
	maxAckBlock       = 1<<63/AckBlockOffsets - 1
)

// Cursor is where a subscription is in one partition. Everything below Position is settled, and of what is above, what
// the blocks say. It never changes: each save makes another.
type Cursor struct {
	Epoch    uint64          // 1 at creation, 1 more with each seek
	Position int64           // first offset that is not settled
	Blocks   []AckBlock      // by number
	Counts   []DeliveryCount // by offset
}

// AckBlock says which of AckBlockOffsets offsets from Number*AckBlockOffsets on are settled. What Bits mean is the
// business of whoever writes them.
type AckBlock struct {
	Number int64  `json:"n"`
	Bits   []byte `json:"b,omitempty"`
}

// DeliveryCount is how often a message that is not settled was handed out.
type DeliveryCount struct {
	Offset     int64
	Deliveries int32
}

// SaveCursors stores where cursors are, many in one command. An entry that no longer fits is left out and counted in
// Result.Skipped: its topic or subscription is gone or another one, the cursor was moved by a seek, or its blocks would
// be too many. The command itself is never refused for that.
type SaveCursors struct {
	Cursors []CursorSave `json:"c"`
}

// CursorSave is what is stored of one cursor. The names are short: thousands of these go into the log each second.
type CursorSave struct {
	ID           TopicID         `json:"t"`
	Subscription string          `json:"s"`
	Created      uint64          `json:"c"` // Subscription.Created
	Partition    int32           `json:"p,omitempty"`
	Epoch        uint64          `json:"e"`           // Cursor.Epoch
	Position     int64           `json:"o"`           // a lower one than the cursor's changes nothing: it never goes back
	Blocks       []AckBlock      `json:"b,omitempty"` // take the place of those with their numbers; without Bits: gone
	Counts       []DeliveryCount `json:"n,omitempty"` // take the place of all there are
	ActiveMs     int64           `json:"a,omitempty"` // Subscription.ActiveMs, where it is higher
}

// SeekCursor moves a cursor to any position, as if nothing above had been settled. Refused with deleted where the
// subscription was made again, with conflict where the cursor was moved since. Result.Cursor is the cursor as moved.
type SeekCursor struct {
	Topic        Name    `json:"topic"`
	ID           TopicID `json:"id"`
	Subscription string  `json:"subscription"`
	Created      uint64  `json:"created"` // Subscription.Created
	Partition    int32   `json:"partition"`
	Epoch        uint64  `json:"epoch"` // Cursor.Epoch it was decided on
	Position     int64   `json:"position"`
}

// Op returns the command's stored name.
func (SaveCursors) Op() string { return "cursors.save" }

// Op returns the command's stored name.
func (SeekCursor) Op() string { return "cursor.seek" }

// Validate refuses entries that could fit no cursor.
func (c SaveCursors) Validate() error {
	if len(c.Cursors) < 1 || len(c.Cursors) > MaxCursorSaves {
		return fault.New(fault.InvalidArgument, "%d cursors are not allowed: save 1 to %d at once", len(c.Cursors), MaxCursorSaves)
	}
	for _, s := range c.Cursors {
		if err := s.validate(); err != nil {
			return fault.New(fault.KindOf(err), "cursor of subscription %q, topic id %s, partition %d: %w", s.Subscription, s.ID, s.Partition, err)
		}
	}
	return nil
}

func (s *CursorSave) validate() error {
	if s.ID == (TopicID{}) {
		return fault.New(fault.InvalidArgument, "the topic id must not be zero")
	}
	return firstError(ValidateSubscription(s.Subscription), checkPartition(s.Partition), checkOffset("position", s.Position),
		checkTime(s.ActiveMs), checkBlocks(s.Blocks), checkCounts(s.Counts))
}

func checkBlocks(blocks []AckBlock) error {
	if len(blocks) > MaxCursorBlocks {
		return fault.New(fault.InvalidArgument, "%d blocks are too many: use up to %d", len(blocks), MaxCursorBlocks)
	}
	for i, b := range blocks {
		switch {
		case b.Number < 0 || b.Number > maxAckBlock:
			return fault.New(fault.InvalidArgument, "block %d is not allowed: use 0 to %d", b.Number, int64(maxAckBlock))
		case i > 0 && b.Number <= blocks[i-1].Number:
			return fault.New(fault.InvalidArgument, "block %d stands behind block %d: give each once, in order", b.Number, blocks[i-1].Number)
		case len(b.Bits) > maxAckBlockBytes:
			return fault.New(fault.InvalidArgument, "block %d has %d bytes: use up to %d", b.Number, len(b.Bits), maxAckBlockBytes)
		}
	}
	return nil
}

func checkCounts(counts []DeliveryCount) error {
	if len(counts) > MaxDeliveryCounts {
		return fault.New(fault.InvalidArgument, "%d delivery counts are too many: use up to %d", len(counts), MaxDeliveryCounts)
	}
	for i, n := range counts {
		switch {
		case n.Offset < 0 || n.Deliveries < 1:
			return fault.New(fault.InvalidArgument, "%d deliveries of offset %d are not allowed: use 1 or more, of 0 or above", n.Deliveries, n.Offset)
		case i > 0 && n.Offset <= counts[i-1].Offset:
			return fault.New(fault.InvalidArgument, "offset %d stands behind offset %d: give each once, in order", n.Offset, counts[i-1].Offset)
		}
	}
	return nil
}

// Validate refuses a name, id, partition or offset that cannot be.
func (c SeekCursor) Validate() error {
	return firstError(checkTopic(c.Topic, c.ID), ValidateSubscription(c.Subscription), checkPartition(c.Partition), checkOffset("position", c.Position))
}

func (c SaveCursors) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	skipped := 0
	for i := range c.Cursors {
		if !c.Cursors[i].save(v) {
			skipped++
		}
	}
	return Result{Skipped: skipped}, nil
}

// save changes the cursor and reports whether the entry fits one that there is.
func (s *CursorSave) save(v *View) bool {
	owner := subscriptionKey(s.ID, s.Subscription)
	sub, ok := v.subscriptions.get(owner)
	if !ok || sub.Created != s.Created {
		return false
	}
	key := cursorKey(s.ID, s.Subscription, s.Partition)
	old, ok := v.cursors.get(key)
	if !ok || old.Epoch != s.Epoch {
		return false
	}
	next := &Cursor{Epoch: old.Epoch, Position: max(old.Position, s.Position)}
	if next.Blocks = mergeBlocks(old.Blocks, s.Blocks, next.Position); len(next.Blocks) > MaxCursorBlocks {
		return false
	}
	next.Counts = onward(s.Counts, func(n DeliveryCount) bool { return n.Offset >= next.Position })
	v.cursors = v.cursors.set(key, next)
	if s.ActiveMs > sub.ActiveMs {
		changed := *sub
		changed.ActiveMs = s.ActiveMs
		v.subscriptions = v.subscriptions.set(owner, &changed)
	}
	return true
}

// mergeBlocks returns old with the changed blocks in the place of those with their numbers, without empty ones and
// without those wholly below the position. Both are in order, and so is the result; neither is changed.
func mergeBlocks(old, change []AckBlock, position int64) []AckBlock {
	above := func(b AckBlock) bool { return b.Number >= position/AckBlockOffsets }
	kept, changed := onward(old, above), onward(change, above)
	if len(changed) == 0 && len(kept) == len(old) {
		return old
	}
	merged := make([]AckBlock, 0, len(kept)+len(changed)) // another array also where blocks only went: it would hold on to them
	for len(kept) > 0 || len(changed) > 0 {
		switch {
		case len(changed) == 0 || len(kept) > 0 && kept[0].Number < changed[0].Number:
			merged, kept = append(merged, kept[0]), kept[1:]
			continue
		case len(kept) > 0 && kept[0].Number == changed[0].Number:
			kept = kept[1:]
		}
		if len(changed[0].Bits) > 0 {
			merged = append(merged, changed[0])
		}
		changed = changed[1:]
	}
	return some(merged)
}

// onward returns the part of an ordered list that begins with the first for which it holds; nil where that is empty.
func onward[E any](list []E, holds func(E) bool) []E {
	return some(list[sort.Search(len(list), func(i int) bool { return holds(list[i]) }):])
}

// some returns nil for an empty list: the same state must look the same, however it came about.
func some[E any](list []E) []E {
	if len(list) == 0 {
		return nil
	}
	return list
}

func (c SeekCursor) apply(_ *State, v *View, _ uint64) (Result, *fault.Error) {
	sub, refused := v.incarnation(c.Topic, c.ID, c.Subscription, c.Created)
	if refused != nil {
		return Result{}, refused
	}
	key := cursorKey(c.ID, c.Subscription, c.Partition)
	old, ok := v.cursors.get(key)
	if !ok {
		return Result{}, fault.New(fault.NotFound, "topic %s has no partition %d", c.Topic, c.Partition)
	}
	if old.Epoch != c.Epoch || old.Epoch == 1<<64-1 {
		return Result{}, fault.New(fault.Conflict, "subscription %s of topic %s: its cursor in partition %d was moved meanwhile (epoch %d, now %d): read it again",
			c.Subscription, c.Topic, c.Partition, c.Epoch, old.Epoch).With("epoch", old.Epoch)
	}
	next := &Cursor{Epoch: old.Epoch + 1, Position: c.Position}
	v.cursors = v.cursors.set(key, next)
	return Result{Subscription: sub, Cursor: next}, nil
}

// Cursor returns where a subscription is in a partition.
func (v *View) Cursor(id TopicID, subscription string, partition int32) (*Cursor, bool) {
	return v.cursors.get(cursorKey(id, subscription, partition))
}

// cursorMark ends the subscription's name in a key; it is in no name and below all that are, so keys are in the order of
// names.
const cursorMark = "\x00"

// cursorKey is the subscription's key, the mark, then the partition, highest byte first.
func cursorKey(id TopicID, subscription string, partition int32) string {
	b := make([]byte, 0, len(id)+len(subscription)+len(cursorMark)+4)
	b = append(append(append(b, id[:]...), subscription...), cursorMark...)
	return string(binary.BigEndian.AppendUint32(b, uint32(partition)))
}

// splitCursorKey is the reverse of cursorKey.
func splitCursorKey(key string) (id TopicID, subscription string, partition int32) {
	end := len(key) - len(cursorMark) - 4
	return TopicID([]byte(key[:len(id)])), key[len(id):end], int32(binary.BigEndian.Uint32([]byte(key[len(key)-4:])))
}

// MarshalJSON writes [offset, deliveries].
func (n DeliveryCount) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d]", n.Offset, n.Deliveries), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (n *DeliveryCount) UnmarshalJSON(b []byte) error {
	var pair []int64
	if err := json.Unmarshal(b, &pair); err != nil {
		return fmt.Errorf("delivery count: %w", err)
	}
	if len(pair) != 2 || pair[1] < 1 || pair[1] > 1<<31-1 {
		return fmt.Errorf("delivery count: want [offset, deliveries], have %v", pair)
	}
	*n = DeliveryCount{Offset: pair[0], Deliveries: int32(pair[1])}
	return nil
}
