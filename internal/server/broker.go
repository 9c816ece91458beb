package server

import (
	"context"

	"github.com/leveemq/levee/internal/broker"
)

// startBroker makes the broker and lets it open its partitions.
func (s *server) startBroker(context.Context) error {
	c, m := s.cfg, s.metadata.Load()
	b, err := broker.New(broker.Config{
		Meta: m.store, Tier: s.tier, Buffer: s.buffer, Unbuffered: s.unbuffered, FS: s.fs, DataDir: s.dir, Housekeeping: &reserveFS{s.fs, s.reserve}, Room: s.reserve.room, Full: s.reserve.full, Former: s.former,
		Files: m.files, LogMetrics: m.metrics, Registerer: s.registry, Logger: s.log, Now: s.machine.now, Age: s.claim.ages.now,
		Defaults: broker.TopicDefaults{
			Fsync: c.Storage.Fsync, FsyncInterval: c.Storage.FsyncInterval, SegmentBytes: c.Storage.SegmentBytes,
			RetentionBytes: c.Storage.RetentionBytes, RetentionAge: c.Storage.RetentionAge,
		},
		Limits: broker.Limits{
			RecordBytes: c.Limits.RecordBytes, BatchBytes: c.Limits.BatchBytes, DecompressedBytes: c.Limits.DecompressedBytes,
			InFlightBytes: c.Limits.InFlightBytes, Subscribers: c.Limits.Subscribers, Partitions: c.Limits.TopicPartitions,
			TotalPartitions: c.Limits.Partitions, SubscriptionSpan: c.Limits.SubscriptionSpan, RingBytes: c.Limits.RingBytes, RingBatches: c.Limits.RingBatches,
		},
		Crash: s.claim.verdict.crash, VerifyAllOnOpen: c.Storage.VerifyAllOnOpen, RepairChecksumTail: c.Storage.RepairChecksumTail,
		IndexInterval: c.Storage.IndexInterval, RecordsPerRead: c.Storage.RecordsPerRead, BytesPerRead: c.Storage.BytesPerRead,
		StrictStart: c.Storage.StrictStart, OpenParallel: c.Storage.OpenParallel, RetentionEvery: c.Storage.RetentionCheck,
		ProducerExpiry: c.Storage.ProducerExpiry,
	})
	if err != nil {
		return err
	}
	life, end := context.WithCancel(context.Background()) // its stop has a place in the order of all stops
	s.endBroker = end
	s.broker.Store(b)
	s.tasks.Go("broker", func(context.Context) error { return b.Run(life) })
	return nil
}

// stopBroker drains the broker and closes every log. Where there is none, there is nothing to report.
func (s *server) stopBroker(patience context.Context) *broker.DrainReport {
	b := s.broker.Load()
	if b == nil {
		return nil
	}
	report := b.Drain(patience)
	s.endBroker()
	return &report
}
