package meta

import (
	"slices"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/fault"
)

// Dispatch says whether a topic stores what is published to it. It is chosen at creation and never changes.
type Dispatch string

// The dispatch modes.
const (
	Reliable    Dispatch = "reliable"     // stored; delivered from any offset that is retained
	NonReliable Dispatch = "non_reliable" // not stored; delivered to who is there
)

// Names of the fsync modes a topic may choose.
const (
	FsyncOnCommit = "on_commit" // flushed before it is acknowledged
	FsyncPeriodic = "periodic"  // flushed within the fsync interval
	FsyncNone     = "none"      // flushed when the operating system likes
)

// Bounds of settings. They decide what Apply refuses, so every broker of a cluster must agree on them: changing one
// needs a new command version.
const (
	MaxPartitions      = 10_000
	MaxTopics          = 1_000_000
	MaxNamespaces      = 100_000
	MinSegmentBytes    = 64 << 10
	MaxSegmentBytes    = 2 << 30
	MaxFsyncIntervalMs = 3_600_000
	maxGeneration      = 1<<31 - 1 // the field on the wire is a signed 32-bit number
	maxMs              = 1 << 53   // milliseconds; far beyond any date, and exact in JSON readers that use floats
)

// Settings are a topic's own. What is nil comes from the broker's defaults. A Settings that is part of a View must not
// be changed, nor what its pointers point at.
type Settings struct {
	Fsync           *string `json:"fsync,omitempty"`             // one of the Fsync… names
	FsyncIntervalMs *int64  `json:"fsync_interval_ms,omitempty"` // 1 to MaxFsyncIntervalMs; used under periodic
	RetentionBytes  *int64  `json:"retention_bytes,omitempty"`   // per partition; 0: no limit
	RetentionAgeMs  *int64  `json:"retention_age_ms,omitempty"`  // 0: no limit
	SegmentBytes    *int64  `json:"segment_bytes,omitempty"`     // MinSegmentBytes to MaxSegmentBytes

	// Of what is exported of a partition; the two above are of its log.
	ObjectRetentionBytes *int64 `json:"object_retention_bytes,omitempty"`  // per partition; 0: no limit
	ObjectRetentionAgeMs *int64 `json:"object_retention_age_ms,omitempty"` // 0: no limit
}

// Names of the settings, as commands, listeners and the command line spell them.
const (
	KeyFsync          = "fsync"
	KeyFsyncInterval  = "fsync_interval_ms"
	KeyRetentionBytes = "retention_bytes"
	KeyRetentionAge   = "retention_age_ms"
	KeySegmentBytes   = "segment_bytes"

	KeyObjectRetentionBytes = "object_retention_bytes"
	KeyObjectRetentionAge   = "object_retention_age_ms"
)

// SettingKeys lists the names of all settings, in the order they are shown.
func SettingKeys() []string {
	return []string{KeyFsync, KeyFsyncInterval, KeyRetentionBytes, KeyRetentionAge, KeySegmentBytes, KeyObjectRetentionBytes, KeyObjectRetentionAge}
}

