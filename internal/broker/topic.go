package broker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leveemq/levee/internal/datadir"
	"github.com/leveemq/levee/internal/fan"
	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/internal/meta"
	"github.com/leveemq/levee/internal/partition"
	schemas "github.com/leveemq/levee/internal/registry"
	"github.com/leveemq/levee/internal/seglog"
	"github.com/leveemq/levee/internal/task"
)

// topic is one incarnation of a topic as this broker runs it.
type topic struct {
	partition.Topic
	meta atomic.Pointer[meta.Topic] // as the metadata had it when its settings changed last

	// A reliable topic has parts, a non-reliable one fans; the other is empty.
	parts []*partition.Partition
	fans  []*fan.Fan

	guard atomic.Pointer[schemas.Guard] // what records have to pass; nil where the topic has no policy

	subscribers []atomic.Int32 // by partition
	changing    task.Turn      // whoever changes the topic's settings holds it
	turn        atomic.Uint32  // the partition that the next record without a key goes to
	noRoom      atomic.Int64   // when a publish was last refused because the disk is full, in ns since the epoch; 0: none since one succeeded

	// life ends when the incarnation is deleted or the broker drains; its cause is what handles answer then.
	life task.Life
}

// partitions returns how many partitions the topic has.
func (t *topic) partitions() int { return len(t.subscribers) }

// ended returns why the topic's handles no longer work; nil while they do.
func (t *topic) ended() error {
	if t.life.Err() == nil {
		return nil
	}
	return context.Cause(&t.life)
}

// recently is for how long a refusal for want of room counts as a problem where nobody publishes any more.
const recently = time.Minute

// noteRoom takes note of whether a publish found room. It costs a load of one word where all is well.
func (t *topic) noteRoom(now func() time.Time, err error) {
	switch {
	case err == nil:
		if t.noRoom.Load() != 0 {
			t.noRoom.Store(0)
		}
	case fault.KindOf(err) == fault.NoSpace:
		t.noRoom.Store(now().UnixNano())
	}
}

// lacksRoom reports whether publishes find no room.
func (t *topic) lacksRoom(now time.Time) bool {
	at := t.noRoom.Load()
	return at != 0 && now.Sub(time.Unix(0, at)) < recently
}

// has returns an error unless the topic has that partition.
func (t *topic) has(n int32) error {
	if n < 0 || int(n) >= t.partitions() {
		return errNoPartition(t.Full, n, t.partitions())
	}
	return nil
}

// newTopic makes the runtime of a topic. It does no I/O: partitions are opened by their first use or by Run.
func (b *Broker) newTopic(m *meta.Topic) *topic {
	t := &topic{Topic: partition.Topic{Name: m.Name, Full: m.Name.String(), ID: m.ID, Incarnation: m.Incarnation}}
	t.subscribers = make([]atomic.Int32, len(m.Partitions))
	t.life.Parent = b.life
	t.meta.Store(m)
	settings := b.cfg.Defaults.forPartition(m.Settings)
	for i := range m.Partitions {
		if m.Dispatch == NonReliable {
			t.fans = append(t.fans, fan.New(b.metrics.noteDropped))
			continue
		}
		t.parts = append(t.parts, partition.New(b.partitions, &t.Topic, int32(i), settings)) //nolint:gosec // bounded by meta
	}
	b.topics.setGuard(t) // before anybody can publish
	return t
}

// partitionConfig returns what all partitions of b have in common.
func partitionConfig(b *Broker) *partition.Config {
	return &partition.Config{
		Log: seglog.Config{
			FS: b.cfg.FS, MaxBatchBytes: b.cfg.Limits.BatchBytes, ProducerExpiry: b.cfg.ProducerExpiry, IndexInterval: b.cfg.IndexInterval,
			Crash: b.cfg.Crash, VerifyAllOnOpen: b.cfg.VerifyAllOnOpen, RepairChecksumTail: b.cfg.RepairChecksumTail,
			Files: b.cfg.Files, MakeDir: partition.NewDirs(b.cfg.FS, b.cfg.DataDir, datadir.KeptDirs).Make, Metrics: b.cfg.LogMetrics, Logger: b.cfg.Logger, Now: b.cfg.Age,
		},
		Place: func(t *partition.Topic, n int32) (data, salvage string) {
			return b.layout.Partition(t.Name, t.Incarnation, n)
		},
		Meta: b.cfg.Meta, Tier: b.cfg.Tier, Buffer: b.cfg.Buffer, Unbuffered: b.cfg.Unbuffered, Tasks: b.tasks, Slots: make(chan struct{}, b.cfg.OpenParallel), Logger: b.cfg.Logger, Now: b.cfg.Age,
	}
}

// applyAll applies s to every partition, and with ready to open ones only. It goes on after an error and returns the
// first. The caller holds changing.
func (t *topic) applyAll(ctx context.Context, s partition.Settings, ready bool) error {
	var first error
	for i, p := range t.parts {
		var err error
		if ready {
			err = p.Ready(ctx)
		}
		if err == nil {
			err = p.Apply(ctx, s)
		}
		if err != nil && first == nil {
			first = fmt.Errorf("partition %d: %w", i, err)
		}
	}
	return first
}

// close closes the logs of a topic that has ended. What cannot be flushed any more is about to be removed.
func (t *topic) close(ctx context.Context) error {
	for _, p := range t.parts {
		_ = p.Close(ctx, t.ended())
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}
