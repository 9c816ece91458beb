// Package exposure says in words what each fault would cost a topic. It is pure: it knows settings, and neither the topic
// nor where its records are. Its one invariant: what it does not say is lost, is not lost.
package exposure

import (
	"fmt"
	"time"

	"github.com/leveemq/levee/internal/seglog"
)

// Topic is what the answer depends on.
type Topic struct {
	Reliable bool
	// Of a reliable one:
	Mode           seglog.Mode
	FsyncInterval  time.Duration
	RetentionBytes int64         // 0: no limit
	RetentionAge   time.Duration // 0: no limit
	Copied         bool          // sealed segments are copied to a store of objects
	ObjectBytes    int64         // retention of the copies; 0: no limit
	ObjectAge      time.Duration // 0: no limit
	SealAge        time.Duration // with Copied: a segment is sealed, and copied, at the latest after
	Inside         bool          // with Copied: the store is in the data directory
	Buffered       bool          // what is acknowledged is in a write buffer, too
	Degrade        bool          // with Buffered: but not while that is away
	KeepSegments   int           // with Buffered and not Copied: sealed segments that stay in it; 0: what retention keeps
}

// Loss says what one fault would cost.
type Loss struct {
	Fault string // e.g. "the machine loses power"
	Loses string // e.g. "nothing that was acknowledged"
}

// Of says, fault by fault, what a topic would lose, in words an operator can act on.
func Of(t Topic) []Loss {
	if !t.Reliable {
		return []Loss{
			{"a subscriber is slow", "the oldest messages waiting for it, once more wait than its buffer holds; it is told how many"},
			{"nobody subscribes while a message is published", "that message"},
			{"the broker restarts, or its process is killed", "every message not delivered yet; offsets start at 0 again"},
			{"the machine loses power", "every message not delivered yet; offsets start at 0 again"},
			{"the disk fills up, fails or is lost", "nothing: this topic stores nothing"},
			{"the topic is deleted", "every message not delivered yet"},
		}
	}
	const nothing = "nothing that was acknowledged"
	var power, flush string
	switch t.Mode {
	case seglog.Periodic:
		interval := round(t.FsyncInterval)
		power = fmt.Sprintf("what was acknowledged in the last %s and during the flush that ends them; the offsets are declared lost to readers", interval)
		flush = fmt.Sprintf("what was acknowledged in the %s and the flush before it; the partition takes no more until the broker restarts", interval)
	case seglog.None:
		power = "whatever the operating system had not written yet: no bound, often the last 30 seconds; the offsets are declared lost to readers"
		flush = "whatever was acknowledged and not yet flushed: no bound; the partition takes no more until the broker restarts"
	default:
		power = nothing
		flush = nothing + "; the publish in progress fails and the partition takes no more until the broker restarts"
	}
	if t.Buffered && t.Mode != seglog.OnCommit {
		power, flush = nothing+": the write buffer has it", nothing+": the write buffer has it; the partition takes no more until the broker restarts"
	}
	deletion := "everything in the topic, at once and for good"
	if t.Copied || t.Buffered {
		deletion = "everything in the topic and every copy of it, at once and for good"
	}
	lost := []Loss{
		{"the broker's process is killed", nothing},
		{"the machine loses power", power},
		{"the disk, or the data directory on it, is lost", diskLost(t)},
		{"the disk fills up", nothing + "; publishes are refused until there is room, reads go on"},
		{"a flush fails (input/output error)", flush},
		{"an operator deletes the topic", deletion},
	}
	if t.Buffered {
		away := nothing + "; publishes are refused until it is back"
		if t.Degrade {
			away = nothing + " while this disk is there: publishes go on, and what is acknowledged then is on this disk alone, from the offset that `levee topic describe` shows as uncovered"
		}
		lost = append(lost, Loss{"the write buffer is away, or loses what it holds", away},
			Loss{"the write buffer is lost together with the disk", unbuffered(t)})
	}
	if t.Copied {
		lost = append(lost, Loss{"the object store is away", nothing + "; what is not copied stays on this disk, which fills"})
	}
	if r := retained(t); r != "" {
		lost = append(lost, Loss{"retention runs", r})
	}
	return lost
}

// diskLost says what the loss of the disk costs.
func diskLost(t Topic) string {
	if !t.Buffered {
		return unbuffered(t)
	}
	has := "nothing that was acknowledged: the write buffer has it"
	switch {
	case t.Copied && t.Inside:
		has = "what is copied: the copies are in the data directory, too, and the write buffer keeps only what is not copied"
	case t.Copied:
		has = "nothing that was acknowledged: the write buffer or the object store has it"
	case t.KeepSegments > 0:
		has = fmt.Sprintf("everything older than the newest %d sealed segments of a partition, which the write buffer does not keep; nothing else that was acknowledged", t.KeepSegments)
	}
	if t.Degrade {
		has += "; but for what was acknowledged while the write buffer was away"
	}
	return has
}

// unbuffered says what it costs where no write buffer has anything.
func unbuffered(t Topic) string {
	switch {
	case !t.Copied:
		return "everything in the topic: there is no other copy"
	case t.Inside:
		return "everything in the topic: the copies are in the data directory, too"
	}
	return fmt.Sprintf("what is not copied to the object store yet, which is what came since a segment was begun, %s at most while the store answers; its offsets are declared lost once you accept that", round(t.SealAge))
}

// retained says what retention removes, or "" where it is off.
func retained(t Topic) string {
	what, bytes, age := "segments", t.RetentionBytes, t.RetentionAge
	switch {
	case t.Copied && t.ObjectBytes == 0 && t.ObjectAge == 0 && (bytes > 0 || age > 0):
		return "nothing: the log lets go of a segment only once there is a copy, and readers are given that"
	case t.Copied && bytes == 0 && age == 0:
		return "" // the log keeps everything
	case t.Copied:
		what, bytes, age = "objects", t.ObjectBytes, t.ObjectAge
	}
	switch {
	case bytes > 0 && age > 0:
		return fmt.Sprintf("whole %s older than %s or beyond %d bytes of a partition, oldest first, read or not", what, round(age), bytes)
	case bytes > 0:
		return fmt.Sprintf("whole %s beyond %d bytes of a partition, oldest first, read or not", what, bytes)
	case age > 0:
		return fmt.Sprintf("whole %s older than %s, oldest first, read or not", what, round(age))
	}
	return ""
}

// round spells a duration in the largest unit that it is a whole number of.
func round(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}} {
		if d >= u.unit && d%u.unit == 0 {
			return fmt.Sprintf("%d %s", d/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}
