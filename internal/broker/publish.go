package broker

import (
	"context"
	"errors"

	"github.com/leveemq/levee/internal/fault"
	"github.com/leveemq/levee/record"
)

// Publish packs records into one batch, publishes it and waits for the answer. partition -1 chooses one: by the key that
// all records have in common, or in turn where none has a key. A record whose timestamp is 0 gets the broker's time. It
// returns the partition. After an error of kind outcome_unknown the records may have been written, or may yet be.
func (b *Broker) Publish(ctx context.Context, topic string, partition int32, records []record.Record) (int32, PublishResult, error) {
	p, err := b.OpenPublisher(ctx, topic, nil)
	if err != nil {
		b.metrics.refused(err)
		return partition, PublishResult{}, err
	}
	defer p.Close()
	if partition == -1 {
		if partition, err = p.t.route(records); err != nil {
			b.metrics.refused(err)
			return -1, PublishResult{}, err
		}
	}
	batch, err := packRecords(records, b.cfg.Now().UnixMilli())
	if err != nil {
		err = errBatch(err, p.t.Full, partition, b.batches)
		b.metrics.refused(err)
		return partition, PublishResult{}, err
	}
	r, err := p.wait(ctx, partition, batch)
	return partition, r, err
}

// PublishBatch publishes one encoded batch and waits for the answer, as Publish does.
func (b *Broker) PublishBatch(ctx context.Context, topic string, partition int32, batch []byte) (PublishResult, error) {
	p, err := b.OpenPublisher(ctx, topic, nil)
	if err != nil {
		b.metrics.refused(err)
		return PublishResult{}, err
	}
	defer p.Close()
	return p.wait(ctx, partition, batch)
}

// wait submits a batch and waits for its answer, or until ctx is done: then nobody knows. The batch must not be changed
// even then.
func (p *Publisher) wait(ctx context.Context, partition int32, batch []byte) (PublishResult, error) {
	answer := make(chan PublishResult, 1)
	if err := p.Submit(ctx, partition, batch, func(r PublishResult) { answer <- r }); err != nil {
		return PublishResult{}, err
	}
	select {
	case r := <-answer:
		return r, r.Err
	case <-ctx.Done():
		return PublishResult{}, fault.New(fault.OutcomeUnknown,
			"publish to %s/%d: gave up waiting (%w): the records may have been written, or may yet be", p.t.Full, partition, context.Cause(ctx))
	}
}

// packRecords builds one uncompressed batch; records without a timestamp get now.
func packRecords(records []record.Record, now int64) ([]byte, error) {
	if len(records) == 0 {
		return nil, errors.New("there is no record to publish")
	}
	builder := record.NewBuilder(record.None)
	for _, r := range records {
		if r.Timestamp == 0 {
			r.Timestamp = now
		}
		if err := builder.Append(r); err != nil {
			return nil, err
		}
	}
	return builder.Build(record.NoProducer)
}
