package grpc

import (
	"context"
	"unicode/utf8"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/internal/broker"
	"github.com/leveemq/levee/record"
)

// PublishOnce publishes records, or one encoded batch, and waits for them.
func (s *streamService) PublishOnce(ctx context.Context, req *leveev1.PublishOnceRequest) (*leveev1.PublishOnceResponse, error) {
	s.metrics.publishes.WithLabelValues("once").Inc()
	partition := req.Partition
	var result broker.PublishResult
	var err error
	switch {
	case len(req.Batch) > 0 && len(req.Records) > 0:
		return nil, invalid("publish once: it has both records and a batch: send one of them")
	case len(req.Batch) > 0 && partition < 0:
		return nil, invalid("publish once: partition %d: an encoded batch goes to one partition: name it", partition)
	case len(req.Batch) > 0:
		result, err = s.broker.PublishBatch(ctx, req.Topic, partition, req.Batch)
	default:
		var records []record.Record
		if records, err = recordsOf(req.Records); err == nil {
			partition, result, err = s.broker.Publish(ctx, req.Topic, partition, records)
		}
	}
	if err == nil {
		err = result.Err
	}
	if err != nil {
		return nil, err
	}
	return &leveev1.PublishOnceResponse{
		Partition: partition, Offset: result.Offset, LastOffset: result.LastOffset, Duplicate: result.Duplicate,
	}, nil
}

// recordsOf returns the records a client sent in clear. Their bytes are in's.
func recordsOf(in []*leveev1.Record) ([]record.Record, error) {
	if len(in) == 0 {
		return nil, invalid("publish once: it has no records")
	}
	out := make([]record.Record, len(in))
	for i, r := range in {
		to := &out[i]
		// A value that is absent is an empty one, not a tombstone. A key that has bytes is one, whatever has_key says.
		to.Value = notNil(r.Value)
		if r.HasKey || len(r.Key) > 0 {
			to.Key = notNil(r.Key)
		}
		if to.Timestamp = r.TimestampMs; r.TimestampMs < 0 {
			return nil, invalid("publish once: record %d: timestamp_ms is %d: it counts from 1970, 0 is the broker's time", i, r.TimestampMs)
		}
		for _, h := range r.Headers {
			if !utf8.ValidString(h.Key) {
				return nil, invalid("publish once: record %d: header name %q is not UTF-8", i, h.Key)
			}
			to.Headers = append(to.Headers, record.Header{Key: h.Key, Value: notNil(h.Value)})
		}
	}
	return out, nil
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