// Keys lists the names of the settings that are set, in the order they are shown.
func (s Settings) Keys() []string {
	var keys []string
	for _, k := range SettingKeys() {
		if s.has(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (s Settings) has(key string) bool {
	switch key {
	case KeyFsync:
		return s.Fsync != nil
	case KeyFsyncInterval:
		return s.FsyncIntervalMs != nil
	case KeyRetentionBytes:
		return s.RetentionBytes != nil
	case KeyRetentionAge:
		return s.RetentionAgeMs != nil
	case KeySegmentBytes:
		return s.SegmentBytes != nil
	case KeyObjectRetentionBytes:
		return s.ObjectRetentionBytes != nil
	case KeyObjectRetentionAge:
		return s.ObjectRetentionAgeMs != nil
	}
	return false
}

// Merge returns s with the settings that change has taken over and those named in unset removed.
func (s Settings) Merge(change Settings, unset []string) Settings {
	if change.Fsync != nil {
		s.Fsync = change.Fsync
	}
	if change.FsyncIntervalMs != nil {
		s.FsyncIntervalMs = change.FsyncIntervalMs
	}
	if change.RetentionBytes != nil {
		s.RetentionBytes = change.RetentionBytes
	}
	if change.RetentionAgeMs != nil {
		s.RetentionAgeMs = change.RetentionAgeMs
	}
	if change.SegmentBytes != nil {
		s.SegmentBytes = change.SegmentBytes
	}
	if change.ObjectRetentionBytes != nil {
		s.ObjectRetentionBytes = change.ObjectRetentionBytes
	}
	if change.ObjectRetentionAgeMs != nil {
		s.ObjectRetentionAgeMs = change.ObjectRetentionAgeMs
	}
	for _, k := range unset {
		switch k {
		case KeyFsync:
			s.Fsync = nil
		case KeyFsyncInterval:
			s.FsyncIntervalMs = nil
		case KeyRetentionBytes:
			s.RetentionBytes = nil
		case KeyRetentionAge:
			s.RetentionAgeMs = nil
		case KeySegmentBytes:
			s.SegmentBytes = nil
		case KeyObjectRetentionBytes:
			s.ObjectRetentionBytes = nil
		case KeyObjectRetentionAge:
			s.ObjectRetentionAgeMs = nil
		}
	}
	return s
}

// Validate returns an invalid_argument error that names the setting, its value and what is allowed. Listeners call it
// to refuse early; Apply calls it again.
func (s Settings) Validate(d Dispatch) error {
	if err := s.check(d); err != nil {
		return err
	}
	return nil
}

func (s Settings) check(d Dispatch) *fault.Error {
	if d != Reliable && d != NonReliable {
		return badSetting("dispatch", string(d), "reliable or non_reliable")
	}
	if keys := s.Keys(); d == NonReliable && len(keys) > 0 {
		return fault.New(fault.InvalidArgument,
			"a non_reliable topic stores nothing and cannot have %s: leave it out, or create the topic as reliable",
			strings.Join(keys, ", ")).With("key", keys[0])
	}
	if m := s.Fsync; m != nil && !slices.Contains([]string{FsyncOnCommit, FsyncPeriodic, FsyncNone}, *m) {
		return badSetting(KeyFsync, *m, "on_commit, periodic or none")
	}
	for _, r := range []struct {
		key      string
		value    *int64
		min, max int64
		allowed  string
	}{
		{KeyFsyncInterval, s.FsyncIntervalMs, 1, MaxFsyncIntervalMs, "1 to 3600000 (milliseconds, one hour)"},
		{KeyRetentionBytes, s.RetentionBytes, 0, 1<<63 - 1, "0 (no limit) or a number of bytes"},
		{KeyRetentionAge, s.RetentionAgeMs, 0, maxMs, "0 (no limit) or a number of milliseconds"},
		{KeyObjectRetentionBytes, s.ObjectRetentionBytes, 0, 1<<63 - 1, "0 (no limit) or a number of bytes"},
		{KeyObjectRetentionAge, s.ObjectRetentionAgeMs, 0, maxMs, "0 (no limit) or a number of milliseconds"},
		{KeySegmentBytes, s.SegmentBytes, MinSegmentBytes, MaxSegmentBytes, "65536 (64 KiB) to 2147483648 (2 GiB)"},
	} {
		if r.value != nil && (*r.value < r.min || *r.value > r.max) {
			return badSetting(r.key, strconv.FormatInt(*r.value, 10), r.allowed)
		}
	}
	return nil
}

func badSetting(key, value, allowed string) *fault.Error {
	if len(value) > MaxNameLength {
		value = value[:MaxNameLength] + "…"
	}
	return fault.New(fault.InvalidArgument, "%s = %q is not allowed: use %s", key, value, allowed).
		With("key", key).With("value", value).With("allowed", allowed)
}
