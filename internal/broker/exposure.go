package broker

import (
	"fmt"
	"time"

	"github.com/leveemq/levee/internal/seglog"
)

// exposures says, fault by fault, what a topic with these effective settings would lose, in words an operator can act
// on. It is a pure function.
func exposures(s Settings, reliable bool) []Exposure {
	if !reliable {
		return []Exposure{
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
	switch modeOf(*s.Fsync) {
	case seglog.Periodic:
		interval := round(*s.FsyncInterval)
		power = fmt.Sprintf("what was acknowledged in the last %s and during the flush that ends them; the offsets are declared lost to readers", interval)
		flush = fmt.Sprintf("what was acknowledged in the %s and the flush before it; the partition takes no more until the broker restarts", interval)
	case seglog.None:
		power = "whatever the operating system had not written yet: no bound, often the last 30 seconds; the offsets are declared lost to readers"
		flush = "whatever was acknowledged and not yet flushed: no bound; the partition takes no more until the broker restarts"
	default:
		power = nothing
		flush = nothing + "; the publish in progress fails and the partition takes no more until the broker restarts"
	}
	lost := []Exposure{
		{"the broker's process is killed", nothing},
		{"the machine loses power", power},
		{"the disk, or the data directory on it, is lost", "everything in the topic: this broker has the only copy"},
		{"the disk fills up", nothing + "; publishes are refused until there is room, reads go on"},
		{"a flush fails (input/output error)", flush},
		{"an operator deletes the topic", "everything in the topic, at once and for good"},
	}
	if r := retained(s); r != "" {
		lost = append(lost, Exposure{"retention runs", r})
	}
	return lost
}

// retained says what retention removes, or "" where it is off.
func retained(s Settings) string {
	switch bytes, age := *s.RetentionBytes, *s.RetentionAge; {
	case bytes > 0 && age > 0:
		return fmt.Sprintf("whole segments older than %s or beyond %d bytes of a partition, oldest first, read or not", round(age), bytes)
	case bytes > 0:
		return fmt.Sprintf("whole segments beyond %d bytes of a partition, oldest first, read or not", bytes)
	case age > 0:
		return fmt.Sprintf("whole segments older than %s, oldest first, read or not", round(age))
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
