package broker

import (
	"time"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/tier"
)

// toMeta returns s as the metadata stores it. Durations must be whole milliseconds: see check.
func (s Settings) toMeta() meta.Settings {
	return meta.Settings{
		Fsync: s.Fsync, FsyncIntervalMs: milliseconds(s.FsyncInterval), RetentionBytes: s.RetentionBytes,
		RetentionAgeMs: milliseconds(s.RetentionAge), SegmentBytes: s.SegmentBytes,
		ObjectRetentionBytes: s.ObjectRetentionBytes, ObjectRetentionAgeMs: milliseconds(s.ObjectRetentionAge),
	}
}

// check refuses what toMeta could not keep exactly: half a millisecond of retention would read as none at all.
func (s Settings) check() error {
	for _, d := range []struct {
		key   string
		value *time.Duration
	}{{SettingFsyncInterval, s.FsyncInterval}, {SettingRetentionAge, s.RetentionAge}, {SettingObjectRetentionAge, s.ObjectRetentionAge}} {
		if d.value != nil && *d.value%time.Millisecond != 0 {
			return fault.New(fault.InvalidArgument, "%s = %v is not allowed: use whole milliseconds", d.key, *d.value).With("key", d.key)
		}
	}
	return nil
}

func fromMeta(s meta.Settings) Settings {
	return Settings{
		Fsync: s.Fsync, FsyncInterval: duration(s.FsyncIntervalMs), RetentionBytes: s.RetentionBytes,
		RetentionAge: duration(s.RetentionAgeMs), SegmentBytes: s.SegmentBytes,
		ObjectRetentionBytes: s.ObjectRetentionBytes, ObjectRetentionAge: duration(s.ObjectRetentionAgeMs),
	}
}

func milliseconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

func duration(ms *int64) *time.Duration {
	if ms == nil {
		return nil
	}
	const most = int64(1<<63-1) / int64(time.Millisecond)
	d := time.Duration(min(*ms, most)) * time.Millisecond
	return &d
}

// effective returns s with the defaults where it sets nothing. Objects are kept for ever by default: what limits them is
// nil then.
func (d TopicDefaults) effective(s meta.Settings) Settings {
	return fromMeta(d.settings().toMeta().Merge(s, nil))
}

// forPartition returns what the partitions of a topic with settings s work by.
func (d TopicDefaults) forPartition(s meta.Settings) partition.Settings {
	e := d.effective(s)
	return partition.Settings{
		Mode: modeOf(*e.Fsync), ModeChosen: s.Fsync != nil, FsyncInterval: *e.FsyncInterval, SegmentBytes: *e.SegmentBytes,
		Retention: seglog.Retention{Bytes: *e.RetentionBytes, Age: *e.RetentionAge}, Objects: tier.Retention{Bytes: value(e.ObjectRetentionBytes), Age: value(e.ObjectRetentionAge)},
	}
}

// info describes a topic as the metadata has it.
func (d TopicDefaults) info(t *meta.Topic) *TopicInfo {
	i := &TopicInfo{
		Name: t.Name.String(), ID: t.ID, Incarnation: t.Incarnation, Partitions: int32(len(t.Partitions)), //nolint:gosec // bounded by meta
		Dispatch: t.Dispatch, Settings: fromMeta(t.Settings), CreatedMs: t.CreatedMs,
	}
	if t.Dispatch == Reliable {
		i.Effective = d.effective(t.Settings)
	}
	return i
}
