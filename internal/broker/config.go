package broker

import (
	"crypto/rand"
	"errors"
	"runtime"
	"time"

	"github.com/leveemq/levee/internal/cursor"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/obs"
	"github.com/leveemq/levee/internal/seglog"
)

const (
	defaultRecordBytes   = 10 << 20
	defaultBatchBytes    = 16 << 20
	defaultUnpackedBytes = 64 << 20
	defaultInFlight      = 256 << 20
	maxBatchBytes        = 64<<20 - 16 // a frame of a log holds no more
)

// Validate returns everything that is wrong with c, or nil.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fault.New(fault.InvalidArgument, format, args...))
	}
	if c.Meta == nil || c.FS == nil || c.DataDir == "" {
		bad("broker: Meta, FS and DataDir are required")
	}
	c = c.withDefaults()
	l := c.Limits
	if l.BatchBytes > maxBatchBytes {
		bad("limit of batch bytes %d is not allowed: at most %d", l.BatchBytes, maxBatchBytes)
	}
	if l.RecordBytes > l.BatchBytes {
		bad("limit of record bytes %d is above that of batch bytes, %d: no such record could be sent", l.RecordBytes, l.BatchBytes)
	}
	if l.InFlightBytes < int64(l.BatchBytes) {
		bad("limit of bytes in flight %d is below that of batch bytes, %d: such a batch would wait for ever", l.InFlightBytes, l.BatchBytes)
	}
	if l.Partitions > meta.MaxPartitions {
		bad("limit of partitions %d is not allowed: at most %d", l.Partitions, meta.MaxPartitions)
	}
	if err := c.Defaults.settings().toMeta().Validate(Reliable); err != nil {
		bad("defaults of topics: %w", err)
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	set(&c.Defaults.FsyncInterval, 250*time.Millisecond)
	set(&c.Defaults.SegmentBytes, 256<<20)
	set(&c.Limits.RecordBytes, defaultRecordBytes)
	set(&c.Limits.BatchBytes, defaultBatchBytes)
	set(&c.Limits.DecompressedBytes, defaultUnpackedBytes)
	set(&c.Limits.InFlightBytes, defaultInFlight)
	set(&c.Limits.Subscribers, 10_000)
	set(&c.Limits.Partitions, 1024)
	set(&c.Limits.TotalPartitions, 20_000)
	set(&c.Limits.SubscriptionSpan, 4096*cursor.BlockSize)
	set(&c.Limits.RingBytes, 16<<20)
	set(&c.Limits.RingBatches, 4096)
	set(&c.RecordsPerRead, 10_000)
	set(&c.BytesPerRead, 1<<20)
	set(&c.OpenParallel, 8*runtime.GOMAXPROCS(0))
	set(&c.RetentionEvery, 30*time.Second)
	set(&c.ProducerExpiry, 7*24*time.Hour)
	c.Logger = obs.Logger(c.Logger)
	if c.Housekeeping == nil {
		c.Housekeeping = c.FS
	}
	if c.Full == nil {
		c.Full = func() bool { return false }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Age == nil {
		c.Age = c.Now
	}
	if c.NewID == nil {
		c.NewID = func() (id [16]byte) {
			_, _ = rand.Read(id[:]) // never fails: the program ends where there is no randomness
			return id
		}
	}
	return c
}

func set[T int | int64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// settings returns the defaults as settings in which every field is set, but for what limits objects: nothing does.
func (d TopicDefaults) settings() Settings {
	fsync := d.Fsync.String()
	return Settings{
		Fsync: &fsync, FsyncInterval: &d.FsyncInterval, RetentionBytes: &d.RetentionBytes, RetentionAge: &d.RetentionAge,
		SegmentBytes: &d.SegmentBytes,
	}
}

// modeOf is the inverse of seglog.Mode.String; a name that is none counts as the safest.
func modeOf(fsync string) seglog.Mode {
	for _, m := range []seglog.Mode{seglog.Periodic, seglog.None} {
		if m.String() == fsync {
			return m
		}
	}
	return seglog.OnCommit
}
